"""The guarantees of docs/design.md, Guarantees, judged from events and commands alone, after every step.

`before` takes an event in as a fact about the world, `judge` holds each command against those facts, `after` looks
for what should have happened and did not, and inside the book only for bounds (memory, timers, counters).
"""

from __future__ import annotations

from collections import Counter

from offpath.sched.gpu.geometry import GpuSpec
from offpath.sched.jobs import events
from offpath.sched.jobs.book import MAX_ATTEMPTS, JobBook
from offpath.sched.jobs.commands import (
    Answer,
    CloseLease,
    Command,
    Copy,
    CopyBatch,
    EndSequence,
    EndSession,
    KillLane,
    Launch,
    OpenLease,
    RenewLane,
    ScrubLane,
    TenantGone,
)
from offpath.sched.jobs.settings import BookSettings, TenantSpec
from offpath.sched.jobs.states import FIRST_TERMINAL, EndReason, JobState, LeaseState
from offpath.sched.jobs.victims import keeps_sequences

from .shadow_admission import is_permitted, least_held, refusal, renew, renew_one
from .shadow_batches import after_batches, answered, copied, is_surely_ripe, judge_copy, parted, stacked
from .shadow_bounds import after_bounds
from .shadow_kernels import ShadowKernels
from .shadow_lanes import judge_lane
from .shadow_openings import judge_open
from .shadow_records import Needs, Occupant, ShadowJob, ShadowLease, promise
from .shadow_sequences import ShadowSequences, followed, has_bound, overruns_ns

LeaseEvent = (
    events.LaneLoading | events.LaneReady | events.InstanceFailed | events.WorkerLost | events.LaneScrubbed
    | events.InstanceClosed
)  # fmt: skip
RETRYABLE = (
    EndReason.TENANT_QUEUE_FULL, EndReason.DAEMON_FULL, EndReason.DRAINING, EndReason.TOO_MANY_SEQUENCES,
)  # fmt: skip


