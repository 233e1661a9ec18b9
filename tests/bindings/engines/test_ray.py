"""What is Ray's own: the process that speaks to it, the supervisors, records that outlive both."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.engines import ray_child
from offpath.bindings.engines.port import JobState, Place
from offpath.bindings.engines.ray_driver import by_name
from offpath.bindings.engines.ray_engine import RayEngine
from offpath.bindings.errors import EngineAnswerInvalid, EngineMissing, EngineRefused, EngineUnavailable
from offpath.cli.local.job_manager import JobManager

from ...support.processes import until
from .rigs import BOUND_S, NODES, UNTIL_LET_GO, Jobs, RayRig
from .test_engines import LONG, MARK


def pid_of(jobs: Jobs) -> int:
    """Of the engine's process that speaks to Ray."""
    assert isinstance(jobs.engine, RayEngine)
    process = jobs.engine._child._process
    assert process is not None
    return process.pid


async def test_the_process_that_speaks_to_ray_may_die_at_any_time_and_jobs_go_on(ray: Jobs) -> None:
    start = ray.start(f"{MARK}; {UNTIL_LET_GO}; exit 3", [Place("h1", 1)])
    await ray.engine.start(start)
    os.kill(pid_of(ray), signal.SIGSTOP)
    asking = asyncio.ensure_future(ray.engine.jobs())
    await asyncio.sleep(0.1)
    os.kill(pid_of(ray), signal.SIGKILL)
    with pytest.raises(EngineUnavailable, match="ended"):
        await asking
    (adopted,) = await ray.engine.adopt()
    assert (adopted.identity, adopted.state.is_final) == (start.identity, False)
    ray.let_go(start)
    ended = await ray.ended(start.identity)
    assert (ended.state, ended.exit_code) == (JobState.FAILED, 3)
    assert len(ray.marks(start)) == 1


async def test_a_process_that_does_not_answer_in_time_is_replaced(ray_rig: RayRig) -> None:
    engine = ray_rig.engine()
    assert isinstance(engine, RayEngine)
    await engine.adopt()
    process = engine._child._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    engine._child._timeout_s = 0.5
    with pytest.raises(EngineUnavailable, match="no answer to jobs"):
        await engine.jobs()
    assert process.returncode is not None
    engine._child._timeout_s = 60.0
    assert await engine.jobs() == ()
    await engine.close()


async def test_a_job_whose_supervisor_alone_dies_is_lost_and_its_command_is_killed(ray: Jobs) -> None:
    start = ray.start(LONG, [Place("h3", 1), Place("h1", 1)])
    await ray.engine.start(start)
    while len(ray.marks(start)) < 2:
        await asyncio.sleep(0.05)
    pids = [int(mark.split()[1]) for mark in ray.marks(start)]
    assert isinstance(ray.rig, RayRig)
    os.kill(ray.rig.cluster.supervisor("h3"), signal.SIGKILL)
    ended = await ray.ended(start.identity)
    assert (ended.state, "supervisor" in ended.reason) == (JobState.LOST, True)
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        await asyncio.sleep(0.05)
    assert (await ray.engine.start(start)).state is JobState.LOST
    assert (await ray.run(ray.start("true", [Place("h3", 2), Place("h1", 2)]))).state is JobState.SUCCEEDED
    assert len(ray.marks(start)) == 2


async def test_a_job_that_loses_its_second_node_is_lost_and_ends_on_the_first(ray: Jobs) -> None:
    start = ray.start(LONG, [Place("h1", 1), Place("h2", 1)])
    await ray.engine.start(start)
    while len(ray.marks(start)) < 2:
        await asyncio.sleep(0.05)
    assert isinstance(ray.rig, RayRig)
    ray.rig.cluster.kill("h2")
    ended = await ray.ended(start.identity)
    assert (ended.state, bool(ended.reason)) == (JobState.LOST, True)
    assert not any(os.path.exists(f"/proc/{mark.split()[1]}") for mark in ray.marks(start))
    assert (await ray.run(ray.start("true", [Place("h1", 2)]))).state is JobState.SUCCEEDED


