"""The CUDA adapter on the GPU emulator, where the port's conformance suite does not look: peers, contexts, faults."""

from __future__ import annotations

import mmap
import os
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings import forked
from offpath.bindings.cuda import whole
from offpath.bindings.cuda.context import Context
from offpath.bindings.cuda.driver import STICKY, load
from offpath.bindings.cuda.instance import CudaInstance, scrub
from offpath.bindings.errors import CudaError, CudaLost, DeviceError, OffpathError

from ...support.gpu_machine import FAULT, Machine
from ...support.processes import BOUND_S

pytestmark = pytest.mark.gpu


def in_worker(act: Callable[[str], Any]) -> str:
    """``act`` of the first GPU's UUID in a process of its own, as a worker is. This process never uses CUDA."""
    (found,) = whole.visible()

    def run() -> str:
        try:
            return str(act(found.uuid))
        except (AssertionError, pytest.fail.Exception) as fault:
            raise OffpathError(f"assertion in the worker: {fault}") from fault

    return forked.call(run, "the worker", BOUND_S)


def test_looking_for_gpus_uses_no_driver_in_this_process(boot: Callable[..., Machine]) -> None:
    boot(gpus="3")
    before = drivers()  # of other tests in this process
    found = whole.visible()
    assert len({each.uuid for each in found}) == 3
    assert all(each.uuid.startswith("GPU-") and each.is_emulated and each.nbytes == 32 << 20 for each in found)
    assert all(each.name.endswith("(emulated)") for each in found)
    assert drivers() == before


def drivers() -> set[str]:
    """The driver's libraries in this process, by place."""
    return {line for line in Path("/proc/self/maps").read_text().splitlines() if "libcuda" in line}


def links() -> list[Any]:
    """Of each GPU that CUDA shows: the places of those that NVLink reaches, with the number of links."""
    gpus = whole.whole_gpus(whole.visible())
    places = {gpu.uuid: n for n, gpu in enumerate(gpus)}
    return [{places[uuid]: links for uuid, links in gpu.links.items()} for gpu in gpus]


def test_gpus_with_native_atomics_between_them_are_linked(boot: Callable[..., Machine]) -> None:
    """CUDA does not give the number of links. Access alone is no NVLink: GPUs have it over PCIe."""
    boot(gpus="4", nvlinks="0-1:4,2-3:4,0-2:2")
    assert links() == [{1: 1, 2: 1}, {0: 1}, {0: 1, 3: 1}, {2: 1}]


@pytest.mark.parametrize("fault", ["nvlinks", "cuDeviceGetP2PAttribute:2=801", "cuDeviceGetP2PAttribute:1=999"])
def test_gpus_are_found_without_links_if_there_are_none_or_cuda_does_not_tell(
    boot: Callable[..., Machine], fault: str
) -> None:
    boot(gpus="3", **({"nvlinks": "switch:4", "faults": fault} if fault != "nvlinks" else {}))
    assert links() == [{}, {}, {}]


