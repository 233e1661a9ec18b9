"""Builds the replies of the admin socket from the job book, the daemon's counters and the last ended jobs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from importlib import metadata
from typing import TYPE_CHECKING, Final

from offpath.bindings.errors import OffpathError
from offpath.bindings.wire import admin
from offpath.bindings.wire.fields import MAX_LISTED
from offpath.dpu_daemon.operation.logs import printable
from offpath.dpu_daemon.requests.histogram import Histogram
from offpath.dpu_daemon.requests.request_stats import EndedRequest, ended_request
from offpath.sched.jobs import view
from offpath.sched.jobs.drain import is_drained
from offpath.sched.jobs.explain import Ended, Explanation, explain, explain_end
from offpath.sched.jobs.obstacles import Hold
from offpath.sched.jobs.records import Job
from offpath.sched.jobs.settings import MS
from offpath.sched.jobs.states import FIRST_TERMINAL, JobState

if TYPE_CHECKING:
    from offpath.dpu_daemon.daemon import Daemon

_STARTS_SHOWN: Final = 24
_HOLDERS_SHOWN: Final = 32
_StateFilter = tuple[tuple[JobState, ...], bool | None]
_STATE_FILTERS: Final[dict[str, _StateFilter]] = {
    **{state.name.lower(): ((state,), None) for state in JobState},
    "copying": ((JobState.COPYING,), False),
    "copied": ((JobState.COPYING,), True),
    "ended": (tuple(state for state in JobState if state >= FIRST_TERMINAL), None),
}
"""State names of job lists → the book's states, and whether the job waits on its lane for share."""
_ANY: Final[_StateFilter] = ((), None)
_EMPTY: Final = Histogram()


