"""The driver of `world` is worth something only if it finds bugs: each of these is planted, and must be found."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from offpath.sched.gpu.geometry import GpuGeometry, Held, Profile
from offpath.sched.gpu.greedy import GreedyFirstFit
from offpath.sched.gpu.policy import Demand, LeasePlan, LeaseView, Opening, Placement, Refusal
from offpath.sched.jobs import gangs, reload, stages
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.commands import CloseLease, EndSession
from offpath.sched.jobs.demands import Instances
from offpath.sched.jobs.helpers import Helper
from offpath.sched.jobs.kernels import Kernels
from offpath.sched.jobs.leasing import Leasing
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.limits import Limits
from offpath.sched.jobs.records import Job, JobHeap, Lease, Session, Tenant
from offpath.sched.jobs.reload import Reload
from offpath.sched.jobs.renewal import Renewal
from offpath.sched.jobs.sessions import Sessions
from offpath.sched.jobs.settings import BookSettings
from offpath.sched.jobs.states import FIRST_TERMINAL, EndReason, JobState, LeaseState
from offpath.sched.jobs.timers import Timers

from . import planted_batches, planted_sequences
from .shadow_records import Violation
from .world import drive

SEEDS = 400
Patch = Callable[[object, str, object], None]
Plant = Callable[[Patch], None]
BUGS: dict[str, tuple[Plant, str]] = planted_batches.BUGS | planted_sequences.BUGS


def planted(symptom: str) -> Callable[[Plant], Plant]:
    """Registers a bug with what the driver must say of it (a pattern)."""

    def register(plant: Plant) -> Plant:
        BUGS[plant.__name__] = (plant, symptom)
        return plant

    return register


@planted("confirmed scrubbed")
def closes_without_waiting_for_the_scrub(patch: Patch) -> None:
    patch(Leasing, "_close_when_scrubbed", Leasing._close)


@planted("confirmed scrubbed")
def forgets_what_a_lost_helper_left_dirty(patch: Patch) -> None:
    patch(Leasing, "_mark_dirty", lambda self, lease: None)


@planted("confirmed scrubbed")
def counts_the_scrub_of_a_lane_nobody_asked(patch: Patch) -> None:
    def lane_scrubbed(self: Leasing, lease: Lease, lane: int) -> None:
        if lease.state in (LeaseState.SCRUBBING, LeaseState.DRAINING, LeaseState.WARM):
            lease.scrubbed.add(lane)
        if lease.state is LeaseState.SCRUBBING:
            self._close_when_scrubbed(lease)

    patch(Leasing, "lane_scrubbed", lane_scrubbed)


@planted("still on the lease")
def scrubs_while_a_copy_writes_into_a_lost_lane(patch: Patch) -> None:
    leave = JobBook._leave_lane

    def leave_lane(self: JobBook, job: Job, now_ns: int) -> None:
        job.is_copying = False
        leave(self, job, now_ns)

    patch(JobBook, "_leave_lane", leave_lane)


@planted("KeyError|sequences .*, not")
def believes_that_a_job_is_on_a_lease_that_went_with_its_helper(patch: Patch) -> None:
    leave = JobBook._leave_lane

    def leave_lane(self: JobBook, job: Job, now_ns: int) -> None:
        if job.placement is not None and job.placement.lease not in self.ledger.leases:
            self.ledger.leaving.pop(job.job, None)
            if job.state >= FIRST_TERMINAL:
                return
        leave(self, job, now_ns)

    patch(JobBook, "_leave_lane", leave_lane)


@planted("exceeds α|running share")
def launches_without_looking_at_the_share(patch: Patch) -> None:
    copied = JobBook._copied

    def eager(self: JobBook, event: object, now_ns: int) -> None:
        copied(self, event, now_ns)
        for lease in self.ledger.leases.values():
            while lease.waiting:
                self._launch(lease.waiting.popleft(), lease, now_ns)

    patch(JobBook, "_copied", eager)


@planted("second answer")
def answers_a_cancelled_job_again_when_its_result_comes(patch: Patch) -> None:
    result = JobBook._result

    def late(self: JobBook, event: object, now_ns: int) -> None:
        job = self.ledger.leaving.get(event.job)
        if job is not None and job.is_running:
            job.state = JobState.LAUNCHED
        result(self, event, now_ns)

    patch(JobBook, "_result", late)


@planted("nobody serves its kernel|whose kernel nobody serves")
def queues_what_no_helper_serves_beside_the_rest(patch: Patch) -> None:
    patch(Kernels, "_sort", lambda self, tenant, now_ns: None)


@planted("the kernels known|had to be answered: .*CANCELLED")  # its jobs do not end with it
def forgets_no_kernel(patch: Patch) -> None:
    patch(Kernels, "_forget", lambda self, numbers, now_ns: None)


@planted("nobody serves|the kernels known|next_deadline_ns is late")
def starts_no_clock_when_a_helper_is_lost(patch: Patch) -> None:
    patch(Kernels, "lost", lambda self, now_ns: None)


@planted("stages of a job that went")
def counts_all_that_an_unfinished_job_waited_as_queued(patch: Patch) -> None:
    patch(stages, "so_far", lambda job, now_ns: (now_ns - job.accepted_ns, 0, 0, 0))


@planted("stages of a job that went")
def counts_the_wait_for_a_share_as_the_kernels_time(patch: Patch) -> None:
    so_far = stages.so_far

    def with_waits_in_kernels(self: Job, now_ns: int) -> tuple[int, int, int, int]:
        queued, copy, launch, kernel = so_far(self, now_ns)
        return queued, copy, 0, launch + kernel

    patch(stages, "so_far", with_waits_in_kernels)


@planted("queue|never get an answer|had to be answered: .*CANCELLED")  # in no queue when its kernel is gone
def forgets_to_queue_a_job_again(patch: Patch) -> None:
    patch(JobBook, "_requeue", JobBook._leave_lane)


@planted("has not left the lane|still on the lease|the policy counts|its worker runs|not idle for so long")
def gives_a_lane_away_while_it_is_still_copied_into(patch: Patch) -> None:
    end = JobBook._end

    def hasty(self: JobBook, job: Job, *args: object) -> None:
        job.is_copying = False
        end(self, job, *args)

    patch(JobBook, "_end", hasty)


@planted("means nothing and changed something|the leases are|nothing says so")
def takes_word_from_another_generation(patch: Patch) -> None:
    patch(Ledger, "lease_of", lambda self, lease, generation: self.leases.get(lease))


@planted("a stale generation")
def launches_with_a_stale_generation(patch: Patch) -> None:
    launch = JobBook._launch

    def stale(self: JobBook, job: Job, lease: Lease, now_ns: int) -> None:
        if job.attempt:
            lease.generation, right = lease.generation - 1, lease.generation
            launch(self, job, lease, now_ns)
            lease.generation = right
        else:
            launch(self, job, lease, now_ns)

    patch(JobBook, "_launch", stale)


@planted("overlaps lease|MIG forbids")
def cuts_instances_over_each_other(patch: Patch) -> None:
    patch(GpuGeometry, "allows", lambda self, profile, start, assume_free=frozenset(): start in profile.starts)


@planted("MIG forbids|overlaps lease")
def starts_instances_where_mig_forbids_it(patch: Patch) -> None:
    def first_start(self: GpuGeometry, profile: Profile, *args: object) -> int | None:
        last = self.spec.memory_slices - profile.memory_slices
        taken = {slice_ for held in self.held.values() for slice_ in held.slices}
        free = (s for s in range(last + 1) if not taken & set(range(s, s + profile.memory_slices)))
        return next(free, None)

    def take(self: GpuGeometry, lease: int, profile: Profile, start: int) -> None:
        self.held[lease] = Held(profile, start)

    patch(GpuGeometry, "first_start", first_start)
    patch(GpuGeometry, "take", take)


@planted("the lease is")
def lets_a_job_onto_another_tenants_lease(patch: Patch) -> None:
    place = GreedyFirstFit.place

    def anybodys(self: GreedyFirstFit, demand: object, now_ns: int) -> object:
        mine = self._by_tenant
        everyone = list(itertools.chain.from_iterable(mine.values()))
        self._by_tenant = {demand.tenant: everyone} if everyone else {}
        try:
            return place(self, demand, now_ns)
        finally:
            self._by_tenant = mine

    patch(GreedyFirstFit, "place", anybodys)


@planted("launched too often|had to be answered")
def launches_again_what_may_run_only_once(patch: Patch) -> None:
    lose = JobBook._lose

    def forgiving(self: JobBook, job: Job, *args: object) -> None:
        job.is_idempotent = True
        lose(self, job, *args)

    patch(JobBook, "_lose", forgiving)


@planted("nothing says so|surely never started")
def says_outcome_unknown_of_what_never_started(patch: Patch) -> None:
    lose = JobBook._lose

    def gloomy(self: JobBook, job: Job, reason: object, now_ns: int) -> None:
        if job.state < FIRST_TERMINAL and not job.is_running:
            self._end(job, JobState.OUTCOME_UNKNOWN, reason, now_ns)
        else:
            lose(self, job, reason, now_ns)

    patch(JobBook, "_lose", gloomy)


@planted("max_share|never get an answer")
def opens_leases_beyond_the_quota(patch: Patch) -> None:
    def plan(
        self: Leasing, demand: object, tenant: object, now_ns: int, assume_free: frozenset[int], reserved: set[object]
    ) -> object:
        return self._ledger.policy.plan(demand, now_ns, Opening(1, None, assume_free))

    patch(Leasing, "_plan", plan)


@planted("next_deadline_ns is late")
def forgets_the_deadlines_of_jobs(patch: Patch) -> None:
    arm = Timers.arm

    def choosy(self: Timers, when_ns: int, key: tuple[str, int | str]) -> None:
        if key[0] != "job":
            arm(self, when_ns, key)

    patch(Timers, "arm", choosy)


@planted("next_deadline_ns is late")
def looks_at_a_need_only_once(patch: Patch) -> None:
    patch(Leasing, "_arm_need", lambda self, tenant, when_ns: None)


@planted("idleness")
def never_closes_an_idle_lease(patch: Patch) -> None:
    arm = Timers.arm

    def choosy(self: Timers, when_ns: int, key: tuple[str, int | str]) -> None:
        if key[0] != "idle":
            arm(self, when_ns, key)

    patch(Timers, "arm", choosy)


@planted("credit is out")
def keeps_jobs_whose_credit_came_back(patch: Patch) -> None:
    patch(Sessions, "credit_returned", lambda self, event, now_ns: None)


@planted("was before it")
def queues_without_priorities(patch: Patch) -> None:
    push = JobHeap.push

    def flat(self: JobHeap, job: Job) -> None:
        turn_ns, job.turn_ns = job.turn_ns, job.accepted_ns
        push(self, job)
        job.turn_ns = turn_ns

    patch(JobHeap, "push", flat)


@planted("was before it")
def never_lets_priorities_age(patch: Patch) -> None:
    patch(BookSettings, "turn_ns", lambda self, priority, accepted_ns: accepted_ns - priority * (1 << 50))


@planted("was before it")
def keeps_the_order_when_priorities_change(patch: Patch) -> None:
    patch(JobHeap, "sort_again", lambda self: None)


@planted("a free lane for the queued|need is not filed|next_deadline_ns is late")
def does_not_route_when_a_lane_comes_free(patch: Patch) -> None:
    patch(JobBook, "_route", lambda self, tenant, now_ns: None)


@planted("replays differently")
def remembers_something_outside_the_book(patch: Patch) -> None:
    lane_ready = Leasing.lane_ready
    everywhere = itertools.count()

    def shared(self: Leasing, lease: Lease, lane: int, now_ns: int) -> bool:
        was = lane_ready(self, lease, lane, now_ns)
        if was and next(everywhere) % 2:
            self._ledger.policy._leases[lease.view.lease].free_lanes.reverse()
        return was

    patch(Leasing, "lane_ready", shared)


@planted("pinned and drains")
def drains_pinned_leases(patch: Patch) -> None:
    def victims(self: Leasing, tenant: object, *args: object) -> Iterator[Lease]:
        return iter([held for held in self._ledger.leases.values() if held.state is LeaseState.WARM])

    patch(Leasing, "_victims", victims)


@planted("removed and keeps a lease|nobody looks")
def leaves_a_removed_tenant_the_lease_that_is_being_opened(patch: Patch) -> None:
    patch(Leasing, "give_up", lambda self, lease: None)


@planted("had to be answered|has jobs queued|have all their answers and are not told|for a tenant that was removed")
def leaves_a_removed_tenants_queue_alone(patch: Patch) -> None:
    patch(Reload, "end_queued", lambda self, now_ns: None)


@planted("before its last answer")
def ends_a_session_before_its_last_answer(patch: Patch) -> None:
    def end_session(self: Reload, tenant: Tenant, session: Session) -> None:
        if session.session in tenant.outgoing:
            del tenant.outgoing[session.session]
            self._ledger.out.append(EndSession(session.session))

    patch(Reload, "_end_session", end_session)


@planted("drain limit is over|has to be answered")
def lets_a_removed_tenant_run_for_ever(patch: Patch) -> None:
    patch(Reload, "leave_timer", lambda self, name, now_ns: None)


@planted("nobody will look at its idleness|next_deadline_ns is late|nobody looks")
def forgets_the_pauses_that_changed(patch: Patch) -> None:
    patch(Reload, "_arm_again", lambda self, now_ns: self._ledger.timers.forget(frozenset({"idle", "need"})))


@planted(
    "a second answer|nothing says so|KeyError|nothing overran|no worker to kill|its previous job|lane is lost|"
    "running share|'s queue$|had to be answered"
)
def kills_an_overrun_but_thinks_its_lane_is_well(patch: Patch) -> None:
    def overran(self: Limits, job: Job, lease: Lease, now_ns: int) -> None:
        assert job.placement is not None
        self._leasing.kill_lane(lease, job.placement.lane)
        if job.state < FIRST_TERMINAL:
            self._end(job, JobState.FAILED, EndReason.KERNEL_OVERRAN, now_ns)

    patch(Limits, "_overran", overran)


@planted("nobody looks")
def watches_only_the_first_kernel_of_a_lease(patch: Patch) -> None:
    watch = Ledger.watch

    def once(self: Ledger, lease: Lease, when_ns: int) -> None:
        if not lease.idle_since_ns:
            watch(self, lease, when_ns)

    patch(Ledger, "watch", once)


@planted("does not fit")
def places_without_looking_at_memory(patch: Patch) -> None:
    view = LeaseView.__init__

    def roomy(self: LeaseView, *args: object, **named: object) -> None:
        view(self, *args[:-3], 1 << 60, *args[-2:])  # type: ignore[arg-type]

    patch(LeaseView, "__init__", roomy)


@planted("does not fit")
def shares_a_lease_s_memory_among_more_lanes_than_it_holds(patch: Patch) -> None:
    open_ = Leasing._lanes
    patch(Leasing, "_lanes", lambda self, plan, need: open_(self, plan, (need[0], 0)))
    view = LeaseView.__init__

    def alone(self: LeaseView, *args: object) -> None:
        view(self, *args[:-3], args[-3] * args[6], *args[-2:])  # type: ignore[arg-type, operator]

    patch(LeaseView, "__init__", alone)


@planted("not what was asked|the policy counts")
def launches_with_the_least_share_of_all_models(patch: Patch) -> None:
    place = JobBook._place

    def least(self: JobBook, job: Job, tenant: Tenant, now_ns: int) -> bool:
        is_placed = place(self, job, tenant, now_ns)
        job.share = job.demand.share
        return is_placed

    patch(JobBook, "_place", least)


@planted("does not fit|never get an answer|had to be answered|free lane for the queued|was before it")
def keeps_what_the_last_helper_s_kernels_needed(patch: Patch) -> None:
    patch(Kernels, "renew_demands", lambda self: None)


@planted("opened and not closed|no helper offers that GPU")
def keeps_a_lost_gpu(patch: Patch) -> None:
    patch(Leasing, "gpu_lost", lambda self, helper, gpu: [])


@planted("nothing overran|nobody looks")
def counts_the_loading_of_models_as_opening(patch: Patch) -> None:
    patch(Leasing, "lane_loading", lambda self, lease, lane, now_ns: False)


@planted("may not call|had to be answered")
def keeps_queued_what_a_reload_forbids(patch: Patch) -> None:
    right = reload.withdraw

    def lenient(*arguments: Any) -> EndReason | None:
        reason = right(*arguments)
        return None if reason is EndReason.KERNEL_NOT_PERMITTED else reason

    patch(reload, "withdraw", lenient)


@planted("refusal")
def says_that_memory_lacks_where_the_model_does(patch: Patch) -> None:
    patch(Instances, "lacking", lambda self, demand: EndReason.NO_INSTANCE_MEMORY)


@planted("before the reload")
def places_jobs_on_lanes_that_are_renewed(patch: Patch) -> None:
    patch(GreedyFirstFit, "lane_paused", lambda self, lease, lane: None)


@planted("former code and hold no job|never get an answer|code from before the reload")
def renews_no_lane_whose_job_has_left(patch: Patch) -> None:
    patch(Renewal, "freed", lambda self, lease, lane, now_ns: None)


@planted("former code and hold no job|lacks the kernel|before the reload")
def trusts_the_code_of_a_lease_that_opened_over_a_reload(patch: Patch) -> None:
    reloaded = Renewal.reloaded

    def only_warm(self: Renewal, helper: Helper, now_ns: int) -> None:
        reloaded(self, helper, now_ns)
        for lease in self._ledger.leases.values():
            if lease.state is LeaseState.CREATING:
                lease.stale.clear()

    patch(Renewal, "reloaded", only_warm)


@planted("confirmed scrubbed")
def believes_that_replaced_workers_have_scrubbed(patch: Patch) -> None:
    closing = Leasing.closing

    def trusting(self: Leasing, lease: Lease) -> CloseLease:
        return replace(closing(self, lease), scrub=bool(lease.lost - lease.scrubbed))

    patch(Leasing, "closing", trusting)


@planted("nobody looks|never get an answer")
def waits_for_new_workers_for_ever(patch: Patch) -> None:
    patch(Limits, "_lane_due_ns", lambda self, lease, lane: 0)


@planted("confirmed scrubbed")
def marks_only_the_first_gpu_of_a_gang_dirty(patch: Patch) -> None:
    slices = Leasing._slices
    patch(Leasing, "_slices", lambda self, held: {place for place in slices(self, held) if place[0] == held.gpu})


@planted("overlaps|IllegalPlacement")
def plans_gangs_on_gpus_that_are_held(patch: Patch) -> None:
    plan = gangs.plan
    patch(gangs, "plan", lambda gpus, demand, opening, leases, most: plan(gpus, demand, opening, (), most))


@planted("the leases are those|not there|the lease is gone|KeyError")
def keeps_a_gang_whose_second_gpu_is_lost(patch: Patch) -> None:
    lost = Leasing._gpus_gone

    def only_first(self: Leasing, gone: set[str]) -> list[Lease]:
        return lost(self, gone - {gpu for lease in self._ledger.leases.values() for gpu in lease.view.others})

    patch(Leasing, "_gpus_gone", only_first)


@planted("has not left the lane")
def gives_a_gangs_lane_to_two_jobs(patch: Patch) -> None:
    place = gangs.place

    def twice(demand: Demand, tenant: Tenant) -> Placement | Refusal:
        placed = place(demand, tenant)
        if isinstance(placed, Placement):
            tenant.leases[placed.lease].free_lanes.append(placed.lane)
        return placed

    patch(gangs, "place", twice)


@planted("more than max_share|holds")
def counts_one_gpu_of_a_gang(patch: Patch) -> None:
    plan = gangs.plan

    def cheap(*given: Any) -> LeasePlan | Refusal:
        planned = plan(*given)
        return replace(planned, alpha=100) if isinstance(planned, LeasePlan) else planned

    patch(gangs, "plan", cheap)


def find(seeds: range) -> tuple[int, str] | None:
    """The first seed that finds something, and what."""
    for seed in seeds:
        try:
            drive(seed)
        except Violation as found:
            return seed, str(found)
    return None


@pytest.mark.not_fast("a compiled caller does not see a replaced method")
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, symptom = BUGS[name]
    plant(monkeypatch.setattr)
    found = find(range(SEEDS))
    assert found is not None, f"{name}: not found by {SEEDS} seeds"
    seed, said = found
    assert said.startswith(f"seed {seed}, step ")
    assert re.search(symptom, said.splitlines()[0]), f"{name} shows itself otherwise: {said}"


@pytest.mark.not_fast("a compiled caller does not see a replaced method")
def test_a_failing_seed_fails_again_in_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    closes_without_waiting_for_the_scrub(monkeypatch.setattr)
    found = find(range(SEEDS))
    assert found is not None
    assert find(range(found[0], found[0] + 1)) == found


def test_without_a_planted_bug_the_same_seeds_find_nothing() -> None:
    assert find(range(20)) is None


def test_no_planted_bug_was_lost() -> None:
    """A bug that is taken out is taken out here too, knowingly."""
    assert len(BUGS) == 57 + 15 + 17
