"""Leasing loop: opens, drains, scrubs and closes leases, driven by needs, idleness and loss (docs/design.md, Job book).

PLANNED → CREATING → WARM → DRAINING → SCRUBBING → FREE. An instance belongs to one tenant from PLANNED to FREE. FREE
requires that every byte is confirmed scrubbed: by the workers, or by the helper if a worker died. Contended GPUs are
divided by weight: the needy tenant with the smallest held share per weight is served first, and takes leases from a
tenant with a larger one.
"""

from __future__ import annotations

from collections.abc import Iterable

from offpath.sched.errors import IllegalPlacement
from offpath.sched.gpu.geometry import Slice
from offpath.sched.gpu.policy import LeasePlan, Obstacle, Refusal, Unblocker
from offpath.sched.jobs import events
from offpath.sched.jobs.commands import CloseLease, KillLane, OpenLease, ScrubLane
from offpath.sched.jobs.demands import instances_of
from offpath.sched.jobs.helpers import Helper
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.planning import QUOTA, Need, Plans
from offpath.sched.jobs.records import Job, Lease, Tenant
from offpath.sched.jobs.ripeness import is_ripe
from offpath.sched.jobs.settings import MS, PinnedLease
from offpath.sched.jobs.states import LeaseState
from offpath.sched.jobs.victims import is_unused, keeps_sequences, victims

_OPENING = (LeaseState.PLANNED, LeaseState.CREATING)
_LEAVING = (LeaseState.DRAINING, LeaseState.SCRUBBING)
FAILURES_TO_REPORT = 8
LARGEST_LEASE = 0xFFFF_FFFF
"""The header of an answer has 32 bits for the lease number."""
_OPENING_FAILED = Refusal((Obstacle.OPENING_FAILED,), (Unblocker.LEASE_OPENS, Unblocker.HELPER_JOINS))


