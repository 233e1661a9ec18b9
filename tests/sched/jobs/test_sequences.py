"""Sequences: requests that share a state run on one lane, one at a time and in order, or end with a typed reason."""

from __future__ import annotations

from dataclasses import replace

from offpath.sched.jobs import events
from offpath.sched.jobs.commands import Answer, Command, Copy, EndSequence, RenewLane
from offpath.sched.jobs.explain import explain
from offpath.sched.jobs.obstacles import Cause
from offpath.sched.jobs.records import MS, BookSettings, TenantSpec
from offpath.sched.jobs.snapshot import restore, snapshot
from offpath.sched.jobs.states import EndReason, JobState, LeaseState

from ..gpus import a100
from .book_harness import ADA, BOB, SETTINGS, TENANTS, BookHarness, ended

SUM, PLAIN = 11, 1
KERNELS = (events.Kernel(PLAIN, 14), events.Kernel(SUM, 14, "sum", sequences=True))
SOON = replace(SETTINGS, sequence_idle_ns=50 * MS, kernel_ns=500 * MS)


class Rig(BookHarness):
    """A helper whose kernel `SUM` takes sequences, and a warm lease of ada's, number 1, with two lanes."""

    def __init__(
        self,
        settings: BookSettings = SETTINGS,
        tenants: tuple[TenantSpec, ...] = TENANTS,
        kernels: tuple[events.Kernel, ...] = KERNELS,
    ) -> None:
        super().__init__(tenants, settings, is_joined=False)
        self.send(0, events.HelperJoined(1, (a100(),), kernels))
        self.submit(0, 900, ADA, PLAIN)
        self.warm(0, 1)
        self.send(0, events.CopyDone(900, 0))
        self.result(0, 900, 1)

    def ask(
        self, at_ms: float, job: int, *, seq: int = 7, start: bool = False, end: bool = False, session: int = ADA,
        kernel: int = SUM, by_ms: float = 0, priority: int = 0, idempotent: bool = False, share: int = 0,
    ) -> tuple[Command, ...]:  # fmt: skip
        """A request of a sequence."""
        self.ids[session] = self.ids.get(session, 0) + 1
        submitted = events.JobSubmitted(
            job, session, self.ids[session], kernel, share, priority, int(by_ms * MS), 100, idempotent
        )
        return self.send(at_ms, events.SequenceSubmitted(submitted, seq, start, end))

    def lane_of(self, job: int) -> int:
        placement = self.book.ledger.jobs[job].placement
        assert placement is not None
        return placement.lane

    def copied(self, at_ms: float, job: int) -> tuple[Command, ...]:
        return self.send(at_ms, events.CopyDone(job, self.book.ledger.jobs[job].attempt))

    def done(self, at_ms: float, job: int, lease: int = 1) -> tuple[Command, ...]:
        """The copy of a job ends, and its kernel."""
        return self.copied(at_ms, job) + self.result(at_ms, job, lease)

    def start(self, at_ms: float, job: int, *, seq: int = 7) -> Copy:
        """A sequence whose first request has run; its placement."""
        (copy,) = self.ask(at_ms, job, seq=seq, start=True)
        self.done(at_ms, job)
        assert isinstance(copy, Copy)
        return copy


def answers(commands: tuple[Command, ...]) -> list[tuple[int, JobState, EndReason]]:
    return [(each.job, each.state, each.reason) for each in commands if isinstance(each, Answer)]


def copies(commands: tuple[Command, ...]) -> list[tuple[int, int, int]]:
    return [(each.job, each.lease, each.lane) for each in commands if isinstance(each, Copy)]


LOST = JobState.CANCELLED, EndReason.SEQUENCE_LOST
UNKNOWN = JobState.REJECTED, EndReason.SEQUENCE_UNKNOWN