def test_gpus_are_found_without_links_by_a_package_that_lacks_the_attribute(
    boot: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    boot(gpus="2", nvlinks="switch:4")
    monkeypatch.setattr(whole, "_NATIVE_ATOMICS", 1000)
    assert links() == [{}, {}]


@pytest.mark.parametrize(("ordering", "before"), [("0", False), ("100", True)])
def test_what_a_peer_writes_by_dma_buf_is_there_after_acquire(
    boot: Callable[..., Machine], ordering: str, before: bool
) -> None:
    """Below WRITES_ORDERING_OWNER only the flush brings it to the kernels."""
    boot(ordering=ordering)

    def act(uuid: str) -> Any:
        memory = CudaInstance(uuid)
        lane = memory.reserve(0, 1, 8192, 4096)
        lane.write(0, bytes(8192))
        shared = lane.dmabuf()
        assert shared is not None
        fd, offset = shared
        assert lane.dmabuf() == shared, "one descriptor, which the lane owns"
        with mmap.mmap(fd, 2 << 20) as peer:
            peer[offset : offset + 5] = b"hello"
            early = lane.read(0, 5) == b"hello"
            lane.acquire(5)
            late = lane.read(0, 5) == b"hello"
            lane.write(lane.landing_bytes, b"result")
            lane.synchronize()
            lane.publish(6)
            at = offset + lane.landing_bytes
            answer = peer[at : at + 6]
        memory.close()
        return early, late, answer

    assert in_worker(act) == str((before, True, b"result"))


def test_a_gpu_whose_peers_cannot_be_seen_is_refused_not_wrong(boot: Callable[..., Machine]) -> None:
    boot(ordering="0")

    def act(uuid: str) -> Any:
        memory = CudaInstance(uuid)
        lane = memory.reserve(0, 1, 8192, 4096)
        lane.dmabuf()
        memory._context.can_flush = False
        with pytest.raises(DeviceError, match="neither order nor flush"):
            lane.acquire(1)
        return "refused"

    assert in_worker(act) == "refused"


def test_without_dma_buf_the_lane_has_none(boot: Callable[..., Machine]) -> None:
    boot(dma_buf="0")
    assert in_worker(lambda uuid: CudaInstance(uuid).reserve(0, 1, 4096, 4096).dmabuf()) == "None"


def test_a_kernels_fault_is_reported_at_the_next_wait_and_ends_the_process_s_use(boot: Callable[..., Machine]) -> None:
    boot()

    def act(uuid: str) -> Any:
        memory = CudaInstance(uuid)
        lane = memory.reserve(0, 1, 4096, 4096)
        launch_fault()
        codes = []
        for call in (lane.synchronize, lambda: lane.read(0, 1), lane.scrub):
            with pytest.raises(CudaLost, match="CUDA_ERROR_ILLEGAL_ADDRESS") as lost:
                call()
            codes.append(lost.value.code)
        return codes

    assert in_worker(act) == "[700, 700, 700]"
    assert 700 in STICKY
    assert in_worker(lambda uuid: CudaInstance(uuid).reserve(0, 1, 4096, 4096).scrub()) == str(2 * mmap.PAGESIZE)


def launch_fault() -> None:
    driver = load()
    function = driver.call("cuModuleGetFunction", driver.call("cuModuleLoadData", FAULT), b"offpath_fault")
    driver.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)


def test_a_process_that_used_cuda_cannot_have_workers_and_says_so(boot: Callable[..., Machine]) -> None:
    boot()

    def act(uuid: str) -> Any:
        load().call("cuInit", 0)  # what a serving module does that asks torch for its GPUs at import
        with pytest.raises(DeviceError, match="had used CUDA"):
            forked.call(lambda: str(Context(uuid)), "its worker", BOUND_S)
        return "said"

    assert in_worker(act) == "said"


@pytest.mark.parametrize(
    ("uuid", "detail"),
    [
        ("GPU-00000000-0000-0000-0000-000000000000", "0 devices|NO_DEVICE"),
        ("MIG-GPU-1/0/0", "not all are UUIDs"),
        ("0", "not all are UUIDs"),
        ("", "not all are UUIDs"),
    ],
)
def test_no_other_device_than_the_ordered_one_is_opened(boot: Callable[..., Machine], uuid: str, detail: str) -> None:
    boot()
    with pytest.raises(DeviceError, match=detail):
        forked.call(lambda: str(Context(uuid)), "the worker", BOUND_S)


