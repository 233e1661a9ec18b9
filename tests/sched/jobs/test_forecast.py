"""Early rejection, sentence by sentence, and held against a first-come simulation. Times in ms."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType
from typing import NamedTuple

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offpath.sched.gpu.plugin import PluginPolicy
from offpath.sched.gpu.policy import Unblocker
from offpath.sched.gpu.registry import make
from offpath.sched.jobs import events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.commands import Answer, Command, Copy, Launch
from offpath.sched.jobs.explain import Ended, explain_end
from offpath.sched.jobs.forecast import work_ns
from offpath.sched.jobs.service import FORGET_NS, KERNELS, RUNS, ServiceTimes, run_ended, typical_ns
from offpath.sched.jobs.settings import MS, PinnedLease, TenantSpec
from offpath.sched.jobs.snapshot import restore, snapshot
from offpath.sched.jobs.states import EndReason, JobState

from ...sizes import sized
from ..gpus import a100
from .book_harness import ADA, HALF, SETTINGS, SMALL, BookHarness
from .cluster import Cluster

EXAMPLES = sized(quick=60, fast=100, slow=400, full=5_000)
PIN = PinnedLease("ada", 0, "1g.5gb", 0)
ONLY = (TenantSpec("ada", max_share=14),)
DAY_MS = 86_400_000


def is_refused(out: tuple[Command, ...]) -> bool:
    """Turned away because of its deadline, and not for anything else."""
    answers = [command for command in out if isinstance(command, Answer) and command.state is JobState.REJECTED]
    assert all(answer.reason is EndReason.DEADLINE_UNREACHABLE for answer in answers)
    return bool(answers)


def served(
    kernel_ms: float, *, tenants: tuple[TenantSpec, ...] = ONLY, pins: tuple[PinnedLease, ...] = (PIN,)
) -> BookHarness:
    """A warm lease on which kernel SMALL has run once, from 2 on, for ``kernel_ms``."""
    harness = BookHarness(tenants, pins=pins)
    harness.warm(1, 1)
    harness.run(2, 1)
    harness.result(2 + kernel_ms, 1, 1)
    return harness


# -- sentences ----------------------------------------------------------------------------------------------------
def test_an_idle_book_refuses_no_budget_after_one_slow_kernel_nor_a_day_later_nor_after_a_restart() -> None:
    harness = served(3_000)
    assert not is_refused(harness.submit(3_003, 2, by_ms=3_503))
    harness.send(3_003, events.CopyDone(2, 0))
    harness.result(3_003.1, 2, 1)
    again = restore(orjson.loads(orjson.dumps(snapshot(served(3_000).book))))
    for book in (harness.book, again):
        at_ns = DAY_MS * MS
        out = book.handle(events.JobSubmitted(3, ADA, 9, SMALL, 0, 0, at_ns + 500 * MS, 0, False), at_ns)
        assert not is_refused(out)


def test_a_slow_kernel_says_nothing_of_another_one() -> None:
    harness = served(3_000, tenants=(TenantSpec("ada", max_share=42),), pins=(PinnedLease("ada", 0, "3g.20gb", 0),))
    for job in (2, 3, 4):
        harness.submit(3_003, job)
    assert not is_refused(harness.submit(3_003, 5, kernel=HALF, share=14, by_ms=3_503)), "it has no history"
    assert is_refused(harness.submit(3_003, 6, by_ms=3_503))


def test_what_lies_ahead_counts_by_its_share_not_by_lanes() -> None:
    """Five jobs of 3.2 s that take all of a lease with two lanes: the sixth ends after 19.2 s, not after 3.2 or 9.6."""
    harness = served(3_200)
    for job in range(2, 7):
        harness.submit(3_202, job)
    at_ms = 3_202
    assert is_refused(harness.submit(at_ms, 7, by_ms=at_ms + 19_199))
    assert not is_refused(harness.submit(at_ms, 8, by_ms=at_ms + 19_200))


def test_jobs_that_fit_beside_each_other_are_counted_so() -> None:
    harness = served(100)
    for job in range(2, 6):
        harness.submit(102, job, share=7)
    assert is_refused(harness.submit(102, 6, share=7, by_ms=102 + 299))
    assert not is_refused(harness.submit(102, 7, share=7, by_ms=102 + 300))


def test_of_a_kernel_that_runs_only_what_is_left_counts() -> None:
    harness = served(100)
    harness.run(200, 2)
    harness.submit(200, 3)
    assert is_refused(harness.submit(260, 4, by_ms=499))
    assert not is_refused(harness.submit(260, 5, by_ms=500))


def test_a_job_of_a_higher_priority_waits_only_for_its_like() -> None:
    harness = served(100)
    for job in range(2, 8):
        harness.submit(102, job)
    assert is_refused(harness.submit(102, 8, by_ms=402))
    assert not is_refused(harness.submit(102, 9, by_ms=402, priority=1)), "two on lanes go before it"
    assert is_refused(harness.submit(102, 10, by_ms=402, priority=1))


def test_a_lease_in_the_making_may_come_in_time() -> None:
    harness = served(100, tenants=(TenantSpec("ada"), TenantSpec("bob")))
    for job in range(2, 8):
        harness.submit(102, job)
    harness.tick(130)
    assert 2 in harness.book.ledger.leases, "the backlog lasts, and another lease is opened"
    assert not is_refused(harness.submit(130, 9, by_ms=530))


def test_a_lease_that_the_backlog_would_open_counts() -> None:
    """Six slices are free. A second lease may open 20 ms after the first job that waits, and job 7 run there."""
    harness = served(100, tenants=(TenantSpec("ada"),))
    for job in range(2, 8):
        harness.submit(102, job)
    assert is_refused(harness.submit(102, 8, by_ms=221))
    assert not is_refused(harness.submit(102, 9, by_ms=222))


def test_only_as_many_leases_count_as_its_tenant_may_have() -> None:
    """Two: jobs 2, 4, 6 on the one, 3, 5, 7 on the other from 122 on."""
    harness = served(100, tenants=(TenantSpec("ada", max_share=28),))
    for job in range(2, 8):
        harness.submit(102, job)
    assert is_refused(harness.submit(102, 8, by_ms=501))
    assert not is_refused(harness.submit(102, 9, by_ms=502))


def test_no_lease_counts_where_another_tenant_has_the_room() -> None:
    pins = (
        PIN,
        PinnedLease("bob", 0, "3g.20gb", 4),
        PinnedLease("bob", 0, "2g.10gb", 2),
        PinnedLease("bob", 0, "1g.5gb", 1),
    )
    harness = served(100, tenants=(TenantSpec("ada"), TenantSpec("bob")), pins=pins)
    for job in range(2, 8):
        harness.submit(102, job)
    assert is_refused(harness.submit(102, 8, by_ms=801))
    assert not is_refused(harness.submit(102, 9, by_ms=802))


def test_a_lease_does_not_count_while_its_tenant_pauses_after_a_failure() -> None:
    harness = served(100, tenants=(TenantSpec("ada"),))
    for job in range(2, 8):
        harness.submit(102, job)
    harness.tick(130)
    harness.send(131, events.InstanceFailed(2, 2))
    assert is_refused(harness.submit(131, 8, by_ms=730)), "retry_open_ms is 500"
    assert not is_refused(harness.submit(131, 9, by_ms=731))


def test_while_room_is_made_for_its_tenant_nothing_is_refused() -> None:
    harness = served(100, tenants=(TenantSpec("ada", max_share=14),))
    for job in range(2, 8):
        harness.submit(102, job)
    tenant = harness.book.ledger.tenants["ada"]
    assert is_refused(harness.submit(102, 8, by_ms=502))
    tenant.room = {("gpu-0", 1)}
    assert not is_refused(harness.submit(102, 9, by_ms=502))


def test_an_explanation_asks_no_policy_and_changes_nothing() -> None:
    """It is asked between events: what a policy then notes, or a plug-in then decides, no journal has."""
    harness = served(100, tenants=(TenantSpec("ada"),))
    for job in range(2, 8):
        harness.submit(102, job)
    (answer,) = harness.submit(102, 8, by_ms=221)
    assert isinstance(answer, Answer)
    told = Ended(8, "ada", 14, 100, 119, answer.state, answer.reason, 0, 0, answer.stages, SMALL, 0)
    before = orjson.dumps(snapshot(harness.book))

    def never(*given: object) -> None:
        raise AssertionError("the policy was asked")

    harness.book.ledger.policy.plan = never  # type: ignore[method-assign, assignment]
    (hold,) = explain_end(told, harness.book.leasing, 103 * MS).holds
    assert "on the leases that its tenant has" in hold.text
    assert not harness.book.ledger.out
    del harness.book.ledger.policy.plan
    assert orjson.dumps(snapshot(harness.book)) == before


def test_a_forecast_asks_no_plug_in() -> None:
    """One late answer of nine would quarantine it."""
    policy = make("plugin:slow")
    book = JobBook(ONLY, policy, SETTINGS, ())
    assert isinstance(policy, PluginPolicy)
    assert book.ledger.decisions.forecaster(policy) is policy.builtin
    assert book.ledger.decisions.forecaster(policy.builtin) is policy.builtin


def test_long_kernels_with_short_budgets_are_not_refused_beside_an_idle_gpu() -> None:
    """Two lanes, kernels of 5 s, budgets of 7 s: before, five of six were refused."""
    harness = served(5_000, tenants=(TenantSpec("ada"),))
    said = [is_refused(harness.submit(5_003 + job, job, by_ms=12_003 + job)) for job in range(2, 8)]
    assert said == [False] * 6


def test_a_job_that_will_have_expired_holds_nobody_up() -> None:
    harness = served(100)
    for job in (2, 3, 4):
        harness.submit(102, job)
    assert not is_refused(harness.submit(102, 5, by_ms=502))
    for job in range(6, 9):
        harness.submit(103, job, priority=1)  # they go first: job 5 will not have its turn before 502
    assert not is_refused(harness.submit(104, 9, by_ms=804)), "six are served before it, not seven"


def test_one_slow_run_among_fast_ones_is_no_pace_and_a_new_pace_is_believed_within_five_runs() -> None:
    times = ServiceTimes()
    for run_ns in (100, 100, 100, 900_000, 100):
        times.ended(run_ns, 0)
    assert times.typical_ns == 100
    for pace_ns, believed in ((7, 4), (500, 5)):
        for count in range(1, RUNS + 1):
            times.ended(pace_ns, 0)
            assert (times.typical_ns == pace_ns) is (count >= believed), count
    assert len(times.runs_ns) == RUNS


def test_history_is_forgotten_after_a_minute_or_sixteen_runs_whichever_is_longer() -> None:
    history: dict[int, ServiceTimes] = {}
    run_ended(history, 1, MS, 0)
    run_ended(history, 2, 60_000 * MS, 0)
    assert (typical_ns(history, 1, FORGET_NS), typical_ns(history, 1, FORGET_NS + 1)) == (MS, 0)
    assert typical_ns(history, 2, 16 * 60_000 * MS) == 60_000 * MS
    assert typical_ns(history, 2, 16 * 60_000 * MS + 1) == 0
    run_ended(history, 1, 3 * MS, FORGET_NS + 1)
    assert history[1].runs_ns == [3 * MS], "the old run is no part of the new history"


def test_the_history_of_a_tenant_is_bounded_and_the_kernel_that_rests_for_longest_goes_first() -> None:
    history: dict[int, ServiceTimes] = {}
    for kernel in range(KERNELS):
        run_ended(history, kernel, 1, kernel)
    run_ended(history, 0, 1, KERNELS)
    run_ended(history, 1_000, 1, KERNELS)
    assert len(history) == KERNELS
    assert 1 not in history
    assert {0, 2, 1_000} <= history.keys()


def test_the_history_is_part_of_the_snapshot() -> None:
    harness = served(100)
    for job in range(2, 8):
        harness.submit(102, job)
    again = restore(orjson.loads(orjson.dumps(snapshot(harness.book))))
    ada = again.ledger.tenants["ada"]
    assert [(kernel, times.runs_ns) for kernel, times in ada.service.items()] == [(SMALL, [100 * MS])]
    assert ada.waiting == harness.book.ledger.tenants["ada"].waiting != {}
    submitted = events.JobSubmitted(9, ADA, 99, SMALL, 0, 0, 402 * MS, 0, False)
    assert is_refused(again.handle(submitted, 102 * MS))


@pytest.mark.parametrize("count", [600, 3_000])
def test_a_queue_too_long_to_be_put_in_order_still_counts_by_its_work(count: int) -> None:
    harness = BookHarness((TenantSpec("ada", max_share=14, max_jobs=9_999),), replace(SETTINGS, max_jobs=9_999), (PIN,))
    harness.warm(1, 1)
    harness.run(2, 1)
    harness.result(12, 1, 1)
    for job in range(2, count + 2):
        harness.submit(12, job)
    wait_ms = 10 * count
    assert is_refused(harness.submit(12, 9_000, by_ms=12 + 0.9 * wait_ms))
    assert not is_refused(harness.submit(12, 9_001, by_ms=12 + wait_ms + 10))


@pytest.mark.parametrize("gpus", [2, 8])
def test_what_a_rejection_costs_grows_with_the_leases_and_not_with_their_square(gpus: int) -> None:
    """Who is told to come back is told when, and a flood of such requests must not cost the others their time."""
    cards = tuple(replace(a100(), gpu=f"gpu-{number}") for number in range(gpus))
    cluster = Cluster((TenantSpec("ada", max_jobs=9_999),), cards, replace(SETTINGS, grow_after_ns=0), create_ns=MS)
    for _ in range(30 * gpus):
        cluster.submit("ada", 14, kernel_ns=10_000 * MS)
    cluster.run(1_000 * MS)
    ada = cluster.book.ledger.tenants["ada"]
    assert (len(ada.leases), sum(len(lease.jobs) for lease in ada.leases.values())) == (7 * gpus, 14 * gpus)
    steps = calls_of(lambda: work_ns(ada, cluster.book.ledger.kernels, cluster.now_ns))
    assert steps < 10 * 14 * gpus, f"{steps} calls for {14 * gpus} jobs on {7 * gpus} leases"


def calls_of(work: Callable[[], object]) -> int:
    """Calls of functions and turns of generators in ``work``."""
    calls = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_what_a_refused_job_is_told_can_come_true() -> None:
    harness = served(300)
    for job in (2, 3, 4):
        harness.submit(302, job)
    (answer,) = harness.submit(302, 5, by_ms=802)
    assert isinstance(answer, Answer)
    told = Ended(5, "ada", 14, 100, 500, answer.state, answer.reason, answer.retry_after_ms, 0, answer.stages, SMALL, 0)
    (hold,) = explain_end(told, harness.book.leasing, 302 * MS).holds
    assert "submitted now, it would end in about 1200.0 ms" in hold.text
    assert Unblocker.JOB_ENDS in hold.unblocked_by
    harness.send(302, events.CopyDone(2, 0))
    harness.send(302, events.CopyDone(3, 0))
    harness.result(602, 2, 1)
    harness.send(602, events.CopyDone(4, 0))
    harness.result(902, 3, 1)
    (hold,) = explain_end(told, harness.book.leasing, 1_002 * MS).holds
    assert "submitted now, it would be accepted" in hold.text
    assert Unblocker.SAME_REQUEST in hold.unblocked_by
    assert not is_refused(harness.submit(1_002, 6, by_ms=1_002 + 500))


# -- against a first-come simulation --------------------------------------------------------------------------------
class Kind(NamedTuple):
    """A kernel: its R, and how long it honestly takes, always."""

    share: int
    takes_ms: int


class Asked(NamedTuple):
    gap_ms: int
    kernel: int
    priority: int
    budget_ms: int


class Mine(NamedTuple):
    """A job as its submitter knows it. ``by_ms`` 0: none."""

    job: int
    kind: Kind
    priority: int
    at_ms: int
    by_ms: int


class Interval(NamedTuple):
    start: int
    end: int
    share: int


class Honest:
    """Tenant ada's leases under the real book: copies take no time, kernels what their kind says."""

    def __init__(self, profiles: Sequence[str], lanes: int, kinds: Sequence[Kind]) -> None:
        gpu = a100()
        starts = {1: (0,), 2: (0, 4)}[len(profiles)]
        pins = tuple(PinnedLease("ada", 0, name, start) for name, start in zip(profiles, starts, strict=True))
        self.alphas = [gpu.alpha(next(p for p in gpu.profiles if p.name == name)) for name in profiles]
        self.lanes, self.kinds = lanes, kinds
        ada = TenantSpec("ada", max_share=sum(self.alphas), max_jobs=10_000)
        self.harness = BookHarness((ada,), replace(SETTINGS, lanes=lanes), pins)
        kernels = tuple(events.Kernel(n, kind.share) for n, kind in enumerate(kinds, start=1))
        self.harness.send(0, events.HelperJoined(1, (gpu,), kernels))
        self.now_ms = 0
        self.jobs: dict[int, Mine] = {}
        self.running: dict[int, tuple[int, int, int]] = {}
        """By job: when it ends, and its lease and generation."""
        self.seats: dict[int, list[int]] = {lease: [] for lease in self.harness.book.ledger.leases}
        """By lease: jobs that have a lane and do not run, in the order in which they got it."""
        self.ended: dict[int, tuple[JobState, int]] = {}
        self.harness.warm(0, *self.seats, lanes=lanes)

    def carry_out(self, out: tuple[Command, ...]) -> None:
        book = self.harness.book
        for command in out:
            if isinstance(command, Copy):
                self.seats[command.lease].append(command.job)
                self.carry_out(book.handle(events.CopyDone(command.job, command.attempt), self.now_ms * MS))
            elif isinstance(command, Launch):
                self.seats[command.lease].remove(command.job)
                ends_ms = self.now_ms + self.jobs[command.job].kind.takes_ms
                self.running[command.job] = ends_ms, command.lease, command.generation
            elif isinstance(command, Answer):
                self.ended[command.job] = command.state, self.now_ms
                for seated in self.seats.values():
                    if command.job in seated:
                        seated.remove(command.job)

    def pass_until(self, when_ms: int) -> None:
        """Kernels end and deadlines pass, each at its moment."""
        while True:
            ends = min(((end_ms, job) for job, (end_ms, *_) in self.running.items()), default=(when_ms + 1, 0))
            due_ms = min((job.by_ms for job in self.jobs.values() if self._waits(job)), default=when_ms + 1)
            if min(ends[0], due_ms) > when_ms:
                break
            self.now_ms = min(ends[0], due_ms)
            if due_ms <= ends[0]:
                self.carry_out(self.harness.tick(due_ms))
            else:
                *_, generation = self.running.pop(ends[1])
                self.carry_out(self.harness.result(self.now_ms, ends[1], generation))
        self.now_ms = when_ms

    def _waits(self, job: Mine) -> bool:
        return bool(job.by_ms) and job.job not in self.ended

    def submit(self, job: int, asked: Asked) -> bool:
        """True when it was turned away because of its deadline."""
        by_ms = self.now_ms + asked.budget_ms if asked.budget_ms else 0
        self.jobs[job] = Mine(job, self.kinds[asked.kernel], asked.priority, self.now_ms, by_ms)
        out = self.harness.submit(self.now_ms, job, kernel=asked.kernel + 1, priority=asked.priority, by_ms=by_ms)
        self.carry_out(out)
        return is_refused(out)

    # -- the reference ---------------------------------------------------------------------------------------------
    def is_idle_for(self, share: int) -> bool:
        for lease, alpha in zip(self.seats, self.alphas, strict=True):
            held = [self.jobs[job].kind.share for job, (_, at, _) in self.running.items() if at == lease]
            held += [self.jobs[job].kind.share for job in self.seats[lease]]
            if len(held) < self.lanes and sum(held) + share <= alpha:
                return True
        return False

    def ends_first_come_ms(self, kind: Kind, priority: int) -> int:
        """When a job that is submitted now ends if all are served first come first served. Moment by moment: a lease
        starts its next job when a lane and the share are there, and not before an earlier one of its."""
        plans: list[list[Interval]] = []
        for lease in self.seats:
            left = [(job, end_ms) for job, (end_ms, at, _) in self.running.items() if at == lease]
            plans.append([Interval(self.now_ms, end_ms, self.jobs[job].kind.share) for job, end_ms in left])
        for number, seated in enumerate(self.seats.values()):
            for job in seated:
                self._plan(self.jobs[job], plans, [number])
        gone = {*self.ended, *self.running, *(job for seated in self.seats.values() for job in seated)}
        queue = [job for job in self.jobs.values() if job.job not in gone and job.priority >= priority]
        for mine in sorted(queue, key=lambda job: (-job.priority, job.at_ms, job.job)):
            self._plan(mine, plans, range(len(plans)))
        return self._plan(Mine(0, kind, priority, self.now_ms, 0), plans, range(len(plans)))

    def _plan(self, mine: Mine, plans: list[list[Interval]], leases: Sequence[int]) -> int:
        share = mine.kind.share
        moments = {self.now_ms, *(each.end for plan in plans for each in plan)}
        start_ms, lease = min(
            (moment, lease)
            for moment in moments
            for lease in leases
            if self._has_room(plans[lease], self.alphas[lease], moment, share)
        )
        if not mine.by_ms or start_ms < mine.by_ms:
            plans[lease].append(Interval(start_ms, start_ms + mine.kind.takes_ms, share))
        return start_ms + mine.kind.takes_ms

    def _has_room(self, plan: list[Interval], alpha: int, moment: int, share: int) -> bool:
        there = [each.share for each in plan if each.start <= moment < each.end]
        is_in_turn = all(each.start <= moment for each in plan)
        return is_in_turn and len(there) < self.lanes and sum(there) + share <= alpha

    # -- what the book itself would make of it ------------------------------------------------------------------------
    def ends_in_the_book_ms(self, before: JobBook, job: int, asked: Asked) -> int:
        """When the very book ends the job, had it no deadline, and were nothing submitted after it."""
        other = Honest.__new__(Honest)
        other.harness = BookHarness.__new__(BookHarness)
        other.harness.book, other.harness.ids = before, dict(self.harness.ids)
        other.alphas, other.lanes, other.kinds, other.now_ms = self.alphas, self.lanes, self.kinds, self.now_ms
        other.jobs = {number: mine for number, mine in self.jobs.items() if number != job}
        other.running, other.ended = dict(self.running), {k: v for k, v in self.ended.items() if k != job}
        other.seats = {lease: list(seated) for lease, seated in self.seats.items()}
        assert not other.submit(job, asked._replace(budget_ms=0))
        other.pass_until(self.now_ms + 1_000_000)
        state, at_ms = other.ended[job]
        assert state is JobState.COMPLETED
        return at_ms