def test_requests_of_a_sequence_run_on_its_lane_one_at_a_time_in_the_order_of_their_submission() -> None:
    rig = Rig()
    (first,) = copies(rig.ask(1, 1, start=True))
    assert rig.ask(1, 2) == rig.ask(1, 3, priority=9) == rig.ask(1, 4, end=True) == ()
    for job in (1, 2, 3):
        assert copies(rig.done(2, job)) == [(job + 1, *first[1:])]
    rig.done(3, 4)
    assert not rig.book.ledger.sequences
    assert not rig.book.ledger.leases[1].sequences


def test_the_lane_serves_others_in_between_and_the_older_one_is_first() -> None:
    rig = Rig()
    mine = rig.start(1, 1)
    rig.submit(2, 5, ADA, PLAIN)
    rig.submit(2, 6, ADA, PLAIN)  # both lanes are in use
    rig.submit(3, 7, ADA, PLAIN)
    assert rig.ask(4, 2) == ()
    there = next(job for job in (5, 6) if rig.lane_of(job) == mine.lane)
    assert copies(rig.done(5, there)) == [(7, 1, mine.lane)]
    assert copies(rig.done(6, 7)) == [(2, 1, mine.lane)]


def test_a_request_waits_for_its_lane_although_another_one_is_free() -> None:
    rig = Rig()
    mine = rig.start(1, 1)
    rig.submit(2, 5, ADA, PLAIN)
    if rig.lane_of(5) != mine.lane:
        rig.submit(2, 6, ADA, PLAIN)
        rig.done(2, 5)
    assert rig.ask(3, 2) == ()
    job = rig.book.ledger.jobs[2]
    told = explain(job, rig.book.ledger, tuple(rig.book.leasing.gpus), 4 * MS)
    assert [hold.cause for hold in told.holds] == [Cause.SEQUENCE]
    assert f"lane {mine.lane} of lease 1" in told.holds[0].text
    rig.ask(4, 3)
    told = explain(rig.book.ledger.jobs[3], rig.book.ledger, tuple(rig.book.leasing.gpus), 4 * MS)
    assert "it waits for job 2 of sequence 7" in told.holds[0].text


def test_new_sequences_are_spread_over_the_lanes_of_a_lease() -> None:
    rig = Rig()
    lanes = [rig.start(1, job, seq=job).lane for job in range(1, 7)]
    assert sorted(lanes) == [0, 0, 0, 1, 1, 1]


def test_sequences_of_two_sessions_with_one_id_are_two() -> None:
    rig = Rig()
    rig.send(1, events.SessionOpened(9, "ada", 64))
    rig.start(1, 1)
    assert answers(rig.ask(2, 2, session=9)) == [(2, *UNKNOWN)]
    rig.ask(2, 3, session=9, start=True)
    assert len(rig.book.ledger.sequences) == 2


def test_a_request_without_a_sequence_to_continue_is_refused() -> None:
    rig = Rig()
    assert rig.ask(1, 1) == (ended(1, *UNKNOWN, 0),)
    rig.ask(1, 2, start=True, end=True)
    assert answers(rig.ask(1, 3)) == [(3, *UNKNOWN)]
    rig.ask(1, 4, start=True)
    assert answers(rig.ask(1, 5)) == []


def test_kernels_of_sequences_and_other_kernels_are_not_mixed_up() -> None:
    rig = Rig()
    assert answers(rig.ask(1, 1, kernel=PLAIN, start=True)) == [(1, JobState.REJECTED, EndReason.BAD_SEQUENCE)]
    assert answers(rig.submit(1, 2, ADA, SUM)) == [(2, JobState.REJECTED, EndReason.BAD_SEQUENCE)]


def test_an_idle_sequence_ends_and_its_worker_drops_the_state() -> None:
    rig = Rig()
    mine = rig.start(1, 1)
    rig.ask(5_000, 2)
    rig.done(5_001, 2)
    assert rig.tick(15_000) == ()
    assert rig.tick(15_001) == (EndSequence(1, mine.lane, 1, 1),)
    assert answers(rig.ask(15_002, 3)) == [(3, *UNKNOWN)]


