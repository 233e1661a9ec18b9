"""The emulated machine survives SIGKILL of its processes at any point: nothing leaks and no lock stays held."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

import pynvml

from ...support.gpu_emulator import emulator
from .conftest import Nvml
from .mig import cut, fill, instance, instances, mig_devices

SLICE = 4 << 20
KILLS = 24
LONGEST_MS = 30

BUSY = """
import ctypes, mmap, os, sys
page = ctypes.c_size_t(mmap.PAGESIZE)
cuda = ctypes.CDLL(sys.argv[1])
context, fd = ctypes.c_void_p(), ctypes.c_int()
def ok(code):
    assert code in (0, 2), code
    return code == 0
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
cuda.cuCtxSetCurrent(context)
print(flush=True)
while True:
    held = []
    for size in (page.value, 1 << 20, 2 * page.value, 3 << 20):
        pointer = ctypes.c_uint64()
        if not ok(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))):
            continue
        held.append(pointer)
        ok(cuda.cuMemGetHandleForAddressRange(ctypes.byref(fd), pointer, page, 1, ctypes.c_uint64(0)))
        ok(cuda.cuMemsetD8_v2(pointer, 7, page))
        os.close(fd.value)
    cuda.cuCtxSynchronize()
    for pointer in held:
        ok(cuda.cuMemFree_v2(pointer))
"""

CUTTER = """
import ctypes, sys
nvml = ctypes.CDLL(sys.argv[1])
gpu, place = ctypes.c_void_p(), (ctypes.c_uint * 2)(3, 1)
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(gpu)) == 0
print(flush=True)
while True:
    instance, compute = ctypes.c_void_p(), ctypes.c_void_p()
    code = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, 19, place, ctypes.byref(instance))
    if code == 23:  # what a killed one left
        assert nvml.nvmlDeviceGetGpuInstanceById(gpu, 10, ctypes.byref(instance)) == 0
        if nvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0, ctypes.byref(compute)) == 0:
            assert nvml.nvmlComputeInstanceDestroy(compute) == 0
    else:
        assert code == 0, code
        assert nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0, ctypes.byref(compute)) == 0
        assert nvml.nvmlComputeInstanceDestroy(compute) == 0
    assert nvml.nvmlGpuInstanceDestroy(instance) == 0
"""


def begin(code: str, library: str) -> subprocess.Popen[str]:
    """A process that works until it is killed; returns when it does."""
    made = subprocess.Popen(
        [sys.executable, "-IS", "-c", code, emulator() / library], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert made.stdout
    assert made.stdout.readline() == "\n", made.communicate()
    return made


def kill(process: subprocess.Popen[str]) -> None:
    assert process.poll() is None, process.communicate()
    process.kill()
    process.communicate()


def sweep(start: Callable[[], subprocess.Popen[str]], seed: int) -> None:
    """Processes beside each other, each killed after another while."""
    randoms = random.Random(seed)
    running = [start(), start()]
    for _ in range(KILLS):
        victim = running.pop(0)
        with suppress(subprocess.TimeoutExpired):
            victim.wait(randoms.uniform(0, LONGEST_MS) / 1000)
        kill(victim)
        running.append(start())
    for each in running:
        kill(each)


def test_a_process_killed_at_any_point_leaves_no_memory_and_no_use(nvml: Nvml) -> None:
    device = nvml(slice_bytes=SLICE)
    held = instance(device, "2g.10gb", 2)
    sweep(lambda: begin(BUSY, "libcuda.so.1"), seed=1)
    (mig,) = mig_devices(device).values()
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(mig) == []
    assert pynvml.nvmlDeviceGetMemoryInfo(mig).used == 0
    pynvml.nvmlComputeInstanceDestroy(held[1])
    pynvml.nvmlGpuInstanceDestroy(held[0])


def test_a_cutter_killed_at_any_point_leaves_a_machine_that_can_be_cut(nvml: Nvml) -> None:
    device = nvml(slice_bytes=SLICE)
    randoms = random.Random(2)
    for _ in range(KILLS):
        one = begin(CUTTER, "libnvidia-ml.so.1")
        with suppress(subprocess.TimeoutExpired):
            one.wait(randoms.uniform(0, LONGEST_MS) / 1000)
        kill(one)
        assert set(instances(device)) <= {10}
    begun = begin(CUTTER, "libnvidia-ml.so.1")
    kill(begun)
    assert mig_devices(device).keys() <= {0}
    for start in (0, 1, 2, 4, 5, 6):
        fill(device, cut(device, "1g.5gb", start))
