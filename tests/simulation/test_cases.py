"""Rules that only a certain order of things can break, each with its order written down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from offpath.bindings.ports import IMM_SUBMIT, immediate
from offpath.bindings.wire import control
from offpath.bindings.wire.codes import Reason, Status
from offpath.host_helper.slots import Options

from .judge import Request
from .lives import TokenFiles
from .requesters import MS, SimRequester
from .setup import Setup
from .world import World

QUIET = Setup(
    tenants=[{"name": "ada"}, {"name": "bob"}],
    leasing={
        "lanes": 1, "landing_bytes": 4096, "result_bytes": 4096, "keep_warm_ms": 60_000, "grow_after_ms": 5,
        "reclaim_after_ms": 5, "min_hold_ms": 0,
    },
    limits={"open_ms": 2_000, "helper_ms": 100_000_000},
    requesters=0, inline_copies=1.0, kernel_ns=0,
)  # fmt: skip


class Stage:
    """A world in which nothing happens by itself but what was begun."""

    def __init__(self, folder: Path) -> None:
        self.world = World(1, TokenFiles(str(folder)), QUIET)
        self._leave = self.world.lived()
        self._leave.__enter__()

    def close(self) -> None:
        self._leave.__exit__(None, None, None)

    def requester(self, tenant: str) -> SimRequester:
        """One that has its session and submits nothing of its own."""
        made = SimRequester(self.world, len(self.world.requesters) + 1, tenant)
        made.left, made.cancels, made.slots_wanted = 1, 0.0, 2
        made._may_fill = False
        self.world.requesters.append(made)
        self.until(lambda: made.session is not None and bool(made._kernels))
        return made

    def until(self, is_there: object, steps: int = 3_000) -> None:
        for _ in range(steps):
            if is_there():  # type: ignore[operator]
                return
            assert self.world.step()
        raise AssertionError("it never came")

    def submit(self, requester: SimRequester, kernel: str, *, budget_ms: int = 0) -> Request:
        session, slots = requester.session, requester._slots
        assert session is not None
        assert slots is not None
        payload = bytes(range(90))
        made = Request(requester, session.memory, -1, 0, kernel, payload, False, budget_ms * MS)
        made.slot = slots.fill(
            requester._kernels[kernel], [np.frombuffer(payload, np.uint8)], Options(budget_ms=budget_ms), made
        )
        made.request_id = int.from_bytes(session.last_header[8:16], "little")
        self.world.judge.filled(made)
        session.ring(immediate(IMM_SUBMIT, made.slot).to_bytes(4, "little"))
        return made


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("kernel", ["small", "large"])
def test_a_simulated_job_that_expires_as_its_result_comes_carries_no_result(stage: Stage, kernel: str) -> None:
    world = stage.world
    requester = stage.requester("ada")
    first = stage.submit(requester, kernel)
    stage.until(lambda: first.is_taken)
    late = stage.submit(requester, kernel, budget_ms=50)
    stage.until(lambda: late.starts == 1)
    (worker,) = [worker for worker in world.helper.workers() if worker.running is not None or worker._end.inbox]
    stage.until(lambda: bool(worker._end.daemon_end.inbox))
    assert late.answer is None
    world.loop.now_ns = late.read_ns + 50 * MS  # the daemon stands still until the very deadline
    world.late_ns += 50 * MS
    world.daemon.host._from_worker(world.daemon.host.lanes[worker.order.lease, 0])
    assert late.answer is not None
    assert (late.answer.status, late.answer.reason) == (Status.EXPIRED, Reason.DEADLINE_PASSED)
    assert late.answer.result_bytes == 0
    assert late.answer.tensors == ()


def test_an_order_held_back_for_copies_is_not_given_once_its_lease_was_closed(stage: Stage) -> None:
    """Opening takes too long: the helper is told to close what it was never told to open, and must not open it then."""
    world = stage.world
    requester = stage.requester("ada")
    request = stage.submit(requester, "small")
    world.setup.inline_copies = 0.0
    world.copy_ns = lambda *, is_result: 3_600_000 * MS  # type: ignore[method-assign]
    stage.until(lambda: bool(world.engine.flights))
    world._kill_helper()
    stage.until(lambda: not world.daemon.host.has_helper())
    ledger = world.daemon.book.ledger
    stage.until(lambda: world.daemon.host.has_helper() and bool(ledger.leases))
    held = max(ledger.leases)
    stage.until(lambda: held not in ledger.leases)
    ordered = orders_heard(world)
    (token,) = world.engine.flights
    world.engine._landed(token)
    stage.until(lambda: request.is_taken)
    assert ordered
    assert held not in [order.lease for order in ordered]
    assert request.answer is not None
    assert request.answer.status is Status.COMPLETED


def orders_heard(world: World) -> list[control.OpenInstance]:
    """What the helper is asked to open from here on."""
    ordered: list[control.OpenInstance] = []
    to_helper = world.daemon.host._to_helper

    def heard(message: control.OpenInstance) -> None:
        if isinstance(message, control.OpenInstance):
            ordered.append(message)
        to_helper(message)

    world.daemon.host._to_helper = heard  # type: ignore[method-assign, assignment]
    return ordered


def test_an_order_held_back_for_copies_is_dropped_with_its_helper(stage: Stage) -> None:
    """The copy lands after a first helper's death and keeps the next one's instance waiting; then that helper dies too:
    a third must not be given the second's order."""
    world = stage.world
    requester = stage.requester("ada")
    request = stage.submit(requester, "small")
    world.setup.inline_copies = 0.0
    world.copy_ns = lambda *, is_result: 3_600_000 * MS  # type: ignore[method-assign]
    stage.until(lambda: bool(world.engine.flights))
    ordered = orders_heard(world)
    for _ in range(2):
        world._kill_helper()
        stage.until(lambda: not world.daemon.host.has_helper())
        stage.until(world.daemon.host.has_helper)
    assert ordered == []
    (token,) = world.engine.flights
    world.engine._landed(token)
    stage.until(lambda: request.is_taken)
    assert [order.generation for order in ordered] == [world.daemon.book.ledger.generation]
    assert request.answer is not None
    assert request.answer.status is Status.COMPLETED