def test_a_lease_with_a_sequence_stays_warm_until_the_sequence_ends() -> None:
    rig = Rig()
    rig.start(1, 1)
    rig.tick(9_000)
    assert rig.state(1) is LeaseState.WARM
    rig.tick(10_001)
    assert rig.state(1) is LeaseState.WARM
    rig.tick(11_001)
    assert rig.state(1) is LeaseState.SCRUBBING


def test_the_loss_of_its_worker_ends_what_needs_the_state_and_no_other_worker_runs_it() -> None:
    rig = Rig()
    mine = rig.start(1, 1)
    rig.ask(2, 2)
    rig.copied(2, 2)
    rig.ask(2, 3)
    rig.ask(2, 4, end=True)
    out = rig.send(3, events.WorkerLost(1, mine.lane, 1))
    assert sorted(answers(out)) == [(2, JobState.OUTCOME_UNKNOWN, EndReason.WORKER_LOST), (3, *LOST), (4, *LOST)]
    assert copies(out) == []
    assert answers(rig.ask(4, 5)) == [(5, *UNKNOWN)]


def test_what_was_not_launched_is_lost_with_the_state_too() -> None:
    rig = Rig()
    mine = rig.start(1, 1)
    rig.ask(2, 2)
    assert answers(rig.send(3, events.WorkerLost(1, mine.lane, 1))) == [(2, *LOST)]


def test_an_idempotent_request_of_a_sequence_runs_once() -> None:
    rig = Rig()
    (copy,) = copies(rig.ask(1, 1, start=True, idempotent=True))
    rig.copied(1, 1)
    out = rig.send(2, events.WorkerLost(1, copy[2], 1))
    assert answers(out) == [(1, JobState.OUTCOME_UNKNOWN, EndReason.WORKER_LOST)]


def test_a_sequence_that_has_not_run_yet_starts_elsewhere_when_its_worker_is_lost() -> None:
    rig = Rig()
    (copy,) = copies(rig.ask(1, 1, start=True))
    rig.ask(1, 2)
    assert answers(rig.send(2, events.WorkerLost(1, copy[2], 1))) == []
    rig.tick(30)
    lease = max(rig.book.ledger.leases)
    assert lease != 1
    assert copies(rig.warm(40, lease))[0][:2] == (1, lease)
    rig.send(40, events.CopyDone(1, 1))
    assert copies(rig.result(41, 1, lease))[0][:2] == (2, lease)


def test_a_request_that_starts_the_sequence_anew_survives_the_loss_of_the_state() -> None:
    rig = Rig()
    mine = rig.start(1, 1)
    rig.ask(2, 2)
    rig.ask(2, 3)
    rig.ask(2, 4, start=True)
    rig.ask(2, 5)
    out = rig.send(3, events.WorkerLost(1, mine.lane, 1))
    assert sorted(answers(out)) == [(2, *LOST), (3, *LOST)]
    assert answers(rig.ask(4, 6)) == []
    rig.tick(30)
    lease = max(rig.book.ledger.leases)
    assert copies(rig.warm(40, lease))[0][:2] == (4, lease)


def test_the_loss_of_the_helper_ends_its_sequences() -> None:
    rig = Rig()
    rig.start(1, 1)
    rig.ask(2, 2)
    rig.ask(2, 3)
    assert sorted(answers(rig.send(3, events.HelperLost(1)))) == [(2, *LOST), (3, *LOST)]
    assert not rig.book.ledger.sequences


def test_a_reload_of_the_kernels_ends_the_sequences_of_the_helper() -> None:
    rig = Rig()
    mine = rig.start(1, 1)
    out = rig.send(3, events.KernelsReloaded(1, KERNELS, 1))
    assert out[0] == EndSequence(1, mine.lane, 1, 1)
    assert [type(each) for each in out[1:]] == [RenewLane, RenewLane]
    assert answers(rig.ask(4, 2)) == [(2, *UNKNOWN)]


