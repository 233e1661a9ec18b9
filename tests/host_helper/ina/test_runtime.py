"""Real ranks over gloo, real switches: weights are DDP's to the bit, and all ranks are alike whatever is lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from offpath.cli.local.switches import Switches
from offpath.host_helper.ina.rank_file import EPOCH, PATTERN, STATE
from offpath.sched.ina.protocol.records import EpochRecord, Grant, Wants

from ...support.ina_job import Agents, Job
from ...support.optional import TORCH

pytest.importorskip("torch", reason=TORCH)
RANKS = 4
HOSTS = (0, 0, 1, 1)
PAIRS = [[0, 1], [2, 3]]
"""How HOSTS' two leaves and their root add up."""
FIRST, SECOND = 1 << 32 | 1, 1 << 32 | 2


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    made = Job(tmp_path_factory.mktemp("job"), RANKS)
    yield made
    for each in made.processes:
        each._stdin.close()
    for each in made.processes:
        each.finish(is_notified=True)


@pytest.fixture(scope="module")
def switches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Switches]:
    with Switches(str(tmp_path_factory.mktemp("switches")), leaves=2) as started:
        yield started


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    made = Agents(tmp_path, RANKS)
    yield made
    made.close()


def granted(switches: Switches, name: str, incarnation: int, number: int = 1, *, flat: bool = False) -> EpochRecord:
    """An epoch in which all operations may use the tree of HOSTS, or that of one leaf; its switches know of it."""
    if flat:
        permission = switches.permissions(name, (0,) * RANKS, incarnation=incarnation, number=number)["s1"]
        switches.allow({"s1": replace(permission, parent="")})
        attach = switches.attach_addresses((0,) * RANKS)
    else:
        switches.allow(switches.permissions(name, HOSTS, incarnation=incarnation, number=number))
        attach = switches.attach_addresses(HOSTS)
    return EpochRecord(name, incarnation, 1, number, Grant("tree", attach, "token"), Wants.ALWAYS)


def one(found: list[dict[str, Any]], key: str) -> Any:
    """What all ranks say alike."""
    said = [each[key] for each in found]
    assert all(each == said[0] for each in said), said
    return said[0]


def ways(found: list[dict[str, Any]]) -> list[set[str]]:
    """By rank, how its operations ran."""
    return [{how for _, how in each["timeline"]} for each in found]


# -- without INA ----------------------------------------------------------------------------------------------------
def test_through_the_hook_weights_are_ddps_to_the_bit(job: Job) -> None:
    """With `no_sync`, too: other buckets in some steps."""
    alone = one(job.ask("train", by="ddp", steps=8, accumulates=True), "weights")
    assert one(job.ask("train", by="hook", steps=8, accumulates=True), "weights") == alone


def test_a_wrapped_hook_does_what_it_does_alone(job: Job) -> None:
    alone = one(job.ask("train", by="fp16", steps=6), "weights")
    assert one(job.ask("train", by="wrap", steps=6), "weights") == alone


@pytest.mark.parametrize("folder", ["/proc/nowhere", "/"], ids=["cannot be made", "not ours"])
def test_without_a_folder_a_job_runs_plain(folder: str, job: Job) -> None:
    found = job.ask("sum", job="alone", directories=[folder] * RANKS, steps=3)
    assert one(found, "wrong") == []
    assert ways(found) == [{"plain"}] * RANKS


def test_without_an_agent_a_job_runs_plain_and_leaves_nothing(job: Job, agents: Agents) -> None:
    found = job.ask("sum", job="alone", directories=agents.directories, steps=3)
    assert one(found, "wrong") == []
    assert [os.listdir(each) for each in agents.directories] == [[]] * RANKS


def test_a_job_without_steps_has_its_boundaries_by_count(job: Job, agents: Agents, switches: Switches) -> None:
    said = {"has_steps": False, "every": 4, "pause_s": 0.03}
    incarnation = job.begin("sum", job="flow", directories=agents.directories, steps=40, **said)
    agents.publish(granted(switches, "flow", incarnation))
    found = job.hear()
    assert one(found, "wrong") == []
    assert one(found, "applied") == FIRST


