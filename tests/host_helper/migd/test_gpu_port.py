"""`MigGpu` keeps the promises of the GPU port that need no memory, over migd's socket and an emulated NVML."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from offpath.bindings.errors import DeviceError, DeviceGone, InstanceInUse, MigModeUnusable, PlacementTaken
from offpath.bindings.ports import InstanceMemory
from offpath.host_helper.migd.client import MigdClient
from offpath.host_helper.migd.gpu import InstanceIdentity, InstanceOpener, MigGpu

from ...bindings.conformance import test_gpu as promises
from ...support.gpu_machine import Machine
from ...support.processes import until
from .rig import Rig, Served


class Opened(Exception):
    """What the opener of these tests was asked to open."""

    def __init__(self, identity: InstanceIdentity) -> None:
        self.identity = identity


def refuse(identity: InstanceIdentity) -> InstanceMemory:
    raise Opened(identity)


OPENER = InstanceOpener(refuse, lambda identity: identity.nbytes)
Make = Callable[..., MigGpu]


@pytest.fixture
def make(machine: Machine, rig: Rig) -> Iterator[Make]:
    """``make(model, mig, mode)``: the port of a machine's GPU; once in a test."""
    served: list[Served] = []

    def made(model: str = "A100-40GB", mig: str = "on", mode: str = "mig") -> MigGpu:
        machine.set(models=model, mig=mig)
        rig.start(gpus={"all": mode})
        served.append(Served(rig))
        client = served[0].client()
        return MigGpu(client, client.gpus().gpus[0].uuid, OPENER)

    yield made
    for each in served:
        each.close()


class OneGpu:
    """As much of the conformance suite's rig as the promises below need."""

    def __init__(self, make: Make) -> None:
        self.gpu = make


@pytest.mark.parametrize(
    "promise",
    [
        promises.test_instances_are_listed_while_they_exist,
        promises.test_an_identity_is_not_given_twice,
        promises.test_links_lead_to_other_gpus,
        promises.test_unknown_profiles_and_instances_are_device_errors,
        promises.test_a_closed_gpu_is_gone,
    ],
)
def test_a_promise_of_the_port_holds(make: Make, promise: Callable[[OneGpu], None]) -> None:
    promise(OneGpu(make))


def test_exactly_the_legal_placements_are_accepted_in_every_state_of_one_instance(make: Make) -> None:
    """Of an A30. Each attempt goes through socket, ledger and NVML; the emulator's own tests try every state."""
    gpu = make("A30-24GB")
    choices = promises.placements(gpu.model)
    states = 0
    for held in promises.walk(gpu, choices, 1):
        states += 1
        for wanted in choices:
            instance = promises.accepted(gpu, wanted)
            assert (instance is not None) == promises.is_legal(gpu.model, (*held, wanted)), (held, wanted)
            if instance is not None:
                gpu.destroy_instance(instance)
    assert states > 8


def test_the_model_is_what_nvml_reports_not_what_the_table_says(make: Make, machine: Machine) -> None:
    gpu = make("H100-80GB")
    assert "H100" in gpu.model.name
    assert gpu.model.name.replace("-", "").replace(".", "").isalnum()
    assert (gpu.model.compute_slices, gpu.model.memory_slices) == (7, 8)
    assert gpu.profile_bytes("1g.10gb") < 1 << 30, "the emulator's, which is scaled"


def test_nvlinks_are_those_of_a_gpu_that_is_used_whole(make: Make, machine: Machine, rig: Rig) -> None:
    machine.set(gpus="3", nvlinks="0-1:4,0-2:8")
    gpu = make(mig="off", mode="whole")
    other, another = [line.uuid for line in gpu.client.gpus().gpus[1:]]
    assert gpu.links == {another: 8, other: 4}
    assert list(gpu.links) == [another, other], "the most links first"


def test_a_gpu_in_mig_mode_has_no_nvlinks(make: Make, machine: Machine) -> None:
    machine.set(gpus="2", nvlinks="0-1:4")
    assert make().links == {}