def test_memory_that_is_not_there_is_a_typed_error_with_both_figures(boot: Callable[..., Machine]) -> None:
    boot()

    def act(uuid: str) -> Any:
        memory = CudaInstance(uuid)
        memory.reserve(0, 2, 8 << 20, 8 << 20)
        call = load().call
        for _ in range(memory._context.memory()[0] // (2 << 20)):
            call("cuMemAlloc", 2 << 20)
        with pytest.raises(CudaError, match="OUT_OF_MEMORY"):
            call("cuMemAlloc", 1)
        with pytest.raises(DeviceError, match=r"does not fit: 0 of 33554432 bytes are free"):
            memory.reserve(1, 2, 8 << 20, 8 << 20)
        with pytest.raises(DeviceError, match="3 lanes of"):
            memory.reserve(0, 3, 16 << 20, 4096)
        return "typed"

    assert in_worker(act) == "typed"


def test_a_scrub_finds_what_another_process_left_and_proves_all_of_it(boot: Callable[..., Machine]) -> None:
    """The emulated driver hands memory out as the last process left it. A scrub gets it in two pieces."""
    boot(slice_bytes=str(6 << 20))

    def leave(uuid: str) -> int:
        lane = CudaInstance(uuid).reserve(0, 1, 40 << 20, 4096)
        lane.write(0, b"\xaa" * (40 << 20))
        return lane.landing_bytes

    def look(uuid: str) -> int:
        lane = CudaInstance(uuid).reserve(0, 1, 40 << 20, 4096)
        return (40 << 20) - lane.read(0, 40 << 20).count(0)

    assert in_worker(leave) == str(40 << 20)
    assert int(in_worker(look)) > 0, "without a scrub the next process reads it"
    assert in_worker(scrub) == str(48 << 20)
    assert in_worker(look) == "0"


def test_a_scrub_without_a_compiler_reads_back(boot: Callable[..., Machine]) -> None:
    boot()

    def act(uuid: str) -> Any:
        driver = load()
        real = driver.call

        def call(name: str, *arguments: Any) -> Any:
            if name == "cuModuleLoadData":
                raise CudaError(name, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", 221)
            return real(name, *arguments)

        driver.call = call  # type: ignore[method-assign]
        return scrub(uuid)

    assert in_worker(act) == str(32 << 20)


@pytest.mark.parametrize("has_compiler", [True, False])
def test_a_scrub_that_clears_nothing_is_found(boot: Callable[..., Machine], has_compiler: bool) -> None:
    boot()

    def act(uuid: str) -> Any:
        memory = CudaInstance(uuid)
        lane = memory.reserve(0, 1, 3 << 20, 4096)
        real = memory._context.driver.call
        found = []

        def call(name: str, *arguments: Any) -> Any:
            if name == "cuModuleLoadData" and not has_compiler:
                raise CudaError(name, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", 221)
            return None if name == "cuMemsetD8Async" else real(name, *arguments)

        for at in (0, 7, 8, 1 << 20, lane.landing_bytes - 1, lane.landing_bytes + lane.result_bytes - 1):
            assert lane.scrub() == lane.landing_bytes + lane.result_bytes
            lane.write(at, b"!")
            lane._call = memory._context.driver.call = call  # type: ignore[method-assign]
            lane._check = None
            with pytest.raises(DeviceError, match="not zero"):
                lane.scrub()
            lane._call = memory._context.driver.call = real  # type: ignore[method-assign]
            lane._check = None
            found.append(at)
        return len(found)

    assert in_worker(act) == "6"


def test_payloads_and_results_pass_through_host_memory_which_a_scrub_clears_too(boot: Callable[..., Machine]) -> None:
    """For copy engines that map memory; longer than the bounce buffer."""
    boot()
    nbytes = (5 << 20) // 2
    content = random.Random(3).randbytes(nbytes)

    def act(uuid: str) -> Any:
        memory = CudaInstance(uuid)
        lane = memory.reserve(0, 1, nbytes, 8192)
        export = lane.export()
        with mmap.mmap(export.fds[0], lane.landing_bytes + lane.result_bytes) as peer:
            peer[:nbytes] = content
            lane.acquire(nbytes)
            taken = lane.read(0, nbytes) == content, lane.checksum(nbytes) == zlib.crc32(content)
            lane.gather(lane.landing_bytes, lane.pointer, 8192)
            lane.publish(8192)
            given = peer[lane.landing_bytes : lane.landing_bytes + 8192] == content[:8192]
            lane.scrub()
            is_clean = not any(peer[:])
        memory.close()
        return taken, given, is_clean

    assert in_worker(act) == str(((True, True), True, True))


def test_a_closed_instance_leaves_no_descriptor(boot: Callable[..., Machine]) -> None:
    """An open dma-buf would keep the instance in use."""
    boot()

    def act(uuid: str) -> Any:
        def use() -> None:
            memory = CudaInstance(uuid)
            lane = memory.reserve(0, 1, 4096, 4096)
            lane.dmabuf()
            lane.export()
            lane.scrub()
            memory.close()
            memory.close()

        use()
        before = len(os.listdir("/proc/self/fd"))
        use()
        return len(os.listdir("/proc/self/fd")) - before

    assert in_worker(act) == "0"


def test_a_worker_sees_the_one_device_that_it_was_given(boot: Callable[..., Machine]) -> None:
    boot(gpus="2")
    for found in whole.visible():
        seen = forked.call(lambda uuid=found.uuid: str(uuid_of(Context(uuid))), "the worker", BOUND_S)
        assert f"GPU-{seen}" == found.uuid


def uuid_of(context: Context) -> object:
    return context.driver.uuid(context.driver.call("cuCtxGetDevice"))


def test_a_lane_is_not_reached_beyond_its_end(boot: Callable[..., Machine]) -> None:
    """Its block is larger: the driver's pages are."""
    boot()

    def act(uuid: str) -> Any:
        lane = CudaInstance(uuid).reserve(0, 1, 4096, 4096)
        end = 2 * mmap.PAGESIZE
        for reach in (lambda: lane.read(end, 1), lambda: lane.write(end - 1, b"xx"), lambda: lane.gather(end, 0, 1)):
            with pytest.raises(DeviceError, match="outside the lane"):
                reach()
        return "refused"

    assert in_worker(act) == "refused"
