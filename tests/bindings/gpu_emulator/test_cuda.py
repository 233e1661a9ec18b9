"""libcuda of the GPU emulator, driven by NVIDIA's own Python package: devices, memory, instances in use, faults."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

from ...support.gpu_emulator import emulator, environment, load
from .conftest import Cuda, Nvml
from .mig import destroy, instance, mig_devices

PREFIX = "OFFPATH_GPU_EMULATOR_"
SLICE = 4 << 20


# -- NVLink -----------------------------------------------------------------------------------------------------------


def test_native_atomics_are_nvlinks(nvml: Nvml, cuda: Cuda) -> None:
    nvml(gpus=3, mig="off", nvlinks="0-2:1")
    process = cuda(CUDA_VISIBLE_DEVICES="0,1,2")
    process.do("ok(d.cuInit(0))")
    ask = "result = ok(d.cuDeviceGetP2PAttribute(d.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_{}, {}, {}))"
    pairs = [(0, 1), (0, 2), (2, 0)]
    assert [process.do(ask.format("NATIVE_ATOMIC_SUPPORTED", *pair)) for pair in pairs] == [0, 1, 1]
    assert [process.do(ask.format("ACCESS_SUPPORTED", *pair)) for pair in pairs] == [1, 1, 1]
    assert process.fails(ask.format("ACCESS_SUPPORTED", 1, 1)) == 101


# -- which devices ----------------------------------------------------------------------------------------------------

SEEN = """
import ctypes, json, sys, uuid
cuda = ctypes.CDLL(sys.argv[1])
code, count, seen = cuda.cuInit(0), ctypes.c_int(), []
if code == 0:
    cuda.cuDeviceGetCount(ctypes.byref(count))
for i in range(count.value):
    text = ctypes.create_string_buffer(16)
    cuda.cuDeviceGetUuid_v2(text, i)
    seen.append(str(uuid.UUID(bytes=text.raw)))
