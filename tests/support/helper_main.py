"""A helper as its own process: CHANNEL OPTIONS.json, with the kernels that tests call."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import json
import logging
import mmap
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from carried import offer_carried  # the script's own folder is first on sys.path
from clocks import shift_clocks
from limits import shorten_limits
from numpy.typing import NDArray
from sweep_kernels import offer_forms

from offpath.bindings.cuda.driver import load
from offpath.bindings.errors import CudaError, CudaLost, DeviceError
from offpath.bindings.loopback.gpu import EmulatedGpu, EmulatedLane
from offpath.bindings.ports import MemoryExport
from offpath.bindings.verbs.lane import VerbsLaneExporter
from offpath.host_helper import Helper, LaneContext, SequenceContext, current_lane, host_channel

Array = NDArray[Any]
helper = Helper()
HELD_S = 60.0
residue: list[int] = []
stillborn = ""
"""The tenant whose workers die before they are ready."""
load_s = 0.0
"""How long a worker loads."""


@helper.lane_opened
def audit(lane: LaneContext) -> None:
    """What a former tenant left in the lane's memory, in bytes that are not zero."""
    if lane.tenant == stillborn:
        os.kill(os.getpid(), 9)
    time.sleep(load_s)
    left = np.frombuffer(lane.memory.read(0, lane.memory.landing_bytes + lane.memory.result_bytes), np.uint8)
    residue.extend(int(np.count_nonzero(half)) for half in np.split(left, [lane.memory.landing_bytes]))


@helper.kernel("echo", demand=14)
def echo(*arrays: Array) -> tuple[Array, ...]:
    return arrays


@helper.kernel(
    "scale", demand=14, inputs={"x": ("fp32", [-1, 3])}, outputs={"y": ("fp32", [-1, 3])}, model="scaling", version=2,
    labels=["stable"],
)  # fmt: skip
def scale(x: Array) -> Array:
    return x * 2


@helper.kernel(
    "identity", demand=14, inputs={"INPUT0": ("uint8", [-1])}, outputs={"OUTPUT0": ("uint8", [-1])}
)  # fmt: skip
def identity(array: Array) -> Array:
    return array


@helper.kernel("nap", demand=14, inputs={"seconds": ("fp64", [1])}, outputs={"slept": ("fp64", [1])}, model="napping")
def nap(seconds: Array) -> Array:
    time.sleep(seconds[0])
    return seconds


@helper.kernel("lie", demand=14, inputs={"x": ("fp64", [-1])}, outputs={"y": ("fp32", [-1])}, model="lying")
def lie(x: Array) -> Array:
    return x


@helper.kernel(
    "accumulate", demand=14, sequences=True, inputs={"x": ("int64", [1])},
    outputs={"total": ("int64", [1]), "from": ("int64", [4])},
)  # fmt: skip
def accumulate(x: Array, *, sequence: SequenceContext) -> tuple[Array, Array]:
    """The sum of the sequence so far; then the worker, the requests that it saw of it, its id and its flags."""
    if sequence.is_start:
        assert not sequence.state
    if int(x[0]) < 0:
        raise RuntimeError("no negative numbers")
    seen = sequence.state["seen"] = sequence.state.get("seen", 0) + 1
    sum_ = sequence.state["sum"] = sequence.state.get("sum", 0) + int(x[0])
    flags = sequence.is_start + 2 * sequence.is_end
    return np.array([sum_]), np.array([os.getpid(), seen, sequence.id & (1 << 62) - 1, flags])


@helper.kernel(
    "recount", demand=14, sequences=True, streams=True, inputs={"x": ("int64", [1])}, outputs={"n": ("int64", [2])}
)  # fmt: skip
def recount(x: Array, *, sequence: SequenceContext) -> Iterator[Array]:
    """As many answers as ``x`` says: how many the sequence has had so far, and its flags."""
    for _ in range(int(x[0])):
        sequence.state["n"] = sequence.state.get("n", 0) + 1
        yield np.array([sequence.state["n"], sequence.is_start + 2 * sequence.is_end])


@helper.kernel("states", demand=14)
def states(x: Array) -> Array:
    """How many sequences have a state in some worker: that of this lane."""
    return np.array([sum(1 for each in gc.get_objects() if isinstance(each, SequenceContext))])


@helper.kernel("sum", demand=14)
def total(array: Array) -> Array:
    return np.array([array.sum(dtype=np.float64)])


@helper.kernel("describe", demand=14)
def describe(*arrays: Array) -> Array:
    return text([[a.dtype.name, list(a.shape)] for a in arrays])


@helper.kernel("fill", demand=14)
def fill(wish: Array) -> Array:
    """``wish`` is (bytes, value)."""
    return np.full(int(wish[0]), int(wish[1]), np.uint8)


@helper.kernel("scalar", demand=14)
def scalar(array: Array) -> Any:
    """A result without dimensions."""
    return array.sum()


