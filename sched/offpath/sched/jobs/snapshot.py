"""Converts the whole job book to plain data and back: `restore(snapshot(book))` decides as ``book`` would have.

A checkpoint of the journal is a snapshot; replay starts from one. In the book, jobs, leases, sessions and tenants refer
to each other; in the snapshot they do so by number or name.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from functools import partial
from typing import Any, Final

from offpath.sched.errors import PlainError, SchedError
from offpath.sched.gpu.geometry import GpuSpec, Slice
from offpath.sched.gpu.plugin import Answer
from offpath.sched.gpu.policy import (
    Demand,
    DemandKind,
    LeasePlan,
    Obstacle,
    Placement,
    Policy,
    PolicyState,
    Refusal,
    Unblocker,
)
from offpath.sched.gpu.registry import make
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.demands import Instances
from offpath.sched.jobs.helpers import Helper, KnownKernel
from offpath.sched.jobs.records import Batch, Job, JobHeap, Lease, Session, Tenant
from offpath.sched.jobs.sequence import Sequence
from offpath.sched.jobs.service import ServiceTimes
from offpath.sched.jobs.settings import BookSettings, PinnedLease, TenantSpec
from offpath.sched.jobs.states import EndReason, JobState, LeaseState
from offpath.sched.jobs.timers import Key
from offpath.sched.jobs.turns import take_turn
from offpath.sched.plain import field_names, from_plain, own_hints, to_plain

_POINTERS: Final[dict[type, frozenset[str]]] = {
    Job: frozenset({"batch"}),
    Batch: frozenset({"members"}),
    Session: frozenset({"jobs"}),
    Lease: frozenset({"jobs", "waiting"}),
    Tenant: frozenset({"queues", "leases", "outgoing", "stranded", "turns", "open_turns", "awaiting"}),
}
_LEDGER: Final[dict[str, Any]] = {
    "settings": BookSettings,
    "pins": tuple[PinnedLease, ...],
    "known": dict[int, KnownKernel],
    "last_kernel": int,
    "sequences": dict[int, Sequence],
    "unanswered": int,
    "generation": int,
    "last_job": int,
    "last_session": int,
    "is_draining": bool,
}
_KIND: Final[Callable[[Any], DemandKind]] = partial(
    from_plain, tuple[int, int, tuple[tuple[str, int], ...], tuple[str, ...]]
)
_LEASING: Final[dict[str, Any]] = {
    "next_lease": int,
    "dirty": set[Slice],
    "pinned": dict[PinnedLease, int],
}


def snapshot(book: JobBook) -> dict[str, Any]:
    """Return everything that the book's decisions depend on; costs about 10 µs per job. Call it between events."""
    ledger, leasing = book.ledger, book.leasing
    jobs = {**ledger.jobs, **ledger.leaving}
    for lease in ledger.leases.values():
        jobs.update(lease.jobs)
    return {
        "policy": [ledger.policy.name, to_plain(ledger.policy.state())],
        "jobs": [_own(job) for job in jobs.values()],
        "batches": [
            [_own(batch), [job.job for job in batch.members]]
            for batch in {id(job.batch): job.batch for job in jobs.values()}.values()
            if batch is not None
        ],
        "live": list(ledger.jobs),
        "leaving": list(ledger.leaving),
        "sessions": [[_own(session), list(session.jobs)] for session in ledger.sessions.values()],
        "leases": [
            [_own(lease), list(lease.jobs), [job.job for job in lease.waiting]] for lease in ledger.leases.values()
        ],
        "tenants": [
            [
                _own(tenant),
                [queue.queued() for queue in tenant.queues.values()],
                list(tenant.leases),
                list(tenant.outgoing),
                list(tenant.stranded),
                list(tenant.awaiting),
            ]
            for tenant in ledger.tenants.values()
        ],
        "backlogged": list(ledger.backlogged),
        "departing": list(ledger.departing),
        "timers": [sorted(map(to_plain, ledger.timers.entries)), ledger.timers.sequence, ledger.timers.limit],
        "ledger": {name: to_plain(getattr(ledger, name)) for name in _LEDGER},
        "helpers": [to_plain(list(ledger.helpers.by_name.values())), ledger.helpers.last],
        "leasing": {name: to_plain(getattr(leasing, name)) for name in _LEASING},
    }


def restore(data: Mapping[str, Any], policy_of: Callable[[str], Policy] = make) -> JobBook:
    """Rebuild a book that decides like the one that was saved.

    ``policy_of`` creates a policy from its name.
    Raises: PlainError: the data is not a snapshot, or contradicts itself.
    """
    try:
        return _restore(data, policy_of)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, SchedError) as fault:
        raise PlainError(f"not a snapshot of a job book: {type(fault).__name__}: {fault}") from fault


