"""Which kernels there are, who serves them, and what becomes of jobs whose kernel nobody serves.

A kernel's number is given once and never again to another name: the book keeps the largest that it has seen, so the
journal keeps it too. A name whose server is lost stays known for `BookSettings.kernel_gone_ns`: a helper that comes
back finds its jobs and their numbers. After that the name is forgotten and its queued jobs end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from offpath.sched.jobs import events
from offpath.sched.jobs.leasing import Leasing
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.records import Job, JobHeap, KnownKernel, Tenant
from offpath.sched.jobs.states import EndReason, JobState

MOST_KERNELS: Final = 256
"""Names known at once; beyond these the ones without a server are forgotten early, the longest gone first. The wire's
bound for a welcome (`offpath.bindings.wire.control.MAX_KERNELS`)."""


class Kernels:
    """Over the ledger; ``end`` is the book's."""

    def __init__(self, ledger: Ledger, leasing: Leasing, end: Callable[[Job, JobState, EndReason, int], None]) -> None:
        self._ledger = ledger
        self._leasing = leasing
        self._end = end

    def joined(self, kernels: tuple[events.Kernel, ...], now_ns: int) -> None:
        """A helper serves exactly these from now on. Queued jobs whose kernel is not among them are set aside, so that
        they hold up nobody; those whose kernel is back take their old turn."""
        ledger = self._ledger
        ledger.kernels = {kernel.kernel: kernel for kernel in kernels}
        for kernel in kernels:
            ledger.last_kernel = max(ledger.last_kernel, kernel.kernel)
            ledger.known[kernel.kernel] = KnownKernel(kernel.kernel, kernel.name, kernel.share)
        self._without_server([known for known in ledger.known.values() if known.kernel not in ledger.kernels], now_ns)
        for tenant in ledger.tenants.values():
            self._sort(tenant, now_ns)
        self._bound(now_ns)

    def lost(self, now_ns: int) -> None:
        """The helper is gone. Jobs for what it served are accepted and queued until that is forgotten."""
        self._without_server(list(self._ledger.known.values()), now_ns)

    def timer(self, number: int, now_ns: int) -> None:
        """A kernel may have been without a server for too long; all that have been are forgotten in one pass."""
        known = self._ledger.known.get(number)
        if known is not None and 0 < self._ledger.gone_for_good_ns(known) <= now_ns:
            due = [one for one in self._ledger.known.values() if 0 < self._ledger.gone_for_good_ns(one) <= now_ns]
            self._forget({one.kernel for one in due}, now_ns)

    def arm_again(self) -> None:
        """The limit changed, and the timers of the former one were dropped."""
        for known in self._ledger.known.values():
            self._arm(known)

    def _without_server(self, those: list[KnownKernel], now_ns: int) -> None:
        for known in those:
            if known.is_served:
                known.is_served, known.gone_ns = False, now_ns
                self._arm(known)

    def _arm(self, known: KnownKernel) -> None:
        if when_ns := self._ledger.gone_for_good_ns(known):
            self._ledger.timers.arm(when_ns, ("kernel", known.kernel))

    def _sort(self, tenant: Tenant, now_ns: int) -> None:
        """Into the queues what a helper serves, aside what none does."""
        served = self._ledger.kernels
        away = [job for queue in tenant.queues.values() for job in queue.waiting() if job.kernel not in served]
        back = [job for job in tenant.stranded.values() if job.kernel in served]
        if not away and not back:
            return
        staying = [job for queue in tenant.queues.values() for job in queue.waiting() if job.kernel in served]
        for job in back:
            del tenant.stranded[job.job]
            tenant.came(job)
        for job in sorted(away, key=lambda job: job.job):
            tenant.went(job)
            tenant.stranded[job.job] = job
        tenant.queues.clear()
        waiting = sorted([*staying, *back], key=lambda job: job.job)
        for job in waiting:
            tenant.queues.setdefault(job.demand.share, JobHeap()).push(job)
        if waiting:
            self._leasing.need(tenant, now_ns)
        else:
            self._leasing.need_met(tenant)

    def _bound(self, now_ns: int) -> None:
        """A host whose helpers come with new names each time fills no table and is not refused."""
        known = self._ledger.known
        gone = sorted((one for one in known.values() if not one.is_served), key=lambda one: (one.gone_ns, one.kernel))
        if excess := max(0, len(known) - MOST_KERNELS):
            self._forget({one.kernel for one in gone[:excess]}, now_ns)

    def _forget(self, numbers: set[int], now_ns: int) -> None:
        """The names are free for new numbers; what is queued for the old ones ends."""
        ledger = self._ledger
        for number in numbers:
            del ledger.known[number]
            ledger.kernels.pop(number, None)
        for job in [job for job in ledger.jobs.values() if job.state is JobState.QUEUED and job.kernel in numbers]:
            self._end(job, JobState.CANCELLED, EndReason.KERNEL_GONE, now_ns)
