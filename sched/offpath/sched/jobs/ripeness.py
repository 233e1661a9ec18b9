"""Decides when jobs that batch stop waiting for others (`offpath.sched.jobs.batches`). Only reads the ledger."""

from __future__ import annotations

from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.records import JobHeap, Tenant


def is_ripe(queue: JobHeap, ledger: Ledger, now_ns: int) -> bool:
    """True if the head of the queue may be placed: it does not batch, the first jobs of its queue are a batch of a size
    that does not wait, or one of the jobs has waited long enough."""
    head = queue.peek()
    if head is None or not head.stack:
        return True
    kernel = ledger.kernels.get(head.kernel)
    batching = kernel.batching if kernel is not None else None
    return batching is None or queue.is_aged(now_ns) or queue.forms(batching)


def has_need(tenant: Tenant, ledger: Ledger, now_ns: int) -> bool:
    """True if the tenant has a queued job that could be placed if there were a lane."""
    if not tenant.stacked:
        return tenant.queued > 0
    return any(is_ripe(queue, ledger, now_ns) for queue in tenant.queues.values() if len(queue))