async def test_a_job_of_an_unknown_user_is_refused_and_leaves_nothing(ray: Jobs) -> None:
    start = ray.start(MARK, [Place("h0", 1)], user="no-such-user")
    with pytest.raises(EngineRefused, match="no-such-user"):
        await ray.engine.start(start)
    assert await ray.engine.jobs() == ()


def node(name: str, state: str, number: str) -> dict[str, Any]:
    return {"name": name, "state": state, "id": number, "reason": ""}


def test_of_nodes_of_one_name_the_living_one_counts_and_of_several_none() -> None:
    nodes = [node("a", "down", "1"), node("a", "ready", "2"), node("a", "down", "3"), node("b", "down", "4")]
    assert {each["name"]: each["id"] for each in by_name(nodes)} == {"a": "2", "b": "4"}
    for more in (1, 2):
        (found,) = by_name([node("a", "down", "0"), node("a", "drained", "1"), *[node("a", "ready", "2")] * more])
        assert (found["state"], found["id"], "offpath.io/host" in found["reason"]) == ("down", "", True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user's folder")
def test_another_users_folder_of_the_name_stops_no_supervisor(ray_rig: RayRig, tmp_path: Path) -> None:
    code = "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import ray_supervisor as s; "
    code += "print(s.own(pathlib.Path(sys.argv[2])))"
    command = [
        ray_rig.specification()["python"],
        "-c",
        code,
        str(Path(ray_child.__file__).parent),
        str(tmp_path / "records-0"),
    ]
    (tmp_path / "records-0").mkdir()
    os.chown(tmp_path / "records-0", 65534, 65534)
    first, again = (subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert first == again
    assert Path(first.strip()).parent == tmp_path
    assert Path(first.strip()).stat().st_mode & 0o777 == 0o700


async def test_a_cluster_that_is_not_there_is_unavailable(tmp_path: Path, ray_rig: RayRig) -> None:
    python = str(ray_rig.cluster.programs / "python")
    engine = RayEngine("127.0.0.1:9", python=python, token=str(ray_rig.cluster.token), timeout_s=2)
    with pytest.raises(EngineUnavailable):
        await engine.adopt()
    await engine.close()


async def test_a_call_that_fails_by_a_bug_is_answered_and_is_not_taken_for_a_ray_that_is_away(ray: Jobs) -> None:
    assert isinstance(ray.engine, RayEngine)
    with pytest.raises(EngineAnswerInvalid, match="KeyError: 'nonsense'"):
        await ray.engine._child.call("nonsense")
    assert [node.name for node in await ray.engine.inventory()] == NODES


@pytest.mark.parametrize("python", [sys.executable, "/no/such/python"])
async def test_without_ray_the_error_says_what_to_install(python: str) -> None:
    engine = RayEngine(python=python)
    with pytest.raises(EngineMissing, match=r"offpath\[ray\]" if python == sys.executable else python):
        await engine.adopt()
    await engine.close()


def test_a_job_manager_runs_jobs_on_ray_and_takes_them_over_after_its_kill(ray_rig: RayRig, tmp_path: Path) -> None:
    rig = ray_rig.specification()
    engine = {"kind": "ray", "poll_ms": 300, **{key: rig[key] for key in ("address", "python", "token", "folder")}}
    network = {"link_gbps": 100, "oversubscription": 4, "switch_memory_mib": 5}
    tables = {"engine": engine, "network": network, "policy": {"batch_ms": 200}}
    marks, go = tmp_path / "marks", tmp_path / "go"
    with JobManager(str(tmp_path / "manager"), tables) as manager:
        until(lambda: len(manager.status().nodes) == len(NODES), BOUND_S)
        script = f'echo "$OFFPATH_NODE" >>{marks}; until [ -e {go} ]; do sleep 0.1; done'
        manager.submit("own", 3, ["sh", "-c", script])
        until(marks.exists, BOUND_S)
        manager.kill()
        manager.start()
        go.touch()
        ended = manager.ended(["own"], BOUND_S)["own"]
        assert ended.state == "succeeded", manager.explain("own")
        assert sorted(marks.read_text().split()) == sorted(share.node for share in ended.shares)
        until(lambda: all(node.free == node.gpus for node in manager.status().nodes), BOUND_S)
        assert "Traceback" not in manager.log