print(json.dumps([code, seen]))
"""


def seen(visible: str | None) -> Any:
    """Code of cuInit and the UUIDs that a process sees."""
    variables = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    if visible is not None:
        variables["CUDA_VISIBLE_DEVICES"] = visible
    done = subprocess.run(
        [sys.executable, "-IS", "-c", SEEN, emulator() / "libcuda.so.1"], env=variables, capture_output=True, text=True,
        timeout=30, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.parametrize("driver", [535, 570])
def test_a_process_sees_the_devices_that_the_variable_names(nvml: Nvml, driver: int) -> None:
    device = nvml(models="A100-40GB", gpus=2, driver=driver)
    other = pynvml.nvmlDeviceGetHandleByIndex(1)
    assert pynvml.nvmlDeviceSetMigMode(other, 0) == 0
    assert seen("0") == [100, []], "a GPU with MIG on and no instance is no device"
    one, two = instance(device, "1g.5gb", 0)[2], instance(device, "2g.10gb", 2)[2]
    gpu, whole = pynvml.nvmlDeviceGetUUID(device), pynvml.nvmlDeviceGetUUID(other)
    short = {text: text.partition("-")[2] for text in (one, two, gpu, whole)}
    assert seen(one) == [0, [short[one]]]
    assert seen(two) == [0, [short[two]]]
    assert seen(whole) == seen("1") == seen(whole[:12]) == [0, [short[whole]]]
    assert seen(f"{whole},nonsense,{one}") == [0, [short[whole]]], "what follows an unknown name is not seen"
    assert len(seen(gpu)[1]) == len(seen("0")[1]) == 1, "an instance of it"
    for nothing in ("", "nonsense", "2", "MIG-", one[:-1], "-1", "0x1"):
        assert seen(nothing) == [100, []]
    everything = [0, [short[two], short[one], short[whole]]] if driver >= 570 else [0, [short[whole]]]
    code, found = seen(None)
    assert [code, sorted(found)] == [0, sorted(everything[1])]
    assert len(seen(f"{one},{two}")[1]) == (2 if driver >= 570 else 1)


def test_nothing_works_before_init_without_a_context_or_after_a_fork(nvml: Nvml, cuda: Cuda) -> None:
    nvml(mig="off", slice_bytes=SLICE)
    one = cuda()
    assert one.do("result = [code(d.cuDeviceGetCount()), code(d.cuMemAlloc(4)), code(d.cuCtxSynchronize())]") == [
        3,
        3,
        3,
    ]
    assert one.do("result = ok(d.cuDriverGetVersion())") == 13000
    assert one.do("ok(d.cuInit(0)); result = [code(d.cuMemAlloc(4)), code(d.cuMemGetInfo())]") == [201, 201]
    assert one.do("begin(); result = code(d.cuMemAlloc(4))") == 0
    forked = (
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os._exit(code(d.cuMemAlloc(4)) * 10 + code(d.cuInit(0)))\n"
        "result = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    )
    assert one.do(forked) == 33
    assert one.do("result = code(d.cuMemAlloc(4))") == 0, "the parent is as before"
    assert one.do("ok(d.cuDevicePrimaryCtxRelease(0)); result = code(d.cuMemAlloc(4))") == 201


def test_an_import_then_a_fork_then_init_works(nvml: Nvml, cuda: Cuda) -> None:
    nvml(mig="off", slice_bytes=SLICE)
    forked = (
        "pid = os.fork()\nif pid == 0:\n    begin(); "
        "os._exit(7)\nresult = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    )
    assert cuda().do(forked) == 7


def test_a_device_has_the_attributes_that_nvml_reports(nvml: Nvml, cuda: Cuda) -> None:
    device = nvml(models="H100-80GB", slice_bytes=SLICE, ordering=200, dma_buf=0)
    uuid = instance(device, "3g.40gb", 4)[2]
    names = {16: 60, 75: 9, 76: 0, 118: 200, 124: 0, 133: 0, 41: 1, 117: 1}
    found = cuda(CUDA_VISIBLE_DEVICES=uuid).do(
        f"begin(); result = [[ok(d.cuDeviceGetAttribute(d.CUdevice_attribute(a), 0)) for a in {list(names)}],"
        "ok(d.cuDeviceTotalMem(0)), ok(d.cuDeviceGetPCIBusId(20, 0)).decode().split(chr(0))[0], "
        "int(ok(d.cuCtxGetDevice())) == 0]"
    )
    pci = pynvml.nvmlDeviceGetPciInfo(device)
    assert found == [list(names.values()), 4 * SLICE, pci.busIdLegacy, True]


def test_an_instance_is_seen_by_who_may_read_its_two_nodes(nvml: Nvml, tmp_path: Path) -> None:
    """Node numbers follow the minor number, which is 1 of the first of two GPUs."""
    device = nvml(models="A100-40GB", gpus=2)
    uuid = instance(device, "2g.10gb", 2)[2]  # id 4: 3 + 135 + 36, and its compute instance
    with environment(**{PREFIX + "NODES": str(tmp_path)}):
        assert seen(uuid)[0] == 100
        (tmp_path / "nvidia-cap174").touch()
        assert seen(uuid)[0] == 100
        (tmp_path / "nvidia-cap175").touch()
        assert seen(uuid)[0] == 0


@pytest.mark.parametrize("version", [9020, 11040])
def test_the_first_version_of_the_uuid_is_the_gpus(nvml: Nvml, cuda: Cuda, version: int) -> None:
    device = nvml(slice_bytes=SLICE)
    uuid = instance(device)[2]
    called = (
        "ok(d.cuInit(0)); get = LIBRARY.cuGetProcAddress_v2\n"
        "found, answer = ctypes.c_void_p(), (ctypes.c_ubyte * 16)()\n"
        f"get(b'cuDeviceGetUuid', ctypes.byref(found), {version}, ctypes.c_uint64(0), None)\n"
        "call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)(found.value)\n"
        "call(answer, 0); result = bytes(answer).hex()"
    )
    wanted = pynvml.nvmlDeviceGetUUID(device) if version == 9020 else uuid
    assert cuda(CUDA_VISIBLE_DEVICES=uuid).do(called) == wanted[4:].replace("-", "")


def test_a_whole_gpu_works_as_an_instance_does(nvml: Nvml, cuda: Cuda) -> None:
    device = nvml(mig="off", slice_bytes=SLICE)
    one = cuda(CUDA_VISIBLE_DEVICES=pynvml.nvmlDeviceGetUUID(device))
    assert one.do("begin(); v.p = ok(d.cuMemAlloc(1 << 20)); result = ok(d.cuMemGetInfo())") == [30 << 20, 32 << 20]
    (process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
    assert (process.pid, process.usedGpuMemory, process.gpuInstanceId) == (one.process.pid, 2 << 20, 0xFFFFFFFF)
    assert pynvml.nvmlDeviceSetMigMode(device, 1) == pynvml.NVML_ERROR_IN_USE
    one.kill()
    assert pynvml.nvmlDeviceSetMigMode(device, 1) == 0


# -- memory -----------------------------------------------------------------------------------------------------------


def test_an_instance_has_its_own_memory_and_no_more(nvml: Nvml, cuda: Cuda) -> None:
    device = nvml(slice_bytes=SLICE)
    first, second = instance(device, "1g.5gb", 0), instance(device, "1g.5gb", 1)
    one, two = cuda(CUDA_VISIBLE_DEVICES=first[2]), cuda(CUDA_VISIBLE_DEVICES=second[2])
    assert one.do("begin(); v.p = ok(d.cuMemAlloc(4 << 20)); write(v.p, b'x' * 4); result = ok(d.cuMemGetInfo())") == [
        0,
        SLICE,
    ]
    assert one.do("result = [code(d.cuMemAlloc(n)) for n in (1, 4 << 20, 1 << 60, 0)]") == [2, 2, 2, 1]
    assert two.do("begin(); result = ok(d.cuMemGetInfo())") == [SLICE, SLICE]
    assert two.do("v.p = ok(d.cuMemAlloc(4 << 20)); result = read(v.p, 4).hex()") == "00000000"
    assert one.do("ok(d.cuMemFree(v.p)); result = ok(d.cuMemGetInfo())") == [SLICE, SLICE]
    used = [pynvml.nvmlDeviceGetMemoryInfo(mig).used for mig in mig_devices(device).values()]
    assert used == [0, SLICE]


def test_processes_of_one_instance_share_its_memory_and_not_their_pointers(nvml: Nvml, cuda: Cuda) -> None:
    uuid = instance(nvml(slice_bytes=SLICE))[2]
    one, two = (cuda(CUDA_VISIBLE_DEVICES=uuid) for _ in range(2))
    pointer = one.do("begin(); v.p = ok(d.cuMemAlloc(2 << 20)); result = int(v.p)")
    assert two.do("begin(); result = ok(d.cuMemGetInfo())[0]") == SLICE - (2 << 20)
    assert two.do(
        "v.p = ok(d.cuMemAlloc(2 << 20)); "
        f"result = [code(d.cuMemcpyDtoH(bytearray(4), {pointer}, 4)), code(d.cuMemFree({pointer}))]"
    ) == [1, 1]
    assert two.do("result = code(d.cuMemAlloc(1))") == 2
    one.kill()
    assert two.do("result = code(d.cuMemAlloc(1))") == 0, "a dead process's memory is free"


BAD_RANGES = """
p = ok(d.cuMemAlloc(100)); q = ok(d.cuMemAlloc(100)); ok(d.cuMemFree(q)); b = bytearray(200)
result = [
    code(d.cuMemcpyDtoH(b, int(p) + at, n)) for at, n in ((0, 101), (100, 1), (99, 2), (-1, 1))
] + [
    code(d.cuMemcpyHtoD(int(p) + 50, b, 51)), code(d.cuMemcpyHtoD(q, b, 1)), code(d.cuMemcpyHtoD(0, b, 1)),
    code(d.cuMemsetD8(p, 0, 101)), code(d.cuMemsetD32Async(int(p) + 2, 0, 1, 0)), code(d.cuMemsetD32Async(p, 0, 26, 0)),
    code(d.cuMemcpyDtoD(p, q, 1)), code(d.cuMemcpyDtoD(q, p, 1)), code(d.cuMemFree(q)), code(d.cuMemFree(int(p) + 1)),
    code(d.cuMemGetAddressRange(q)), code(d.cuMemcpyDtoH(b, p, 100)), code(d.cuMemcpyHtoD(q, b, 0)),
    code(d.cuMemFree(0)),
]
"""


def test_what_is_outside_an_allocation_is_refused(nvml: Nvml, cuda: Cuda) -> None:
    nvml(mig="off", slice_bytes=SLICE)
    one = cuda()
    assert one.do("begin()\n" + BAD_RANGES) == [1] * 14 + [500, 0, 0, 0]
    assert one.do(
        "r = ok(d.cuMemAlloc(100)); result = [int(x) for x in ok(d.cuMemGetAddressRange(int(r) + 7))] == [int(r), 100]"
    )
    attributes = (
        "p = ok(d.cuMemAlloc(100)); A = d.CUpointer_attribute\n"
        "result = [int(ok(d.cuPointerGetAttribute(A(a), int(p) + 5))) for a in (2, 9, 11, 12)] + [int(p)]"
    )
    kind, ordinal, start, size, pointer = one.do(attributes)
    assert (kind, ordinal, start, size) == (2, 0, pointer, 100)


@pytest.mark.parametrize(("scrub", "faults", "left"), [(0, "", "ab"), (1, "", "00"), (1, "residue", "ab")])
def test_memory_is_handed_out_as_it_was_left_unless_the_driver_scrubs(
    nvml: Nvml, cuda: Cuda, scrub: int, faults: str, left: str
) -> None:
    held = instance(nvml(slice_bytes=SLICE, scrub=scrub))
    one = cuda(CUDA_VISIBLE_DEVICES=held[2], **{PREFIX + "FAULTS": faults})
    again = (
        "begin(); p = ok(d.cuMemAlloc(4 << 20)); ok(d.cuMemsetD8(p, 0xAB, 4 << 20)); ok(d.cuMemFree(p)); "
        "v.p = ok(d.cuMemAlloc(4 << 20)); result = read(v.p, 1).hex()"
    )
    assert one.do(again) == "ab", "what a living process frees is never scrubbed"
    one.kill()
    two = cuda(CUDA_VISIBLE_DEVICES=held[2])
    assert two.do("begin(); v.p = ok(d.cuMemAlloc(4 << 20)); result = read(v.p, 4 << 20)[-1:].hex()") == left
    two.kill()
    destroy(*held[:2])


# -- in use, faults ---------------------------------------------------------------------------------------------------


def test_an_instance_is_in_use_until_its_last_process_dies_or_leaves_it(nvml: Nvml, cuda: Cuda) -> None:
    device = nvml(slice_bytes=SLICE)
    held = instance(device)
    one, two = (cuda(CUDA_VISIBLE_DEVICES=held[2]) for _ in range(2))
    one.do("begin()")
    two.do("begin()")
    (mig,) = mig_devices(device).values()
    found = {each.pid for each in pynvml.nvmlDeviceGetComputeRunningProcesses(mig)}
    assert found == {one.process.pid, two.process.pid}
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(device)[0].gpuInstanceId == 7
    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlComputeInstanceDestroy(held[1])
    one.do("ok(d.cuDevicePrimaryCtxRelease(0))")
    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlComputeInstanceDestroy(held[1])
    two.kill()
    destroy(*held[:2])
    assert one.do("result = code(d.cuDevicePrimaryCtxRetain(0))") == 46, "the instance was destroyed"


STICKY = (
    "result = [code(d.cuCtxSynchronize()), code(d.cuMemAlloc(4)), code(d.cuMemGetInfo()), code(d.cuStreamCreate(0)),"
    " code(d.cuMemcpyDtoH(bytearray(1), v.p, 1)), launch('offpath_empty') if False else code(d.cuCtxSynchronize())]"
)


@pytest.mark.parametrize(("faults", "kernel", "wanted", "xid"), [
    ("", "offpath_fault", 700, 31), ("sticky=719@2", "offpath_empty", 719, 13), ("ecc=2", "offpath_empty", 214, 94),
])  # fmt: skip
def test_a_fatal_error_shows_at_the_next_wait_and_stays(
    nvml: Nvml, cuda: Cuda, faults: str, kernel: str, wanted: int, xid: int
) -> None:
    device = nvml(slice_bytes=SLICE)
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(device, 8, events)
    held = instance(device, "2g.10gb", 2)
    one = cuda(CUDA_VISIBLE_DEVICES=held[2], **{PREFIX + "FAULTS": faults})
    one.do(
        "begin(); v.p = ok(d.cuMemAlloc(64)); launch('offpath_empty'); ok(d.cuCtxSynchronize()); "
        "function('offpath_fault')"
    )
    assert one.do(f"result = launch('{kernel}')") == 0, "a launch proves nothing"
    assert one.do("result = code(d.cuMemsetD8Async(v.p, 1, 64, 0))") == 0
    assert one.do(STICKY) == [wanted] * 6
    assert one.do("ok(d.cuDevicePrimaryCtxReset(0)); result = code(d.cuDevicePrimaryCtxRetain(0))") == wanted, (
        "only its end helps"
    )
    event = pynvml.nvmlEventSetWait_v2(events, 1000)
    assert (event.eventData, event.gpuInstanceId, event.computeInstanceId) == (xid, 4, 0)
    two = cuda(CUDA_VISIBLE_DEVICES=held[2])
    assert two.do("begin(); result = code(d.cuMemAlloc(64))") == 0, "other processes continue"


def test_illegal_addresses_are_the_kernels_faults(nvml: Nvml, cuda: Cuda) -> None:
    nvml(mig="off", slice_bytes=SLICE)
    bad = (
        "begin(); p = ok(d.cuMemAlloc(64)); "
        "result = [launch('offpath_fill', 'QQI', int(p), 65, 1), code(d.cuCtxSynchronize())]"
    )
    assert cuda().do(bad) == [0, 700]


def test_calls_fail_at_their_turn_and_a_lost_gpu_stays_lost(nvml: Nvml, cuda: Cuda) -> None:
    device = nvml(mig="off", slice_bytes=SLICE)
    one = cuda(**{PREFIX + "FAULTS": "cuMemAlloc:2=2"})
    assert one.do("begin(); result = [code(d.cuMemAlloc(4)) for _ in range(3)]") == [0, 2, 0]
    assert one.do(
        f"os.environ['{PREFIX}FAULTS'] = 'lost=1'; result = [code(d.cuMemAlloc(4)), code(d.cuCtxSynchronize())]"
    ) == [999, 999]
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetName(device)


@pytest.mark.parametrize("driver", [535, 615])
def test_entry_points_are_handed_out_as_the_real_library_does(nvml: Nvml, driver: int) -> None:
    nvml(driver=driver)
    library = load("libcuda.so.1")
    get = library.cuGetProcAddress_v2

    def query(name: str, version: int, wants_status: bool = True) -> tuple[int, bool, int]:
        pointer, status = ctypes.c_void_p(7), ctypes.c_int(-1)
        code = get(
            name.encode(),
            ctypes.byref(pointer),
            version,
            ctypes.c_uint64(0),
            ctypes.byref(status) if wants_status else None,
        )
        return code, bool(pointer.value), status.value

    with environment():
        assert query("cuMemAlloc", 3020) == (0, True, 0)
        assert query("cuMemAlloc", 13050) == (0, True, 0)
        assert query("cuMemAlloc", 2000) == (0, False, 2), "known, but the requested version is too old"
        assert query("cuMemAlloc_v2", 12000) == (0, False, 1), "a name with its suffix is unknown"
        assert query("cuNoSuchCall", 12000) == (0, False, 1)
        assert query("cuNoSuchCall", 12000, wants_status=False) == (0, False, -1)
        first, second = ctypes.c_void_p(), ctypes.c_void_p()
        get(b"cuEventElapsedTime", ctypes.byref(first), 12000, ctypes.c_uint64(0), None)
        get(b"cuEventElapsedTime", ctypes.byref(second), 12080, ctypes.c_uint64(0), None)
        assert (first.value == second.value) == (driver == 535), "an old driver answers with what it has"
