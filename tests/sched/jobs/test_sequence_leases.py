"""How long a worker and a lease are kept for the sequences whose states they hold. Times in ms."""

from __future__ import annotations

from dataclasses import replace

from offpath.sched.jobs import events
from offpath.sched.jobs.commands import KillLane, OpenLease
from offpath.sched.jobs.explain import explain
from offpath.sched.jobs.settings import MS, BookSettings, PinnedLease
from offpath.sched.jobs.snapshot import restore, snapshot
from offpath.sched.jobs.states import EndReason, JobState, LeaseState
from offpath.sched.jobs.victims import keeps_sequences

from .book_harness import ADA, BOB, SETTINGS, TENANTS
from .test_sequences import PLAIN, UNKNOWN, Rig, answers, copies

OTHER = 9
"""Another session of ada's."""
LINGERS = replace(SETTINGS, linger_ns=20 * MS, kernel_ns=500 * MS)


def lingering(*, seqs: int = 2) -> tuple[Rig, int]:
    """A kernel of ada's sequence 1 runs since ms 2 and is cancelled at ms 3; on its lane are the states of ``seqs``
    sequences, the others of another session. Returns the lane too."""
    rig = Rig(LINGERS)
    rig.send(0, events.SessionOpened(OTHER, "ada", 64))
    lane = rig.start(1, 1, seq=1).lane
    job, found = 10, 1
    while found < seqs:
        (copy,) = copies(rig.ask(1, job, seq=job, start=True, session=OTHER))
        rig.done(1, job)
        found += copy[2] == lane
        job += 1
    rig.ask(2, 2, seq=1)
    rig.copied(2, 2)
    rig.send(3, events.CancelRequested(2))
    return rig, lane


def test_an_answered_kernel_costs_no_worker_that_has_the_states_of_other_sequences() -> None:
    rig, lane = lingering()
    assert rig.tick(100) == ()
    there = [each.sequence_id for each in rig.book.ledger.sequences.values() if each.lane == lane]
    assert len(there) == 2
    rig.result(120, 2, 1)
    assert copies(rig.ask(121, 50, seq=there[1], session=OTHER)) == [(50, 1, lane)]


def test_it_is_killed_at_the_limit_on_kernels() -> None:
    rig, lane = lingering()
    assert rig.tick(501) == ()
    assert rig.tick(502)[0] == KillLane(1, lane, 1, 1)


def test_an_answered_kernel_that_holds_only_its_own_sequence_is_killed_soon() -> None:
    rig, lane = lingering(seqs=1)
    assert rig.tick(22) == ()
    assert rig.tick(23)[0] == KillLane(1, lane, 1, 1)


def test_it_is_killed_when_the_last_other_sequence_of_its_lane_has_ended() -> None:
    rig, lane = lingering()
    assert rig.tick(100) == ()
    rig.send(150, events.SessionClosed(OTHER))
    assert rig.tick(150)[0] == KillLane(1, lane, 1, 1)


def test_a_plain_kernel_that_was_answered_costs_no_worker_with_states_either() -> None:
    rig = Rig(LINGERS)
    for job in (1, 2):
        rig.start(1, job, seq=job)  # one on each lane
    rig.run(2, 5, ADA, PLAIN)
    rig.send(3, events.CancelRequested(5))
    assert rig.tick(100) == ()


def test_the_explanation_of_a_running_request_states_when_its_worker_is_killed() -> None:
    rig, texts = Rig(LINGERS), []
    lanes = [rig.start(1, job, seq=job).lane for job in (1, 2, 3)]
    alone = next(seq for seq, lane in enumerate(lanes, start=1) if lanes.count(lane) == 1)
    for seq in (alone, 3):
        job = 10 + seq
        rig.ask(2, job, seq=seq, by_ms=5)
        rig.copied(2, job)
        found = explain(rig.book.ledger.jobs[job], rig.book.ledger, tuple(rig.book.leasing.gpus), 4 * MS)
        texts.append(found.holds[-1].text)
        rig.result(4, job, 1)
    assert "after 20.0 ms its worker is killed" in texts[0]
    assert "has run for 500.0 ms in all (other sequences have their states there" in texts[1]


