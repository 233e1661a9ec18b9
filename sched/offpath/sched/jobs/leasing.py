"""The leasing loop (DESIGN §3): opens, drains, scrubs and closes leases, on needs, idleness and loss.

PLANNED → CREATING → WARM → DRAINING → SCRUBBING → FREE. An instance belongs to one tenant from PLANNED to FREE, and
FREE needs every byte confirmed scrubbed: by its workers, or by the helper when a worker died. Contended GPUs go by
weight: the needy tenant with the smallest held share per weight is served first, and takes from one with a larger.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from offpath.sched.errors import IllegalPlacement
from offpath.sched.gpu.geometry import GpuSpec
from offpath.sched.gpu.policy import Demand, LeasePlan, LeaseView, Lift, Obstacle, Refusal
from offpath.sched.jobs.commands import CloseLease, OpenLease, ScrubLane
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.records import MS, Lease, PinnedLease, Tenant
from offpath.sched.jobs.states import LeaseState

_OPENING = (LeaseState.PLANNED, LeaseState.CREATING)
_LEAVING = (LeaseState.DRAINING, LeaseState.SCRUBBING)
_QUOTA = Refusal((Obstacle.QUOTA,), (Lift.LEASE_CLOSES, Lift.CONFIGURATION))


class Leasing:
    """Leases over the ledger. Jobs stay the book's."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lease_ids = itertools.count(1)
        self._helper = 0
        self._gpus: list[GpuSpec] = []
        self._dirty: dict[str, set[int]] = {}
        self._pinned: dict[PinnedLease, int] = {}
        self._pins_retry_ns = 0
        self.alphas: tuple[int, ...] = ()

    # -- helper ---------------------------------------------------------------------------------------------------
    def helper_joined(self, helper: int, gpus: tuple[GpuSpec, ...], now_ns: int) -> None:
        """Take its GPUs in; open the pinned leases, then serve whoever waits."""
        self._helper = helper
        self._gpus = list(gpus)
        for gpu in gpus:
            self._ledger.policy.gpu_added(gpu)
        room = self._lease_bytes()
        self.alphas = tuple(sorted({g.alpha(p) for g in gpus for p in g.profiles if p.memory_bytes >= room}))
        self._pins_retry_ns = 0
        self.round(now_ns)

    def helper_lost(self, helper: int) -> list[Lease]:
        """Forget its GPUs and leases; returns the leases, whose jobs are now the book's to end or requeue.

        What they held counts as dirty until the next instance there is scrubbed.
        """
        if helper != self._helper:
            return []
        lost = list(self._ledger.leases.values())
        for lease in lost:
            self._mark_dirty(lease)
            self._forget(lease)
        for gpu in self._gpus:
            self._ledger.policy.gpu_removed(gpu.gpu)
        self._gpus = []
        self._helper = 0
        return lost

    # -- a lease's life -------------------------------------------------------------------------------------------
    def lane_ready(self, lease: Lease, lane: int, now_ns: int) -> bool:
        """True when this lane made the lease WARM."""
        if lease.state is not LeaseState.CREATING or not 0 <= lane < lease.view.lanes:
            return False
        lease.ready.add(lane)
        if len(lease.ready) < lease.view.lanes:
            return False
        lease.state = LeaseState.WARM
        lease.opened_ns = now_ns
        self._clean(lease)
        self._ledger.policy.lease_opened(lease.view.lease)
        self.went_idle(lease, now_ns)
        return True

    def went_idle(self, lease: Lease, now_ns: int) -> None:
        """The lease runs nothing: start its keep-warm time, or finish a drain."""
        lease.idle_since_ns = now_ns
        if lease.state is LeaseState.DRAINING:
            if not lease.strays:
                self._scrub(lease)
        elif not lease.is_pinned and not lease.is_idle_timer_armed:
            lease.is_idle_timer_armed = True
            self._ledger.timers.arm(now_ns + self._ledger.settings.keep_warm_ns, ("idle", lease.view.lease))

    def idle_timer(self, lease_id: int, now_ns: int) -> None:
        """Close a lease that was idle long enough, else look again when it would have been."""
        lease = self._ledger.leases.get(lease_id)
        if lease is None or lease.state is not LeaseState.WARM:
            return
        lease.is_idle_timer_armed = False
        if lease.jobs:
            return  # its next idleness arms the timer again
        since = lease.idle_since_ns
        if now_ns - since >= self._ledger.settings.keep_warm_ns:
            self.drain(lease, now_ns)
        else:
            lease.is_idle_timer_armed = True
            self._ledger.timers.arm(since + self._ledger.settings.keep_warm_ns, ("idle", lease_id))

    def drain(self, lease: Lease, now_ns: int) -> None:
        """Place nothing more on it; scrub when the last job has left."""
        lease.state = LeaseState.DRAINING
        self._ledger.policy.lease_draining(lease.view.lease)
        if not lease.jobs:
            self._scrub(lease)

    def worker_lost(self, lease: Lease, lane: int, now_ns: int) -> None:
        """A lane is gone: no new job on the lease, the others finish, the helper scrubs the whole instance."""
        lease.lost.add(lane)
        if lease.state is LeaseState.CREATING:
            self._close(lease)
        elif lease.state is LeaseState.WARM:
            self.drain(lease, now_ns)
        elif lease.state is LeaseState.SCRUBBING:
            self._close_when_scrubbed(lease)

    def stray_copy_ended(self, copy: tuple[int, int], now_ns: int) -> None:
        """``copy`` (job, attempt) writes no more; if it was a stray, a drain may have waited for it."""
        for lease in self._ledger.leases.values():
            if copy in lease.strays:
                lease.strays.remove(copy)
                if not lease.jobs:
                    self.went_idle(lease, now_ns)
                return

    def lane_scrubbed(self, lease: Lease, lane: int) -> None:
        """A worker's confirmation; it counts only while the lease is scrubbing."""
        if lease.state is LeaseState.SCRUBBING and lane in lease.ready and lane not in lease.scrubbed:
            lease.scrubbed.add(lane)
            self._close_when_scrubbed(lease)

    def instance_closed(self, lease: Lease, now_ns: int) -> None:
        """FREE: the slices may go to anyone. Said before it was asked for, it means nothing."""
        if lease.is_closing:
            self._forget(lease)
            self.round(now_ns)

    def instance_failed(self, lease: Lease, now_ns: int) -> None:
        """Nothing came of it: free, but not known clean; the tenant waits a moment before the next try."""
        self._mark_dirty(lease)
        self._forget(lease)
        retry = now_ns + self._ledger.settings.retry_open_ns
        tenant = self._ledger.tenants[lease.view.tenant]
        tenant.retry_open_ns = retry
        self._pins_retry_ns = retry
        self._ledger.timers.arm(retry, ("round", 0))

    # -- needs ----------------------------------------------------------------------------------------------------
    def need(self, tenant: Tenant, now_ns: int) -> None:
        """The tenant has jobs that no lease of its takes: remember since when, act now if it holds nothing."""
        if tenant.spec.name not in self._ledger.needy:
            tenant.need_since_ns = now_ns
            self._ledger.needy[tenant.spec.name] = tenant
            self._arm_need(tenant, now_ns + self._ledger.settings.grow_after_ns)
            if not tenant.leases:
                self.round(now_ns)

    def need_met(self, tenant: Tenant) -> None:
        """Nothing of the tenant's waits any more."""
        self._ledger.needy.pop(tenant.spec.name, None)

    def need_timer(self, name: str, now_ns: int) -> None:
        """A need grew older: look again, and keep looking while it lasts."""
        tenant = self._ledger.tenants[name]
        tenant.is_need_timer_armed = False
        if name in self._ledger.needy:
            self.round(now_ns)
            self._arm_need(tenant, now_ns + max(self._ledger.settings.grow_after_ns, MS))

    def _arm_need(self, tenant: Tenant, when_ns: int) -> None:
        if not tenant.is_need_timer_armed:
            tenant.is_need_timer_armed = True
            self._ledger.timers.arm(when_ns, ("need", tenant.spec.name))

    def round(self, now_ns: int) -> None:
        """Serve pinned leases, then needy tenants, the least held share per weight first."""
        if not self._gpus:
            return
        self._open_pins(now_ns)
        settings = self._ledger.settings
        waiting = sorted(self._ledger.needy.values(), key=lambda t: (t.held_share / t.spec.weight, t.need_since_ns))
        for tenant in waiting:
            age = now_ns - tenant.need_since_ns
            mine = tenant.leases.values()
            if any(lease.state in _OPENING for lease in mine) or now_ns < tenant.retry_open_ns:
                continue
            if age < settings.grow_after_ns and any(lease.state is LeaseState.WARM for lease in mine):
                continue
            self._serve(tenant, age, now_ns)

    def _serve(self, tenant: Tenant, age_ns: int, now_ns: int) -> None:
        """Open a lease for the largest waiting demand that can have one; failing that, take one from somebody."""
        refused: Demand | None = None
        for share in sorted(tenant.queues, reverse=True):
            head = tenant.queues[share].peek()
            if head is None:
                continue
            plan = self._plan(head.demand, tenant, now_ns, frozenset())
            if isinstance(plan, LeasePlan):
                self._open(tenant, plan, is_pinned=False)
                return
            head.refusal = plan
            if plan is not _QUOTA and refused is None:
                refused = head.demand
        if refused is not None:
            self._reclaim(tenant, refused, age_ns, now_ns)

    def _plan(self, demand: Demand, tenant: Tenant, now_ns: int, assume_free: frozenset[int]) -> LeasePlan | Refusal:
        plan = self._ledger.policy.plan(
            demand, now_ns, lease_bytes=self._lease_bytes(), profile=tenant.spec.profile, assume_free=assume_free
        )
        if isinstance(plan, LeasePlan) and tenant.held_share + plan.alpha > tenant.spec.max_share:
            return _QUOTA
        return plan

    def _reclaim(self, tenant: Tenant, demand: Demand, age_ns: int, now_ns: int) -> None:
        """Drain as few leases as let the demand in; those already leaving count as gone."""
        gone = {held.view.lease for held in self._ledger.leases.values() if held.state in _LEAVING}
        if gone and isinstance(self._plan(demand, tenant, now_ns, frozenset(gone)), LeasePlan):
            return
        chosen: list[Lease] = []
        for victim in self._victims(tenant, age_ns, now_ns):
            chosen.append(victim)
            assumed = frozenset(gone | {held.view.lease for held in chosen})
            if isinstance(self._plan(demand, tenant, now_ns, assumed), LeasePlan):
                break
        else:
            return
        for victim in list(chosen):  # the last one completed the room; earlier ones may not have been needed
            rest = frozenset(gone | {held.view.lease for held in chosen if held is not victim})
            if isinstance(self._plan(demand, tenant, now_ns, rest), LeasePlan):
                chosen.remove(victim)
        for victim in chosen:
            self.drain(victim, now_ns)

    def _victims(self, tenant: Tenant, age_ns: int, now_ns: int) -> Iterable[Lease]:
        """Leases that may be taken, best first: idle ones, longest idle first; then busy ones of tenants whose share
        per weight stays above this tenant's even without the lease (or this tenant has nothing at all)."""
        settings = self._ledger.settings
        warm = [held for held in self._ledger.leases.values() if held.state is LeaseState.WARM and not held.is_pinned]
        others = [held for held in warm if held.view.tenant != tenant.spec.name]
        if age_ns >= settings.grow_after_ns:
            idle = [held for held in others if not held.jobs and now_ns - held.idle_since_ns >= settings.grow_after_ns]
            yield from sorted(idle, key=lambda held: held.idle_since_ns)
        if age_ns < settings.reclaim_after_ns:
            return
        mine = tenant.held_share / tenant.spec.weight
        busy = []
        for lease in others:
            if not lease.jobs or now_ns - lease.opened_ns < settings.min_hold_ns:
                continue
            owner = self._ledger.tenants[lease.view.tenant]
            left = (owner.held_share - lease.view.alpha) / owner.spec.weight
            if tenant.held_share == 0 or left > mine:
                busy.append((-owner.held_share / owner.spec.weight, lease.opened_ns, lease.view.lease, lease))
        for *_, lease in sorted(busy):
            yield lease

    # -- opening and closing --------------------------------------------------------------------------------------
    def _open_pins(self, now_ns: int) -> None:
        if now_ns < self._pins_retry_ns:
            return
        for pin in self._ledger.pins:
            if self._pinned.get(pin) in self._ledger.leases or pin.gpu_index >= len(self._gpus):
                continue
            gpu = self._gpus[pin.gpu_index]
            profile = gpu.profile(pin.profile)
            tenant = self._ledger.tenants.get(pin.tenant)
            if profile is None or tenant is None:
                continue
            plan = LeasePlan(gpu.gpu, pin.profile, pin.start, gpu.alpha(profile))
            if tenant.held_share + plan.alpha > tenant.spec.max_share:
                continue  # held by leases that were opened while the pin could not be: until they close
            try:
                self._pinned[pin] = self._open(tenant, plan, is_pinned=True)
            except IllegalPlacement:
                continue  # slices still held (a drain will bring another round), or a pin no GPU can hold

    def _open(self, tenant: Tenant, plan: LeasePlan, *, is_pinned: bool) -> int:
        settings = self._ledger.settings
        lease_id = next(self._lease_ids)
        view = LeaseView(
            lease_id, tenant.spec.name, plan.gpu, plan.profile, plan.start, plan.alpha, settings.lanes,
            settings.landing_bytes,
        )  # fmt: skip
        lease = Lease(view, self._ledger.next_generation(), is_pinned)
        self._ledger.policy.lease_planned(view)
        self._ledger.leases[lease_id] = lease
        tenant.leases[lease_id] = lease
        tenant.held_share += plan.alpha
        scrub_first = bool(self._slices(lease) & self._dirty.get(plan.gpu, set()))
        self._ledger.out.append(
            OpenLease(
                lease_id, lease.generation, self._helper, view.tenant, view.gpu, view.profile, view.start, view.lanes,
                settings.landing_bytes, settings.result_bytes, scrub_first,
            )
        )  # fmt: skip
        lease.state = LeaseState.CREATING
        return lease_id

    def _scrub(self, lease: Lease) -> None:
        lease.state = LeaseState.SCRUBBING
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
        self._ledger.out.append(
            CloseLease(lease.view.lease, lease.generation, self._helper, bool(lease.lost - lease.scrubbed))
        )

    def _forget(self, lease: Lease) -> None:
        lease.state = LeaseState.FREE
        self._ledger.policy.lease_lost(lease.view.lease)
        del self._ledger.leases[lease.view.lease]
        tenant = self._ledger.tenants[lease.view.tenant]
        del tenant.leases[lease.view.lease]
        tenant.held_share -= lease.view.alpha

    # -- what is clean --------------------------------------------------------------------------------------------
    def _slices(self, lease: Lease) -> set[int]:
        gpu = next(g for g in self._gpus if g.gpu == lease.view.gpu)
        return set(range(lease.view.start, lease.view.start + _size(gpu, lease)))

    def _mark_dirty(self, lease: Lease) -> None:
        self._dirty.setdefault(lease.view.gpu, set()).update(self._slices(lease))

    def _clean(self, lease: Lease) -> None:
        """The helper scrubbed the instance before its workers reserved their lanes, if we asked it to."""
        self._dirty.get(lease.view.gpu, set()).difference_update(self._slices(lease))

    def _lease_bytes(self) -> int:
        settings = self._ledger.settings
        return settings.lanes * (settings.landing_bytes + settings.result_bytes)


def _size(gpu: GpuSpec, lease: Lease) -> int:
    profile = gpu.profile(lease.view.profile)
    assert profile is not None, "leases are planned from the GPU's own profiles"
    return profile.memory_slices
