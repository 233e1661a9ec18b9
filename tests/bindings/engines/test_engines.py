"""The promises of the engine port, on every engine. They know no adapter."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import replace
from random import Random

import pytest

from offpath.bindings.engines.port import JobState, NodeState, Place, Start, check_start
from offpath.bindings.errors import EngineJobUnknown, EngineRefused
from offpath.sched.topology.slurm import conf

from .rigs import NODES, UNTIL_LET_GO, Jobs

pytestmark = pytest.mark.conformance

SHOW = 'echo "$OFFPATH_NODE $OFFPATH_PLACE/$OFFPATH_PLACES $CUDA_VISIBLE_DEVICES"'
MARK = 'echo "$OFFPATH_PLACE $$" >>"$0"'
LONG = f"{MARK}; exec sleep 100"


async def test_the_inventory_has_nodes_gpus_and_switches(jobs: Jobs) -> None:
    nodes = await jobs.engine.inventory()
    assert [node.name for node in nodes] == NODES
    assert [node.switch for node in nodes] == ["s0", "s0", "s1", "s1"]
    assert all([gpu.index for gpu in node.gpus] == [0, 1] for node in nodes)
    assert {gpu.model for node in nodes for gpu in node.gpus} == {"a100"}
    assert {node.state for node in nodes} == {NodeState.READY}


async def test_the_topology_is_one_that_placement_reads(jobs: Jobs) -> None:
    topology = conf(await jobs.engine.topology())
    assert sorted(topology.names[: topology.hosts]) == NODES


async def test_a_job_runs_on_the_chosen_nodes_with_its_gpus(jobs: Jobs) -> None:
    start = jobs.start(f"{SHOW}; sleep 1", [Place("h3", 2), Place("h1", 2)])
    await jobs.engine.start(start)
    running = await jobs.until(start.identity, JobState.RUNNING)
    assert running.state is JobState.RUNNING
    assert {place.node: place.gpus for place in running.places} == {"h1": (0, 1), "h3": (0, 1)}
    ended = await jobs.ended(start.identity)
    assert (ended.state, ended.exit_code) == (JobState.SUCCEEDED, 0)
    assert [jobs.output(start, place) for place in (0, 1)] == ["h3 0/2 0,1\n", "h1 1/2 0,1\n"]


async def test_nodes_may_give_different_numbers_of_gpus(jobs: Jobs) -> None:
    start = jobs.start(f"{SHOW}; sleep 1", [Place("h2", 2), Place("h1", 1), Place("h0")])
    await jobs.engine.start(start)
    running = await jobs.until(start.identity, JobState.RUNNING)
    given = {place.node: place.gpus for place in running.places}
    assert {node: len(gpus) for node, gpus in given.items()} == {"h2": 2, "h1": 1, "h0": 0}
    assert (await jobs.ended(start.identity)).state is JobState.SUCCEEDED
    assert jobs.output(start, 0) == "h2 0/3 0,1\n"
    assert jobs.output(start, 1) == f"h1 1/3 {given['h1'][0]}\n"
    assert jobs.output(start, 2) == "h0 2/3 \n"


async def test_named_gpus_are_given_or_the_given_ones_are_reported(jobs: Jobs) -> None:
    start = jobs.start(f"{SHOW}; sleep 1", [Place("h0", 1, (1,))])
    await jobs.engine.start(start)
    (place,) = (await jobs.until(start.identity, JobState.RUNNING)).places
    await jobs.ended(start.identity)
    assert jobs.output(start, 0) == f"h0 0/1 {place.gpus[0]}\n"
    if jobs.engine.names_gpus:
        assert place.gpus == (1,)


async def test_arguments_environment_and_folder_arrive_as_they_are(jobs: Jobs) -> None:
    odd = 'it\'s "a" $HOME\n`b` \\ * ü # %s'
    start = replace(
        jobs.start("", [Place("h0")]),
        working_directory=str(jobs.folder),
        environment={"ODD": odd, "PATH": "/usr/bin:/bin"},
        argv=("sh", "-c", 'printf "%s|" "$1" "$ODD" "$PWD" "$PATH"', "sh", odd),
    )
    assert (await jobs.run(start)).state is JobState.SUCCEEDED
    assert jobs.output(start, 0) == f"{odd}|{odd}|{jobs.folder}|/usr/bin:/bin|"


async def test_the_controllers_own_environment_is_not_passed_on(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFPATH_SECRET", "of the controller")
    start = jobs.start('echo "${OFFPATH_SECRET-none}"', [Place("h0")])
    await jobs.run(start)
    assert jobs.output(start, 0) == "none\n"


async def test_a_process_that_fails_ends_the_others_and_its_code_is_reported(jobs: Jobs) -> None:
    start = jobs.start('[ "$OFFPATH_PLACE" = 0 ] && exec sleep 100; exit 7', [Place("h0", 1), Place("h1", 1)])
    ended = await jobs.run(start)
    assert ended.state is JobState.FAILED
    assert ended.exit_code in (7, 143)  # Slurm reports the highest: of the process that it ended


async def test_one_exit_code_is_reported_exactly(jobs: Jobs) -> None:
    ended = await jobs.run(jobs.start("exit 7", [Place("h2", 1)]))
    assert (ended.state, ended.exit_code) == (JobState.FAILED, 7)


async def test_a_cancelled_job_ends_with_its_processes_and_its_gpus_are_free(jobs: Jobs) -> None:
    start = jobs.start(f"{MARK}; sleep 100 & wait", [Place("h0", 2), Place("h1", 2)])
    await jobs.engine.start(start)
    while len(jobs.marks(start)) < 2:
        await asyncio.sleep(0.05)
    await jobs.engine.cancel(start.identity)
    assert (await jobs.ended(start.identity)).state is JobState.CANCELLED
    assert not any(os.path.exists(f"/proc/{mark.split()[1]}") for mark in jobs.marks(start))
    assert (await jobs.run(jobs.start("true", [Place("h0", 2), Place("h1", 2)]))).state is JobState.SUCCEEDED
    await jobs.engine.cancel(start.identity)


async def test_a_job_that_waits_for_its_gpus_can_be_cancelled_or_is_refused(jobs: Jobs) -> None:
    first, second = (jobs.start(LONG, [Place("h0", 2)]) for _ in range(2))
    await jobs.engine.start(first)
    await jobs.until(first.identity, JobState.RUNNING)
    if jobs.rig.name == "local":
        with pytest.raises(EngineRefused, match=first.identity):
            await jobs.engine.start(second)
    else:
        assert (await jobs.engine.start(second)).state is JobState.PENDING
        await asyncio.sleep(1)
        await jobs.engine.cancel(second.identity)
        assert (await jobs.ended(second.identity)).state is JobState.CANCELLED
    assert jobs.marks(second) == []


@pytest.mark.parametrize("place", [Place("nowhere", 1), Place("h0", 3), Place("h0", 1, model="no-such-model")])
async def test_what_the_engine_refuses_comes_back_with_its_reason_and_leaves_nothing(jobs: Jobs, place: Place) -> None:
    start = jobs.start(MARK, [Place("h1", 1), place])
    with pytest.raises(EngineRefused) as refused:
        await jobs.engine.start(start)
    assert len(refused.value.reason) > 10
    assert start.identity not in {job.identity for job in await jobs.engine.jobs()}
    assert (await jobs.run(jobs.start("true", [Place("h1", 2)]))).state is JobState.SUCCEEDED
    assert jobs.marks(start) == []


async def test_a_start_that_is_repeated_finds_the_job(jobs: Jobs) -> None:
    start = jobs.start(f"{MARK}; sleep 1", [Place("h0", 1)])
    await asyncio.gather(*(jobs.engine.start(start) for _ in range(3)))
    await jobs.ended(start.identity)
    assert (await jobs.engine.start(start)).state is JobState.SUCCEEDED
    assert len(jobs.marks(start)) == 1


@pytest.mark.parametrize("seed", range(3))
async def test_a_start_whose_answer_was_lost_is_not_started_twice(jobs: Jobs, seed: int) -> None:
    start = jobs.start(f"{MARK}; sleep 1", [Place("h0", 1)])
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(jobs.engine.start(start), Random(seed).uniform(0.0, 0.03))
    await jobs.engine.close()
    jobs.engine = jobs.rig.engine()
    await jobs.engine.adopt()
    await jobs.engine.start(start)
    assert (await jobs.ended(start.identity)).state is JobState.SUCCEEDED
    assert len(jobs.marks(start)) == 1


async def test_another_controller_takes_over_what_runs(jobs: Jobs) -> None:
    # The second fails when the first has left: one that is ended for it would leave with a code of its own.
    first = ': >"$0.first"; exit 0'
    second = 'until [ -e "$0.first" ]; do sleep 0.3; done; exit 3'
    script = f'{MARK}; {UNTIL_LET_GO}; if [ "$OFFPATH_PLACE" = 0 ]; then {first}; fi; {second}'
    start = jobs.start(script, [Place("h0", 1), Place("h3", 1)])
    await jobs.engine.start(start)
    await jobs.until(start.identity, JobState.RUNNING)
    await jobs.engine.close()
    jobs.engine = jobs.rig.engine()
    (adopted,) = [job for job in await jobs.engine.adopt() if job.identity == start.identity]
    assert adopted.state is JobState.RUNNING
    assert {place.node for place in adopted.places} == {"h0", "h3"}
    jobs.let_go(start)
    ended = await jobs.ended(start.identity)
    assert (ended.state, ended.exit_code) == (JobState.FAILED, 3)
    assert len(jobs.marks(start)) == 2


async def test_a_job_whose_supervisor_is_lost_is_lost_and_does_not_run_again(jobs: Jobs) -> None:
    start = jobs.start(LONG, [Place("h2", 1)])
    await jobs.engine.start(start)
    running = await jobs.until(start.identity, JobState.RUNNING)
    while not jobs.marks(start):
        await asyncio.sleep(0.05)
    jobs.rig.kill_job(running)
    assert (await jobs.ended(start.identity)).state is JobState.LOST
    jobs.rig.mend()
    await jobs.engine.start(start)
    assert (await jobs.ended(start.identity)).state is JobState.LOST
    assert len(jobs.marks(start)) == 1
    assert (await jobs.run(jobs.start("true", [Place("h2", 2)]))).state is JobState.SUCCEEDED


async def test_an_unknown_job_is_unknown(jobs: Jobs) -> None:
    with pytest.raises(EngineJobUnknown):
        await jobs.engine.cancel(jobs.rig.identity())
    with pytest.raises(EngineJobUnknown):
        await jobs.engine.release(jobs.rig.identity(), [Place("h0")])
    await jobs.engine.forget(jobs.rig.identity())


async def test_a_job_that_runs_is_not_forgotten(jobs: Jobs) -> None:
    start = jobs.start(LONG, [Place("h0")])
    await jobs.engine.start(start)
    with pytest.raises(EngineRefused):
        await jobs.engine.forget(start.identity)


GOOD = Start(identity="a", places=(Place("h0", 1),), argv=("true",))


@pytest.mark.parametrize(
    "bad",
    [
        replace(GOOD, identity=""), replace(GOOD, identity="../a"), replace(GOOD, identity="a" * 65),
        replace(GOOD, identity="a b"), replace(GOOD, identity="a\n"), replace(GOOD, places=()),
        replace(GOOD, places=(Place("h0"), Place("h0"))), replace(GOOD, places=(Place("h0,h1"),)),
        replace(GOOD, places=(Place("h[0-1]"),)), replace(GOOD, places=(Place("h0", -1),)),
        replace(GOOD, places=(Place("h0", 2, (1,)),)), replace(GOOD, places=(Place("h0", 2, (1, 1)),)),
        replace(GOOD, places=(Place("h0", 1, (-1,)),)), replace(GOOD, places=(Place("h0", 1, model="a:b"),)),
        replace(GOOD, argv=()), replace(GOOD, argv=("",)), replace(GOOD, argv=("a\0b",)),
        replace(GOOD, argv=("a", "\udc80")), replace(GOOD, argv=("a", "x" * 200_000)),
        replace(GOOD, environment={"A=B": "1"}), replace(GOOD, environment={"A": "\0"}),
        replace(GOOD, environment={"A\nB": "1"}), replace(GOOD, working_directory="tmp"),
        replace(GOOD, output="out"), replace(GOOD, user="root; id"),
    ],
)  # fmt: skip
def test_a_start_that_no_engine_could_run_is_refused(bad: Start) -> None:
    check_start(GOOD)
    with pytest.raises(EngineRefused):
        check_start(bad)
