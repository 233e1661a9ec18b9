"""A gang's GPUs as one: created on all or on none, scrubbed and destroyed on each, and in CUDA's order."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from offpath.bindings import forked
from offpath.bindings.cuda.instance import CudaInstance
from offpath.bindings.cuda.whole import WholeGpu, visible
from offpath.bindings.errors import DeviceError, DeviceGone, PlacementTaken
from offpath.bindings.loopback.gpu import EmulatedGpu
from offpath.bindings.wire import control
from offpath.host_helper.gangs import Gang, gpus_of, ordered
from offpath.host_helper.quarantine import Quarantine
from offpath.host_helper.scrubbing import scrub

from ..support.gpu_machine import FAULT, Machine

PROFILE = "7g.40gb"
SLICE = 1 << 16


@pytest.fixture
def gpus() -> Iterator[list[EmulatedGpu]]:
    made = [EmulatedGpu(f"GPU-{number}", "A100-40GB", slice_bytes=SLICE) for number in range(3)]
    yield made
    for each in made:
        each.close()


def order(gpu: str, *others: str) -> control.OpenInstance:
    return control.OpenInstance(
        lease=1, generation=1, tenant="ada", gpu=gpu, profile=PROFILE, start=0, lanes=1, landing_bytes=4096,
        result_bytes=4096, scrub_first=False, token="t" * 32, others=list(others),
    )  # fmt: skip


def dirty(gpu: EmulatedGpu) -> int:
    """Bytes of the device that are not zero."""
    (instance,) = [number for number, _, _ in gpu.instances()]
    memory = gpu.open_instance(instance)
    lane = memory.reserve(0, 1, SLICE, SLICE)
    left = sum(map(bool, lane.read(0, 2 * SLICE)))
    memory.close()
    return left


def write(gpu: EmulatedGpu) -> None:
    (instance,) = [number for number, _, _ in gpu.instances()]
    memory = gpu.open_instance(instance)
    memory.reserve(0, 1, SLICE, SLICE).write(0, b"\xff" * 100)
    memory.close()


def test_an_instance_is_on_each_gpu_or_on_none(gpus: list[EmulatedGpu]) -> None:
    gang = Gang(gpus)
    gpus[2].create_instance("1g.5gb", 0)
    with pytest.raises(PlacementTaken):
        gang.create_instance(PROFILE, 0)
    assert [len(gpu.instances()) for gpu in gpus] == [0, 0, 1]
    pair = Gang(gpus[:2])
    instance = pair.create_instance(PROFILE, 0)
    assert pair.instances() == [(instance, PROFILE, 0)]
    assert [len(gpu.instances()) for gpu in gpus] == [1, 1, 1]
    pair.destroy_instance(instance)
    pair.destroy_instance(instance)
    assert pair.instances() == []
    assert [len(gpu.instances()) for gpu in gpus] == [0, 0, 1]


def test_what_a_failed_creation_leaves_is_destroyed_later(
    gpus: list[EmulatedGpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = Gang(gpus)
    gpus[1].create_instance("1g.5gb", 0)
    quarantine = Quarantine()

    def away(number: int) -> None:
        raise DeviceError("migd is away")

    with monkeypatch.context() as patched:
        patched.setattr(gpus[0], "destroy_instance", away)
        with pytest.raises(PlacementTaken):
            gang.create_instance(PROFILE, 0)
    assert [len(gpu.instances()) for gpu in gpus] == [1, 1, 0]
    quarantine.add_left(gang)
    assert quarantine.retry() is None
    assert [len(gpu.instances()) for gpu in gpus] == [0, 1, 0]


def test_a_scrub_reaches_the_memory_of_each_gpu(gpus: list[EmulatedGpu]) -> None:
    gang = Gang(gpus)
    instance = gang.create_instance(PROFILE, 0)
    for gpu in gpus:
        write(gpu)
    assert [dirty(gpu) for gpu in gpus] == [100, 100, 100]
    assert scrub(gang, instance) == 3 * 8 * SLICE
    assert [dirty(gpu) for gpu in gpus] == [0, 0, 0]


def test_what_cannot_be_destroyed_stays_and_is_destroyed_later(
    gpus: list[EmulatedGpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = Gang(gpus)
    instance = gang.create_instance(PROFILE, 0)
    quarantine = Quarantine()

    def busy(number: int) -> None:
        raise DeviceError("a process holds it")

    with monkeypatch.context() as patched:
        patched.setattr(gpus[1], "destroy_instance", busy)
        with pytest.raises(DeviceError, match="a process holds it"):
            gang.destroy_instance(instance)
        quarantine.add(gang, instance)
        assert isinstance(quarantine.retry(), DeviceError)
    assert [len(gpu.instances()) for gpu in gpus] == [0, 1, 0]
    assert quarantine.retry() is None
    assert [len(gpu.instances()) for gpu in gpus] == [0, 0, 0]


def test_lanes_are_on_the_first_gpu(gpus: list[EmulatedGpu]) -> None:
    gang = Gang(gpus)
    memory = gang.open_instance(gang.create_instance(PROFILE, 0))
    memory.reserve(0, 1, SLICE, SLICE).write(0, b"\xff" * 100)
    memory.close()
    assert [dirty(gpu) for gpu in gpus] == [100, 0, 0]
    with pytest.raises(DeviceError, match="no instance"):
        gang.open_instance(99)


def test_an_order_names_each_of_its_gpus_once(gpus: list[EmulatedGpu]) -> None:
    offered = {gpu.uuid: gpu for gpu in gpus}
    assert ordered(order("GPU-1"), offered) is gpus[1]
    assert gpus_of(ordered(order("GPU-2", "GPU-0"), offered)) == (gpus[2], gpus[0])
    for wrong in (order("GPU-9"), order("GPU-0", "GPU-9"), order("GPU-0", "GPU-0"), order("GPU-0", "GPU-1", "GPU-1")):
        with pytest.raises(DeviceError, match="each named once"):
            ordered(wrong, offered)


def meeting(own: int, other: int) -> Callable[[int], int]:
    """A scrub that ends only when another one is under way."""

    def scrub_instance(instance: int) -> int:
        os.write(own, b"here")
        return len(os.read(other, 4))

    return scrub_instance


def test_the_gpus_of_a_gang_and_the_instances_in_quarantine_are_scrubbed_at_the_same_time(
    gpus: list[EmulatedGpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    (one, two), (three, four) = os.pipe(), os.pipe()
    monkeypatch.setattr(gpus[0], "scrub_instance", meeting(two, three))
    monkeypatch.setattr(gpus[1], "scrub_instance", meeting(four, one))
    gang = Gang(gpus[:2])
    instance = gang.create_instance(PROFILE, 0)
    assert scrub(gang, instance, 20) == 8
    quarantine = Quarantine()
    quarantine.add(gang, instance)
    assert quarantine.retry() is None
    assert [len(gpu.instances()) for gpu in gpus] == [0, 0, 0]
    for fd in (one, two, three, four):
        os.close(fd)


def test_of_instances_in_quarantine_those_that_can_be_scrubbed_are_free(
    gpus: list[EmulatedGpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(instance: int) -> int:
        raise DeviceError("no scrub")

    gang = Gang(gpus)
    instance = gang.create_instance(PROFILE, 0)
    quarantine = Quarantine()
    quarantine.add(gang, instance)
    with monkeypatch.context() as patch:
        patch.setattr(gpus[1], "scrub_instance", fails)
        assert "no scrub" in str(quarantine.retry())
    assert [len(gpu.instances()) for gpu in gpus] == [0, 1, 0]
    assert quarantine.retry() is None
    assert [len(gpu.instances()) for gpu in gpus] == [0, 0, 0]


def test_a_lost_gpu_leaves_the_others_of_its_gang_to_a_scrub(gpus: list[EmulatedGpu]) -> None:
    gang = Gang(gpus)
    instance = gang.create_instance(PROFILE, 0)
    for gpu in gpus:
        write(gpu)
    quarantine = Quarantine()
    quarantine.add_gpu("GPU-1", "Xid 79")
    quarantine.add(gang, instance)
    assert quarantine.retry() is None
    assert [len(gpu.instances()) for gpu in gpus] == [0, 1, 0], "a reset removes that of the lost one"
    gpus[0].create_instance(PROFILE, 0)
    gpus[2].create_instance(PROFILE, 0)
    assert [dirty(gpu) for gpu in gpus] == [0, 100, 0]


def test_a_gang_with_a_lost_gpu_is_refused(gpus: list[EmulatedGpu]) -> None:
    quarantine = Quarantine()
    quarantine.add_gpu("GPU-1", "Xid 79")
    quarantine.check(gpus[0])
    quarantine.check(Gang([gpus[0], gpus[2]]))
    with pytest.raises(DeviceGone, match="GPU-1 needs a reset"):
        quarantine.check(Gang(gpus))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "machine", mig="off", models="H100-80GB,H100-80GB,H100-80GB", slice_bytes=str(4 << 20))
    yield made
    made.close()


@pytest.mark.gpu
def test_cuda_shows_a_worker_all_gpus_of_the_gang_in_order(machine: Machine) -> None:
    found = [WholeGpu(each) for each in visible()]
    gang = Gang([found[2], found[0]])
    instance = gang.create_instance("whole", 0)

    def devices() -> str:
        memory = gang.open_instance(instance)
        assert isinstance(memory, CudaInstance)
        driver = memory._context.driver
        names = [f"GPU-{driver.uuid(driver.call('cuDeviceGet', n))}" for n in range(driver.call("cuDeviceGetCount"))]
        return " ".join(names)

    assert forked.call(devices, "worker", 20).split() == [found[2].uuid, found[0].uuid]
    with pytest.raises(PlacementTaken):
        found[0].create_instance("whole", 0)
    gang.destroy_instance(instance)
    assert found[0].create_instance("whole", 0)


@pytest.mark.gpu
def test_a_lane_of_a_gang_awaits_the_work_on_its_other_gpus(machine: Machine) -> None:
    """On the emulator work runs only when something waits for it."""
    first, second, third = (each.uuid for each in visible())

    def work() -> str:
        memory = CudaInstance(first, others=[second, third])
        lane = memory.reserve(0, 1, 4096, 4096)
        lane.synchronize()  # nothing has used the others yet
        driver = memory._context.driver
        device = driver.call("cuDeviceGet", 1)
        driver.call("cuCtxSetCurrent", driver.call("cuDevicePrimaryCtxRetain", device))
        pointer = int(driver.call("cuMemAlloc", 4096))
        driver.call("cuMemsetD8Async", pointer, 7, 4096, 0)
        view = (ctypes.c_char * 4096).from_address(driver.host_address(pointer))
        driver.call("cuCtxSetCurrent", memory._context._context)
        is_early = view[:2] == b"\x07\x07"
        lane.synchronize()
        lane.write(0, b"own")  # with the lane's device current again
        found = f"{is_early} {view[:2]!r} {lane.read(0, 3)!r}"
        memory.close()
        return found

    assert forked.call(work, "worker", 20) == r"False b'\x07\x07' b'own'"


@pytest.mark.gpu
def test_a_fault_on_another_gpu_of_the_gang_is_reported_by_the_lane(machine: Machine) -> None:
    first, second, _ = (each.uuid for each in visible())

    def work() -> str:
        memory = CudaInstance(first, others=[second])
        lane = memory.reserve(0, 1, 4096, 4096)
        driver = memory._context.driver
        driver.call("cuCtxSetCurrent", driver.call("cuDevicePrimaryCtxRetain", driver.call("cuDeviceGet", 1)))
        stream = driver.call("cuStreamCreate", 0)
        module = driver.call("cuModuleLoadData", FAULT)
        kernel = driver.call("cuModuleGetFunction", module, b"offpath_fault")
        driver.call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0)
        driver.call("cuCtxSetCurrent", memory._context._context)
        lane.synchronize()
        return "no fault"

    with pytest.raises(DeviceError, match="cuCtxSynchronize"):
        forked.call(work, "worker", 20)


@pytest.mark.gpu
def test_a_gang_whose_devices_cuda_does_not_show_is_refused(machine: Machine) -> None:
    first, second, _ = (each.uuid for each in visible())
    absent = "GPU-00000000-0000-0000-0000-000000000001"

    def opened(*names: str) -> str:
        try:
            CudaInstance(names[0], others=names[1:]).close()
        except DeviceError as fault:
            return str(fault)
        return "opened"

    assert forked.call(lambda: opened(first, second), "worker", 20) == "opened"
    assert "shows 1 devices" in forked.call(lambda: opened(first, absent), "worker", 20)
    assert "not all are UUIDs" in forked.call(lambda: opened(first, "1"), "worker", 20)
