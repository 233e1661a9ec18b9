"""Job book: a state machine that takes each request from acceptance to its one terminal answer.

See docs/design.md, Job book. The book is sans-IO: time is an argument, and nothing here blocks, sleeps, logs or draws
random numbers. Three shells drive it: the daemon, the simulator and the property tests. `Leasing` holds the slower of
the two loops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from offpath.sched.gpu.policy import Demand, Placement, Policy, Refusal
from offpath.sched.jobs import events, gangs
from offpath.sched.jobs.admission import refuse, retry_after_ms, withdraw
from offpath.sched.jobs.batches import Batches
from offpath.sched.jobs.commands import Answer, Command, Copy, Launch
from offpath.sched.jobs.demands import demand_of
from offpath.sched.jobs.drain import Draining
from offpath.sched.jobs.fleet import Fleet
from offpath.sched.jobs.kernels import Kernels
from offpath.sched.jobs.lanes import Lanes
from offpath.sched.jobs.leasing import Leasing
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.limits import Limits
from offpath.sched.jobs.losses import LOSSES, Loss, is_losing
from offpath.sched.jobs.placing import Placing
from offpath.sched.jobs.records import Job, JobHeap, Lease, QueueKind, Tenant
from offpath.sched.jobs.reload import Reload
from offpath.sched.jobs.renewal import Renewal
from offpath.sched.jobs.ripeness import has_need, is_ripe
from offpath.sched.jobs.sequences import Sequences
from offpath.sched.jobs.service import run_ended, typical_ns
from offpath.sched.jobs.sessions import Sessions
from offpath.sched.jobs.settings import BookSettings, PinnedLease, TenantSpec
from offpath.sched.jobs.stages import stages
from offpath.sched.jobs.states import FIRST_TERMINAL, EndReason, JobState
from offpath.sched.jobs.timers import Key

MAX_ATTEMPTS = 3
_TIMER_ROUNDS = 8
"""Rounds of due timers per event. A timer may arm another that is due at once. Fire that one in the same event, so that
the result does not depend on when ticks arrive."""


class JobBook:
    """``handle(event, now_ns)`` returns the commands to execute, in order; ``next_deadline_ns()`` the time of the next
    call."""

    def __init__(
        self,
        tenants: tuple[TenantSpec, ...],
        policy: Policy,
        settings: BookSettings | None = None,
        pins: tuple[PinnedLease, ...] = (),
        first_generation: int = 0,
    ) -> None:
        self.ledger = Ledger(tenants, pins, policy, settings or BookSettings(), first_generation)
        self.leasing = Leasing(self.ledger)
        self._placing = Placing(self.ledger, self._decide)
        self.renewal = Renewal(self.ledger, self.leasing)
        self.sequences = Sequences(self.ledger, self.leasing, self._end, self._enqueue)
        self.limits = Limits(self.ledger, self.leasing, self._end, self._lose_lane, self.sequences.lease_ends)
        self.kernels = Kernels(self.ledger, self.leasing, self._end)
        self.reload = Reload(
            self.ledger, self.leasing, self.limits, self.kernels, self.sequences, self._end, self._lose_lane
        )
        self.batches = Batches(
            self.ledger, self.leasing, self._end, self._leave_lane, self._start, self._start_waiting, self._route
        )
        fleet = Fleet(
            self.ledger, self.leasing, self.renewal, self.kernels, self.reload, self.batches, self.sequences,
            self._route, self._lose,
        )  # fmt: skip
        lanes = Lanes(self.ledger, self.leasing, self.renewal, self.limits, self._route)
        self._sessions = Sessions(self.ledger, self.reload, self.sequences, self._end)
        self._losing: Loss | None = None
        self._handlers: dict[type, Callable[..., None]] = {
            events.JobSubmitted: self._submitted,
            events.StackSubmitted: self._stack_submitted,
            events.SequenceSubmitted: self._sequence_submitted,
            events.CopyDone: self._copied,
            events.ResultArrived: self._result,
            events.BatchResult: self._result,
            events.CreditReturned: self._sessions.credit_returned,
            events.CancelRequested: self._cancel,
            events.SlotLost: self._slot_lost,
            events.SessionOpened: self._sessions.opened,
            events.SessionClosed: self._sessions.closed,
            events.LaunchFailed: self._launch_failed,
            events.NeverLaunched: self._never_launched,
            events.HelperJoined: fleet.helper_joined,
            events.HelperLost: fleet.helper_lost,
            events.GpuLost: fleet.gpu_lost,
            events.KernelsReloaded: fleet.kernels_reloaded,
            events.LaneLoading: lanes.lane_loading,
            events.LaneReady: lanes.lane_ready,
            events.InstanceFailed: lanes.instance_failed,
            events.WorkerLost: self._worker_lost,
            events.LaneScrubbed: lanes.lane_scrubbed,
            events.InstanceClosed: lanes.instance_closed,
            events.Drain: Draining(self.ledger).handle,
            events.ConfigChanged: self.reload.changed,
            events.PluginStarted: self._tick,
            events.Tick: self._tick,
        }
        self._on_timer: dict[str, Callable[..., None]] = {
            "idle": self.leasing.idle_timer,
            "need": self.leasing.need_timer,
            "round": lambda _, now_ns: self.leasing.round(now_ns),
            "watch": self.limits.timer,
            "leave": self.reload.leave_timer,
            "kernel": self.kernels.timer,
            "ripe": self.batches.timer,
            "sequence": self.sequences.timer,
        }

    def handle(self, event: events.Event, now_ns: int) -> tuple[Command, ...]:
        """Fire the timers that are due, then process the event. Time must not run backwards.

        An event about an older generation or an ended job changes nothing.
        """
        ledger = self.ledger
        kind = type(event)
        self._losing = event if isinstance(event, LOSSES) else None
        ledger.decisions.begin_event()
        if kind is events.PluginStarted:
            self._plugin_started()  # before due timers: those would query a plug-in without state
        if ledger.timers.are_due(now_ns):
            self._fire_due(now_ns)
        self._handlers[kind](event, now_ns)
        self._route_moved(now_ns)
        while ledger.decisions.take_decider_change():  # the first decision of a new decider may itself be a fault
            for tenant in list(ledger.backlogged.values()):
                self._route(tenant, now_ns)
        if ledger.departing:
            self.reload.settle()
        out = tuple(ledger.out)
        ledger.out.clear()
        return out

    def _fire_due(self, now_ns: int) -> None:
        for _ in range(_TIMER_ROUNDS):
            self._fire_timers(now_ns)
            self._route_moved(now_ns)
            if self.ledger.departing:
                self.reload.settle()
            if not self.ledger.timers.are_due(now_ns):
                return

    def _route_moved(self, now_ns: int) -> None:
        """Place the jobs that became the head of their sequence."""
        moved = self.sequences.moved
        while moved:
            self._route(moved.popitem()[1], now_ns)

    def next_deadline_ns(self) -> int | None:
        """Return the time to call with `events.Tick` if no other event comes first; may be early, never late."""
        return self.ledger.timers.next_ns()

    def expected_run_ns(self, job: int, now_ns: int) -> int:
        """Time that the job's kernel took in its last runs for this tenant; 0 if unknown."""
        known = self.ledger.jobs.get(job)
        return typical_ns(self.ledger.tenants[known.demand.tenant].service, known.kernel, now_ns) if known else 0

    # -- job life cycle -------------------------------------------------------------------------------------------
    def _stack_submitted(self, event: events.StackSubmitted, now_ns: int) -> None:
        self._submitted(event.submitted, now_ns, event)

    def _sequence_submitted(self, event: events.SequenceSubmitted, now_ns: int) -> None:
        self._submitted(event.submitted, now_ns, follows=event)

    def _submitted(
        self,
        event: events.JobSubmitted,
        now_ns: int,
        stacks: events.StackSubmitted | None = None,
        follows: events.SequenceSubmitted | None = None,
    ) -> None:
        ledger = self.ledger
        session = ledger.sessions[event.session]
        tenant = ledger.tenants[session.tenant]
        if event.credit:
            self._sessions.delivered(event.credit)
        ledger.last_job = max(ledger.last_job, event.job)
        helpers = ledger.helpers.only_on.get(event.kernel, ())
        kernel = ledger.kernels.get(event.kernel)
        if kernel is None or kernel.models or kernel.memory_bytes:
            demand = demand_of(
                event.job, kernel, tenant.spec, ledger.settings, event.share, event.payload_bytes, helpers
            )  # fmt: skip
        else:  # what it would return
            share = event.share or kernel.share
            demand = Demand(event.job, session.tenant, share, event.payload_bytes, helpers=helpers)
        job = Job(
            event.job, event.session, event.request_id, demand, event.kernel, event.priority,
            event.deadline_ns, event.is_idempotent, now_ns, ledger.settings.turn_ns(event.priority, now_ns),
            origin=event.origin, share=demand.share, asked_share=event.share, streams=bool(kernel and kernel.streams),
        )  # fmt: skip
        ledger.jobs[event.job] = job
        session.jobs[event.job] = job
        instances = ledger.helpers.instances[helpers]
        refused = refuse(job, session, tenant, self.leasing, instances, now_ns, in_sequence=follows is not None)
        if follows is not None and refused is EndReason.NONE:
            refused = self.sequences.refuse(follows, session, tenant)
        session.last_request_id = max(session.last_request_id, event.request_id)
        tenant.jobs += 1
        ledger.unanswered += 1
        if refused is not EndReason.NONE:
            self._end(job, JobState.REJECTED, refused, now_ns)
            if follows is not None:
                self.sequences.refused(follows, session, refused, now_ns)
            return
        if event.deadline_ns:
            ledger.timers.arm(event.deadline_ns, ("job", event.job))
        if follows is not None:
            self.sequences.accepted(job, follows, session, tenant, now_ns)
            return
        is_stacked = stacks is not None and self.batches.waits(job, tenant, stacks, now_ns)
        if (is_parted := self.batches.part(job, tenant, now_ns)) or is_stacked:
            self._enqueue(job, tenant, now_ns)
            if is_parted or is_ripe(tenant.queues[job.queue_kind], ledger, now_ns):
                self._route(tenant, now_ns)
            return
        # A job behind a queue of the same demand cannot be placed. A queue of another demand does not block it.
        if (tenant.queues and demand.kind in tenant.queues) or not self._place(job, tenant, now_ns):
            self._enqueue(job, tenant, now_ns)

    def _decide(self, job: Job, tenant: Tenant, now_ns: int) -> Placement | Refusal:
        if job.demand.share <= 100:
            return self.ledger.policy.place(job.demand, now_ns)
        return gangs.place(job.demand, tenant)

    def _place(self, job: Job, tenant: Tenant, now_ns: int) -> bool:
        is_bound = job.turn is not None
        if is_bound:
            placement: Placement | Refusal = self.sequences.seat(job, tenant, now_ns)
        else:
            placement = self._placing.kept(self._decide(job, tenant, now_ns), job, tenant, now_ns)
        if not isinstance(placement, Placement):
            job.refusal = placement
            return False
        job.placement = placement
        job.refusal = None
        job.state = JobState.COPYING  # PLACED and COPYING coincide: the copy starts with the placement
        job.is_copying = True
        job.placed_ns = now_ns
        lease = self.ledger.leases[placement.lease]
        lease.jobs[job.job] = job
        if job.sequence and not is_bound:
            job.placement = placement = self.sequences.placed(job, lease, now_ns)
        tenant.open_turns.discard((placement.lease, placement.lane))
        job.share = job.demand.share_on(lease.view.model) if job.demand.models else job.demand.share
        self.ledger.out.append(Copy(job.job, job.attempt, placement.lease, placement.lane))
        return True

    def _enqueue(self, job: Job, tenant: Tenant, now_ns: int) -> None:
        job.state = JobState.QUEUED
        if job.kernel not in self.ledger.kernels:  # no helper could run it, and it would block the queue
            tenant.stranded[job.job] = job
            return
        kind = job.queue_kind
        queue = tenant.queues.get(kind)
        if queue is None:
            queue = tenant.queues[kind] = JobHeap()
        queue.push(job)
        tenant.came(job)
        if not job.stack:
            self.leasing.need(tenant, now_ns)
        elif job.ripe_ns > now_ns:
            self.batches.came(job, tenant, now_ns)

    def _unqueue(self, job: Job, tenant: Tenant, now_ns: int) -> None:
        """Remove a job from the queue out of order; its state has already changed."""
        if job.streams or job.stack:  # a lease may have been kept for it, and what was behind it may have a size now
            self.sequences.moved[tenant.spec.name] = tenant
        if not self.sequences.unqueued(job, tenant):
            self._leave_queue(job, tenant, now_ns)
        if job.sequence:
            self.sequences.passed(job, now_ns)

    def _leave_queue(self, job: Job, tenant: Tenant, now_ns: int) -> None:
        if tenant.stranded.pop(job.job, None) is not None:
            return
        kind = job.queue_kind
        tenant.went(job)
        tenant.queues[kind].removed(job)
        self._tidy(tenant, kind, now_ns)

    def _tidy(self, tenant: Tenant, kind: QueueKind, now_ns: int) -> None:
        if not len(tenant.queues[kind]):
            del tenant.queues[kind]
        if not tenant.queued or (tenant.stacked and not has_need(tenant, self.ledger, now_ns)):
            self.leasing.need_met(tenant)

    def _route(self, tenant: Tenant, now_ns: int) -> None:
        """Place the jobs that can be placed: heads of all demands in the order of their ranks."""
        while tenant.queued or tenant.open_turns:
            queues = [
                each for each in tenant.queues.values() if not tenant.stacked or is_ripe(each, self.ledger, now_ns)
            ]
            heads = [head for queue in queues if (head := queue.peek()) is not None]
            if tenant.open_turns:
                heads += self.sequences.turns(tenant)
            if len(heads) > 1:
                heads.sort(key=lambda job: job.rank)
            for job in heads:
                is_turn = bool(job.turn)
                if self._place(job, tenant, now_ns):
                    if is_turn:
                        break
                    kind = job.queue_kind
                    if job.stack:
                        self.batches.form(job, tenant, tenant.queues[kind], now_ns)
                    else:
                        tenant.queues[kind].pop()
                        tenant.went(job)
                    self._tidy(tenant, kind, now_ns)
                    break
            else:
                if heads and tenant.stacked:
                    self.leasing.need(tenant, now_ns)
                return

    def _copied(self, event: events.CopyDone, now_ns: int) -> None:
        """Handle the end of a copy. If the job was already answered, free the lane. If its lane was lost, the lease may
        now be scrubbed."""
        job = self.ledger.jobs.get(event.job) or self.ledger.leaving.get(event.job)
        if job is not None and job.batch is not None and self.batches.copied(job.batch, event, now_ns):
            return
        is_other = job is None or job.batch is not None or job.attempt != event.attempt
        if is_other or job is None or not job.is_copying or job.placement is None:
            self.leasing.orphaned_copy_ended((event.job, event.attempt), now_ns)
            return
        job.is_copying = False
        lease = self.ledger.leases[job.placement.lease]
        if job.state >= FIRST_TERMINAL:
            self._leave_lane(job, now_ns)
        elif event.error:
            self._end(job, JobState.FAILED, EndReason.COPY_FAILED, now_ns)
        else:
            job.copied_ns = now_ns
            self._start(job, lease, now_ns)

    def _start(self, job: Job, lease: Lease, now_ns: int) -> None:
        """Launch what is copied, or have it wait for share."""
        if lease.running_share + job.share <= lease.view.alpha and not lease.waiting:
            self._launch(job, lease, now_ns)
        else:
            lease.waiting.append(job)

    def _launch(self, job: Job, lease: Lease, now_ns: int) -> None:
        assert job.placement is not None
        for each in job.members:
            each.state = JobState.LAUNCHED
            each.is_running = True
            each.launched_ns = now_ns
            each.launches += 1
        if job.sequence:
            self.sequences.launched(job)
        lease.running_share += job.share
        if kernel_ns := self.ledger.settings.kernel_ns:
            self.ledger.watch(lease, now_ns + kernel_ns)
        self.ledger.out.append(
            Launch(
                job.job, job.attempt, job.placement.lease, job.placement.lane, lease.generation, job.kernel,
                job.share,
            )
        )  # fmt: skip

    def _launch_failed(self, event: events.LaunchFailed, now_ns: int) -> None:
        """The launch message was not sent, so the kernel did not start. The lane of a worker that takes no message is
        lost."""
        job = self.ledger.jobs.get(event.job) or self.ledger.leaving.get(event.job)
        if job is None or job.attempt != event.attempt or not job.is_running or job.placement is None:
            return
        for each in job.members:
            each.launches -= 1
            each.is_running = False
        self._stopped(job)
        lease = self.ledger.leases[job.placement.lease]
        self._lose_lane(lease, job.placement.lane, now_ns)

    def _never_launched(self, event: events.NeverLaunched, now_ns: int) -> None:
        """The job is answered, and its kernel did not start: its sequence has no state from it."""
        job = self.ledger.leaving.get(event.job)
        if job is not None and job.attempt == event.attempt and job.is_running and job.batch is None:
            job.launches -= 1
            self._leave_lane(job, now_ns)

    def _result(self, event: events.ResultArrived | events.BatchResult, now_ns: int) -> None:
        job = self.ledger.jobs.get(event.job) or self.ledger.leaving.get(event.job)
        if job is None or not job.is_running or job.placement is None or job.is_follower:
            return
        lease = self.ledger.leases[job.placement.lease]
        if lease.generation != event.generation:
            return
        tenant = self.ledger.tenants[job.demand.tenant]
        if not job.streams:  # its time is its reader's, and predicts nothing
            run_ended(tenant.service, job.kernel, now_ns - job.launched_ns, now_ns)
        if job.batch is not None:
            lease.running_share -= job.share
            self.batches.ended(job.batch, event, now_ns)
            return
        self._stopped(job)
        if job.sequence:
            self.sequences.resulted(job, event.reason)
        if job.state >= FIRST_TERMINAL:
            self._leave_lane(job, now_ns)
            return
        state = JobState.COMPLETED if event.reason is EndReason.NONE else JobState.FAILED
        self._end(job, state, event.reason, now_ns, event.started_ns, event.finished_ns)

    def _cancel(self, event: events.CancelRequested, now_ns: int) -> None:
        job = self.ledger.jobs.get(event.job)
        if job is not None and job.state < FIRST_TERMINAL:
            is_operators = event.operator_uid is not None
            reason = EndReason.CANCELLED_BY_OPERATOR if is_operators else EndReason.CANCELLED_BY_REQUESTER
            self._end(job, JobState.CANCELLED, reason, now_ns)

    def _slot_lost(self, event: events.SlotLost, now_ns: int) -> None:
        job = self.ledger.jobs.get(event.job)
        if job is not None and job.state < FIRST_TERMINAL:
            job.is_copying = False  # the copy ended with the shell's process
            if job.is_running:
                job.launches -= 1
                self._stopped(job)
            state = JobState.OUTCOME_UNKNOWN if job.launches else JobState.RETRY_SAFE  # an earlier attempt may have run
            self._end(job, state, EndReason.DAEMON_RESTARTED, now_ns)

    def _end(
        self, job: Job, state: JobState, reason: EndReason, now_ns: int, started_ns: int = 0, finished_ns: int = 0
    ) -> None:
        """Send the one terminal answer. A lane that still copies or runs stays occupied until that ends."""
        ledger = self.ledger
        tenant = ledger.tenants[job.demand.tenant]
        was_queued = job.state is JobState.QUEUED
        job.state = state
        job.answered_ns = now_ns
        job.reason = reason
        tenant.jobs -= 1
        ledger.unanswered -= 1
        generation = lease_id = 0
        if job.placement is not None:
            lease_id = job.placement.lease
            lease = ledger.leases.get(lease_id)
            generation = lease.generation if lease is not None else 0
        wait_ms = retry_after_ms(tenant, ledger, reason, now_ns) if state is JobState.REJECTED else 0
        spent = stages(job, now_ns, started_ns, finished_ns)
        ledger.out.append(Answer(job.job, job.session, state, reason, wait_ms, lease_id, generation, spent))
        if was_queued:
            self._unqueue(job, tenant, now_ns)
        elif job.placement is not None:
            if job.is_copying or job.is_running:
                ledger.leaving[job.job] = job
                if job.is_running:
                    self.limits.watch(ledger.leases[job.placement.lease])
            else:
                self._leave_lane(job, now_ns)

    def _leave_lane(self, job: Job, now_ns: int) -> None:
        """Free the job's lane: start jobs that wait for share, then route the queue, then check whether the lease is
        idle."""
        ledger = self.ledger
        placement = job.placement
        assert placement is not None
        ledger.leaving.pop(job.job, None)
        lease = ledger.leases.get(placement.lease)
        if job.is_running:
            self._stopped(job)
        if job.batch is not None and self.batches.left(job, lease, now_ns):
            return
        if job.is_copying and lease is not None:
            lease.orphaned_copies.add((job.job, job.attempt))
        job.is_copying = False
        job.placement = None
        if lease is None:
            self._passed(job, now_ns)
            return  # removed with its helper
        del lease.jobs[job.job]
        if job in lease.waiting:
            lease.waiting.remove(job)
        ledger.free_lane(lease, placement, job.share, now_ns)
        tenant = ledger.tenants[job.demand.tenant]
        self.sequences.lane_freed(tenant, placement)
        self._passed(job, now_ns)
        if placement.lane in lease.stale:
            self.renewal.freed(lease, placement.lane, now_ns)
        self._start_waiting(lease, now_ns)
        if tenant.queued or tenant.open_turns:
            self._route(tenant, now_ns)
        if not lease.jobs:
            self.leasing.went_idle(lease, now_ns)

    def _passed(self, job: Job, now_ns: int) -> None:
        """A job has left its lane; if it is answered, the next one of its sequence follows."""
        if job.sequence and job.state >= FIRST_TERMINAL:
            self.sequences.passed(job, now_ns)

    def _start_waiting(self, lease: Lease, now_ns: int) -> None:
        while lease.waiting:
            waiting = lease.waiting[0]
            is_due = any(job.is_due(now_ns) for job in waiting.members) if waiting.batch else waiting.is_due(now_ns)
            if is_due or lease.running_share + waiting.share > lease.view.alpha:
                break
            if self._losing is not None and is_losing(self._losing, waiting, self.ledger):
                break  # do not launch on what the current event reports as lost
            lease.waiting.popleft()
            self._launch(waiting, lease, now_ns)

    def _requeue(self, job: Job, now_ns: int) -> None:
        """Queue the job again in its former position: its kernel did not start, and its payload is still in the
        slot."""
        tenant = self.ledger.tenants[job.demand.tenant]
        self._leave_lane(job, now_ns)
        if reason := self._withdrawn(job):
            self._end(job, JobState.CANCELLED, reason, now_ns)
            self._passed(job, now_ns)
            return
        job.attempt += 1
        job.demand = replace(job.demand, helpers=self.ledger.helpers.only_on.get(job.kernel, ()))
        self._enqueue(job, tenant, now_ns)
        self._route(tenant, now_ns)  # another lease may have a free lane, and no event would trigger routing

    def _withdrawn(self, job: Job) -> EndReason | None:
        """Return why the job may not wait for a lane again, if rights changed since it was accepted."""
        ledger = self.ledger
        tenant = ledger.tenants[job.demand.tenant]
        if job.kernel not in ledger.known:
            return EndReason.KERNEL_GONE
        if job.sequence and self.sequences.is_lost(job):
            return EndReason.SEQUENCE_LOST
        instances = ledger.helpers.known_instances(job.kernel)
        return withdraw(job, ledger.sessions.get(job.session), tenant, ledger, instances)

    # -- losses of lanes -------------------------------------------------------------------------------------------
    def _worker_lost(self, event: events.WorkerLost, now_ns: int) -> None:
        lease = self.ledger.lease_of(event.lease, event.generation)
        if lease is not None:
            self._lose_lane(lease, event.lane, now_ns)

    def _lose_lane(self, lease: Lease, lane: int, now_ns: int) -> None:
        if lane in lease.lost:
            return
        lost = [job for job in lease.jobs.values() if job.placement is not None and job.placement.lane == lane]
        for job in lost:
            if job in lease.waiting:
                lease.waiting.remove(job)  # or freed share would launch it on the lost lane
        lease.lost.add(lane)  # before the end of a sequence there has the lease scrubbed
        self.sequences.lane_lost(lease, lane, now_ns)
        self.leasing.worker_lost(lease, lane, now_ns)
        for job in lost:
            self._lose(job, EndReason.WORKER_LOST, now_ns)

    def _lose(self, job: Job, reason: EndReason, now_ns: int) -> None:
        """The job's lane is gone. If not launched, queue it again; if launched, the outcome is unknown, unless it may
        run twice."""
        if job.state >= FIRST_TERMINAL:
            self._leave_lane(job, now_ns)
            return
        tenant = self.ledger.tenants[job.demand.tenant]
        job.demand = self.kernels.renewed(job, tenant) or job.demand  # its helper may have reloaded meanwhile
        if not job.is_running or (job.is_idempotent and job.launches < MAX_ATTEMPTS and not self._withdrawn(job)):
            self._requeue(job, now_ns)
        else:
            self._stopped(job)
            self._end(job, JobState.OUTCOME_UNKNOWN, reason, now_ns)

    def _stopped(self, job: Job) -> None:
        """The kernel has stopped: free its share. `_leave_lane` frees its lane."""
        job.is_running = False
        if job.batch is not None and any(other.is_running for other in job.batch.members):
            return  # the last one frees the share of all
        lease = self.ledger.leases.get(job.placement.lease) if job.placement is not None else None
        if lease is not None:
            lease.running_share -= job.share

    # -- time -----------------------------------------------------------------------------------------------------
    def _tick(self, event: events.Tick | events.PluginStarted, now_ns: int) -> None:
        pass

    def _plugin_started(self) -> None:
        self.ledger.decisions.start(self.ledger.policy)

    def _fire_timers(self, now_ns: int) -> None:
        timers = self.ledger.timers
        expired: list[Job] = []
        others: list[Key] = []
        while (key := timers.due(now_ns)) is not None:
            job = self.ledger.jobs.get(key[1]) if isinstance(key[1], int) and key[0] == "job" else None
            if job is not None and job.state < FIRST_TERMINAL and job.is_due(now_ns):
                expired.append(job)
            elif key[0] != "job":
                others.append(key)
        expired.sort(key=lambda job: job.state is not JobState.QUEUED)  # or a lane would go to a job that is due too
        for job in expired:
            if job.state < FIRST_TERMINAL:  # the end of another of its sequence may have ended it
                self._end(job, JobState.EXPIRED, EndReason.DEADLINE_PASSED, now_ns)
        for kind, who in others:
            self._on_timer[kind](who, now_ns)