def test_a_gpu_whose_nvlinks_cannot_be_read_is_used_without_them(make: Make, machine: Machine) -> None:
    machine.set(gpus="2", nvlinks="switch:4", faults="nvmlDeviceGetNvLinkState:1=999")
    gpu = make(mig="off", mode="whole")
    assert gpu.links == {}
    assert gpu.create_instance("whole", 0) > 0


def test_a_worker_gets_the_uuid_and_the_memory_of_its_instance(make: Make) -> None:
    gpu = make()
    instance = gpu.create_instance("3g.20gb", 4)
    with pytest.raises(Opened) as opened:
        gpu.open_instance(instance)
    identity = opened.value.identity
    assert identity.visible.startswith("MIG-")
    assert (identity.gpu, identity.profile, identity.start) == (gpu.uuid, "3g.20gb", 4)
    assert gpu.scrub_instance(instance) == identity.nbytes == gpu.profile_bytes("3g.20gb")


def test_an_instance_that_cannot_be_destroyed_stays_listed(make: Make, machine: Machine) -> None:
    gpu = make()
    instance = gpu.create_instance("3g.20gb", 4)
    machine.set(faults="in_use=100000")
    with pytest.raises(InstanceInUse):
        gpu.destroy_instance(instance)
    assert [number for number, _, _ in gpu.instances()] == [instance]
    machine.set(faults="")
    gpu.destroy_instance(instance)
    assert gpu.instances() == []


def test_leases_of_a_helper_that_ended_are_reclaimed_and_those_of_a_living_one_are_not(make: Make, rig: Rig) -> None:
    gpu = make()
    path = str(rig.folder / "migd.sock")
    dead, living = MigdClient(path), MigdClient(path)
    left = dead.create(gpu.uuid, "1g.5gb", 0)
    kept = living.create(gpu.uuid, "1g.5gb", 1)
    own = gpu.create_instance("1g.5gb", 2)
    dead.close()
    until(lambda: rig.service.holders.unheld_ms(left.handle) >= 0)
    assert gpu.reclaim() == 0, "it may come back"
    rig.now_ns += 10_000_000_000
    assert gpu.reclaim() == 1
    assert sorted(line.start for line in living.describe(gpu.uuid).instances) == [1, 2]
    assert living.held == {kept.handle}
    assert [number for number, _, _ in gpu.instances()] == [own]
    living.close()


def test_a_place_that_a_helper_that_ended_still_has_is_reclaimed_when_it_is_wanted(make: Make, rig: Rig) -> None:
    """A helper that is restarted at once finds its leases too young to be reclaimed at its start."""
    gpu = make()
    dead = MigdClient(str(rig.folder / "migd.sock"))
    left = dead.create(gpu.uuid, "3g.20gb", 0)
    dead.close()
    until(lambda: rig.service.holders.unheld_ms(left.handle) >= 0)
    with pytest.raises(PlacementTaken):
        gpu.create_instance("1g.5gb", 1)
    rig.now_ns += 10_000_000_000
    instance = gpu.create_instance("1g.5gb", 1)
    assert gpu.instances() == [(instance, "1g.5gb", 1)]


def test_a_whole_gpu_has_one_instance(make: Make) -> None:
    gpu = make(mig="off", mode="whole")
    assert [profile.name for profile in gpu.model.profiles] == ["whole"]
    instance = gpu.create_instance("whole", 0)
    assert gpu.identity(instance).visible == gpu.uuid
    with pytest.raises(PlacementTaken):
        gpu.create_instance("whole", 0)
    gpu.destroy_instance(instance)
    gpu.create_instance("whole", 0)


def test_a_gpu_in_another_mode_says_what_to_do(make: Make) -> None:
    with pytest.raises(MigModeUnusable, match="nvidia-smi -i 0 -mig 1"):
        make(mig="off")


def test_a_lost_gpu_is_gone(make: Make, machine: Machine, tmp_path: Path) -> None:
    gpu = make()
    machine.set(faults="lost=1")
    with pytest.raises(DeviceGone):
        gpu.create_instance("1g.5gb", 0)
    with pytest.raises(DeviceError):
        gpu.identity(1)
