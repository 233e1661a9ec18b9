"""Rules that only a certain order of things can break, each with its order written down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.bindings.ports import IMM_SUBMIT, immediate
from offpath.bindings.wire import control
from offpath.bindings.wire.codes import Reason, Status
from offpath.sched.jobs.states import LeaseState

from . import worker as worker_module
from .requesters import MS
from .stage import QUIET, Stage
from .survivors import DaemonKilled
from .world import World


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
    world.daemon.host.lanes._from_worker(world.daemon.host.lanes.links[worker.order.lease, 0])
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
    ledger = world.daemon.requests.book.ledger
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
    to_helper = world.daemon.host.to_helper

    def heard(number: int, message: control.OpenInstance) -> None:
        if isinstance(message, control.OpenInstance):
            ordered.append(message)
        to_helper(number, message)

    world.daemon.host.to_helper = heard  # type: ignore[method-assign, assignment]
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
    assert [order.generation for order in ordered] == [world.daemon.requests.book.ledger.generation]
    assert request.answer is not None
    assert request.answer.status is Status.COMPLETED


def test_an_order_to_kill_that_met_no_helper_is_given_when_it_is_back(tmp_path: Path) -> None:
    """A cancelled kernel runs on for longer than it may, at a moment when daemon and helper have lost each other; the
    lane beside it works on, so its lease does not drain."""
    tenants = [{"name": "ada", "profile": "2g.10gb"}]
    stage = Stage(tmp_path, is_durable=True, tenants=tenants, leasing={**QUIET.leasing, "lanes": 2})
    try:
        world = stage.world
        world.kernel_ns = lambda: 3_600_000 * MS  # type: ignore[method-assign]
        requester = stage.requester("ada")
        requests = [stage.submit(requester, "small") for _ in range(2)]
        stage.until(lambda: all(request.starts for request in requests))
        requester._to_cancel.append(requests[0])
        requester.wake()
        stage.until(lambda: requests[0].is_taken)
        (ends_ns,) = [lease.watch_ns for lease in world.daemon.requests.book.ledger.leases.values()]
        until(stage, ends_ns - 20 * MS)
        world.kill_daemon()
        world.helper.be_silent(True)
        stage.until(lambda: any(lease.lost for lease in world.daemon.requests.book.ledger.leases.values()))
        assert all(worker.is_alive for worker in world.helper.workers())
        assert len(world.helper.workers()) == 2
        world.helper.be_silent(False)
        stage.until(lambda: len(world.helper.workers()) == 1)
        (left,) = world.helper.workers()
        assert left.running is not None
        assert left.running[0] is requests[1]
    finally:
        stage.close()


def until(stage: Stage, now_ns: int) -> None:
    """Until virtual time is there."""
    stage.world.loop.after(now_ns - stage.world.loop.now_ns, ("test",), lambda: None)
    stage.until(lambda: stage.world.loop.now_ns >= now_ns)


def test_the_answer_to_a_broken_header_stays_through_a_restart(tmp_path: Path) -> None:
    """Its slot's former job was answered, and its credit not returned: that answer must not be written again."""
    stage = Stage(tmp_path, is_durable=True)
    try:
        world = stage.world
        requester = stage.requester("ada")
        requester.returns_credits = 0.0
        first = stage.submit(requester, "small")
        stage.until(lambda: first.is_taken)
        session = requester.session
        assert session is not None
        at = first.slot * session.memory.slot_stride
        session.memory.slots[at : at + 8] = b"garbage!"
        requester.is_hostile = True
        world.judge.filled(first)
        session.ring(immediate(IMM_SUBMIT, first.slot).to_bytes(4, "little"))

        def killed_there(where: str) -> None:
            if where == "after an answer":
                world.may_be_killed = lambda where: None  # type: ignore[method-assign]
                raise DaemonKilled

        world.may_be_killed = killed_there  # type: ignore[method-assign]
        stage.until(lambda: bool(world.deaths))
        answers = bytes(session.memory.answers)
        stage.until(lambda: world.channel is not None)
        for _ in range(50):
            world.step()
        assert bytes(session.memory.answers) == answers
    finally:
        stage.close()