def test_what_runs_during_a_reload_ends_there_and_only_then_the_state_is_dropped() -> None:
    rig = Rig()
    mine = rig.start(1, 1)
    rig.ask(2, 2)
    rig.copied(2, 2)
    rig.ask(2, 3)
    out = rig.send(3, events.KernelsReloaded(1, KERNELS, 1))
    assert answers(out) == [(3, *LOST)]
    assert answers(rig.ask(4, 4)) == [(4, *UNKNOWN)]
    out = rig.result(5, 2, 1)
    assert answers(out) == [(2, JobState.COMPLETED, EndReason.NONE)]
    assert EndSequence(1, mine.lane, 1, 1) in out


def test_a_cancelled_or_expired_request_does_not_stall_its_sequence() -> None:
    rig = Rig()
    mine = rig.start(1, 1)
    rig.ask(2, 2)
    rig.ask(2, 3, by_ms=10)
    rig.ask(2, 4)
    rig.ask(2, 5)
    assert answers(rig.send(3, events.CancelRequested(4)))[0][:2] == (4, JobState.CANCELLED)
    assert answers(rig.tick(10))[0][:2] == (3, JobState.EXPIRED)
    assert copies(rig.done(11, 2)) == [(5, 1, mine.lane)]


def test_a_cancelled_request_that_runs_holds_the_next_one_until_its_kernel_ends() -> None:
    rig = Rig()
    mine = rig.start(1, 1)
    rig.ask(2, 2)
    rig.copied(2, 2)
    rig.ask(2, 3)
    assert copies(rig.send(3, events.CancelRequested(2))) == []
    assert copies(rig.result(4, 2, 1)) == [(3, 1, mine.lane)]


def test_without_its_start_a_sequence_is_lost() -> None:
    rig = Rig()
    rig.ask(1, 1, start=True)
    rig.ask(1, 2)
    rig.ask(1, 3)
    rig.ask(1, 4, start=True)
    rig.send(2, events.CancelRequested(1))
    out = rig.send(2, events.CopyDone(1, 0))
    assert answers(out) == [(2, *LOST), (3, *LOST)]
    assert [job for job, *_ in copies(out)] == [4]


def test_a_start_whose_payload_changed_leaves_no_state() -> None:
    rig = Rig()
    rig.start(0, 1)
    rig.ask(1, 2, start=True)
    rig.ask(1, 3)
    rig.copied(1, 2)
    out = rig.send(2, events.ResultArrived(2, 1, EndReason.PAYLOAD_CHECKSUM, 0, 0))
    assert answers(out) == [(2, JobState.FAILED, EndReason.PAYLOAD_CHECKSUM), (3, *LOST)]
    assert [each.sequence for each in out if isinstance(each, EndSequence)] == [2]
    assert answers(rig.ask(3, 4)) == [(4, JobState.REJECTED, EndReason.SEQUENCE_UNKNOWN)]


def test_a_start_anew_has_a_state_of_another_number_and_the_former_one_is_dropped() -> None:
    rig = Rig()
    mine = rig.start(0, 1)
    out = rig.ask(1, 2, start=True)
    assert out == (EndSequence(1, mine.lane, 1, 1), Copy(2, 0, 1, mine.lane))
    rig.done(1, 2)
    rig.ask(2, 3)
    jobs = rig.book.ledger.jobs
    assert [jobs[job].sequence_state for job in (1, 2, 3)] == [1, 2, 2]
    rig.copied(2, 3)
    rig.ask(2, 4, start=True)
    assert jobs[4].sequence_state == 0  # another state is in use until the head has left
    assert EndSequence(1, mine.lane, 1, 2) in rig.result(3, 3, 1)
    assert jobs[4].sequence_state == 4


def full(rig: Rig) -> None:
    """The tenant has as many jobs as it may have; those of the sequence are among them."""
    limit = rig.book.ledger.tenants["ada"].spec.max_jobs
    for job in range(100, 100 + limit - rig.book.ledger.tenants["ada"].jobs):
        rig.submit(1, job, ADA, PLAIN)