PROFILES = {"1g.5gb": 14, "2g.10gb": 28, "3g.20gb": 42}
KINDS = st.lists(st.builds(Kind, st.integers(1, 42), st.integers(1, 60)), min_size=1, max_size=4)
ASKED = st.lists(
    st.builds(
        Asked,
        st.sampled_from((0, 0, 0, 1, 7, 40)),
        st.integers(0, 3),
        st.sampled_from((0, 0, 0, 0, 1, 2)),
        st.one_of(st.just(0), st.integers(1, 400)),
    ),
    min_size=1,
    max_size=40,
)


def test_with_honest_times_early_rejection_agrees_with_a_first_come_simulation() -> None:
    """No job is refused that the simulation ends in time, none is accepted that it ends more than 10 % too late."""
    seen: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.sampled_from(tuple(PROFILES)), min_size=1, max_size=2), st.integers(1, 3), KINDS, ASKED)
    def agrees(profiles: list[str], lanes: int, kinds: list[Kind], stream: list[Asked]) -> None:
        largest = max(PROFILES[name] for name in profiles)
        kinds = [kind._replace(share=min(kind.share, largest)) for kind in kinds]
        world = Honest(profiles, lanes, kinds)
        for number in range(len(kinds)):  # each has run once: there is a history
            world.submit(number + 1, Asked(0, number, 0, 0))
            world.pass_until(world.now_ms + 100)
        for job, asked in enumerate(stream, start=100):
            world.pass_until(world.now_ms + asked.gap_ms)
            seen[judged(world, job, asked._replace(kernel=asked.kernel % len(kinds)))] += 1

    agrees()
    assert min(seen["refused"], seen["accepted"], seen["idle"]) > EXAMPLES // 4, seen


def judged(world: Honest, job: int, asked: Asked) -> str:
    """Submit it; what came of it, which must be right."""
    kind = world.kinds[asked.kernel]
    is_idle = world.is_idle_for(kind.share)
    takes_ms = world.ends_first_come_ms(kind, asked.priority) - world.now_ms
    before = restore(snapshot(world.harness.book))
    if world.submit(job, asked):
        assert not is_idle, "a lane that could run it is idle"
        assert takes_ms > asked.budget_ms, f"refused, and it takes {takes_ms} of {asked.budget_ms} ms"
        if len(world.alphas) == 1:
            ends_ms = world.ends_in_the_book_ms(before, job, asked)
            assert ends_ms - world.now_ms > asked.budget_ms, "the book itself would have ended it in time"
        return "refused"
    if is_idle or not asked.budget_ms:
        return "idle" if is_idle else "no deadline"
    assert takes_ms <= 1.1 * asked.budget_ms, f"accepted, and it takes {takes_ms} of {asked.budget_ms} ms"
    return "accepted"