class Shadow:
    """The world as the book should see it."""

    def __init__(self, tenants: tuple[TenantSpec, ...], settings: BookSettings) -> None:
        self.tenants = {spec.name: spec for spec in tenants}
        self.settings = settings
        self.most_jobs = {spec.name: spec.max_jobs for spec in tenants}
        self.leave_ns: dict[str, int] = {}
        self.removed: set[str] = set()
        self.leaving: set[int] = set()
        self.told: set[int] = set()
        self.seen: Counter[str] = Counter()
        self.now_ns = 0
        self.helper = 0
        self.is_draining = False
        self.gpus: dict[str, GpuSpec] = {}
        self.offered: tuple[GpuSpec, ...] = ()
        self._joined: tuple[GpuSpec, ...] = ()
        self.has_lost_gpus = False
        self.offered_kernels = ShadowKernels()
        self.kernels = self.offered_kernels.served
        self.sequences = ShadowSequences()
        self.sessions: dict[int, str] = {}
        self.last_id: dict[int, int] = {}
        self.jobs: dict[int, ShadowJob] = {}
        self.live: dict[int, ShadowJob] = {}
        self.uncredited: dict[int, set[int]] = {}
        self.leases: dict[int, ShadowLease] = {}
        self.generation = 0
        self.served: set[str] = set()
        self.dirty: dict[tuple[str, int], str] = {}
        self.states: dict[int, LeaseState] = {}
        self._may: dict[int, set[JobState]] = {}
        self._must: set[int] = set()
        self._submitted: ShadowJob | None = None
        self._is_reload = self._is_config = False
        self.longest_run_ns = 0

    # -- facts ----------------------------------------------------------------------------------------------------
    def before(self, event: events.Event, now_ns: int) -> None:
        """Take the event in."""
        promise(now_ns >= self.now_ns, "the world's clock runs forwards")
        self.now_ns = now_ns
        self._is_reload = isinstance(event, events.KernelsReloaded)
        self._is_config = isinstance(event, events.ConfigChanged)
        self._may, self._must, self._submitted, self._taken = {}, set(), None, set[int]()
        self.offered_kernels.forget_overdue(self.settings.kernel_gone_ns, now_ns)
        overdue = self.offered_kernels.take_overdue()
        for job in [job for job in self.live.values() if job.phase == "queued" and job.event.kernel in overdue]:
            self.expect(job, JobState.CANCELLED)
            job.lost_its_kernel = True
        self.sequences.times_pass(self)
        match event:
            case events.SessionOpened():
                self.sessions[event.session] = event.tenant
                if event.tenant in self.removed:
                    self.leaving.add(event.session)
                self.last_id[event.session] = 0
                self.uncredited[event.session] = set()
            case events.SessionClosed():
                if self.sessions.pop(event.session, None) is not None:
                    del self.uncredited[event.session]
                self.sequences.session_closed(self, event.session)
                for job in self.live.values():
                    if job.event.session == event.session:
                        self.expect(job, JobState.CANCELLED)
            case events.StackSubmitted():
                self._submit(event.submitted, now_ns)
                stacked(self, self.jobs[event.submitted.job], event)
            case events.SequenceSubmitted():
                self._submit(event.submitted, now_ns)
                followed(self, event)
            case events.JobSubmitted():
                self._submit(event, now_ns)
            case events.CancelRequested():
                if event.job in self.live:
                    self.expect(self.live[event.job], JobState.CANCELLED)
            case events.CreditReturned():
                self._taken.update({event.job} - self.live.keys())
            case events.CopyDone():
                self._copy_done(event)
            case events.LaunchFailed():
                self._launch_failed(event)
            case events.NeverLaunched():
                self._never_launched(event)
            case events.ResultArrived() | events.BatchResult():
                self._result(event)
            case events.HelperJoined():
                self.helper = event.helper
                self.gpus = {gpu.gpu: gpu for gpu in event.gpus}
                self.offered, self.has_lost_gpus = event.gpus, False
                self._joined = event.gpus
                self.offered_kernels.joined(event.kernels, self.now_ns)
                self.seen["stranded"] += len(self.stranded())
                renew(self)
                self._expect_withdrawn()
            case events.KernelsReloaded():
                if event.helper == self.helper:
                    for lease in self.leases.values():
                        self.sequences.lease_ends(self, lease.opened.lease)
                        lease.reloaded()
                    self.seen["kernels reloaded"] += bool(self.leases)
                    self.offered_kernels.joined(event.kernels, self.now_ns)
                    renew(self)
                    self._expect_withdrawn()
            case events.HelperLost():
                if event.helper == self.helper:
                    for lease in list(self.leases.values()):
                        self._gone(lease, is_clean=False)
                    self.helper = 0
                    self.gpus, self.offered, self.has_lost_gpus = {}, self._joined, False
                    self.offered_kernels.lost(self.now_ns)
            case events.GpuLost():
                if event.helper == self.helper and event.gpu in self.gpus:
                    self._gpu_lost(event.gpu)
            case events.Drain():
                self.is_draining = event.is_on
            case events.ConfigChanged():
                self._config_changed(event)
            case events.Tick() | events.PluginStarted():
                pass
            case _:
                self._lease_fact(event)

    def _submit(self, event: events.JobSubmitted, now_ns: int) -> None:
        tenant = self.sessions[event.session]
        kernel = self.kernels.get(event.kernel, Needs(0))
        needs = kernel.asked(event.share, self.tenants[tenant].max_demand)
        job = ShadowJob(event, tenant, needs, len(self.jobs), way=[now_ns])
        self.jobs[event.job] = self.live[event.job] = self._submitted = job
        self.uncredited[event.session].add(event.job)
        self._taken.update({event.credit} - self.live.keys())

    def _gpu_lost(self, gpu: str) -> None:
        del self.gpus[gpu]
        self.offered, self.has_lost_gpus = tuple(self.gpus.values()), True
        for lease in [lease for lease in self.leases.values() if gpu in lease.gpus]:
            self._gone(lease, is_clean=False)
        self.seen["gpu lost"] += 1
        self._expect_withdrawn()

    def stranded(self) -> list[ShadowJob]:
        """Queued for a kernel that the helper does not serve."""
        return [
            job
            for job in self.live.values()
            if job.phase == "queued" and job.event.kernel not in self.kernels and not self.sequences.awaits(job)
        ]

    def _config_changed(self, event: events.ConfigChanged) -> None:
        self.settings = event.settings
        wanted = {spec.name: spec for spec in event.tenants}
        for name in self.tenants.keys() - wanted.keys() - self.removed:
            self.removed.add(name)
            self.leave_ns[name] = self.now_ns + event.settings.drain_ns
            self.leaving |= {session for session, tenant in self.sessions.items() if tenant == name}
            self.seen["tenant removed"] += 1
        for name in wanted.keys() & self.removed:
            self.removed.remove(name)
            self.seen["tenant added while it leaves"] += 1
        self.tenants.update(wanted)
        for name, spec in wanted.items():
            self.most_jobs[name] = max(self.most_jobs.get(name, 0), spec.max_jobs)
        self._expect_withdrawn()
        self.sequences.tenants_left(self)

    def _expect_withdrawn(self) -> None:
        for job in self.live.values():
            if job.phase == "queued" and self._is_withdrawn(job):
                self.expect(job, JobState.CANCELLED)

    def _is_withdrawn(self, job: ShadowJob) -> bool:
        """Its tenant was removed, or may not hold any more what it would take, or no GPU has that; or its kernel takes
        sequences now, or none any more."""
        least = least_held(self, job)
        if job.event.kernel in self.kernels and self.offered_kernels.is_unlike(job):
            self.seen["queued for a kernel of the other kind"] += 1
            return True
        if not is_permitted(self, job) or job.event.kernel in self.offered_kernels.forgotten:
            return True
        return job.event.session in self.leaving or not least or least > self.tenants[job.tenant].max_share

    def _lease_fact(self, event: LeaseEvent) -> None:
        lease = self.leases.get(event.lease)
        if lease is None or lease.opened.generation != event.generation:
            return
        is_creating = len(lease.ready) < lease.opened.lanes and lease.closing is None
        match event:
            case events.LaneLoading() | events.LaneReady() if event.lane in lease.renewing:
                self.seen["lane renewed"] += lease.renews(event, self.now_ns)
            case events.LaneLoading() if is_creating and event.lane < lease.opened.lanes:
                lease.loads(event.lane, self.now_ns)
            case events.LaneReady() if is_creating and event.lane < lease.opened.lanes:
                lease.ready.add(event.lane)
                if len(lease.ready) == lease.opened.lanes:
                    lease.idle_since_ns = self.now_ns
                    for place in lease.places:  # had it to be scrubbed first, it is by now
                        self.dirty.pop(place, None)
            case events.InstanceFailed() if is_creating or lease.closing is not None:
                self._gone(lease, is_clean=False)
            case events.WorkerLost():
                self.lane_lost(lease, event.lane)
            case events.LaneScrubbed() if event.lane in lease.asked and event.lane not in lease.lost:
                lease.scrubbed.add(event.lane)
            case events.InstanceClosed() if lease.closing is not None:
                self._gone(lease, is_clean=True)
            case _:
                pass

    def _copy_done(self, event: events.CopyDone) -> None:
        for lease in self.leases.values():
            lease.flying.discard((event.job, event.attempt))
            for lane, occupant in lease.lanes.items():
                if (occupant.job.event.job, occupant.attempt, occupant.phase) == (event.job, event.attempt, "copying"):
                    copied(self, lease, lane, event)
                    return

    def _running(self, job: int) -> tuple[ShadowLease, int, Occupant] | None:
        for lease in self.leases.values():
            for lane, occupant in lease.lanes.items():
                if occupant.job.event.job == job and occupant.phase == "running":
                    return lease, lane, occupant
        return None

    def _launch_failed(self, event: events.LaunchFailed) -> None:
        found = self._running(event.job)
        if found is not None and found[2].attempt == event.attempt:
            lease, lane, occupant = found
            for job in occupant.members:
                job.launches -= 1
                job.phase = job.phase if job.phase == "answered" else "waiting"
            occupant.phase = "waiting"  # it surely did not start
            self.lane_lost(lease, lane)

    def _never_launched(self, event: events.NeverLaunched) -> None:
        found = self._running(event.job)
        if found is not None and found[2].attempt == event.attempt and found[2].job.phase == "answered":
            found[2].job.launches -= 1
            self.free(*found[:2])
            self.seen["never launched"] += 1

    def _result(self, event: events.ResultArrived | events.BatchResult) -> None:
        found = self._running(event.job)
        if found is not None and found[0].opened.generation == event.generation:
            lease, lane, occupant = found
            self.longest_run_ns = max(self.longest_run_ns, self.now_ns - occupant.job.way[3])
            self.sequences.resulted(occupant.job, event.reason)
            self.free(lease, lane)
            self.served.add(occupant.job.tenant)
            failed = dict(event.failed) if isinstance(event, events.BatchResult) else {}
            self.seen["batch partly failed"] += 0 < len(failed) < len(occupant.members)
            for job in [job for job in occupant.members if job.phase != "answered"]:
                is_ok = failed.get(job.event.job, event.reason) is EndReason.NONE
                self.expect(job, JobState.COMPLETED if is_ok else JobState.FAILED)

    def lane_lost(self, lease: ShadowLease, lane: int) -> None:
        self.sequences.lane_lost(self, lease.opened.lease, lane)
        lease.lost.add(lane)
        lease.stale.discard(lane)
        self.seen["lost while renewed"] += lease.renewing.pop(lane, None) is not None
        occupant = lease.lanes.get(lane)
        if occupant is not None:
            self.free(lease, lane)
            self._thrown_out(occupant)

    def _thrown_out(self, occupant: Occupant) -> None:
        for job in occupant.members:
            self._loses_its_lane(job, occupant)

    def _loses_its_lane(self, job: ShadowJob, occupant: Occupant) -> None:
        job.lost_its_kernel = job.event.kernel in self.offered_kernels.forgotten
        if job.phase != "answered":
            renew_one(self, job)
        if job.phase == "answered":
            self.sequences.left(self, job)
            return
        may_repeat = (
            job.event.is_idempotent
            and job.follows is None
            and job.launches < MAX_ATTEMPTS
            and not self._is_withdrawn(job)
        )
        if occupant.phase == "running" and not may_repeat:
            self.expect(job, JobState.OUTCOME_UNKNOWN)
        elif self._is_withdrawn(job) or job.is_doomed:
            job.falls_back("withdrawn")
            self.expect(job, JobState.CANCELLED)
        else:
            job.falls_back("queued")
            self.seen["requeued"] += 1

    def free(self, lease: ShadowLease, lane: int) -> None:
        occupant = lease.lanes.pop(lane)
        if occupant in lease.waiting:
            lease.waiting.remove(occupant)
        if occupant.job.phase == "answered":
            self.sequences.left(self, occupant.job)
        if not lease.lanes:
            lease.idle_since_ns = self.now_ns

    def _gone(self, lease: ShadowLease, *, is_clean: bool) -> None:
        self.sequences.lane_lost(self, lease.opened.lease, None)
        del self.leases[lease.opened.lease]
        for occupant in lease.lanes.values():
            self._thrown_out(occupant)
        for place in lease.places:
            if is_clean:
                self.dirty.pop(place, None)
            else:
                self.dirty[place] = lease.opened.tenant
        self.states.pop(lease.opened.lease, None)
        self.seen["lease free" if is_clean else "lease lost"] += 1

    def expect(self, job: ShadowJob, state: JobState) -> None:
        self._may.setdefault(job.event.job, set()).add(state)
        self._must.add(job.event.job)

    # -- commands -------------------------------------------------------------------------------------------------
    def judge(self, commands: tuple[Command, ...]) -> None:
        """Hold each command, in order, against the facts."""
        hurried: list[ShadowJob] = []
        if self._submitted is not None and self._judge_admission(self._submitted, commands):
            hurried = parted(self, self._submitted)
        for command in commands:
            match command:
                case Copy() | CopyBatch():
                    judge_copy(self, command)
                case Launch():
                    self._judge_launch(command)
                case Answer():
                    self._judge_answer(command)
                case OpenLease():
                    judge_open(self, command)
                case EndSequence():
                    self.sequences.judge_end(self, command)
                case ScrubLane() | CloseLease() | KillLane() | RenewLane():
                    judge_lane(self, command)
                case EndSession():
                    is_due = command.session in self.leaving - self.told and command.session in self.sessions
                    promise(is_due, f"{command}: told before, or its tenant stays")
                    promise(not self._unanswered(command.session), f"{command}: before its last answer")
                    self.told.add(command.session)
                    self.seen["session told"] += 1
                case TenantGone():
                    promise(command.tenant in self.removed, f"{command}: it was not removed")
                    promise(self._holds_nothing(command.tenant), f"{command}: it still holds something")
                    self.removed.remove(command.tenant)
                    del self.tenants[command.tenant], self.leave_ns[command.tenant], self.most_jobs[command.tenant]
                    self.served.discard(command.tenant)
                    self.seen["tenant gone"] += 1
        for job in hurried:
            job.ripe_by_ns = min(job.ripe_by_ns, self.now_ns)

    def _unanswered(self, session: int) -> list[int]:
        return [job for job, one in self.live.items() if one.event.session == session]

    def _holds_nothing(self, tenant: str) -> bool:
        has_lease = any(lease.opened.tenant == tenant for lease in self.leases.values())
        return tenant not in self.sessions.values() and not has_lease

    def _judge_admission(self, job: ShadowJob, commands: tuple[Command, ...]) -> bool:
        """Whether it was accepted."""
        event = job.event
        mine = sum(other.tenant == job.tenant for other in self.live.values()) - 1
        expired = {c.job for c in commands if isinstance(c, Answer) and c.state is JobState.EXPIRED}
        mine -= sum(self.jobs[one].tenant == job.tenant for one in expired)
        right = refusal(self, job, mine, len(self.live) - 1 - len(expired))
        self.last_id[event.session] = max(self.last_id[event.session], event.request_id)
        said = next((c.reason for c in commands if isinstance(c, Answer) and c.job == event.job), EndReason.NONE)
        if said is EndReason.DEADLINE_UNREACHABLE:
            is_guess = job.tenant in self.served
            is_sooner = right in (EndReason.NONE, EndReason.SEQUENCE_UNKNOWN, EndReason.TOO_MANY_SEQUENCES)
            promise(is_sooner, f"job {event.job} is refused for {right}")
            promise(bool(event.deadline_ns) and (is_guess or event.deadline_ns < self.now_ns), "no deadline is guessed")
        else:
            promise(said is right, f"job {event.job}: refusal {said} where {right} is true")
            is_past = bool(event.deadline_ns) and event.deadline_ns < self.now_ns
            promise(said is not EndReason.NONE or not is_past, "no job is accepted past its deadline")
        if said is not EndReason.NONE:
            self.expect(job, JobState.REJECTED)
            self.sequences.refused(self, job, said)
        elif job.follows is not None:
            self.sequences.accepted(job)
        return said is EndReason.NONE

    def lane_of(self, command: Copy | CopyBatch | Launch, number: int) -> tuple[ShadowLease, ShadowJob]:
        """The lease that the command names and the job, or the member, of that number: it may be in a lane there."""
        lease, job = self.leases.get(command.lease), self.live.get(number)
        promise(job is not None, f"{command}: the job has been answered or never was")
        promise(lease is not None, f"{command}: the lease is gone")
        assert job is not None
        assert lease is not None
        promise(lease.opened.tenant == job.tenant, f"{command}: the lease is {lease.opened.tenant}'s")
        promise(lease.is_serving, f"{command}: the lease does not serve")
        promise(0 <= command.lane < lease.opened.lanes, f"{command}: no such lane")
        promise(command.lane not in lease.lost, f"{command}: the lane is lost")
        deadline = job.event.deadline_ns
        promise(not deadline or deadline > self.now_ns or job is self._submitted, f"{command}: past its deadline")
        return lease, job

    def _judge_launch(self, command: Launch) -> None:
        lease, job = self.lane_of(command, command.job)
        occupant = lease.lanes.get(command.lane)
        promise(command.generation == lease.opened.generation, f"{command}: a stale generation")
        promise(occupant is not None and occupant.job is job, f"{command}: the lane does not hold the job")
        assert occupant is not None
        promise(occupant.attempt == command.attempt and occupant.phase == "waiting", f"{command}: before its CopyDone")
        promise(command.kernel in lease.code[command.lane], f"{command}: its worker's code lacks the kernel")
        promise((command.share, command.kernel) == (occupant.share, job.event.kernel), f"{command}: not what was asked")
        promise(lease.running_share + occupant.share <= lease.alpha, f"{command}: the sum of R exceeds α")
        lease.waiting.remove(occupant)
        self.sequences.launched(self, job, (command.lease, command.lane))
        occupant.goes_on("running", self.now_ns)
        for member in occupant.members:
            self.lane_of(command, member.event.job)
            member.launches += 1
            is_allowed = member.launches <= (MAX_ATTEMPTS if member.event.is_idempotent else 1)
            promise(is_allowed, f"{command}: launched too often")
            self.seen["launched again"] += member.launches > 1
            self.seen["batch launched again"] += member.launches > 1 and len(occupant.members) > 1

    def _judge_answer(self, command: Answer) -> None:
        job = self.jobs.get(command.job)
        promise(job is not None and job.answer is None, f"{command}: a second answer, or to nobody")
        assert job is not None
        promise(command.session == job.event.session, f"{command}: another session's")
        promise(command.state >= FIRST_TERMINAL, f"{command}: not terminal")
        is_due = bool(job.event.deadline_ns) and job.event.deadline_ns <= self.now_ns
        may = self._may.get(command.job, set()) | ({JobState.EXPIRED} if is_due else set())
        promise(command.state in may, f"{command}: nothing says so")
        if command.state is JobState.OUTCOME_UNKNOWN:
            promise(job.launches > 0, f"{command}: it surely never started")
        is_retry = command.state is JobState.REJECTED and command.reason in RETRYABLE
        low, high = (1, 5_000) if is_retry else (0, 0)
        promise(low <= command.retry_after_ms <= high, f"{command}: retry_after")
        promise(job.has_stages(command, self.now_ns), f"{command}: stages of a job that went {job.way}")
        self.seen[command.state.name] += 1
        self.seen[f"{command.state.name} while {job.phase}"] += 1
        self.seen[command.reason.value] += 1
        is_out = job.event.session in self.leaving
        promise(command.reason is not EndReason.TENANT_REMOVED or is_out, f"{command}: it stays")
        promise(command.reason is not EndReason.KERNEL_GONE or job.lost_its_kernel, f"{command}: its kernel is known")
        job.answer, job.phase, job.answered_ns = command, "answered", self.now_ns
        del self.live[command.job]
        promise(command.reason is not EndReason.SEQUENCE_LOST or job.is_doomed, f"{command}: its state is there")
        answered(self, job)
        if not any(job in held.members for lease in self.leases.values() for held in lease.lanes.values()):
            self.sequences.left(self, job)

    # -- after a step ---------------------------------------------------------------------------------------------
    def after(self, book: JobBook) -> None:
        """What had to be answered is; nothing that could go on waits; the book's tables are bounded and right."""
        missing = self._must & self.live.keys()
        promise(not missing, f"jobs {missing} had to be answered: {self._may}")
        ledger = book.ledger
        promise(ledger.unanswered == len(self.live), "accepted = answered + in flight")
        promise(set(ledger.leases) == set(self.leases), "the leases are those that were opened and not closed")
        queued: dict[str, list[ShadowJob]] = {}
        stranded = Counter(job.tenant for job in self.stranded())
        count: Counter[str] = Counter()
        for job in self.live.values():
            count[job.tenant] += 1
            if job.phase == "queued" and job.event.kernel in self.kernels and not self.sequences.awaits(job):
                queued.setdefault(job.tenant, []).append(job)
        promise(set(ledger.tenants) == set(self.tenants), "tenants")
        ready = {one for one in self.leaving & self.sessions.keys() if not self._unanswered(one)}
        promise(ready <= self.told, f"sessions {ready - self.told} have all their answers and are not told")
        gone = {name for name in self.removed if self._holds_nothing(name)}
        promise(not gone, f"{gone} hold nothing and are not forgotten")
        for name in self.tenants:
            tenant = ledger.tenants[name]
            waiting = len(queued.get(name, []))
            held = sum(lease.alpha for lease in self.leases.values() if lease.opened.tenant == name)
            most = self.most_jobs[name]
            promise(tenant.jobs == count[name] <= most, f"{name} has {count[name]} jobs, not {tenant.jobs}")
            promise(len(tenant.stranded) == stranded[name], f"{name}'s jobs whose kernel nobody serves")
            promise(name not in self.removed or not waiting + stranded[name], f"{name} was removed and has jobs queued")
            promise(tenant.queued == waiting == sum(len(q) for q in tenant.queues.values()), f"{name}'s queue")
            promise(sum(tenant.waiting.values()) == waiting >= len(tenant.waiting), f"{name}'s queue by kinds")
            self.offered_kernels.explain(tenant.service)
            promise(tenant.held_share == held, f"{name} holds {held}, not {tenant.held_share}")
            for queue in tenant.queues.values():
                entries = len(queue._entries)
                promise(len(queue) > 0 and entries <= 33 + 2 * len(queue), f"{name}'s heap has {entries} entries")
        for lease in self.leases.values():
            self._after_lease(book, lease, queued.get(lease.opened.tenant, []))
        after_bounds(self, book, queued, self._taken)
        after_batches(self, book)
        self.sequences.after(self, book)

    def _after_lease(self, book: JobBook, lease: ShadowLease, queued: list[ShadowJob]) -> None:
        name = f"lease {lease.opened.lease}"
        held = book.ledger.leases[lease.opened.lease]
        promise(held.running_share == lease.running_share <= lease.alpha, f"{name}: running share")
        if lease.waiting:
            share = lease.waiting[0].share
            promise(lease.running_share + share > lease.alpha, f"{name}: a copied job waits although there is share")
        self._after_limits(book, lease, held.state)
        was, self.states[lease.opened.lease] = self.states.get(lease.opened.lease, LeaseState.CREATING), held.state
        self.seen[f"lease {held.state.value}"] += 1
        if held.state is LeaseState.WARM:
            is_free = lease.takes_a_job
            promise(not lease.to_renew, f"{name}: lanes {lease.to_renew} run the former code and hold no job")
            stuck = [j.event.job for j in queued if is_free and lease.share_of(j) and is_surely_ripe(self, j)]
            promise(not stuck, f"{name} has a free lane for the queued jobs {stuck}")
            if not (held.is_pinned or lease.lanes or lease.renewing or has_bound(self, lease)):
                next_ns = book.next_deadline_ns()
                due = lease.idle_since_ns + self.settings.keep_warm_ns
                promise(next_ns is not None and next_ns <= due, f"{name}: nobody will look at its idleness")
        elif was is LeaseState.WARM and not lease.lost:
            promise(not held.is_pinned, f"{name} is pinned and drains")
            tenant_is_out = held.view.tenant in self.removed
            is_wanted = any(job.phase == "queued" and job.tenant != held.view.tenant for job in self.live.values())
            promise(not lease.renewing or not self._is_reload or is_wanted, f"{name} is not kept over a reload")
            is_asked = is_wanted or bool(queued) or self._is_config or tenant_is_out
            promise(is_asked or not has_bound(self, lease), f"{name} closes under its sequences")
            is_old = self.now_ns - lease.idle_since_ns >= self.settings.keep_warm_ns
            self.seen["reclaim busy" if lease.lanes else "idle close" if is_old else "reclaim idle"] += 1
        elif was is LeaseState.WARM and held.state is LeaseState.DRAINING and has_bound(self, lease):
            is_needed = any(job.phase == "queued" for job in self.live.values()) or self._is_config
            promise(held.is_kept or is_needed, f"{name} leaves with its sequences although nobody needs its room")
        elif held.state is LeaseState.DRAINING:
            promise(bool(lease.lanes or lease.flying) or has_bound(self, lease), f"{name} drains nothing")
        if held.state is LeaseState.DRAINING:
            promise(not held.is_kept or bool(lease.lost), f"{name} is kept, and no lane is lost")
            if not held.is_kept:
                lease.drains_ns = lease.drains_ns or self.now_ns
            self.seen["lease kept for its sequences"] += keeps_sequences(held)
            self.seen["sequence on a lease that drains"] += has_bound(self, lease)

    def _after_limits(self, book: JobBook, lease: ShadowLease, state: LeaseState) -> None:
        """Somebody will look before anything overruns; nothing of a removed tenant is left on a lane at its limit."""
        settings, tenant = self.settings, lease.opened.tenant
        due = [due for lane in lease.lanes if (due := overruns_ns(self, lease, lane))]
        if state in (LeaseState.WARM, LeaseState.DRAINING):
            due += [due for lane in lease.renewing if (due := lease.renewal_overruns_ns(lane, settings))]
        if state is LeaseState.CREATING and (limit_ns := lease.creating_ns(settings)):
            due.append(lease.since_ns + limit_ns)
        if state is LeaseState.SCRUBBING and settings.scrub_ns and lease.asked and lease.closing is None:
            due.append(lease.since_ns + settings.scrub_ns)
        next_ns = book.next_deadline_ns()
        promise(not due or (next_ns is not None and next_ns <= min(due)), f"lease {lease.opened.lease}: nobody looks")
        if tenant in self.removed:
            promise(state not in (LeaseState.WARM, LeaseState.CREATING), f"{tenant} was removed and keeps a lease")
            is_over = self.leave_ns[tenant] < self.now_ns
            promise(not is_over or not lease.lanes, f"{tenant}'s drain limit is over, and something runs")