def test_a_start_anew_that_is_refused_ends_the_former_sequence() -> None:
    rig = Rig()
    mine = rig.start(0, 1)
    full(rig)
    out = rig.ask(1, 2, start=True)
    assert answers(out) == [(2, JobState.REJECTED, EndReason.TENANT_QUEUE_FULL)]
    assert EndSequence(1, mine.lane, 1, 1) in out
    rig.send(2, events.CancelRequested(100))
    assert answers(rig.ask(2, 3)) == [(3, *UNKNOWN)]


def test_a_refused_start_lets_finish_what_was_accepted_before_it() -> None:
    rig = Rig()
    mine = rig.start(0, 1)
    rig.ask(1, 2)
    rig.ask(1, 3)
    full(rig)
    rig.ask(1, 4, start=True)
    rig.send(2, events.CancelRequested(100))
    assert answers(rig.ask(2, 5)) == [(5, *UNKNOWN)]
    assert (3, 1, mine.lane) in copies(rig.done(3, 2))
    assert EndSequence(1, mine.lane, 1, 1) in rig.done(4, 3)
    assert not rig.book.ledger.sequences


def test_an_end_that_is_refused_ends_the_sequence() -> None:
    rig = Rig()
    mine = rig.start(0, 1)
    full(rig)
    out = rig.ask(1, 2, end=True)
    assert answers(out) == [(2, JobState.REJECTED, EndReason.TENANT_QUEUE_FULL)]
    assert EndSequence(1, mine.lane, 1, 1) in out
    assert not rig.book.ledger.sequences


def test_a_sequence_goes_on_without_a_refused_request_in_its_middle() -> None:
    rig = Rig()
    mine = rig.start(0, 1)
    full(rig)
    assert answers(rig.ask(1, 2)) == [(2, JobState.REJECTED, EndReason.TENANT_QUEUE_FULL)]
    rig.send(2, events.CancelRequested(100))
    assert answers(rig.ask(3, 3)) == []
    assert rig.book.ledger.jobs[3].turn == (1, mine.lane)


def test_a_duplicate_of_a_start_ends_no_sequence() -> None:
    rig = Rig()
    rig.start(0, 1)
    rig.ids[ADA] -= 1
    assert answers(rig.ask(1, 2, start=True)) == [(2, JobState.REJECTED, EndReason.DUPLICATE_ID)]
    assert rig.book.ledger.sequences


def test_a_first_start_that_the_worker_never_received_leaves_no_state() -> None:
    rig = Rig()
    rig.ask(1, 1, start=True)
    rig.copied(1, 1)
    rig.ask(1, 2)
    rig.send(2, events.CancelRequested(1))
    assert answers(rig.send(3, events.NeverLaunched(1, 0))) == [(2, *LOST)]
    assert not rig.book.ledger.sequences
    assert not rig.book.ledger.leases[1].running_share


def test_a_new_start_that_the_worker_never_received_ends_the_former_state_too() -> None:
    rig = Rig()
    mine = rig.start(0, 1)
    out = rig.ask(1, 2, start=True)
    out += rig.copied(1, 2)
    rig.ask(1, 3)
    rig.send(2, events.CancelRequested(2))
    out += rig.send(3, events.NeverLaunched(2, 0))
    assert answers(out) == [(3, *LOST)]
    assert copies(out) == [(2, 1, mine.lane)]
    assert [each.sequence for each in out if isinstance(each, EndSequence)] == [1, 2]
    assert answers(rig.ask(4, 4)) == [(4, *UNKNOWN)]


def test_an_end_that_the_worker_never_received_has_the_state_dropped() -> None:
    rig = Rig()
    mine = rig.start(0, 1)
    rig.ask(1, 2, end=True)
    rig.copied(1, 2)
    rig.send(2, events.CancelRequested(2))
    assert rig.send(3, events.NeverLaunched(2, 0)) == (EndSequence(1, mine.lane, 1, 1),)