@helper.kernel("big-endian", demand=14)
def big_endian(array: Array) -> Array:
    return array.astype(array.dtype.newbyteorder(">"))


@helper.kernel("nothing", demand=14)
def nothing(array: Array) -> None:
    return None


@helper.kernel("complex", demand=14)
def complex_result(array: Array) -> Array:
    return array.astype(np.clongdouble)


@helper.kernel("fail", demand=14)
def fail(message: Array) -> Array:
    raise RuntimeError(message.tobytes().decode())


@helper.kernel("sleep", demand=14)
def sleep(seconds: Array) -> Array:
    time.sleep(float(seconds[0]))
    return seconds.copy()


@helper.kernel("where", demand=14)
def where(seconds: Array) -> Array:
    """Sleeps, then says where and when it ran, and what it found in its memory at the start."""
    started = time.monotonic_ns()
    time.sleep(float(seconds[0]))
    lane = current_lane()
    return text(
        {
            "tenant": lane.tenant, "gpu": lane.gpu, "profile": lane.profile, "start": lane.start, "lease": lane.lease,
            "generation": lane.generation, "lane": lane.lane, "pid": lane.pid, "residue": residue,
            "from": started, "to": time.monotonic_ns(),
        }
    )  # fmt: skip


@helper.kernel("mark", demand=14)
def mark(path: Array) -> Array:
    """Appends this worker's pid to the file; the first to do so then stays until killed, 20 s at most."""
    name = path.tobytes().decode()
    with open(name, "a+") as file:
        file.write(f"{os.getpid()}\n")
        file.flush()
        file.seek(0)
        attempts = len(file.readlines())
    if attempts == 1:
        time.sleep(20)
    return np.array([attempts])


@helper.kernel("held", demand=14)
def held(path: Array) -> Array:
    """Makes the file with this worker's pid, then stays until somebody takes it away, `HELD_S` at most."""
    name = path.tobytes().decode()
    with open(name, "w") as file:
        file.write(f"{os.getpid()}\n")
    end = time.monotonic() + HELD_S
    while os.path.exists(name) and time.monotonic() < end:
        time.sleep(0.002)
    return np.array([os.getpid()])


@helper.kernel("tally", demand=14)
def tally(tag: Array) -> Array:
    """Writes the tag down, so that its launches can be counted, then computes for two milliseconds."""
    os.write(tally_file(), tag.tobytes().rstrip(b".") + b"\n")
    time.sleep(0.002)
    return tag.copy()


@helper.kernel("tallies", demand=14, streams=True)
def tallies(tag: Array) -> Iterator[Array]:
    """As `tally`, with three answers: the tag behind their number, the second one too long for a message."""
    name = tag.tobytes()
    tally(tag)
    for number in (1, 2, 3):
        yield np.frombuffer((b"%d" % number + name) * (80 if number == 2 else 1), np.uint8)[:4000]


@helper.kernel("double", demand=14)
def double(array: Array, more: Array) -> tuple[Array, Array]:
    """Two results with a row for each row of the arguments; its launches can be counted by their rows."""
    os.write(tally_file(), f"{len(array)}\n".encode())
    return 2 * array, array.sum(axis=tuple(range(1, array.ndim)), dtype=np.float64) + more


@helper.kernel(
    "count", demand=14, inputs={"wish": ("fp64", [4])}, outputs={"value": ("fp64", [-1])}, streams=True
)  # fmt: skip
def count(wish: Array) -> Iterator[Any]:
    """``wish``: how many answers, elements of each (-1: no array), seconds before each, and the number of the one that
    fails. Notes how it ended, if a file for that is named."""
    answers, elements, pause_s, fails_at = map(float, wish)
    number, how = 0, "closed"
    try:
        while number < answers:
            number += 1
            time.sleep(pause_s)
            if number == fails_at:
                raise RuntimeError(f"answer {number}")
            yield np.full(int(elements), number, np.float64) if elements >= 0 else object()
        how = "done"
    except RuntimeError:
        how = "raised"
        raise
    finally:
        if path := os.environ.get("OFFPATH_TEST_STREAMS"):
            with open(path, "a") as file:
                file.write(f"{how} {number}\n")


