"""Applies a new configuration at run time: tenants, their rights, pinned leases, pauses and limits.

A removed tenant's new jobs are refused and its queued jobs end. Running jobs may finish until the drain limit; after it
they are lost with their workers. Its leases drain, are scrubbed and closed. Its sessions end once their answers are
sent. `TenantGone` is issued when nothing is left. A tenant that is added again in the meantime is at once a normal
tenant; only its old sessions still end.
"""

from __future__ import annotations

from typing import Final

from offpath.sched.gpu.registry import make
from offpath.sched.jobs import events
from offpath.sched.jobs.admission import withdraw
from offpath.sched.jobs.commands import Answer, EndSession, TenantGone
from offpath.sched.jobs.kernels import Kernels
from offpath.sched.jobs.leasing import Leasing
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.limits import End, Limits, LoseLane
from offpath.sched.jobs.records import Job, Session, Tenant
from offpath.sched.jobs.sequences import Sequences
from offpath.sched.jobs.settings import PinnedLease
from offpath.sched.jobs.states import FIRST_TERMINAL, JobState, LeaseState
from offpath.sched.jobs.victims import keeps_sequences

_LEAVING: Final = (LeaseState.DRAINING, LeaseState.SCRUBBING)
_PAUSES: Final = frozenset({"idle", "kernel", "need", "sequence", "watch"})