def test_a_launch_that_may_have_arrived_is_not_undone() -> None:
    rig = Rig()
    rig.start(0, 1)
    rig.ask(1, 2)
    rig.copied(1, 2)
    assert rig.send(2, events.NeverLaunched(2, 0)) == ()  # it is not answered, so it is launched again
    rig.send(2, events.CancelRequested(2))
    assert rig.send(3, events.NeverLaunched(2, 1)) == ()
    assert rig.book.ledger.jobs[2].is_running


def test_a_start_in_the_middle_that_is_cancelled_takes_along_what_follows_it() -> None:
    rig = Rig()
    rig.start(1, 1)
    rig.ask(2, 2)
    rig.ask(2, 3, start=True)
    rig.ask(2, 4)
    out = rig.send(3, events.CancelRequested(3))
    assert answers(out) == [(3, JobState.CANCELLED, EndReason.CANCELLED_BY_REQUESTER), (4, *LOST)]
    assert answers(rig.ask(4, 5)) == [(5, *UNKNOWN)]


def test_a_sequence_ends_also_when_its_last_request_does_not_run() -> None:
    rig = Rig()
    mine = rig.start(1, 1)
    rig.ask(2, 2, end=True)
    rig.send(3, events.CancelRequested(2))
    assert EndSequence(1, mine.lane, 1, 1) in rig.send(3, events.CopyDone(2, 0))
    assert not rig.book.ledger.sequences


def test_a_sequence_whose_last_request_is_cancelled_behind_others_ends_with_these() -> None:
    rig = Rig()
    mine = rig.start(1, 1)
    rig.ask(2, 2)
    rig.ask(2, 3, end=True)
    rig.send(3, events.CancelRequested(3))
    assert EndSequence(1, mine.lane, 1, 1) in rig.done(4, 2)
    assert not rig.book.ledger.sequences


def test_the_end_of_the_session_ends_its_sequences() -> None:
    rig = Rig()
    mine = rig.start(1, 1)
    rig.ask(2, 2)
    rig.ask(2, 3)
    out = rig.send(3, events.SessionClosed(ADA))
    assert {reason for *_, reason in answers(out)} == {EndReason.SESSION_CLOSED}
    assert out[-1] == EndSequence(1, mine.lane, 1, 1)
    assert not rig.book.ledger.sequences


def test_a_tenant_has_a_limited_number_of_sequences_and_so_has_the_daemon() -> None:
    few = (replace(TENANTS[0], max_sequences=2), *TENANTS[1:])
    rig = Rig(replace(SETTINGS, max_sequences=3), few)
    refused = JobState.REJECTED, EndReason.TOO_MANY_SEQUENCES
    rig.start(1, 1, seq=1)
    rig.start(1, 2, seq=2)
    assert answers(rig.ask(2, 3, seq=3, start=True)) == [(3, *refused)]
    assert answers(rig.ask(2, 4, seq=2)) == []
    rig.ask(2, 5, seq=1, start=True, session=BOB)
    assert answers(rig.ask(2, 6, seq=2, start=True, session=BOB)) == [(6, *refused)]


def test_an_idle_sequence_keeps_a_lease_from_others_for_its_time_out_only() -> None:
    rig = Rig(SOON)
    rig.start(1, 1)
    rig.submit(10, 20, BOB, 1, 100)  # a whole GPU
    rig.tick(40)
    assert rig.state(1) is LeaseState.WARM
    rig.tick(51)
    rig.tick(75)
    assert rig.state(1) is LeaseState.SCRUBBING


def test_a_lease_that_is_taken_lets_its_sequences_go_on_for_the_time_out() -> None:
    rig = Rig(SOON)
    mine = rig.start(1, 1)
    rig.submit(10, 99, BOB, PLAIN, 100)  # a whole GPU
    drained, job = 0, 1
    for at in range(30, 400, 30):
        job += 1
        out = rig.ask(at, job)
        if answers(out):
            break
        assert copies(out) == [(job, 1, mine.lane)]
        rig.done(at, job)
        if rig.state(1) is LeaseState.DRAINING:
            drained = drained or at
    assert drained >= 200
    assert answers(out) == [(job, *UNKNOWN)]
    assert drained + 30 < at <= drained + 90
    assert rig.state(1) is LeaseState.SCRUBBING


