"""Batches and restarts: orders of things that schedules seldom draw, written down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.bindings.wire.codes import Reason, Status
from offpath.dpu_daemon.operation import recovery

from .judge import Request
from .requesters import MS, SimRequester
from .stage import QUIET, Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """One lease of one lane, and a journal."""
    made = Stage(tmp_path, is_durable=True, is_batching=True, leasing={**QUIET.leasing, "grow_after_ms": 60_000})
    try:
        yield made
    finally:
        made.close()


def requester_of(stage: Stage, slots: int) -> SimRequester:
    stage.world.random.seed(2)  # a session with room for large results
    return stage.requester("ada", slots)


def kill_daemon(stage: Stage, pause_ms: int = 0) -> None:
    stage.world.kill_daemon()
    stage.world.stand_still(pause_ms * MS)


def killed_while_a_batch_is_copied(
    stage: Stage, requester: SimRequester, *rows: int, budget_ms: int = 0
) -> tuple[Request, list[Request]]:
    """The lane has answered a large result; requests of so many rows are on their way there when the daemon dies."""
    world = stage.world
    world.kernel_ns = lambda: 5 * MS  # type: ignore[method-assign]
    first = stage.submit(requester, "rows", rows=11)
    stage.until(lambda: first.starts == 1)
    batch = [stage.submit(requester, "rows", rows=each, budget_ms=budget_ms) for each in rows]
    world.copy_ns = lambda *, is_result: 20 * MS if is_result else 1_000 * MS  # type: ignore[method-assign]
    world.setup.inline_copies = 0.0
    stage.until(lambda: first.is_taken)
    stage.until(lambda: len(world.engine.flights) == len(rows))
    return first, batch


def test_a_result_that_a_worker_repeats_is_not_split_among_the_batch_behind_it(stage: Stage) -> None:
    first, batch = killed_while_a_batch_is_copied(stage, requester_of(stage, 3), 5, 6)
    kill_daemon(stage)
    stage.world.copy_ns = lambda *, is_result: 20 * MS if is_result else 0  # type: ignore[method-assign]
    stage.until(lambda: all(request.is_taken for request in batch))
    assert [request.answer.status for request in (first, *batch) if request.answer] == [Status.COMPLETED] * 3
    assert [request.starts for request in batch] == [1, 1]


def test_the_job_that_follows_an_expired_batch_in_its_lane_is_answered(stage: Stage) -> None:
    """The members expire before their worker is back. Their lane goes to another job in the same turn."""
    requester = requester_of(stage, 4)
    _, batch = killed_while_a_batch_is_copied(stage, requester, 5, 6, budget_ms=100)
    behind = stage.submit(requester, "small")
    stage.until(lambda: behind.read_ns > 0)
    kill_daemon(stage, 200)
    stage.world.copy_ns = lambda *, is_result: 0  # type: ignore[method-assign]
    stage.until(lambda: all(request.is_taken for request in (*batch, behind)))
    assert [request.answer.status for request in batch if request.answer] == [Status.EXPIRED] * 2
    assert behind.answer is not None
    assert behind.answer.status is Status.COMPLETED


def test_a_batch_that_cannot_be_known_again_ends_with_its_worker(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs, but the restarted daemon does not stack its members: nobody may get the result of all."""
    world = stage.world
    world.kernel_ns = lambda: 50 * MS  # type: ignore[method-assign]
    requester = requester_of(stage, 3)
    first = stage.submit(requester, "rows")
    stage.until(lambda: first.starts == 1)
    batch = [stage.submit(requester, "rows") for _ in range(2)]
    stage.until(lambda: all(request.starts == 1 for request in batch))
    (worker,) = world.helper.workers()
    worker.is_liar = True  # the daemon may drop it
    monkeypatch.setattr(recovery, "lane_batch", lambda *of: None)
    kill_daemon(stage)
    stage.until(lambda: all(request.is_taken for request in batch))
    answers = [(request.answer.status, request.answer.reason) for request in batch if request.answer]
    assert answers == [(Status.OUTCOME_UNKNOWN, Reason.WORKER_LOST)] * 2