class BadArguments(OffpathError):
    """The request lacks an argument or names an unknown object; ``code`` is stable."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class Answers:
    """Replies for one daemon. Runs in its event loop; no method waits."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._ledger = daemon.requests.book.ledger
        self._started_ns = daemon.requests.now_ns()
        self._release = metadata.version("offpath")

    def to(self, request: admin.Request, uid: int) -> admin.Reply:
        """``uid``: the uid that sent the request. Raises: BadArguments."""
        match request:
            case admin.StatusRequest():
                return self._status()
            case admin.JobsRequest():
                return self._jobs(request)
            case admin.EndedRequest():
                found = self._daemon.requests.answers.stats.last_ended(request.limit)
                return admin.Jobs(jobs=[self._line(each) for each in found], next=0)
            case admin.JobRequest() | admin.ExplainRequest() | admin.CancelRequest():
                return self._one_job(request, uid)
            case admin.LeasesRequest():
                return self._leases(request)
            case admin.SessionsRequest():
                return self._sessions(request)
            case admin.StatisticsRequest():
                return self._statistics(request)
            case admin.DrainRequest():
                return self._drain(request)
        raise BadArguments("unanswerable", request.kind)

    # -- daemon state ---------------------------------------------------------------------------------------------
    def _status(self) -> admin.Status:
        daemon, ledger = self._daemon, self._ledger
        held: Counter[str] = Counter()
        for lease in ledger.leases.values():
            for gpu in lease.view.gpus:
                held[gpu] += lease.view.alpha // len(lease.view.gpus)
        emulated = daemon.host.emulated()
        gpus = [
            admin.GpuLine(
                gpu=g.gpu, model=g.model, is_emulated=emulated.get(g.gpu),
                compute_slices=g.compute_slices, held_share=held[g.gpu],
            )
            for g in daemon.requests.book.leasing.gpus
        ]  # fmt: skip
        return admin.Status(
            release=self._release, lineage=daemon.identity.lineage, pid=os.getpid(),
            uptime_ms=(daemon.requests.now_ns() - self._started_ns) // MS, is_draining=daemon.is_draining,
            is_last_good=daemon.settings.is_last_good,
            drain_ms=daemon.settings.config.limits.drain_ms, has_helper=daemon.host.has_helper(),
            helpers=self._helper_lines(), gpus=gpus,
            kernels=[info.name for info in daemon.host.kernels.infos()], tenants=len(ledger.tenants),
            sessions=len(ledger.sessions), leases=len(ledger.leases), unanswered=ledger.unanswered,
            queued=sum(tenant.backlog for tenant in ledger.tenants.values()), leaving=len(ledger.leaving),
        )  # fmt: skip

    def _helper_lines(self) -> list[admin.HelperLine]:
        """The helpers that have joined this process."""
        host = self._daemon.host
        return [
            admin.HelperLine(
                name=helper.name, generation=helper.number,
                kernels=[kernel.name for kernel in helper.hello.kernels[:MAX_LISTED]],
                kernel_count=len(helper.hello.kernels), gpus=len(helper.gpus),
                leases=len(host.lanes.leases_of(helper.number)),
                lost_gpus=len(self._ledger.helpers.lost_gpus(helper.number)),
            )
            for helper in host.joined()
        ]  # fmt: skip

    def _drain(self, request: admin.DrainRequest) -> admin.Drained:
        self._daemon.drain(request.is_on)
        held = self._daemon.requests.answers.held  # ends of streams whose requesters have not taken the answer before
        return admin.Drained(
            is_draining=self._daemon.is_draining, is_drained=is_drained(self._ledger) and not held,
            unanswered=self._ledger.unanswered + len(held), leaving=len(self._ledger.leaving),
            limit_ms=self._daemon.settings.config.limits.drain_ms,
        )  # fmt: skip

    def _statistics(self, request: admin.StatisticsRequest) -> admin.Statistics:
        ended: dict[str, Counter[str]] = {}
        for (tenant, status, _), count in self._daemon.requests.answers.stats.ends().items():
            ended.setdefault(tenant, Counter())[status.name.lower()] += count
        sessions = Counter(session.tenant for session in self._ledger.sessions.values())
        fitting = sorted(each.tenant for each in view.tenants(self._ledger) if each.tenant > request.after)
        page = fitting[: request.limit]
        return admin.Statistics(
            uptime_ms=(self._daemon.requests.now_ns() - self._started_ns) // MS, counters=self._daemon.statistics(),
            tenants=[self._tenant_line(name, ended.get(name, Counter()), sessions[name]) for name in page],
            next=page[-1] if len(page) < len(fitting) else "",
        )  # fmt: skip

    def _tenant_line(self, name: str, ended: Counter[str], sessions: int) -> admin.TenantLine:
        record = view.tenant_record(self._ledger.tenants[name])
        latency = self._daemon.requests.answers.stats.latency.get(name, _EMPTY)
        return admin.TenantLine(
            tenant=name, jobs=record.jobs, queued=record.queued, running=record.running, sessions=sessions,
            leases=record.leases, held_share=record.held_share, max_share=record.max_share, ended=dict(ended),
            p50_ms=latency.quantile_ns(0.5) / MS, p99_ms=latency.quantile_ns(0.99) / MS, sequences=record.sequences,
        )  # fmt: skip

    # -- lists ----------------------------------------------------------------------------------------------------
    def _jobs(self, request: admin.JobsRequest) -> admin.Jobs:
        """Jobs in the book. If ended states are requested, also ended jobs whose answers were collected."""
        states, is_waiting = _ANY
        if request.state is not None:
            if (state_filter := _STATE_FILTERS.get(request.state.lower())) is None:
                raise BadArguments("unknown_state", f"{request.state}: one of {', '.join(_STATE_FILTERS)}")
            states, is_waiting = state_filter
        held = view.jobs(
            self._ledger, self._daemon.requests.now_ns(), tenant=request.tenant, session=request.session, states=states,
            is_waiting_for_share=is_waiting, after=request.after, limit=request.limit,
        )  # fmt: skip
        lines = {each.job: self._job_line(each) for each in held}
        if terminal := [state for state in states if state >= FIRST_TERMINAL]:
            ended = self._daemon.requests.answers.stats.ended(
                tenant=request.tenant,
                session=request.session,
                states=terminal,
                after=request.after,
                limit=request.limit,
            )
            lines |= {each.job: self._line(each) for each in ended}  # these lines carry the end reason
        page = [lines[job] for job in sorted(lines)[: request.limit]]
        return admin.Jobs(jobs=page, next=page[-1].job if len(page) == request.limit else 0)

    def _leases(self, request: admin.LeasesRequest) -> admin.Leases:
        now_ns = self._daemon.requests.now_ns()
        found = view.leases(self._ledger, now_ns, after=request.after, limit=request.limit + 1)  # one of the next page
        page = found[: request.limit]
        lines = [
            admin.LeaseLine(
                lease=each.lease, generation=each.generation, tenant=each.tenant, gpu=each.gpu, profile=each.profile,
                start=each.start, alpha=each.alpha, lanes=each.lanes, state=each.state.value,
                is_pinned=each.is_pinned, jobs=each.jobs, running=each.running, running_share=each.running_share,
                held_ms=each.held_ns / MS, is_restricted=each.is_restricted,
                load_ms=self._daemon.host.lanes.load_ms(each.lease), others=list(each.others),
            )
            for each in page
        ]  # fmt: skip
        return admin.Leases(leases=lines, next=page[-1].lease if len(page) < len(found) else 0)

    def _sessions(self, request: admin.SessionsRequest) -> admin.Sessions:
        found = view.sessions(self._ledger, tenant=request.tenant, after=request.after, limit=request.limit)
        lines = [
            admin.SessionLine(
                session=each.session, tenant=each.tenant, credits=each.credits, jobs=each.jobs,
                last_request_id=each.last_request_id,
            )
            for each in found
        ]  # fmt: skip
        return admin.Sessions(sessions=lines, next=found[-1].session if len(found) == request.limit else 0)

    # -- one job --------------------------------------------------------------------------------------------------
    def _one_job(self, request: admin.JobRequest | admin.ExplainRequest | admin.CancelRequest, uid: int) -> admin.Reply:
        """Looks up unanswered jobs in the book and answered jobs among the last ended ones."""
        job = self._find(request)
        if isinstance(request, admin.CancelRequest):
            if isinstance(job, Job) and (ref := self._daemon.requests.answers.refs.get(job.job)) is not None:
                self._daemon.requests.sessions.cancel(ref, operator_uid=uid)
                return admin.Cancelled(job=self._line(self._find(request)))
            return admin.Cancelled(job=self._line(job))
        leasing = self._daemon.requests.book.leasing
        gpus = tuple(leasing.gpus)
        if isinstance(job, Job):
            if isinstance(request, admin.JobRequest):
                return admin.Job(job=self._line(job), stages_ms=[])
            now_ns = self._daemon.requests.now_ns()
            return self._explanation(job, explain(job, self._ledger, gpus, now_ns))
        answer = job.answer
        if isinstance(request, admin.JobRequest):
            return admin.Job(job=self._line(job), stages_ms=[ns / MS for ns in answer.stages])
        ended = Ended(
            job.job, job.tenant, job.demand or self._kernel_demand(job.kernel), job.payload_bytes, job.budget_ms,
            answer.state, answer.reason, answer.retry_after_ms, answer.lease, answer.stages, job.kernel, job.priority,
            job.operator_uid, printable(job.detail.decode("utf-8", "replace")),
        )  # fmt: skip
        return self._explanation(job, explain_end(ended, leasing, self._daemon.requests.now_ns()))

    def _find(self, request: admin.JobRequest | admin.ExplainRequest | admin.CancelRequest) -> Job | EndedRequest:
        job: Job | None
        if request.job is not None:
            name = str(request.job)
            job = self._ledger.jobs.get(request.job)
            kept = self._daemon.requests.answers.stats.find(job=request.job)
        elif request.session is not None and request.request_id is not None:
            name = f"{request.session}/{request.request_id}"
            job = view.find_job(self._ledger, request.session, request.request_id)
            kept = self._daemon.requests.answers.stats.find(session=request.session, request_id=request.request_id)
        else:
            raise BadArguments("no_id", "name a job, or a session and a request id")
        if job is not None and job.state < FIRST_TERMINAL:
            return job
        answers = self._daemon.requests.answers
        if job is not None and kept is None and (held := answers.held.get(job.job)) is not None:
            return ended_request(answers.refs[job.job], held, self._daemon.requests.now_ns())
        if kept is None:
            raise BadArguments("unknown_job", f"job {name} is neither in the book nor among the last ended jobs")
        return kept

    def _line(self, job: Job | EndedRequest) -> admin.JobLine:
        now_ns = self._daemon.requests.now_ns()
        if isinstance(job, Job):
            return self._job_line(view.job_record(job, now_ns))
        answer = job.answer
        return admin.JobLine(
            job=job.job, session=job.session, request_id=job.request_id, tenant=job.tenant,
            kernel=self._kernel_name(job.kernel), priority=job.priority,
            demand=job.demand or self._kernel_demand(job.kernel), payload_bytes=job.payload_bytes,
            state=answer.state.name.lower(), reason=answer.reason.value, age_ms=(now_ns - job.at_ns) / MS,
            lease=answer.lease, is_ended=True, cancelled_by_uid=job.operator_uid,
            answers=job.answers,
        )  # fmt: skip

    def _job_line(self, each: view.JobRecord) -> admin.JobLine:
        state = each.state.name.lower()
        return admin.JobLine(
            job=each.job, session=each.session, request_id=each.request_id, tenant=each.tenant,
            kernel=self._kernel_name(each.kernel), demand=each.share, priority=each.priority,
            payload_bytes=each.payload_bytes, state="copied" if each.is_waiting_for_share else state, reason="",
            age_ms=each.age_ns / MS,
            deadline_in_ms=each.deadline_in_ns / MS if each.deadline_in_ns is not None else None, lease=each.lease,
            attempt=each.attempt, is_ended=each.state >= FIRST_TERMINAL, answers=self._answers(each.job),
        )  # fmt: skip

    def _answers(self, job: int) -> int:
        """Of its stream, that were written."""
        ref = self._daemon.requests.answers.refs.get(job)
        return (ref.stream.written or 0) if ref is not None and ref.stream is not None else 0

    def _kernel_name(self, number: int) -> str:
        return self._daemon.host.kernels.name(number)

    def _kernel_demand(self, number: int) -> int:
        return self._daemon.host.kernels.demand(number)

    def _explanation(self, job: Job | EndedRequest, result: Explanation) -> admin.Explanation:
        estimate = result.estimate_ns / MS if result.estimate_ns is not None else None
        return admin.Explanation(
            job=self._line(job), where=result.where, holds=_hold_lines(result.holds), ahead=result.ahead,
            estimate_ms=estimate,
            stages_ms=[ns / MS for ns in job.answer.stages] if isinstance(job, EndedRequest) else [],
        )  # fmt: skip


def _hold_lines(holds: Iterable[Hold]) -> list[admin.HoldLine]:
    return [
        admin.HoldLine(
            cause=hold.cause.value,
            text=hold.text[:2048],
            unblocked_by=[lift.value for lift in hold.unblocked_by],
            holders=[
                admin.HolderLine(
                    lease=each.lease, tenant=each.tenant, gpu=each.gpu, profile=each.profile, start=each.start,
                    state=each.state.value, jobs=each.jobs,
                )
                for each in hold.holders[:_HOLDERS_SHOWN]
            ],
            starts=[
                admin.StartLine(
                    gpu=each.gpu, profile=each.profile, start=each.start, leases=list(each.leases),
                    reserved_for=each.reserved_for,
                )
                for each in hold.starts[:_STARTS_SHOWN]
            ],
        )
        for hold in holds
    ]  # fmt: skip