# -- with INA -------------------------------------------------------------------------------------------------------
def test_in_a_tree_weights_are_those_of_a_run_without_it(job: Job, agents: Agents, switches: Switches) -> None:
    """In deterministic mode to the bit: plain sums are then made as the tree makes them."""
    said = {"by": "hook", "steps": 25, "deterministic": PAIRS, "accumulates": True}
    alone = one(job.ask("train", **said), "weights")
    incarnation = job.begin("train", job="both", directories=agents.directories, pause_s=0.03, **said)
    agents.publish(granted(switches, "both", incarnation))
    agents.wait(lambda applied: set(applied) == {FIRST})
    agents.publish(EpochRecord("both", incarnation, 1, 2))
    found = job.hear()
    assert one(found, "weights") == alone
    assert ways(found) == [{"plain", "ina"}] * RANKS
    assert one(found, "applied") == SECOND
    assert one(found, "timeline")


def test_every_type_that_switches_add_up_and_one_they_do_not(job: Job, agents: Agents, switches: Switches) -> None:
    said = {"operations": 5, "steps": 20, "pause_s": 0.03}
    incarnation = job.begin("sum", job="types", directories=agents.directories, **said)
    agents.publish(granted(switches, "types", incarnation))
    found = job.hear()
    assert one(found, "wrong") == []
    last = [how for _, how in one(found, "timeline")[-5:]]
    assert last == ["ina", "ina", "ina", "ina", "plain"]


def test_what_the_root_refuses_runs_plain_at_all_ranks(job: Job, agents: Agents, switches: Switches) -> None:
    """Another job's operation, which never ends, has the tree's one place."""
    from ...dpu_daemon.switch.ranks import close_all, job_of

    holders = job_of(switches, "holder", (0, 1))
    data = memoryview(bytearray(4096))
    holders[0].start(0, "fp32", data, memoryview(bytearray(4096)))
    holders[0].poll(0.2)
    incarnation = job.begin("sum", job="refused", directories=agents.directories, steps=25, pause_s=0.03)
    agents.publish(granted(switches, "refused", incarnation))
    found = job.hear()
    close_all(holders)
    assert one(found, "wrong") == []
    assert ways(found) == [{"plain", "refused"}] * RANKS
    assert one(found, "lost") == 0


# -- epochs ---------------------------------------------------------------------------------------------------------
def test_an_epoch_that_reaches_the_ranks_one_by_one_is_applied_by_all_at_one_step(
    job: Job, agents: Agents, switches: Switches
) -> None:
    incarnation = job.begin("sum", job="late", directories=agents.directories, steps=60, pause_s=0.02)
    epoch = granted(switches, "late", incarnation)
    for rank in (2, 0, 3, 1):
        assert set(agents.applied()) == {0}
        agents.publish(epoch, rank)
        agents.wait(lambda _, rank=rank: bool(agents.folders[rank].states()[0].held))
    found = job.hear()
    assert one(found, "wrong") == []
    assert one(found, "applied") == FIRST
    assert one(found, "timeline")


def test_an_epoch_that_one_rank_never_hears_of_is_never_applied_and_nobody_waits(
    job: Job, agents: Agents, switches: Switches
) -> None:
    incarnation = job.begin("sum", job="never", directories=agents.directories, steps=25, pause_s=0.02)
    agents.publish(granted(switches, "never", incarnation), 0, 1, 3)
    found = job.hear()
    assert one(found, "wrong") == []
    assert [each["held"] for each in found] == [FIRST, FIRST, 0, FIRST]
    assert one(found, "applied") == 0
    assert ways(found) == [{"plain"}] * RANKS


def test_an_epoch_whose_switch_is_not_there_is_never_applied(job: Job, agents: Agents) -> None:
    incarnation = job.begin("sum", job="absent", directories=agents.directories, steps=25, pause_s=0.02)
    grant = Grant("tree", ("unix:///nowhere/s0",) * 3 + ("no address at all",), "token")
    agents.publish(EpochRecord("absent", incarnation, 1, 1, grant, Wants.ALWAYS))
    found = job.hear()
    assert (one(found, "wrong"), one(found, "applied"), one(found, "held")) == ([], 0, FIRST)


