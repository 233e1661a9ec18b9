"""kill -9 of migd between any two steps: nothing leaks, nothing foreign is touched, and a client may just ask again."""

from __future__ import annotations

import secrets

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offpath.bindings.faults import POINTS
from offpath.bindings.nvml import cut
from offpath.bindings.nvml.session import Nvml
from offpath.host_helper.migd import protocol

from .rig import Place, Rig, cut_foreign, killed_at, places

MIGD_POINTS = sorted(point for point in POINTS if point.startswith("migd."))
FOREIGN: Place = ("1g.5gb", 6)
FIRST, SECOND = secrets.token_hex(16), secrets.token_hex(16)


def work(rig: Rig) -> None:
    """What a helper wants: two instances, of which one is given back."""
    rig.start()
    rig.service.settle()
    rig.create("3g.20gb", 0, FIRST)
    rig.create("2g.10gb", 4, SECOND)
    rig.ask(protocol.Destroy(handle=FIRST))
    rig.stop()


def existing(gpu: str) -> list[Place]:
    nvml = Nvml()
    try:
        return sorted(places(nvml, gpu))
    finally:
        nvml.close()


def prepared(rig: Rig) -> str:
    """A foreign instance is there, and NVML is closed in this process. The GPU's UUID."""
    gpu = rig.gpu()
    rig.stop()
    nvml = Nvml()
    cut_foreign(nvml, gpu, *FOREIGN)
    nvml.close()
    return gpu


def check_settled(rig: Rig, gpu: str, foreign: list[Place]) -> None:
    """After a restart the GPU has exactly the foreign instances and those that the ledger calls ready."""
    rig.start()
    rig.service.settle()
    entries = rig.ledger.entries()
    assert {entry.state for entry in entries} <= {"ready"}
    ours = [(entry.profile, entry.start) for entry in entries]
    rig.stop()
    assert existing(gpu) == sorted(ours + foreign)


@pytest.mark.parametrize("point", MIGD_POINTS)
def test_a_kill_at_every_visit_of_a_point_leaks_nothing_and_the_work_can_be_repeated(rig: Rig, point: str) -> None:
    gpu = prepared(rig)
    visits = 0
    while killed_at(f"{point}=kill@{visits + 1}", lambda: work(rig)):
        visits += 1
        check_settled(rig, gpu, [FOREIGN])
        work(rig)
        assert existing(gpu) == sorted([FOREIGN, ("2g.10gb", 4)])
        rig.start()
        rig.ask(protocol.Destroy(handle=SECOND))
        assert rig.ledger.entries() == []
        rig.stop()
    assert visits >= 1, "the work never came to this point"


@pytest.mark.parametrize("point", ["migd.intended", "migd.destroyed", "migd.freed"])
def test_an_instance_that_somebody_cuts_at_the_same_place_after_the_kill_is_left_alone(rig: Rig, point: str) -> None:
    """Where the place was free at the kill, what is there at the restart is not migd's."""
    gpu = prepared(rig)
    assert killed_at(f"{point}=kill", lambda: work(rig))
    nvml = Nvml()
    for line in [each for each in nvml.instances(gpu) if each.start == 0]:
        cut.destroy_compute_instances(nvml, gpu, line.gpu_instance)
        cut.destroy_gpu_instance(nvml, gpu, line.gpu_instance)
    cut_foreign(nvml, gpu, "3g.20gb", 0)
    nvml.close()
    rig.start()
    rig.service.settle()
    lines = {(line.profile, line.start): line.owner for line in rig.ask(protocol.Describe(gpu=gpu)).instances}
    assert lines["3g.20gb", 0] == "foreign"
    assert lines[FOREIGN] == "foreign"


def test_a_foreign_instance_at_the_wanted_place_never_gets_into_the_ledger(rig: Rig) -> None:
    """Not for a moment: a kill would make it look like migd's own, because it has no compute instance."""
    gpu = prepared(rig)
    nvml = Nvml()
    cut_foreign(nvml, gpu, "3g.20gb", 0, compute=False)
    nvml.close()

    def create() -> None:
        rig.start()
        assert rig.create("3g.20gb", 0).code == "placement_taken"

    assert not killed_at("migd.intended=kill", create)
    rig.start()
    rig.service.settle()
    rig.stop()
    assert existing(gpu) == sorted([FOREIGN, ("3g.20gb", 0)])


PLACES = [("1g.5gb", 0), ("1g.5gb", 2), ("2g.10gb", 0), ("2g.10gb", 4), ("3g.20gb", 0), ("3g.20gb", 4), ("7g.40gb", 0)]
STEPS = st.lists(st.tuples(st.sampled_from(["create", "destroy"]), st.sampled_from(PLACES)), min_size=1, max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=STEPS, point=st.sampled_from(MIGD_POINTS), visit=st.integers(1, 6))
def test_any_work_killed_anywhere_settles(rig: Rig, steps: list[tuple[str, Place]], point: str, visit: int) -> None:
    """The GPU is emptied between examples, also of what a failed one left."""
    rig.start()
    gpu = rig.gpu()
    handles = {place: secrets.token_hex(16) for place in PLACES}

    def run() -> None:
        rig.start()
        for verb, place in steps:
            if verb == "create":
                rig.create(*place, handles[place])
            else:
                rig.ask(protocol.Destroy(handle=handles[place]))
        rig.stop()

    rig.stop()
    if not killed_at(f"{point}=kill@{visit}", run):
        rig.start()
    check_settled(rig, gpu, [])
    rig.start()
    for entry in rig.ledger.entries():
        assert isinstance(rig.ask(protocol.Destroy(handle=entry.handle)), protocol.Done)
    rig.stop()
    assert existing(gpu) == []
