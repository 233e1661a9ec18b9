"""The job manager's side of SHArP's jobs, against a controller's own rules for jobs behind its socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from offpath.dpu_daemon.manager.inc.links import LinkAway
from offpath.dpu_daemon.manager.inc.tree_jobs import DOWN_LOOKS, MISSES
from offpath.sched.inc.live.records import RequestState, Save, StopTask
from offpath.sched.inc.live.tree_hire import NO_ANSWER_YET
from offpath.sched.topology.fattree import leaf_spine

from ...sched.inc.tree_world import where
from .tree_rig import Rig, rig_on


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_on(tmp_path, leaf_spine(3, 2, 2)) as made:
        yield made


async def test_a_rank_starts_when_the_controller_has_its_job_on_the_booked_switches(rig: Rig) -> None:
    await rig.trees.step()
    assert (rig.world.hire.fault, rig.world.hire.usable) == ("", rig.world.usable)
    request = rig.world.submit()
    rig.world.round()
    with pytest.raises(LinkAway, match="not at the INA controller yet"):
        await rig.trees.environment(request, rig.rank(request))
    await rig.trees.step()
    (job,) = rig.controller.jobs.known()
    assert job.name == request.trees["sum"].name
    assert sorted(job.hosts) == where(request, "ranks.server")
    assert sorted(job.switches or ()) == where(request, "sum.sharp")
    expected = {"OFFPATH_INA_JOB": job.name, "OFFPATH_INA_DIRECTORY": "/ina"}
    assert (await rig.trees.environment(request, rig.rank(request))) == expected
    assert rig.world.saved["r"].trees["sum"].environment == expected
    await rig.trees.step()
    assert rig.controller.submissions == 1


async def test_another_job_manager_finds_the_job_and_a_controller_that_forgot_it_gets_it_again(rig: Rig) -> None:
    request = await rig.running()
    rig.world.again()
    rig.begin()
    await rig.trees.step()
    rig.world.round()
    await rig.trees.step()
    assert rig.controller.submissions == 1
    name = request.trees["sum"].name
    rig.controller.jobs.cancel(name)
    await rig.trees.step()
    assert rig.controller.jobs.get(name).switches == tuple(where(rig.world.book.get("r"), "sum.sharp"))


async def test_a_switch_is_released_when_neither_the_job_nor_the_ledger_has_it(rig: Rig) -> None:
    request = await rig.running(among=("sharp",))
    name, task = request.trees["sum"].name, next(each for each in request.tasks.values() if each.is_inc)
    with pytest.raises(LinkAway, match="may still use"):
        await rig.trees.before_stop(request, task)
    rig.controller.holds = [("other", task.node), (name, "other"), (name, task.node)]
    rig.world.carry(rig.world.book.cancel("r"))
    await rig.trees.step()
    assert not rig.controller.jobs.knows(name), "it never ran"
    with pytest.raises(LinkAway, match="still has a place"):
        await rig.trees.before_stop(request, task)
    rig.controller.holds.pop()
    await rig.trees.before_stop(request, task)
    await rig.trees.step()
    assert request.trees == {}


async def test_a_lost_switch_leaves_the_job_without_switches_until_another_tree_is_booked(rig: Rig) -> None:
    request = await rig.running(among=("sharp",))
    topology = rig.world.topology
    leaf = next(each for each in where(request, "sum.sharp") if topology.level[topology.names.index(each)] == 1)
    hosts = rig.controller.jobs.get(request.trees["sum"].name).hosts
    rig.world.carry(rig.world.book.node_lost(leaf, 0))
    rig.world.round()
    await rig.trees.step()
    job = rig.controller.jobs.get(request.trees["sum"].name)
    assert (job.switches, job.hosts) == ((), hosts)
    rig.world.book.node_back(leaf)
    rig.world.round()
    await rig.trees.step()
    assert leaf in (job.switches or ())


async def test_a_tree_that_the_controller_refuses_falls_back_and_leaves_nothing(rig: Rig) -> None:
    for number in range(4):  # its hosts are full with other jobs
        rig.controller.jobs.submit(f"full{number}", 0, rig.world.topology.names[:6], 1, 0)
    request = await rig.running(among=("sharp", "server"))
    rig.world.round(6)
    assert request.chosen["sum"] == "server"
    assert "no sharp: the INA controller refuses it: no_room" in request.reasons["sum"]
    assert (await rig.trees.environment(request, rig.rank(request))) == {}
    rig.world.carry(rig.world.book.cancel("r"))
    await rig.trees.step()
    assert request.trees == {}


async def test_a_controller_that_is_away_makes_no_tree_and_keeps_no_rank_waiting(rig: Rig) -> None:
    request = await rig.running(among=("sharp", "server"))
    await rig.socket.close()
    for _ in range(MISSES - 1):
        await rig.trees.step()
        assert rig.world.hire.fault == ""
    await rig.trees.step()
    assert "INA controller at" in rig.world.hire.fault
    rig.world.round()
    assert request.chosen["sum"] == "sharp", "the tree stays"
    assert await rig.trees.environment(request, rig.rank(request))
    other = rig.world.submit("other", 2, ("sharp", "server"))
    rig.world.round(6)
    assert (other.state, "sharp" in other.chosen.values()) == (RequestState.RUNNING, False)


async def test_a_tree_that_was_never_confirmed_is_given_back_when_the_controller_is_away(rig: Rig) -> None:
    await rig.trees.step()
    request = rig.world.submit(among=("sharp", "server"))
    rig.world.round()
    await rig.socket.close()
    for _ in range(MISSES):
        await rig.trees.step()
    rig.world.round(6)
    assert (request.state, request.chosen["sum"]) == (RequestState.RUNNING, "server")


async def test_a_switch_in_use_is_down_only_if_the_controller_reports_it_for_a_while(rig: Rig) -> None:
    request = await rig.running()
    down = where(request, "sum.sharp")[0]
    rig.controller.switches[down] = False
    for _ in range(DOWN_LOOKS - 1):
        await rig.trees.step()
    rig.world.round()
    assert down in where(request, "sum.sharp")
    await rig.trees.step()
    rig.world.round()
    assert down not in where(request, "sum.sharp")


# -- races and restarts -----------------------------------------------------------------------------------------------
async def test_a_switch_stays_booked_while_a_submission_that_names_it_is_on_its_way(rig: Rig) -> None:
    await rig.trees.step()
    request = rig.world.submit(among=("sharp",))
    rig.world.round()
    tasks = [each for each in request.tasks.values() if each.is_inc]
    rig.controller.gate.clear()
    step = asyncio.create_task(rig.trees.step())
    await rig.controller.has_submission.wait()
    rig.world.carry(rig.world.book.cancel("r"))
    for task in tasks:
        with pytest.raises(LinkAway, match=f"may still use {task.node}"):
            await rig.trees.before_stop(request, task)
    rig.controller.gate.set()
    await step
    await rig.trees.step()
    for task in tasks:
        await rig.trees.before_stop(request, task)


async def test_a_switch_stays_booked_after_a_submission_without_a_reply_until_the_jobs_are_listed(rig: Rig) -> None:
    await rig.trees.step()
    request = rig.world.submit(among=("sharp",))
    rig.world.round()
    task = next(each for each in request.tasks.values() if each.is_inc)
    rig.controller.is_cut = True
    await rig.trees.step()
    (job,) = rig.controller.jobs.known()
    rig.world.carry(rig.world.book.cancel("r"))
    with pytest.raises(LinkAway, match="may still use"):
        await rig.trees.before_stop(request, task)
    rig.controller.is_cut = False
    await rig.trees.step()
    assert not rig.controller.jobs.knows(job.name)
    await rig.trees.before_stop(request, task)


async def test_a_refusal_gives_back_no_tree_that_was_booked_after_it_was_requested(rig: Rig) -> None:
    request = await rig.running(among=("sharp",))
    topology = rig.world.topology
    spine = next(each for each in where(request, "sum.sharp") if topology.level[topology.names.index(each)] == 2)
    rig.controller.jobs.cancel(request.trees["sum"].name)
    for number in range(4):
        rig.controller.jobs.submit(f"full{number}", 0, topology.names[:6], 1, 0)
    rig.controller.has_submission.clear()
    rig.controller.gate.clear()
    step = asyncio.create_task(rig.trees.step())
    await rig.controller.has_submission.wait()
    rig.world.carry(rig.world.book.node_lost(spine, 0))
    rig.world.round()
    after = where(request, "sum.sharp")
    assert spine not in after
    rig.controller.gate.set()
    await step
    assert where(request, "sum.sharp") == after
    await rig.trees.step()
    assert where(request, "sum.sharp") == [], "now it is the one that is refused"


async def test_ranks_of_a_job_that_was_cancelled_before_they_were_reported_get_no_tree_and_no_switch(rig: Rig) -> None:
    """Their processes end some time after the cancellation, and report meanwhile."""
    request = await rig.running(among=("sharp",))
    name, hosts = request.trees["sum"].name, where(request, "ranks.server")
    commands = rig.world.book.cancel("r")
    rig.world.carry(each for each in commands if not isinstance(each, StopTask) or each.is_inc)
    await rig.trees.step()
    assert not rig.controller.jobs.knows(name)
    await rig.trees.step()
    assert request.trees, "its ranks may still register it"
    rig.controller.report(name, hosts)
    assert rig.controller.jobs.get(name).switches is None
    await rig.trees.step()
    assert rig.controller.jobs.get(name).state == "cancelled"
    rig.world.carry(commands)
    await rig.trees.step()
    assert request.trees == {}


async def test_a_job_that_an_operator_has_cancelled_is_submitted_once_more_and_not_for_ever(rig: Rig) -> None:
    request = await rig.running()
    name, hosts = request.trees["sum"].name, where(request, "ranks.server")
    rig.controller.report(name, hosts)
    rig.controller.jobs.cancel(name)
    for _ in range(5):
        await rig.trees.step()
    job = rig.controller.jobs.get(name)
    assert rig.controller.submissions == 2
    assert (job.state, sorted(job.switches or ())) == ("cancelled", where(request, "sum.sharp"))
    assert await rig.trees.environment(request, rig.rank(request))
    rig.controller.report(name, hosts, incarnation=8)
    assert rig.controller.jobs.get(name).state == "running"
    rig.world.carry(rig.world.book.cancel("r"))
    await rig.trees.step()
    assert (rig.controller.jobs.get(name).state, rig.controller.jobs.get(name).switches) == ("cancelled", ())


async def test_a_job_of_that_name_of_another_submitter_is_not_touched_and_keeps_nothing_booked(rig: Rig) -> None:
    await rig.trees.step()
    request = rig.world.submit(among=("sharp", "server"))
    rig.world.round()
    name, task = request.trees["sum"].name, next(each for each in request.tasks.values() if each.is_inc)
    rig.controller.jobs.submit(name, 0, rig.world.topology.names[:2], 1, 0)
    rig.controller.holds = [(name, task.node)]
    await rig.trees.step()
    assert "job_exists" in " ".join(request.history)
    await rig.trees.before_stop(request, task)
    rig.world.round(6)
    assert (await rig.trees.environment(request, rig.rank(request))) == {}
    rig.world.carry(rig.world.book.cancel("r"))
    await rig.trees.step()
    await rig.trees.step()
    assert request.trees == {}
    assert rig.controller.jobs.get(name).state == "waiting"


async def test_a_listing_without_end_is_no_answer(rig: Rig) -> None:
    rig.controller.next = "a"
    for _ in range(MISSES):
        await rig.trees.step()
    assert "lists 'a' again" in rig.world.hire.fault


async def test_a_controller_that_is_away_from_the_start_is_logged_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.world.hire.fault = NO_ANSWER_YET
    await rig.socket.close()
    for _ in range(2 * MISSES):
        await rig.trees.step()
    assert [each.code for each in caplog.records] == ["inc_controller_away"]  # type: ignore[attr-defined]


# -- ranks ------------------------------------------------------------------------------------------------------------
async def test_ranks_whose_tree_is_refused_wait_for_another_one_if_nothing_else_can_sum(rig: Rig) -> None:
    for number in range(4):
        rig.controller.jobs.submit(f"full{number}", 0, rig.world.topology.names[:6], 1, 0)
    request = await rig.running(among=("sharp",))
    assert where(request, "sum.sharp") == []
    with pytest.raises(LinkAway, match="not at the INA controller yet"):
        await rig.trees.environment(request, rig.rank(request))
    for number in range(4):
        rig.controller.jobs.cancel(f"full{number}")
    rig.world.round(8)
    await rig.trees.step()
    assert len(where(request, "sum.sharp")) > 1
    assert await rig.trees.environment(request, rig.rank(request))


async def test_a_rank_on_another_host_waits_until_the_job_has_it_and_the_switches_of_its_rack(tmp_path: Path) -> None:
    async with rig_on(tmp_path, leaf_spine(4, 1, 2)) as rig:
        request = await rig.running()
        name, topology = request.trees["sum"].name, rig.world.topology
        hosts, before = where(request, "ranks.server"), where(request, "sum.sharp")
        old = next(leaf for leaf, _ in topology.up[topology.names.index(hosts[0])])
        task = next(each for each in request.tasks.values() if each.node == topology.names[old])
        rig.controller.holds = [(name, task.node)]
        rig.world.carry(rig.world.book.node_lost(hosts[0], rig.world.now_ms))
        rig.world.round()
        after = where(request, "sum.sharp")
        assert (task.node in before, task.node in after) == (True, False)
        moved = next(each for each in request.tasks.values() if not each.is_inc and each.node not in hosts)
        with pytest.raises(LinkAway, match="not at the INA controller yet"):
            await rig.trees.environment(request, moved)
        with pytest.raises(LinkAway, match="may still use"):
            await rig.trees.before_stop(request, task)
        await rig.trees.step()
        job = rig.controller.jobs.get(name)
        assert (sorted(job.hosts), sorted(job.switches or ())) == (where(request, "ranks.server"), after)
        assert (await rig.trees.environment(request, moved))["OFFPATH_INA_JOB"] == name
        with pytest.raises(LinkAway, match="still has a place"):
            await rig.trees.before_stop(request, task)
        rig.controller.holds = []
        await rig.trees.before_stop(request, task)
        assert [each.name for each in rig.controller.jobs.known()] == [name]


async def test_the_hosts_of_ranks_that_move_are_known_also_while_they_have_no_tree(tmp_path: Path) -> None:
    async with rig_on(tmp_path, leaf_spine(4, 1, 1)) as rig:
        request = await rig.running(among=("sharp", "server"))
        name, topology = request.trees["sum"].name, rig.world.topology
        rig.world.carry(rig.world.book.node_lost(topology.names[-1], rig.world.now_ms))
        rig.world.round(6)
        assert request.chosen["sum"] == "server"
        gone = where(request, "ranks.server")[0]
        rig.world.carry(rig.world.book.node_lost(gone, rig.world.now_ms))
        rig.world.round(6)
        await rig.trees.step()
        job = rig.controller.jobs.get(name)
        assert (sorted(job.hosts), job.switches) == (where(request, "ranks.server"), ())
        back = where(request, "ranks.server")[0]
        for number in range(4):
            rig.controller.jobs.submit(f"full{number}", 0, (gone,), 1, 0)
        rig.world.carry(rig.world.book.node_lost(back, rig.world.now_ms))
        rig.world.book.node_back(gone)
        rig.world.round(6)
        assert gone in where(request, "ranks.server")
        await rig.trees.step()
        moved = next(each for each in request.tasks.values() if each.node == gone)
        assert await rig.trees.environment(request, moved), "the controller refuses the host: it runs without a tree"


async def test_a_switch_gets_a_task_of_the_new_tree_when_the_one_of_the_old_tree_has_stopped(rig: Rig) -> None:
    request = await rig.running(among=("sharp",))
    topology = rig.world.topology
    spine = next(each for each in where(request, "sum.sharp") if topology.level[topology.names.index(each)] == 2)
    old = {each.identity for each in request.tasks.values() if each.is_inc}
    stops = rig.world.book.node_lost(spine, 0)
    rig.world.carry(each for each in stops if not isinstance(each, StopTask))
    rig.world.now_ms += 500
    commands = rig.world.book.take_back(rig.world.now_ms)
    rig.world.carry(each for each in commands if isinstance(each, Save))
    task = next(each for each in request.tasks.values() if each.is_inc and each.identity not in old
                and each.node in {request.tasks[identity].node for identity in old})  # fmt: skip
    with pytest.raises(LinkAway, match=f"the task before it on {task.node} is being stopped"):
        rig.trees.before_start(request, task)
    rig.world.carry([*stops, *commands])
    rig.trees.before_start(request, task)