LEAVE = replace(SETTINGS, sequence_leave_ns=50 * MS, min_hold_ns=0)
PIN = PinnedLease("ada", 0, "1g.5gb", 0)


def without_a_lane(settings: BookSettings = LEAVE, pins: tuple[PinnedLease, ...] = ()) -> tuple[Rig, int]:
    """Two sequences, one on each lane of lease 1; the worker of the other lane than that of sequence 1 is lost."""
    rig = Rig(settings)
    rig.send(1, events.ConfigChanged(TENANTS, settings, pins))
    lanes = [rig.start(1, job, seq=job).lane for job in (1, 2)]
    assert lanes[0] != lanes[1]
    rig.send(2, events.WorkerLost(1, lanes[1], 1))
    assert rig.state(1) is LeaseState.DRAINING
    return rig, lanes[0]


def goes_on(rig: Rig, at_ms: float, job: int, lane: int) -> bool:
    """A request of sequence 1 runs on the lane; False: the sequence has ended."""
    out = rig.ask(at_ms, job, seq=1)
    if answers(out) == [(job, *UNKNOWN)]:
        return False
    assert copies(out) == [(job, 1, lane)]
    rig.done(at_ms, job)
    return True


def last_ms(rig: Rig, lane: int, from_ms: int, to_ms: int) -> int:
    """When sequence 1, which is used every 10 ms, ran for the last time."""
    for job, at_ms in enumerate(range(from_ms, to_ms, 10), start=1_000):
        if not goes_on(rig, at_ms, job, lane):
            return at_ms - 10
    return to_ms


def test_a_lease_that_lost_a_lane_keeps_the_sequences_of_the_others_while_nobody_needs_its_room() -> None:
    rig, lane = without_a_lane()
    assert last_ms(rig, lane, 10, 30_000) == 30_000
    assert answers(rig.ask(30_000, 3, seq=2)) == [(3, *UNKNOWN)]
    rig.tick(40_000)
    assert rig.state(1) is LeaseState.SCRUBBING, "the last sequence was idle for its time"


def test_its_sequences_end_soon_after_another_tenant_needs_the_room() -> None:
    rig, lane = without_a_lane()
    rig.submit(1_000, 99, BOB, PLAIN, 100)  # a whole GPU
    assert last_ms(rig, lane, 1_000, 2_000) == 1_060
    assert rig.state(1) is LeaseState.SCRUBBING


def test_its_own_tenant_may_need_the_room_too() -> None:
    few = (replace(TENANTS[0], max_share=14), *TENANTS[1:])
    rig, lane = without_a_lane()
    rig.send(3, events.ConfigChanged(few, LEAVE, ()))
    assert keeps_sequences(rig.book.ledger.leases[1])
    rig.submit(1_000, 99, ADA, PLAIN)
    assert last_ms(rig, lane, 1_000, 2_000) == 1_060


def test_a_pinned_one_is_not_taken_for_another_tenant_which_could_not_have_its_room() -> None:
    rig, lane = without_a_lane(pins=(PIN,))
    rig.submit(1_000, 99, BOB, PLAIN, 100)
    assert last_ms(rig, lane, 1_000, 2_000) == 2_000


def test_a_smaller_share_of_its_tenant_ends_it_first() -> None:
    rig, lane = without_a_lane()
    rig.submit(3, 98, ADA, PLAIN)
    rig.tick(30)
    rig.warm(31, 2)
    assert rig.state(2) is LeaseState.WARM
    few = (replace(TENANTS[0], max_share=14), *TENANTS[1:])
    rig.send(100, events.ConfigChanged(few, LEAVE, ()))
    assert last_ms(rig, lane, 100, 2_000) == 140
    assert (rig.state(1), rig.state(2)) == (LeaseState.SCRUBBING, LeaseState.WARM)


def test_a_restored_book_keeps_it_too() -> None:
    rig, lane = without_a_lane()
    rig.book = restore(snapshot(rig.book))
    assert last_ms(rig, lane, 10, 1_000) == 1_000


