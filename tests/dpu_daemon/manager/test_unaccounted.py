"""GPUs that the engine counts as given and that no job has: reported by the number of looks at the engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.bindings.engines.local import LocalEngine
from offpath.bindings.engines.port import Gpu, NodeInfo
from offpath.bindings.wire import work_admin
from offpath.cli.commands import manager_status
from offpath.dpu_daemon.manager.answers import Answers
from offpath.dpu_daemon.manager.config import EngineTable, ManagerConfig, NodeTable, OperationTable
from offpath.dpu_daemon.manager.shell import ManagerShell
from offpath.dpu_daemon.manager.store import JobsFile
from offpath.dpu_daemon.manager.unaccounted import LOOKS, Unaccounted
from offpath.sched.placement.batch_registry import make

from ...support.processes import BOUND_S

REMEDY = "scontrol reconfigure"
GPUS = (Gpu(0), Gpu(1))


def look(**nodes: int) -> list[NodeInfo]:
    return [NodeInfo(name, GPUS, unaccounted=count, remedy=REMEDY if count else "") for name, count in nodes.items()]


def test_what_stands_for_all_looks_is_reported_once_and_its_end_at_once() -> None:
    counted = Unaccounted()
    for _ in range(LOOKS - 1):
        assert counted.see(look(h0=1, h1=0)) == {}
    assert counted.see(look(h0=1, h1=0)) == {"h0": 1}
    assert counted.see(look(h0=1, h1=0)) == {}
    assert counted.reported == {"h0": 1}
    assert counted.see(look(h0=0, h1=0)) == {"h0": 0}
    assert counted.reported == {}


def test_one_look_in_which_all_gpus_are_accounted_for_begins_the_count_anew() -> None:
    counted = Unaccounted()
    for _ in range(LOOKS - 1):
        counted.see(look(h0=1))
    counted.see(look(h0=0))
    for _ in range(LOOKS - 1):
        assert counted.see(look(h0=1)) == {}
    assert counted.see(look(h0=1)) == {"h0": 1}


def test_a_node_that_leaves_the_inventory_is_not_reported_any_more() -> None:
    counted = Unaccounted()
    for _ in range(LOOKS):
        counted.see(look(h0=1))
    assert counted.see(look(h1=0)) == {"h0": 0}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=4 * LOOKS))
def test_what_is_reported_is_the_least_of_the_last_looks_of_each_node(looks: list[tuple[int, int]]) -> None:
    """And the changes, added up, are what is reported."""
    counted, told = Unaccounted(), dict[str, int]()
    for number, (one, other) in enumerate(looks, start=1):
        told |= counted.see(look(h0=one, h1=other))
        expected = {}
        for index, name in enumerate(("h0", "h1")):
            last = [each[index] for each in looks[max(0, number - LOOKS) : number]]
            if len(last) == LOOKS and min(last) > 0:
                expected[name] = min(last)
        assert counted.reported == expected
        assert {name: count for name, count in told.items() if count} == expected


class Engine(LocalEngine):
    """It counts GPUs of a node as given that no job has."""

    lost = 0
    inventories = 0

    async def inventory(self) -> tuple[NodeInfo, ...]:
        self.inventories += 1
        first, *others = await super().inventory()
        return (replace(first, unaccounted=self.lost, remedy=REMEDY if self.lost else ""), *others)


async def test_the_job_manager_logs_them_and_its_status_has_the_command_that_gives_them_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    nodes = [NodeTable(name="h0", gpus=2), NodeTable(name="h1", gpus=2)]
    table = EngineTable(kind="local", folder=str(tmp_path / "engine"), node=nodes, poll_ms=50)
    config = ManagerConfig(engine=table, operation=OperationTable(state=str(tmp_path / "jobs.sqlite")))
    engine = Engine(tmp_path / "engine", [node.info() for node in nodes])
    shell = ManagerShell(config, engine, make("netpack"), JobsFile(config.operation.state))
    answers = Answers(shell)

    async def reported() -> list[str]:
        status = await answers.to(work_admin.StatusRequest(), 0)
        assert isinstance(status, work_admin.Status)
        return manager_status.unaccounted(status)

    def logged() -> list[str]:
        return [each.getMessage() for each in caplog.records if "account" in str(getattr(each, "code", ""))]

    running = asyncio.create_task(shell.run())
    try:
        engine.lost = 1
        async with asyncio.timeout(BOUND_S):
            while engine.inventories < LOOKS:
                assert logged() == []
                assert await reported() == []
                await asyncio.sleep(0)
            while not logged():
                await asyncio.sleep(0.01)
        assert engine.inventories <= LOOKS + 1
        assert await reported() == [f"h0: engine local counts 1 GPUs as given that no job has; fix: {REMEDY}"]
        assert logged() == [
            f"node h0: engine local counts 1 GPUs as given that no job has, in {LOOKS} looks in a row; fix: {REMEDY}"
        ]
        engine.lost = 0
        async with asyncio.timeout(BOUND_S):
            while len(logged()) < 2:
                await asyncio.sleep(0.01)
        assert await reported() == []
        assert logged()[1:] == ["node h0: engine local accounts for all GPUs again"]
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await shell.close()