def test_garbage_on_the_pages_is_ignored(job: Job, agents: Agents, switches: Switches) -> None:
    incarnation = job.begin("sum", job="garbage", directories=agents.directories, steps=60, pause_s=0.02)
    noise = Random(8)
    state_files = [str(next(Path(each).glob("*.page"))) for each in agents.directories]
    for _ in range(20):
        for path in state_files:
            with open(path, "r+b") as file:
                file.seek(noise.choice((0, STATE.offset, PATTERN.offset, EPOCH.offset, EPOCH.offset + 16)))
                file.write(noise.randbytes(noise.choice((8, 16, 200))))
    os.truncate(state_files[1], 5000)
    grant = Grant("tree", ("unix:///nowhere/s0",) * RANKS, "token")
    agents.publish(EpochRecord("garbage", incarnation, 1, 1, grant))
    found = job.hear()
    assert one(found, "wrong") == []
    assert one(found, "applied") == 0


# -- losses ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reached", [0, 1, 2, 3, 4])
def test_a_switch_killed_when_some_ranks_have_the_sum_leaves_all_alike(
    reached: int, job: Job, agents: Agents, tmp_path: Path
) -> None:
    """Of the seventh sum; after it all run plain, and weights are those of a run without INA."""
    said = {"by": "hook", "steps": 20, "deterministic": True}
    alone = one(job.ask("train", **said), "weights")
    kill = f"switch.delivered=kill@{6 * RANKS + reached}" if reached else f"switch.admitted=kill@{7}"
    with Switches(str(tmp_path / "s"), leaves=1, faults={"s1": kill}) as switches:
        incarnation = job.begin("train", job="killed", directories=agents.directories, pause_s=0.03, **said)
        agents.publish(granted(switches, "killed", incarnation, flat=True))
        found = job.hear()
        assert switches.processes["s1"].poll() is not None
    assert one(found, "weights") == alone
    assert one(found, "lost") == FIRST
    by_index = [{how for _, how in each} for each in zip(*(each["timeline"] for each in found), strict=True)]
    assert by_index[0] == by_index[-1] == {"plain"}
    assert {"ina"} in by_index
    if 0 < reached < RANKS:
        assert {"ina", "redone"} in by_index, "the sum was to reach some and not others"


def test_a_switch_that_stands_still_is_given_up_in_bounded_time(job: Job, agents: Agents, tmp_path: Path) -> None:
    with Switches(str(tmp_path / "s"), leaves=1, faults={"s1": "switch.admitted=stop@4"}) as switches:
        said = {"steps": 25, "pause_s": 0.02, "patience_s": 1.0}
        incarnation = job.begin("sum", job="still", directories=agents.directories, **said)
        agents.publish(granted(switches, "still", incarnation, flat=True))
        found = job.hear()
        switches.processes["s1"].kill()
    assert one(found, "wrong") == []
    assert one(found, "lost") == FIRST


def test_after_a_loss_a_newer_epoch_gives_ina_again(job: Job, agents: Agents, tmp_path: Path) -> None:
    with Switches(str(tmp_path / "s"), leaves=1, faults={"s1": "switch.delivered=kill@5"}) as switches:
        said = {"steps": 120, "pause_s": 0.03}
        incarnation = job.begin("sum", job="again", directories=agents.directories, **said)
        agents.publish(granted(switches, "again", incarnation, flat=True))
        agents.wait(lambda _: all(each.states()[0].lost == FIRST for each in agents.folders))
        switches.restart("s1")
        agents.publish(granted(switches, "again", incarnation, 2, flat=True))
        found = job.hear()
    assert one(found, "wrong") == []
    assert one(found, "applied") == SECOND
    assert [each["timeline"][-1][1] for each in found] == ["ina"] * RANKS


def test_a_dead_rank_ends_the_job_as_gloo_does_and_nobody_hangs(tmp_path: Path, switches: Switches) -> None:
    agents = Agents(tmp_path, 2)
    made = Job(tmp_path / "job", 2)
    try:
        said = {"steps": 60, "pause_s": 0.03, "dies_at": [1, 30]}
        incarnation = made.begin("sum", job="dies", directories=agents.directories, **said)
        switches.allow(switches.permissions("dies", (0, 1), incarnation=incarnation))
        grant = Grant("tree", switches.attach_addresses((0, 1)), "token")
        agents.publish(EpochRecord("dies", incarnation, 1, 1, grant, Wants.ALWAYS))
        agents.wait(lambda applied: set(applied) == {FIRST})
        assert "failed" in made.processes[0].hear()
        agents.wait(lambda applied: applied == [-1, -1])
        assert [os.listdir(each) for each in agents.directories] == [[], []]
    finally:
        made.close()
        agents.close()