def test_a_lease_that_others_need_waits_for_its_sequences_for_another_time_than_the_idle_one() -> None:
    rig = Rig(LEAVE)
    rig.start(1, 1)  # idle for 10 s until it ends
    rig.submit(10, 99, BOB, PLAIN, 100)
    rig.tick(110)
    assert rig.state(1) is LeaseState.DRAINING
    rig.tick(159)
    assert rig.state(1) is LeaseState.DRAINING
    rig.tick(160)
    assert rig.state(1) is LeaseState.SCRUBBING


def test_what_waits_ends_with_a_lease_that_leaves() -> None:
    rig = Rig(LEAVE)
    rig.start(1, 1)
    rig.ask(2, 2)
    rig.copied(2, 2)
    rig.ask(2, 3)
    rig.submit(10, 99, BOB, PLAIN, 100)
    rig.tick(110)
    assert answers(rig.tick(160)) == [(3, JobState.CANCELLED, EndReason.SEQUENCE_LOST)]
    assert answers(rig.ask(161, 4)) == [(4, JobState.REJECTED, EndReason.SEQUENCE_UNKNOWN)]
    assert answers(rig.result(170, 2, 1)) == [(2, JobState.COMPLETED, EndReason.NONE)]
    assert rig.state(1) is LeaseState.SCRUBBING


def filled(settings: BookSettings = LEAVE) -> Rig:
    """Ada's leases are the whole GPU: number 1 has a sequence, the others run a kernel on each lane."""
    rig, at_ms, job = Rig(settings), 2, 100
    rig.start(1, 1)
    while len(rig.book.ledger.leases) < 7:
        rig.submit(at_ms, job, ADA, PLAIN)
        job, at_ms = job + 1, at_ms + 20
        rig.tick(at_ms)
        for number in [number for number in rig.book.ledger.leases if rig.state(number) is LeaseState.CREATING]:
            rig.warm(at_ms, number)
    for each in list(rig.book.ledger.jobs.values()):
        if each.is_copying:
            rig.copied(at_ms, each.job)
    return rig


def leaving(rig: Rig) -> list[int]:
    return [number for number in rig.book.ledger.leases if rig.state(number) is not LeaseState.WARM]


def test_of_two_busy_leases_the_one_without_sequences_is_taken() -> None:
    rig = filled()
    rig.submit(800, 99, BOB, PLAIN)
    rig.tick(910)
    (taken,) = leaving(rig)
    assert taken != 1
    assert not rig.book.ledger.leases[taken].sequences


def test_an_unused_lease_is_taken_although_one_leaves_with_its_sequences() -> None:
    rig = filled(replace(LEAVE, sequence_leave_ns=500 * MS))
    (job,) = rig.book.ledger.leases[7].jobs
    rig.book.leasing.drain(rig.book.ledger.leases[1], 700 * MS)
    rig.submit(701, 99, BOB, PLAIN)
    for at_ms in range(710, 1_000, 10):
        rig.tick(at_ms)
    assert leaving(rig) == [1], "a busy one is not taken too"
    rig.result(1_000, job, 7)
    for at_ms in range(1_010, 1_060, 10):
        rig.tick(at_ms)
    assert leaving(rig) == [1, 7]
    rig.send(1_070, events.LaneScrubbed(7, 0, 7))
    rig.send(1_070, events.LaneScrubbed(7, 1, 7))
    out = rig.send(1_071, events.InstanceClosed(7, 7))
    assert [each.tenant for each in out if isinstance(each, OpenLease)] == ["bob"]


def test_sequences_that_end_idle_or_lost_are_counted_for_their_tenant() -> None:
    rig, _ = without_a_lane()
    tenant = rig.book.ledger.tenants["ada"]
    assert (tenant.idle_sequences, tenant.lost_sequences) == (0, 1)
    rig.tick(11_000)
    assert (tenant.idle_sequences, tenant.lost_sequences) == (1, 1)
    rig = Rig(LEAVE)
    rig.start(1, 1)
    rig.ask(2, 2)
    rig.copied(2, 2)
    rig.submit(10, 99, BOB, PLAIN, 100)
    rig.tick(110)
    rig.tick(160)
    rig.send(161, events.WorkerLost(1, rig.lane_of(2), 1))
    tenant = rig.book.ledger.tenants["ada"]
    assert (tenant.idle_sequences, tenant.lost_sequences) == (0, 1), "once, although its worker is lost too"