def test_a_restart_goes_on_with_the_sequences() -> None:
    rig = Rig()
    mine = rig.start(1, 1)
    rig.ask(2, 2)
    rig.ask(2, 3)
    rig.submit(2, 5, ADA, PLAIN)
    rig.book = restore(snapshot(rig.book))
    assert (3, 1, mine.lane) in copies(rig.done(3, 2))


def test_a_head_leaves_its_lane_s_line_before_anything_is_routed_when_the_helper_is_lost() -> None:
    """Seed 784 of the simulation: a batching kernel's queue was routed first, and met a lane that was gone."""
    rig = Rig(kernels=(*KERNELS, events.Kernel(12, 14, "rows", batching=events.Batching(8, 1_000 * MS))))
    rig.start(1, 1)
    rig.ask(2, 2)
    rig.ask(2, 3)
    rig.copied(2, 2)
    rig.send(3, events.StackSubmitted(events.JobSubmitted(50, ADA, 100, 12, 0, 0, 0, 100, False), 1, 7))
    rig.ids[ADA] = 100
    out = rig.send(4, events.HelperLost(1))
    assert sorted(answers(out)) == [(2, JobState.OUTCOME_UNKNOWN, EndReason.HELPER_LOST), (3, *LOST)]


def test_a_new_start_that_lost_its_seat_is_placed_as_the_first_request_of_a_sequence() -> None:
    """Seed 1040 of the simulation: it kept the seat of the lease that was gone, and R = 0."""
    rig = Rig()
    rig.start(1, 1)
    rig.ask(2, 2, start=True)
    rig.send(3, events.HelperLost(1))
    rig.send(4, events.HelperJoined(2, (a100(),), KERNELS))
    lease = max(rig.book.ledger.leases)
    out: tuple[Command, ...] = ()
    for lane in range(2):
        out += rig.send(5, events.LaneReady(lease, lane, rig.book.ledger.leases[lease].generation))
    assert copies(out)[0][:2] == (2, lease)
    job = rig.book.ledger.jobs[2]
    assert (job.share, job.is_seated) == (14, False)


def test_jobs_that_wait_for_their_sequence_count_as_queued_and_open_no_lease() -> None:
    rig = Rig()
    rig.start(1, 1)
    rig.ask(2, 2)
    rig.ask(2, 3)
    rig.ask(2, 4)
    tenant = rig.book.ledger.tenants["ada"]
    assert (tenant.backlog, tenant.queued, tenant.awaiting) == (2, 0, 2)
    rig.tick(60)
    assert list(rig.book.ledger.leases) == [1]


def test_a_removed_tenant_s_sequences_end() -> None:
    rig = Rig()
    mine = rig.start(1, 1)
    rig.ask(2, 2)
    rig.ask(2, 3)
    out = rig.send(3, events.ConfigChanged(TENANTS[1:], SETTINGS, ()))
    assert answers(out) == [(3, JobState.CANCELLED, EndReason.TENANT_REMOVED)]
    out = rig.done(4, 2)
    assert answers(out) == [(2, JobState.COMPLETED, EndReason.NONE)]
    assert EndSequence(1, mine.lane, 1, 1) in out
    assert not rig.book.ledger.sequences


def test_another_time_out_holds_for_sequences_that_are_idle_already() -> None:
    rig = Rig()
    mine = rig.start(1, 1)
    rig.send(10, events.ConfigChanged(TENANTS, SOON, ()))
    assert rig.tick(50) == ()
    assert rig.tick(51) == (EndSequence(1, mine.lane, 1, 1),)


def test_a_deadline_that_has_passed_is_refused() -> None:
    rig = Rig()
    assert answers(rig.ask(5, 1, start=True, by_ms=4)) == [(1, JobState.REJECTED, EndReason.DEADLINE_UNREACHABLE)]