class Leasing(Plans):
    """Manages the leases of the ledger. Jobs are managed by the book."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.next_lease = 1
        self.dirty: set[Slice] = set()
        self.pinned: dict[PinnedLease, int] = {}

    # -- helpers --------------------------------------------------------------------------------------------------
    def helper_joined(self, event: events.HelperJoined) -> None:
        """Add the helper's GPUs. The next round opens the pinned leases, then serves waiting tenants."""
        helper = self._ledger.helpers.joined(event, instances_of(event.gpus, self.lease_bytes))
        self.know_gpus()
        for gpu in helper.gpus:
            self._ledger.policy.gpu_added(gpu)
        for tenant in self._ledger.tenants.values():
            tenant.retry_open_ns = 0  # openings that failed with the last helper may succeed with this one

    def know_gpus(self) -> None:
        """The helpers changed, or were restored."""
        self._gpus = {gpu.gpu: gpu for helper in self._ledger.helpers.connected for gpu in helper.usable_gpus}

    def helper_lost(self, helper: Helper) -> list[Lease]:
        """Forget the GPUs and the leases of the helper, as it was. Returns the leases; the book ends or requeues their
        jobs.

        Their slices count as dirty until the next instance there is scrubbed.
        """
        return self._gpus_gone({gpu.gpu for gpu in helper.usable_gpus})

    def gpu_lost(self, helper: Helper, gpu: str) -> list[Lease]:
        """Forget a GPU of a connected helper, and the leases on it, which are returned."""
        self._ledger.helpers.gpu_lost(helper, gpu, self.lease_bytes)
        return self._gpus_gone({gpu})

    def _gpus_gone(self, gone: set[str]) -> list[Lease]:
        lost = [lease for lease in self._ledger.leases.values() if not gone.isdisjoint(lease.view.gpus)]
        for lease in lost:
            self._mark_dirty(lease)
            self._forget(lease)
        for gpu in [gpu for gpu in self._gpus if gpu in gone]:
            self._ledger.policy.gpu_removed(gpu)
        for tenant in self._ledger.backlogged.values():
            tenant.room = {slice_ for slice_ in tenant.room if slice_[0] not in gone}
        self.know_gpus()
        return lost

    def helper_of(self, lease: Lease) -> int:
        """The number of the helper that holds the lease."""
        return self._ledger.helpers.by_name[self._gpus[lease.view.gpu].helper].number

    # -- lease life cycle -----------------------------------------------------------------------------------------
    def lane_loading(self, lease: Lease, lane: int, now_ns: int) -> bool:
        """True if with this lane all are reserved: from now on the limit on loading counts."""
        if lease.state is not LeaseState.CREATING or not 0 <= lane < lease.view.lanes or lane in lease.loading:
            return False
        lease.loading.add(lane)
        if len(lease.loading) < lease.view.lanes:
            return False
        lease.since_ns = now_ns
        return True

    def lane_ready(self, lease: Lease, lane: int, now_ns: int) -> bool:
        """True if this lane made the lease WARM."""
        if lease.state is not LeaseState.CREATING or not 0 <= lane < lease.view.lanes:
            return False
        lease.ready.add(lane)
        if len(lease.ready) < lease.view.lanes:
            return False
        lease.state = LeaseState.WARM
        lease.opened_ns = now_ns
        self._ledger.tenants[lease.view.tenant].failures = 0
        self._clean(lease)
        if lease.is_gang:
            lease.free_lanes = list(range(lease.view.lanes - 1, -1, -1))
        else:
            self._ledger.policy.lease_opened(lease.view.lease)
        self.went_idle(lease, now_ns)
        return True

    def went_idle(self, lease: Lease, now_ns: int) -> None:
        """Start the keep-warm time of a lease without jobs, or finish its drain."""
        lease.idle_since_ns = now_ns
        if lease.state is LeaseState.DRAINING:
            if not (lease.orphaned_copies or lease.sequences):
                self._scrub(lease, now_ns)
        elif lease.state is LeaseState.WARM and not lease.is_pinned and not lease.is_idle_timer_armed:
            lease.is_idle_timer_armed = True
            self._ledger.timers.arm(now_ns + self._ledger.settings.keep_warm_ns, ("idle", lease.view.lease))

    def idle_timer(self, lease_id: int, now_ns: int) -> None:
        """Close a lease that was idle long enough, else arm the timer for the rest of that time."""
        lease = self._ledger.leases.get(lease_id)
        if lease is None or lease.state is not LeaseState.WARM:
            return
        lease.is_idle_timer_armed = False
        if lease.jobs or lease.is_pinned or lease.renewing or lease.sequences:
            return  # armed again when the lease next becomes idle, or when a renewed lane is ready
        since = lease.idle_since_ns
        if now_ns - since >= self._ledger.settings.keep_warm_ns:
            self.drain(lease, now_ns)
        else:
            lease.is_idle_timer_armed = True
            self._ledger.timers.arm(since + self._ledger.settings.keep_warm_ns, ("idle", lease_id))

    def drain(self, lease: Lease, now_ns: int, *, is_wanted: bool = True) -> None:
        """Place no more jobs on the lease; scrub when the last job has left. Its sequences may go on there for a while,
        or, if its room is not wanted, until it is: then call this again."""
        if lease.state is not LeaseState.DRAINING:
            lease.state = LeaseState.DRAINING
            self._ledger.policy.lease_draining(lease.view.lease)
        lease.is_kept = not is_wanted
        if lease.sequences:
            lease.since_ns = now_ns
            if is_wanted:
                self._ledger.watch(lease, now_ns + self._ledger.settings.sequence_leave_ns)
        elif not lease.jobs:
            self._scrub(lease, now_ns)

    def worker_lost(self, lease: Lease, lane: int, now_ns: int) -> None:
        """A lane is gone: the lease takes no new job, other jobs finish, the helper scrubs the whole instance. The
        sequences of other lanes go on until somebody needs the room."""
        lease.lost.add(lane)
        lease.renewing.pop(lane, None)
        if lease.state is LeaseState.CREATING:
            self._pause_opening(lease, now_ns)
            self._close(lease)
        elif lease.state is LeaseState.WARM:
            self.drain(lease, now_ns, is_wanted=False)
        elif lease.state is LeaseState.SCRUBBING:
            self._close_when_scrubbed(lease)

    def kill_lane(self, lease: Lease, lane: int) -> None:
        """Have the lane's worker killed; the caller then counts the lane as lost."""
        self._ledger.out.append(KillLane(lease.view.lease, lane, lease.generation, self.helper_of(lease)))

    def give_up(self, lease: Lease) -> None:
        """Cancel the opening of a lease that is not WARM yet: the helper ends its workers and scrubs."""
        lease.lost.update(range(lease.view.lanes))
        self._close(lease)

    def opening_overran(self, lease: Lease, now_ns: int) -> None:
        """The lease was CREATING for too long: close it, and retry after the pause."""
        self._pause_opening(lease, now_ns)
        self.give_up(lease)

    def scrub_overran(self, lease: Lease) -> None:
        """The workers exceeded the scrub limit: they count as lost, and the helper scrubs the whole instance."""
        lease.lost |= lease.ready - lease.scrubbed
        self._close_when_scrubbed(lease)

    def orphaned_copy_ended(self, copy: tuple[int, int], now_ns: int) -> None:
        """``copy`` (job, attempt) has ended; if it was orphaned, a drain may have waited for it."""
        for lease in self._ledger.leases.values():
            if copy in lease.orphaned_copies:
                lease.orphaned_copies.remove(copy)
                if not lease.jobs:
                    self.went_idle(lease, now_ns)
                return

    def lane_scrubbed(self, lease: Lease, lane: int) -> None:
        """Handle a worker's confirmation; it counts only while the lease is scrubbing, from a worker that got the
        command."""
        if lease.state is LeaseState.SCRUBBING and lane in lease.ready - lease.lost - lease.scrubbed:
            lease.scrubbed.add(lane)
            self._close_when_scrubbed(lease)

    def instance_closed(self, lease: Lease, now_ns: int) -> None:
        """The lease is FREE: its slices may go to any tenant. If the helper was to scrub them, it has: what
        `closing` answers no longer changes, since without a scrub all lanes were ready and confirmed. Ignored unless
        closing was requested."""
        if lease.is_closing:
            if self.closing(lease).scrub:
                self._clean(lease)
            self._forget(lease)
            self.round(now_ns)

    def instance_failed(self, lease: Lease, now_ns: int) -> None:
        """Opening failed: the slices are free but not known to be clean; the tenant pauses before the next attempt."""
        self._mark_dirty(lease)
        self._forget(lease)
        self._pause_opening(lease, now_ns)

    def _pause_opening(self, lease: Lease, now_ns: int) -> None:
        """Pause before the next attempt, so that workers that die at start are not forked in a loop."""
        settings = self._ledger.settings
        tenant = self._ledger.tenants[lease.view.tenant]
        pause = settings.retry_open_ns << min(tenant.failures, 32)
        tenant.failures += 1
        tenant.retry_open_ns = now_ns + max(settings.retry_open_ns, min(pause, settings.retry_limit_ns))
        self._ledger.timers.arm(tenant.retry_open_ns, ("round", 0))
        self._explain_failures(tenant)

    def _explain_failures(self, tenant: Tenant) -> None:
        """After this many failures in a row, report the cause to waiting jobs."""
        if tenant.failures >= FAILURES_TO_REPORT:
            for queue in tenant.queues.values():
                head = queue.peek()
                if head is not None:
                    head.refusal = _OPENING_FAILED

    # -- needs ----------------------------------------------------------------------------------------------------
    def need(self, tenant: Tenant, now_ns: int) -> None:
        """The tenant has jobs that none of its leases takes: record the time; run a round now if it holds no lease."""
        if tenant.spec.name not in self._ledger.backlogged:
            tenant.need_since_ns = now_ns
            self._ledger.backlogged[tenant.spec.name] = tenant
            self._arm_need(tenant, now_ns + self._ledger.settings.grow_after_ns)
            if not tenant.leases:
                self.round(now_ns)

    def need_met(self, tenant: Tenant) -> None:
        """The tenant has no waiting jobs left."""
        self._ledger.backlogged.pop(tenant.spec.name, None)
        tenant.room = set()

    def need_timer(self, name: str, now_ns: int) -> None:
        """Check an older need again, and keep checking while it lasts."""
        tenant = self._ledger.tenants.get(name)
        if tenant is None:
            return
        tenant.need_timer_ns = 0
        if name in self._ledger.backlogged:
            self.round(now_ns)
            old_enough_ns = tenant.need_since_ns + self._ledger.settings.grow_after_ns
            again_ns = now_ns + max(self._ledger.settings.grow_after_ns, MS)
            self._arm_need(tenant, old_enough_ns if now_ns < old_enough_ns < again_ns else again_ns)

    def _arm_need(self, tenant: Tenant, when_ns: int) -> None:
        if not tenant.need_timer_ns or when_ns < tenant.need_timer_ns:  # else armed already
            tenant.need_timer_ns = when_ns
            self._ledger.timers.arm(when_ns, ("need", tenant.spec.name))

    def arm_needs(self, now_ns: int) -> None:
        """Arm the timers of all needs with the current pause; the former timers were dropped."""
        for tenant in self._ledger.tenants.values():
            tenant.need_timer_ns = 0
        for tenant in self._ledger.backlogged.values():
            self._arm_need(tenant, now_ns + max(self._ledger.settings.grow_after_ns, MS))

    def round(self, now_ns: int) -> None:
        """Serve pinned leases, then needy tenants, smallest held share per weight first.

        Slices that are being cleared for one tenant are reserved from the others. Otherwise small leases would keep
        taking the room that a large one waits for.
        """
        if not self._gpus:
            return
        pinned = self._open_pins(now_ns)
        settings = self._ledger.settings
        waiting = sorted(
            self._ledger.backlogged.values(), key=lambda t: (t.held_share / t.spec.weight, t.need_since_ns)
        )
        for tenant in waiting:
            age = now_ns - tenant.need_since_ns
            mine = tenant.leases.values()
            is_opening = any(lease.state in _OPENING or lease.is_renewing for lease in mine)
            if is_opening or now_ns < tenant.retry_open_ns:
                self._explain_failures(tenant)
                continue
            if age < settings.grow_after_ns and any(lease.state is LeaseState.WARM for lease in mine):
                continue
            others = [other.room for other in waiting if other is not tenant]
            self._serve(tenant, age, now_ns, pinned.union(*others))

    def _serve(self, tenant: Tenant, age_ns: int, now_ns: int, reserved: set[Slice]) -> None:
        """Open a lease for the largest waiting demand that fits; make room for the largest that does not."""
        tenant.room = set()
        for kind in sorted(tenant.queues, reverse=True):
            head = tenant.queues[kind].peek()
            if head is None or not is_ripe(tenant.queues[kind], self._ledger, now_ns):
                continue
            plan = self._plan(head.demand, tenant, now_ns, frozenset(), reserved | tenant.room)
            if isinstance(plan, LeasePlan):
                self._open(tenant, plan, now_ns, self._need_on(plan, head.demand), is_pinned=False)
                return
            head.refusal = plan
            if not tenant.room:
                self._make_room(tenant, head, age_ns, now_ns, reserved)

    def _make_room(self, tenant: Tenant, head: Job, age_ns: int, now_ns: int, reserved: set[Slice]) -> None:
        """Drain as few leases as needed for the job's demand; leases already leaving count as gone. Those that leave
        with sequences may take their time: an unused lease is drained although their room would do."""
        every = self._ledger.leases.values()
        leaving = [held for held in every if held.state in _LEAVING and not keeps_sequences(held)]
        among = list(self._victims(tenant, head, age_ns, now_ns))
        gone = frozenset(held.view.lease for held in leaving)
        soon = frozenset(held.view.lease for held in leaving if not held.sequences)
        unused = [held for held in among if is_unused(held)]
        found = self._choose(tenant, head, now_ns, reserved, soon, unused) if soon != gone else None
        found = found or self._choose(tenant, head, now_ns, reserved, gone, among)
        if found is None:
            return
        plan, chosen = found
        for victim in chosen:
            self.drain(victim, now_ns)
        tenant.room = self._slices(plan)

    def _choose(
        self,
        tenant: Tenant,
        head: Job,
        now_ns: int,
        reserved: set[Slice],
        gone: frozenset[int],
        among: list[Lease],
    ) -> tuple[LeasePlan, list[Lease]] | None:
        """As few leases, the first ones, as make room for the job, if those of ``gone`` are."""
        plan = self._plan(head.demand, tenant, now_ns, gone, reserved) if gone else QUOTA
        chosen: list[Lease] = []
        left = iter(among)
        while not isinstance(plan, LeasePlan):
            victim = next(left, None)
            if victim is None:
                return None
            chosen.append(victim)
            plan = self._plan(head.demand, tenant, now_ns, gone.union([held.view.lease for held in chosen]), reserved)
        for victim in list(chosen):  # the last one completed the room; earlier ones may be unnecessary
            fewer = gone.union([held.view.lease for held in chosen if held is not victim])
            other = self._plan(head.demand, tenant, now_ns, fewer, reserved)
            if isinstance(other, LeasePlan):
                chosen.remove(victim)
                plan = other
        return plan, chosen

    def _victims(self, tenant: Tenant, head: Job, age_ns: int, now_ns: int) -> Iterable[Lease]:
        """Leases that may be taken, best first."""
        return victims(tenant, head, age_ns, now_ns, self._ledger)

    # -- opening and closing --------------------------------------------------------------------------------------
    def _open_pins(self, now_ns: int) -> set[Slice]:
        """Returns the slices of pinned leases that could not be opened: reserved for them."""
        reserved: set[Slice] = set()
        for pin in self._ledger.pins:
            helper = self._ledger.helpers.by_name.get(pin.helper)
            if self.pinned.get(pin) in self._ledger.leases or helper is None or pin.gpu_index >= len(helper.gpus):
                continue
            gpu = helper.gpus[pin.gpu_index]
            if gpu.gpu not in self._gpus:
                continue  # lost
            profile = gpu.profile(pin.profile)
            tenant = self._ledger.tenants.get(pin.tenant)
            if profile is None or profile.memory_bytes < self.lease_bytes or tenant is None or tenant.is_leaving:
                continue
            plan = LeasePlan(gpu.gpu, pin.profile, pin.start, gpu.alpha(profile))
            if self._adopt(pin, plan, tenant):
                continue
            if now_ns < tenant.retry_open_ns or tenant.held_share + plan.alpha > tenant.spec.max_share:
                reserved |= self._slices(plan)  # leases opened in the meantime hold the share
                continue
            try:
                need = self._need_of_all(plan, helper.kernels)
                self.pinned[pin] = self._open(tenant, plan, now_ns, need, is_pinned=True)
            except IllegalPlacement:
                reserved |= self._slices(plan)  # a leaving lease still holds them, or no GPU can hold the pin
        return reserved

    def _adopt(self, pin: PinnedLease, plan: LeasePlan, tenant: Tenant) -> bool:
        """If the tenant already holds exactly this instance, pin that lease."""
        for lease in tenant.leases.values():
            is_it = (lease.view.gpu, lease.view.profile, lease.view.start) == (plan.gpu, plan.profile, plan.start)
            if is_it and not lease.is_gang and lease.state not in _LEAVING and not lease.is_pinned:
                lease.is_pinned = True
                self.pinned[pin] = lease.view.lease
                return True
        return False

    def _number(self) -> int:
        """Number of a new lease. Wraps after the largest: together with its generation a number still names one
        lease."""
        while self.next_lease in self._ledger.leases or not 0 < self.next_lease <= LARGEST_LEASE:
            self.next_lease = self.next_lease % LARGEST_LEASE + 1
        number = self.next_lease
        self.next_lease = number % LARGEST_LEASE + 1
        return number

    def _open(self, tenant: Tenant, plan: LeasePlan, now_ns: int, need: Need, *, is_pinned: bool) -> int:
        """``need``: of the jobs that the lease is for, which sets the number of its lanes."""
        settings = self._ledger.settings
        lease_id = self._number()
        view = self._view(lease_id, tenant, plan, need)
        lease = Lease(view, self._ledger.next_generation(), is_pinned)
        self._ledger.policy.lease_planned(view)
        self._ledger.leases[lease_id] = lease
        tenant.leases[lease_id] = lease
        tenant.held_share += plan.alpha
        self._ledger.out.append(self.opening(lease))
        lease.state = LeaseState.CREATING
        lease.since_ns = now_ns
        if settings.open_ns:
            self._ledger.watch(lease, now_ns + settings.open_ns)
        return lease_id

    def opening(self, lease: Lease) -> OpenLease:
        """The command that opens the lease; a shell that lost it may issue it again."""
        view, settings = lease.view, self._ledger.settings
        return OpenLease(
            view.lease, lease.generation, self.helper_of(lease), view.tenant, view.gpu, view.profile, view.start,
            view.lanes, view.landing_bytes, settings.result_bytes, scrub_first=bool(self._slices(view) & self.dirty),
            others=view.others,
        )  # fmt: skip

    def closing(self, lease: Lease) -> CloseLease:
        """The command that closes the lease; may also be issued again. A worker that was replaced has scrubbed
        nothing, and those of a gang only their lanes, which are on the first GPU."""
        scrub = bool(lease.lost - lease.scrubbed or lease.renewals or lease.is_gang)
        return CloseLease(lease.view.lease, lease.generation, self.helper_of(lease), scrub)

    def _scrub(self, lease: Lease, now_ns: int) -> None:
        lease.state = LeaseState.SCRUBBING
        lease.since_ns = now_ns
        if scrub_ns := self._ledger.settings.scrub_ns:
            self._ledger.watch(lease, now_ns + scrub_ns)
        for lane in sorted(lease.ready - lease.lost):
            self._ledger.out.append(ScrubLane(lease.view.lease, lane, lease.generation))
        self._close_when_scrubbed(lease)

    def _close_when_scrubbed(self, lease: Lease) -> None:
        if lease.ready - lease.lost <= lease.scrubbed:
            self._close(lease)

    def _close(self, lease: Lease) -> None:
        lease.state = LeaseState.SCRUBBING
        if lease.is_closing:
            return
        lease.is_closing = True
        self._ledger.out.append(self.closing(lease))

    def _forget(self, lease: Lease) -> None:
        lease.state = LeaseState.FREE
        self._ledger.policy.lease_lost(lease.view.lease)
        del self._ledger.leases[lease.view.lease]
        tenant = self._ledger.tenants[lease.view.tenant]
        del tenant.leases[lease.view.lease]
        tenant.held_share -= lease.view.alpha

    # -- clean and dirty slices -----------------------------------------------------------------------------------
    def _mark_dirty(self, lease: Lease) -> None:
        self.dirty |= self._slices(lease.view)

    def _clean(self, lease: Lease) -> None:
        """Mark clean: if requested, the helper scrubbed the instance before its workers reserved their lanes."""
        self.dirty -= self._slices(lease.view)