def _restore(data: Mapping[str, Any], policy_of: Callable[[str], Policy]) -> JobBook:
    name, state = data["policy"]
    policy = policy_of(name)
    policy.restore(from_plain(PolicyState, state))
    own = {each: from_plain(hint, data["ledger"][each]) for each, hint in _LEDGER.items()}
    tenants = [(_made(Tenant, own_fields), *pointed) for own_fields, *pointed in data["tenants"]]
    specs: tuple[TenantSpec, ...] = tuple(tenant.spec for tenant, *_ in tenants)
    book = JobBook(specs, policy, own["settings"], own["pins"], own["generation"])
    ledger, leasing = book.ledger, book.leasing
    for each in ("known", "sequences", "last_kernel", "unanswered", "last_job", "last_session", "is_draining"):
        setattr(ledger, each, own[each])
    for each, hint in _LEASING.items():
        setattr(leasing, each, from_plain(hint, data["leasing"][each]))
    helpers, last = data["helpers"]
    ledger.helpers.restored(from_plain(list[Helper], helpers), last)
    leasing.know_gpus()
    jobs: dict[int, Job] = {job.job: job for job in (_made(Job, fields) for fields in data["jobs"])}
    for fields, numbers in data["batches"]:
        batch: Batch = _made(Batch, fields, members=[jobs[number] for number in numbers])
        for member in batch.members:
            member.batch = batch
    ledger.jobs = _picked(jobs, data["live"])
    ledger.leaving = _picked(jobs, data["leaving"])
    for fields, numbers in data["sessions"]:
        session: Session = _made(Session, fields)
        session.jobs = _picked(jobs, numbers)
        ledger.sessions[session.session] = session
    for fields, numbers, waiting in data["leases"]:
        lease: Lease = _made(Lease, fields)
        lease.jobs = _picked(jobs, numbers)
        lease.waiting = deque(jobs[number] for number in waiting)
        ledger.leases[lease.view.lease] = lease
    for tenant, queues, leases, outgoing, stranded, awaiting in tenants:
        waiting, tenant.waiting, tenant.queued, tenant.stacked = tenant.waiting, {}, 0, 0
        for numbers in queues:
            tenant.queues[jobs[numbers[0]].queue_kind] = heap = JobHeap()
            for number in numbers:
                if jobs[number].state is not JobState.QUEUED:
                    raise PlainError(f"job {number} is in a queue but {jobs[number].state.name}")
                heap.push(jobs[number])
                tenant.came(jobs[number])
        if tenant.waiting != waiting:
            raise PlainError(f"the queues of tenant {tenant.spec.name} do not match its count of waiting jobs")
        tenant.waiting = waiting  # keep the saved order: a forecast reads the first kinds only
        tenant.leases = _picked(ledger.leases, leases)
        tenant.outgoing = _picked(ledger.sessions, outgoing)
        tenant.stranded = _picked(jobs, stranded)
        tenant.awaiting = _picked(jobs, awaiting)
        ledger.tenants[tenant.spec.name] = tenant
    for sequence in ledger.sequences.values():
        head = jobs.get(sequence.head)
        if head is not None and head.turn:
            take_turn(ledger.tenants[sequence.tenant], head, ledger.leases[head.turn[0]], head.turn[1])
    ledger.backlogged = _picked(ledger.tenants, data["backlogged"])
    ledger.departing = _picked(ledger.tenants, data["departing"])
    entries, sequence, limit = data["timers"]
    ledger.timers.restore(from_plain(list[tuple[int, int, Key]], entries), sequence, limit)
    return book


def schema() -> str:
    """Digest of everything that a journal's meaning depends on; it detects journals of incompatible builds."""
    kinds = [*_POINTERS, KnownKernel, Helper, Instances, BookSettings, PinnedLease, TenantSpec, GpuSpec, PolicyState]
    kinds += [Demand, ServiceTimes, Sequence]
    kinds += [Answer, Placement, LeasePlan, Refusal]  # part of a `PluginDecision`
    named = [value for module in (events, commands) for value in vars(module).values()]
    kinds += [kind for kind in named if isinstance(kind, type) and is_dataclass(kind)]
    lines = {f"{kind.__name__}: {own_hints(kind)}" for kind in kinds}
    lines |= {f"{kind.__name__} by number: {sorted(names)}" for kind, names in _POINTERS.items()}
    enums = (EndReason, JobState, LeaseState, Obstacle, Unblocker)
    lines |= {f"{kind.__name__}: {[member.name for member in kind]}" for kind in enums}
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def _own(value: Any) -> list[Any]:
    kind: Any = type(value)
    pointers = _POINTERS[kind]
    return [to_plain(getattr(value, name)) for name in field_names(kind) if name not in pointers]


def _made(kind: Any, data: list[Any], **pointers: Any) -> Any:
    names = [name for name in field_names(kind) if name not in _POINTERS[kind]]
    hints = own_hints(kind)
    return kind(**{name: from_plain(hints[name], item) for name, item in zip(names, data, strict=True)}, **pointers)


def _picked(among: Mapping[Any, Any], keys: Iterable[Any]) -> dict[Any, Any]:
    return {key: among[key] for key in keys}