@functools.cache
def tally_file() -> int:
    return os.open(os.environ["OFFPATH_TEST_TALLY"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@helper.kernel("share", demand=14)
def share(nbytes: Array) -> Array:
    """What this process has of its NVIDIA GPU: whether under MPS, its multiprocessors; the result of allocating; and
    all devices that CUDA shows it."""
    driver = load()
    device = driver.call("cuDeviceGet", 0)
    try:
        driver.call("cuMemFree", driver.call("cuMemAlloc", int(nbytes[0])))
        allocated = 0
    except CudaError as fault:
        allocated = fault.code
    found = {"mps": driver.attribute(device, 133), "sms": driver.attribute(device, 16), "allocated": allocated}
    lane = current_lane()
    devices = [f"GPU-{driver.uuid(driver.call('cuDeviceGet', n))}" for n in range(driver.call("cuDeviceGetCount"))]
    where = {"pid": os.getpid(), "lane": lane.lane, "lease": lane.lease, "gpus": [lane.gpu, *lane.others]}
    return text({**found, **where, "devices": devices})


@helper.kernel("cursed", demand=14)
def cursed(path: Array) -> None:
    """Appends a line to the file, then dies of SIGKILL."""
    with open(path.tobytes().decode(), "a") as file:
        file.write("launched\n")
    os.kill(os.getpid(), 9)


FAULT = b"""
.version 6.0
.target sm_52
.address_size 64
.visible .entry offpath_fault()
{
    .reg .b64 %rd<2>;
    mov.u64 %rd1, 0;
    st.global.u64 [%rd1], %rd1;
    ret;
}
\0"""


@helper.kernel("gpu-fault", demand=14)
def gpu_fault(array: Array) -> Array:
    """Launches a kernel on the GPU that writes to address 0, and does not wait for it."""
    driver = load()
    function = driver.call("cuModuleGetFunction", driver.call("cuModuleLoadData", FAULT), b"offpath_fault")
    driver.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    return array


@helper.kernel("gpu-fault-noted", demand=14)
def gpu_fault_noted(path: Array) -> Array:
    """Appends a line to the file, then does as `gpu_fault`, and fails with an error that is not offpath's."""
    with open(path.tobytes().decode(), "a") as file:
        file.write("launched\n")
    gpu_fault(path)
    try:
        load().call("cuCtxSynchronize")
    except CudaLost as fault:
        raise RuntimeError("a library's own error") from fault
    return path.copy()


@helper.kernel("gpu-glutton", demand=14)
def gpu_glutton(array: Array) -> Array:
    """Allocates on the GPU until nothing is left."""
    while True:
        load().call("cuMemAlloc", 2 << 20)


def lying(export: Any, once: str) -> Any:
    """As ``export``, but the first worker, which makes the file ``once``, says a key that is not its lane's."""

    def lie(end: VerbsLaneExporter, invitation: Any) -> MemoryExport:
        made: MemoryExport = export(end, invitation)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(once, os.O_CREAT | os.O_EXCL))
            return MemoryExport({**made.descriptor, "landing_rkey": 0})
        return made

    return lie


def text(value: object) -> Array:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def failing(scrub: Any, times: int) -> Any:
    """A scrub that the device refuses so often."""
    left = mmap.mmap(-1, 1)  # shared with the processes that scrub
    left[0] = times

    def failing_scrub(gpu: EmulatedGpu, instance: int) -> int:
        if left[0]:
            left[0] -= 1
            raise DeviceError("injected")
        scrubbed: int = scrub(gpu, instance)
        return scrubbed

    return failing_scrub


def again(former: Helper) -> Helper:
    """A reload: the same kernels, by other workers."""
    made = Helper()
    made.kernels, made.on_lane_open = dict(former.kernels), list(former.on_lane_open)
    return made


if __name__ == "__main__":
    shift_clocks()
    shorten_limits()
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: it never outlives the test
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    channel, given = sys.argv[1:]
    options = json.loads(given)
    stillborn = options.pop("stillborn", "")
    load_s = options.pop("load_s", 0.0)
    if options.pop("forms", False):
        offer_forms(helper, tally_file)
    for number in range(options.pop("many", 0)):
        helper.kernel(f"many-{number}", demand=14)(functools.partial(np.add, number))
    if options.pop("carried", False):
        helper.kernels.clear()
        offer_carried(helper)
    if options.pop("break_acquire", False):
        EmulatedLane.acquire = lambda self, nbytes: None  # type: ignore[method-assign]
    if times := options.pop("fail_scrub", 0):
        EmulatedGpu.scrub_instance = failing(EmulatedGpu.scrub_instance, times)  # type: ignore[method-assign]
    if once := options.pop("break_link", ""):
        VerbsLaneExporter.export = lying(VerbsLaneExporter.export, once)  # type: ignore[method-assign]
    for kernel, needs in options.pop("needs", {}).items():
        former = helper.kernels.pop(kernel)
        helper.kernel(kernel, **needs)(former.function)
    for kernel in options.pop("without", ()):
        del helper.kernels[kernel]
    if names := options.pop("only", ()):
        helper.kernels = {name: helper.kernels[name] for name in names}
    if options.pop("reloads", False):
        options["reload"] = functools.partial(again, helper)
    kind = next((kind for kind in ("zmq", "comch") if kind in options), "")
    way = host_channel(kind, **options.pop(kind)) if kind else channel
    helper.run(way, **{"emulate": ["A100-40GB"], **options})
