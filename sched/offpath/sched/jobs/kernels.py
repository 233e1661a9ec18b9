"""Tracks which kernels exist, and what happens to jobs of kernels when helpers come and go.

A kernel's number is never reused for another name: the book, and so the journal, keeps the largest number it has seen.
A name without a helper stays known for `BookSettings.kernel_gone_ns`, so a helper that returns finds its jobs and their
numbers. After that the name is forgotten and its queued jobs end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from offpath.sched.gpu.policy import Demand
from offpath.sched.jobs import events
from offpath.sched.jobs.admission import is_unlike
from offpath.sched.jobs.demands import demand_of
from offpath.sched.jobs.helpers import KnownKernel
from offpath.sched.jobs.leasing import Leasing
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.records import Job, JobHeap, Tenant
from offpath.sched.jobs.ripeness import has_need
from offpath.sched.jobs.states import EndReason, JobState
from offpath.sched.jobs.turns import wait, wait_no_more

MOST_KERNELS: Final = 256
"""Maximum number of known names. Beyond it, names without a helper are forgotten early, the longest gone first. The
wire's bound for a welcome (`offpath.bindings.wire.fields.MAX_KERNELS`)."""


class Kernels:
    """Manages the ledger's kernels; ``end`` is the book's."""

    def __init__(self, ledger: Ledger, leasing: Leasing, end: Callable[[Job, JobState, EndReason, int], None]) -> None:
        self._ledger = ledger
        self._leasing = leasing
        self._end = end

    def joined(self, kernels: tuple[events.Kernel, ...], now_ns: int) -> None:
        """A helper that is recorded already serves these kernels. Queued jobs of kernels that no helper has are set
        aside, so that they block no queue; jobs of kernels that are served again return to their former position."""
        ledger = self._ledger
        for kernel in kernels:
            ledger.last_kernel = max(ledger.last_kernel, kernel.kernel)
            share = ledger.kernels[kernel.kernel].share
            ledger.known[kernel.kernel] = KnownKernel(kernel.kernel, kernel.name, share)
        self._servers_changed(now_ns)
        self._bound(now_ns)

    def renew_demands(self) -> None:
        """Queued jobs need what their kernels need now: they were accepted under what a former helper stated. R of a
        kernel without a table of models stays as accepted, unless it was a gang's and is now a part, or the reverse."""
        for tenant in self._ledger.tenants.values():
            for job in _queued(tenant):
                if (demand := self.renewed(job, tenant)) is not None:
                    tenant.went(job)
                    job.attempt += 1  # before `removed`: its entry in the former queue is void
                    tenant.queues[job.queue_kind].removed(job)
                    if not len(tenant.queues[job.queue_kind]):
                        del tenant.queues[job.queue_kind]
                    job.demand, job.share = demand, demand.share
                    tenant.queues.setdefault(job.queue_kind, JobHeap()).push(job)
                    tenant.came(job)
            for job in tenant.stranded.values():
                job.demand = self.renewed(job, tenant) or job.demand
            for job in list(tenant.awaiting.values()):
                if (demand := self.renewed(job, tenant)) is not None:
                    wait_no_more(tenant, job)
                    job.demand = demand
                    wait(tenant, job)

    def renewed(self, job: Job, tenant: Tenant) -> Demand | None:
        """The job's present demand; None: it is as it was, or its kernel is not known."""
        ledger, was = self._ledger, job.demand
        kernel = ledger.kernels.get(job.kernel)
        if kernel is None:
            return None
        is_other = bool(kernel.models) or (kernel.share > 100) is not (was.share > 100)
        asked_share = job.asked_share or (0 if is_other else was.share)
        helpers = ledger.helpers.only_on.get(job.kernel, ())
        demand = demand_of(job.job, kernel, tenant.spec, ledger.settings, asked_share, was.payload_bytes, helpers)
        return demand if demand.kind != was.kind else None

    def lost(self, now_ns: int) -> None:
        """A helper is gone. Jobs for its kernels are accepted and queued until the kernels are forgotten. But queued
        jobs end if the helpers that are left take sequences and it did not, or the reverse."""
        for job in [job for job in self._ledger.jobs.values() if is_unlike(job, self._ledger)]:
            if job.state is JobState.QUEUED:
                self._end(job, JobState.CANCELLED, EndReason.BAD_SEQUENCE, now_ns)
        self._servers_changed(now_ns)

    def _servers_changed(self, now_ns: int) -> None:
        served = self._ledger.helpers.served()
        self._without_server([known for known in self._ledger.known.values() if known.kernel not in served], now_ns)
        for tenant in self._ledger.tenants.values():
            self._sort(tenant, now_ns)

    def timer(self, number: int, now_ns: int) -> None:
        """Forget, in one pass, all kernels that have been without a helper for too long."""
        known = self._ledger.known.get(number)
        if known is not None and 0 < self._ledger.gone_for_good_ns(known) <= now_ns:
            due = [one for one in self._ledger.known.values() if 0 < self._ledger.gone_for_good_ns(one) <= now_ns]
            self._forget({one.kernel for one in due}, now_ns)

    def arm_again(self) -> None:
        """Arm the timers again: the limit changed, and the timers of the former limit were dropped."""
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
        """Move jobs into the queues of the helpers that have their kernels, and set the others aside."""
        served, only_on = self._ledger.kernels, self._ledger.helpers.only_on
        queued = _queued(tenant)
        away = [job for job in queued if job.kernel not in served]
        staying = [job for job in queued if job.kernel in served]
        moving = [job for job in staying if job.demand.helpers != only_on.get(job.kernel, ())]
        back = [job for job in tenant.stranded.values() if job.kernel in served]
        if not away and not back and not moving:
            return
        for job in moving:
            tenant.went(job)
            job.demand = replace(job.demand, helpers=only_on.get(job.kernel, ()))
            tenant.came(job)
        for job in back:
            job.demand = replace(job.demand, helpers=only_on.get(job.kernel, ()))
            del tenant.stranded[job.job]
            tenant.came(job)
        for job in away:
            tenant.went(job)
            tenant.stranded[job.job] = job
        tenant.queues.clear()
        waiting = sorted([*staying, *back], key=lambda job: job.job)
        for job in waiting:
            tenant.queues.setdefault(job.queue_kind, JobHeap()).push(job)
        if has_need(tenant, self._ledger, now_ns):
            self._leasing.need(tenant, now_ns)
        else:
            self._leasing.need_met(tenant)

    def _bound(self, now_ns: int) -> None:
        """Bound the table: helpers with new names each time do not fill it and are not refused."""
        known = self._ledger.known
        gone = sorted((one for one in known.values() if not one.is_served), key=lambda one: (one.gone_ns, one.kernel))
        if excess := max(0, len(known) - MOST_KERNELS):
            self._forget({one.kernel for one in gone[:excess]}, now_ns)

    def _forget(self, numbers: set[int], now_ns: int) -> None:
        """Free the names for new numbers and end the jobs that are queued for the old ones."""
        ledger = self._ledger
        for number in numbers:
            del ledger.known[number]
        ledger.helpers.forget(numbers)
        for job in [job for job in ledger.jobs.values() if job.state is JobState.QUEUED and job.kernel in numbers]:
            if job.state is JobState.QUEUED:  # the end of another of its sequence may have ended it
                self._end(job, JobState.CANCELLED, EndReason.KERNEL_GONE, now_ns)


def _queued(tenant: Tenant) -> list[Job]:
    """Its jobs in queues by number: a restored heap holds the same jobs in another order, and the counts of jobs that
    move keep the order in which they are counted."""
    return sorted((job for queue in tenant.queues.values() for job in queue.waiting()), key=lambda job: job.job)