def test_a_worker_that_says_it_ends_at_the_end_of_time_costs_nobody_anything(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon counts stages by their bits; a number of 64 of them has no place there."""
    end_of_time = (2**64 - 1).to_bytes(8, "little")
    monkeypatch.setattr(worker_module, "_timed", lambda result, now_ns: result[:16] + end_of_time + result[24:])
    requester = stage.requester("ada")
    request = stage.submit(requester, "small")
    stage.until(lambda: request.is_taken)
    assert request.answer is not None
    assert request.answer.status is Status.COMPLETED
    assert request.answer.stages.kernel < 2**40


def test_a_large_result_that_was_fetched_after_its_worker_had_ended_is_nobodys(stage: Stage) -> None:
    """A daemon that stood still for so long that its helper gave it up: the worker answered, was ended, its lane was
    scrubbed; then the daemon reads the answer."""
    world = stage.world
    world.random.seed(2)  # a session with room for a large result
    requester = stage.requester("ada")
    request = stage.submit(requester, "large")
    stage.until(lambda: request.starts == 1)
    (worker,) = world.helper.workers()
    stage.until(lambda: bool(worker._end.daemon_end.inbox))
    link = world.daemon.host.lanes.links[worker.order.lease, 0]
    worker.die()
    assert link.memory is not None
    link.memory.view[:] = bytes(link.memory.nbytes)
    world.loop.running(world.daemon.host.lanes._from_worker, link)
    stage.until(lambda: request.is_taken)
    assert request.answer is not None
    assert (request.answer.status, request.answer.reason) == (Status.OUTCOME_UNKNOWN, Reason.WORKER_LOST)


def test_a_worker_that_is_to_be_killed_does_not_scrub_its_lane_when_it_is_back(stage: Stage) -> None:
    """Its stream waits for a reply: its generator still uses the lane."""
    world = stage.world
    request = stage.submit(stage.requester("ada"), "small")
    stage.until(lambda: request.is_taken)
    (lease,) = world.daemon.requests.book.ledger.leases.values()
    (worker,) = world.helper.workers()
    assert worker._end is not None
    link = world.daemon.host.lanes.links[worker.order.lease, worker.lane]
    lease.state = LeaseState.SCRUBBING
    scrubs = []
    for lost in (set(), {worker.lane}):
        lease.lost = lost
        world.daemon.host.reattachment.scrub_again(link)
        scrubs.append(len(worker._end.inbox))
        worker._end.inbox.clear()
    assert scrubs == [1, 0]


def test_a_dropped_worker_does_not_come_back_to_its_lane(tmp_path: Path) -> None:
    """Its lease drains, for the lane beside it still works; what it says of its old job must not count as another's."""
    tenants = [{"name": "ada", "profile": "2g.10gb"}]
    stage = Stage(tmp_path, is_durable=True, tenants=tenants, leasing={**QUIET.leasing, "lanes": 2})
    try:
        world = stage.world
        times = iter((10 * MS, 3_600_000 * MS))
        world.kernel_ns = lambda: next(times)  # type: ignore[method-assign]
        requester = stage.requester("ada")
        requests = [stage.submit(requester, "small") for _ in range(2)]
        stage.until(lambda: any(request.starts for request in requests))
        (dropped,) = [worker for worker in world.helper.workers() if worker.running is not None]
        assert dropped.running is not None
        request = dropped.running[0]
        stage.until(lambda: all(request.starts for request in requests))
        (other,) = [worker for worker in world.helper.workers() if worker is not dropped]
        link = world.daemon.host.lanes.links[dropped.order.lease, dropped.lane]
        dropped.is_liar = True  # as good a reason as any
        world.loop.running(world.daemon.host.lanes.worker_gone, link, "dropped")
        stage.until(lambda: request.is_taken)
        stage.until(lambda: dropped._end is not None and not dropped._end.daemon_gone, 200)
        stage.until(lambda: not dropped.is_alive or dropped._end is None)
        assert world.daemon.host.lanes.links.keys() == {(other.order.lease, other.lane)}
        assert request.answer is not None
        assert request.answer.status is Status.OUTCOME_UNKNOWN
    finally:
        stage.close()
