"""Which leases may be taken for a job that needs their room, best first."""

from __future__ import annotations

from collections.abc import Iterator

from offpath.sched.gpu.policy import share_in
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.records import Job, Lease, Tenant
from offpath.sched.jobs.states import LeaseState


def keeps_sequences(lease: Lease) -> bool:
    """True if it takes no job and stays for the sequences of its other lanes, until somebody needs its room."""
    return lease.is_kept and lease.state is LeaseState.DRAINING and bool(lease.sequences)


def is_unused(lease: Lease) -> bool:
    """True if nothing runs on it, comes back to it, or has a state there."""
    return not (lease.jobs or lease.renewing or lease.sequences)


def victims(tenant: Tenant, head: Job, age_ns: int, now_ns: int, ledger: Ledger) -> Iterator[Lease]:
    """Idle leases, longest idle first; then those that drain and are kept for their sequences; then busy ones of
    tenants whose share per weight stays above this tenant's even without the lease (any, if this tenant holds nothing);
    then this tenant's own that are too small for the job, if the job itself has starved. Of one tenant's busy leases
    those without sequences are first: they are free as soon as their kernels end."""
    settings = ledger.settings
    warm = [held for held in ledger.leases.values() if held.state is LeaseState.WARM and not held.is_pinned]
    others = [held for held in warm if held.view.tenant != tenant.spec.name]
    own = [held for held in warm if held.view.tenant == tenant.spec.name]
    small = [held for held in own if not share_in(head.demand, held.view)]
    if age_ns >= settings.grow_after_ns:
        since = now_ns - settings.grow_after_ns
        idle = [held for held in (*others, *small) if is_unused(held) and held.idle_since_ns <= since]
        yield from sorted(idle, key=lambda held: held.idle_since_ns)
        yield from _kept(tenant, ledger)
    if age_ns >= settings.reclaim_after_ns:
        yield from _busy(tenant, others, now_ns, ledger)
        if now_ns - head.accepted_ns >= settings.reclaim_after_ns:
            in_use = [held for held in small if held.jobs or held.sequences]
            old = [held for held in in_use if now_ns - held.opened_ns >= settings.min_hold_ns]
            yield from sorted(old, key=lambda held: bool(held.sequences))


def _kept(tenant: Tenant, ledger: Ledger) -> list[Lease]:
    """Leases that take no job any more. The room of a pinned one goes back to its tenant, so only that may take it."""
    kept = [held for held in ledger.leases.values() if keeps_sequences(held)]
    return [held for held in kept if not held.is_pinned or held.view.tenant == tenant.spec.name]


def _busy(tenant: Tenant, others: list[Lease], now_ns: int, ledger: Ledger) -> list[Lease]:
    mine = tenant.held_share / tenant.spec.weight
    busy = []
    for lease in others:
        if not (lease.jobs or lease.sequences) or now_ns - lease.opened_ns < ledger.settings.min_hold_ns:
            continue
        owner = ledger.tenants[lease.view.tenant]
        left = (owner.held_share - lease.view.alpha) / owner.spec.weight
        if tenant.held_share == 0 or left > mine:
            share = owner.held_share / owner.spec.weight
            busy.append((-share, bool(lease.sequences), lease.opened_ns, lease.view.lease, lease))
    return [lease for *_, lease in sorted(busy)]