class Reload:
    """Applies reloads to the ledger; ``end`` and ``lose_lane`` are the book's."""

    def __init__(
        self,
        ledger: Ledger,
        leasing: Leasing,
        limits: Limits,
        kernels: Kernels,
        sequences: Sequences,
        end: End,
        lose_lane: LoseLane,
    ) -> None:
        self._sequences = sequences
        self._ledger = ledger
        self._leasing = leasing
        self._limits = limits
        self._kernels = kernels
        self._end = end
        self._lose_lane = lose_lane

    def changed(self, event: events.ConfigChanged, now_ns: int) -> None:
        """Apply the whole configuration in one step."""
        ledger = self._ledger
        is_reordered = event.settings.priority_step_ns != ledger.settings.priority_step_ns
        ledger.settings = event.settings
        if is_reordered:
            self._reorder()
        self._decide_by(event.settings.policy)
        wanted = {spec.name: spec for spec in event.tenants}
        self._repin(event.pins)
        for tenant in [tenant for name, tenant in ledger.tenants.items() if name not in wanted]:
            if not tenant.is_leaving:
                self._remove(tenant, now_ns)
        for name, spec in wanted.items():
            tenant_ = ledger.tenants.get(name)
            if tenant_ is None:
                ledger.tenants[name] = Tenant(spec)
                continue
            tenant_.spec = spec
            if tenant_.is_leaving:
                tenant_.is_leaving = False
                tenant_.failures = tenant_.retry_open_ns = 0
                tenant_.service.clear()
            self._trim(tenant_, now_ns)
        self.end_queued(now_ns)
        for tenant in ledger.departing.values():
            if tenant.is_leaving:
                self._sequences.tenant_left(tenant.spec.name, now_ns)
        self._arm_again(now_ns)
        self._leasing.round(now_ns)

    def _reorder(self) -> None:
        """A step of priority is worth another time."""
        ledger = self._ledger
        for job in ledger.jobs.values():
            job.turn_ns = ledger.settings.turn_ns(job.priority, job.accepted_ns)
        for tenant in ledger.tenants.values():
            for heap in (*tenant.queues.values(), *tenant.turns.values()):
                heap.sort_again()

    def _decide_by(self, name: str) -> None:
        """Switch to another policy with the state of the current one; leases and jobs stay where they are."""
        old = self._ledger.policy
        if name not in ("", old.name):
            policy = make(name)
            policy.restore(old.state())
            self._ledger.decide_by(policy)
            self._ledger.decisions.decider_changed()

    def _repin(self, pins: tuple[PinnedLease, ...]) -> None:
        """Leases that are no longer pinned become normal leases; new pins open in the next round."""
        pinned = self._leasing.pinned
        self._ledger.pins = pins
        for pin in [pin for pin in pinned if pin not in pins]:
            lease = self._ledger.leases.get(pinned.pop(pin))
            if lease is not None:
                lease.is_pinned = False

    def _trim(self, tenant: Tenant, now_ns: int) -> None:
        """Drain leases above the tenant's share, which may have been reduced: those first that are kept for their
        sequences only, then idle ones, pinned ones never."""
        stay = [lease for lease in tenant.leases.values() if lease.state not in _LEAVING or keeps_sequences(lease)]
        held = sum(lease.view.alpha for lease in stay)
        warm = [lease for lease in stay if lease.state is LeaseState.WARM and not lease.is_pinned]
        warm.sort(key=lambda lease: (len(lease.jobs) + len(lease.sequences), lease.idle_since_ns, lease.view.lease))
        for lease in [*[lease for lease in stay if keeps_sequences(lease)], *warm]:
            if held <= tenant.spec.max_share:
                return
            held -= lease.view.alpha
            self._leasing.drain(lease, now_ns)

    def _arm_again(self, now_ns: int) -> None:
        """Arm every timer again with the new pauses and limits."""
        ledger = self._ledger
        ledger.timers.forget(_PAUSES)
        self._leasing.arm_needs(now_ns)
        self._kernels.arm_again()
        for sequence in ledger.sequences.values():
            self._sequences.arm(sequence)
        for lease in ledger.leases.values():
            lease.watch_ns = 0
            self._limits.watch(lease)
            lease.is_idle_timer_armed = lease.state is LeaseState.WARM and not (lease.is_pinned or lease.jobs)
            if lease.is_idle_timer_armed:
                ledger.timers.arm(lease.idle_since_ns + ledger.settings.keep_warm_ns, ("idle", lease.view.lease))

    def came_late(self, tenant: Tenant, session: Session) -> None:
        """Handle a session of a tenant that was removed while the session was being opened."""
        session.is_leaving = True
        tenant.outgoing[session.session] = session
        self._end_session(tenant, session)

    def _remove(self, tenant: Tenant, now_ns: int) -> None:
        ledger, name = self._ledger, tenant.spec.name
        tenant.is_leaving = True
        tenant.leave_ns = now_ns + ledger.settings.drain_ns
        ledger.departing[name] = tenant
        ledger.timers.arm(tenant.leave_ns, ("leave", name))
        for session in ledger.sessions.values():
            if session.tenant == name and not session.is_leaving:
                session.is_leaving = True
                tenant.outgoing[session.session] = session
        for lease in list(tenant.leases.values()):
            lease.is_pinned = False
            if lease.state is LeaseState.WARM:
                self._leasing.drain(lease, now_ns)
            elif lease.state in (LeaseState.PLANNED, LeaseState.CREATING):
                self._leasing.give_up(lease)

    def end_queued(self, now_ns: int) -> None:
        """End queued jobs that may not get a lane any longer, in order of arrival."""
        ledger = self._ledger
        queued = [job for job in ledger.jobs.values() if job.state is JobState.QUEUED]
        for job in queued:
            if job.state is not JobState.QUEUED:
                continue  # the end of another of its sequence has ended it
            tenant = ledger.tenants[job.demand.tenant]
            instances = ledger.helpers.known_instances(job.kernel)
            reason = withdraw(job, ledger.sessions.get(job.session), tenant, ledger, instances)
            if reason is not None:
                self._end(job, JobState.CANCELLED, reason, now_ns)
        for tenant in ledger.departing.values():
            for session in list(tenant.outgoing.values()):
                self._end_session(tenant, session)

    def leave_timer(self, name: str, now_ns: int) -> None:
        """Handle the drain limit of a removed tenant: jobs still on a lane are lost with their workers."""
        tenant = self._ledger.departing.get(name)
        if tenant is None or now_ns < tenant.leave_ns:
            return
        for lease in list(tenant.leases.values()):
            late = [job for job in lease.jobs.values() if self._is_late(job)]
            for job in sorted(late, key=lambda job: job.is_running):  # or freed share launches another
                if job.placement is not None and job.placement.lane not in lease.lost:
                    self._leasing.kill_lane(lease, job.placement.lane)
                    self._lose_lane(lease, job.placement.lane, now_ns)

    def _is_late(self, job: Job) -> bool:
        session = self._ledger.sessions.get(job.session)
        return session is None or session.is_leaving

    def settle(self) -> None:
        """After an event, while a tenant departs: end sessions whose last answer was sent, and forget tenants that are
        gone."""
        ledger = self._ledger
        for command in [command for command in ledger.out if type(command) is Answer]:
            session = ledger.sessions.get(command.session)
            departing = ledger.departing.get(session.tenant) if session is not None else None
            if session is not None and departing is not None:
                self._end_session(departing, session)
        for name, tenant in list(ledger.departing.items()):
            if not tenant.is_leaving:
                if not tenant.outgoing:
                    del ledger.departing[name]
            elif not tenant.leases and not tenant.sessions:
                del ledger.departing[name], ledger.tenants[name]
                ledger.out.append(TenantGone(name))

    def _end_session(self, tenant: Tenant, session: Session) -> None:
        if session.session in tenant.outgoing and all(j.state >= FIRST_TERMINAL for j in session.jobs.values()):
            del tenant.outgoing[session.session]
            self._ledger.out.append(EndSession(session.session))
