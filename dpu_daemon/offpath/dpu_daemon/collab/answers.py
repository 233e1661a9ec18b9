"""Builds the replies of a collaboration controller's socket for jobs and operators."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from typing import Final

from offpath.bindings.wire import collab_admin as wire
from offpath.bindings.wire.admin import Fault
from offpath.dpu_daemon.collab.devices import properties_of
from offpath.dpu_daemon.collab.shell import CollabShell
from offpath.sched.collab import reports
from offpath.sched.collab.errors import CollabRefused, RequirementInvalid, TooManyRequirements
from offpath.sched.collab.records import Job, JobSpec
from offpath.sched.collab.requirements import Requirement, text_of

_NS: Final = 10**9
_MOST_TEXT: Final = 160
"""Characters of a requirement: a plan of 128 groups then fits a frame."""


class Answers:
    """Replies for one controller. ``connections``: of devices and gateways now."""

    def __init__(self, shell: CollabShell, connections: Callable[[], int]) -> None:
        self._shell, self._connections = shell, connections

    async def to(self, request: wire.Request, uid: int) -> wire.Reply:
        """The reply to a request of the user ``uid``; a refusal is also a reply. What it says is on the disk."""
        try:
            reply = self._reply(request, uid)
        except CollabRefused as refused:
            return Fault(code=refused.code, detail=str(refused)[:400])
        except RequirementInvalid as refused:
            return Fault(code="requirement", detail=str(refused)[:400])
        except TooManyRequirements as refused:
            return Fault(code="too_many_requirements", detail=str(refused)[:400])
        await self._shell.durable()
        return reply

    def _reply(self, request: wire.Request, uid: int) -> wire.Reply:
        """Raises: CollabRefused, RequirementInvalid, TooManyRequirements."""
        shell = self._shell
        shell.advance()  # no answer shows a round after its deadline: the timer may be late
        match request:
            case wire.OpenRequest():
                return wire.JobAnswer(job=self._line(self._open(request, uid)))
            case wire.DevicesRequest():
                self._owned(request.job, uid)
                job = shell.request(request.job, request.round, request.demand, request.deadline_s)
                return wire.JobAnswer(job=self._line(job))
            case wire.CloseRequest():
                line = self._line(self._owned(request.job, uid))
                shell.close_job(request.job)
                return wire.JobAnswer(job=line)
            case wire.JobsRequest():
                return self._jobs(request)
            case wire.SummaryRequest():
                return self._summary()
            case wire.PlanRequest():
                return self._plan()
            case wire.ExplainRequest():
                return self._explained(self._job(request.job))
            case wire.WhatIfRequest():
                return self._whatif(request)

    # -- jobs -----------------------------------------------------------------------------------------------------
    def _open(self, request: wire.OpenRequest, uid: int) -> Job:
        spec = JobSpec(
            request.job, _user(uid), _requirement(request.requirement), request.quorum_percent,
            round(request.alone_s * _NS), request.speed, request.tiers, request.rounds,
        )  # fmt: skip
        known = self._shell.book.jobs.get(request.job)
        if known is not None and known.spec == spec:
            return known  # sent again: the first answer was lost
        return self._shell.open(spec)

    def _job(self, name: str) -> Job:
        if (job := self._shell.book.jobs.get(name)) is None:
            raise CollabRefused("no_job", f"no job {name} is open")
        return job

    def _owned(self, name: str, uid: int) -> Job:
        """Only root and the controller's own user may change another user's job."""
        job = self._job(name)
        if uid not in (0, os.getuid()) and job.spec.tenant != _user(uid):
            raise CollabRefused("not_yours", f"job {name} belongs to another user")
        return job

    def _line(self, job: Job) -> wire.JobLine:
        now_ns, request, spec = self._shell.now_ns(), job.request, job.spec
        return wire.JobLine(
            job=spec.name, tenant=spec.tenant, requirement=text_of(spec.requirement)[:_MOST_TEXT],
            state=job.state, round=job.last_round,
            demand=request.demand if request else 0, leased=request.leased if request else 0,
            done=request.done if request else 0, rounds_completed=job.rounds,
            deadline_s=max(0.0, (request.deadline_ns - now_ns) / _NS) if request else 0.0,
            last_end=self._shell.last_ends.get(spec.name, ""), age_s=(now_ns - job.opened_ns) / _NS,
        )  # fmt: skip

    def _jobs(self, request: wire.JobsRequest) -> wire.JobLines:
        jobs = self._shell.book.jobs
        names = sorted(name for name in jobs if name > request.after)
        page = names[: request.limit]
        return wire.JobLines(
            jobs=[self._line(jobs[name]) for name in page], next=page[-1] if len(page) < len(names) else ""
        )

    # -- information ----------------------------------------------------------------------------------------------
    def _summary(self) -> wire.Summary:
        shell = self._shell
        book, tally = shell.book, shell.book.tally
        return wire.Summary(
            pid=os.getpid(), uptime_s=(shell.now_ns() - shell.started_ns) / _NS, policy=book.policy.name,
            jobs=len(book.jobs), leases=len(book.leases), worked=book.worked, check_ins=tally.check_ins,
            idle=tally.idle, spent=tally.spent, assigned=tally.assigned, kinds=book.supply.kinds,
            supply=sum(count for _, count in book.supply.counts()), commits=shell.commits,
            connections=self._connections(), refused=dict(shell.refused),
        )  # fmt: skip

    def _plan(self) -> wire.Plan:
        found = reports.plan(self._shell.book)
        groups = [
            wire.GroupLine(
                requirement=text_of(group.requirement)[:_MOST_TEXT], jobs=len(group.jobs), waiting=group.waiting,
                remaining=group.remaining, supply=group.supply, given=group.given, first=group.first,
            )
            for group in found.groups
        ]  # fmt: skip
        return wire.Plan(
            policy=self._shell.book.policy.name, epsilon=self._shell.config.policy.epsilon, groups=groups,
            supply=found.supply, unused=found.unused,
        )  # fmt: skip

    def _explained(self, job: Job) -> wire.Explanation:
        found = reports.reasons(self._shell.book, job, self._shell.now_ns())
        if epsilon := self._shell.config.policy.epsilon:
            share = round(job.standing.share, 3)
            found.append(
                f"fairness ε = {epsilon:g}: it has received {share:g} of the time that it would need alone, "
                "as of the end of its last round"
            )
        return wire.Explanation(job=self._line(job), where=_where(job), reasons=[each[:2048] for each in found])

    def _whatif(self, request: wire.WhatIfRequest) -> wire.WhatIf:
        requirement = _requirement(request.requirement)
        found = reports.prospect(self._shell.book, requirement)
        uptime_s = (self._shell.now_ns() - self._shell.started_ns) / _NS
        window_s = min(float(reports.DAY_S), max(1.0, uptime_s))
        reasons = [f"{found.supply} check-ins of the last {window_s / 3600:.1f} h meet {text_of(requirement)[:400]}"]
        if not found.supply:
            reasons.append("a round of such a job would end by its deadline without devices")
        elif found.rivals:
            reasons.append(f"{found.rivals} jobs wait for some of the same devices")
        return wire.WhatIf(
            supply=found.supply, rivals=found.rivals,
            alone_s=found.wait_s(request.demand, found.supply, window_s),
            shared_s=found.wait_s(request.demand, found.shared, window_s), reasons=reasons,
        )  # fmt: skip


def _where(job: Job) -> str:
    """The state in a sentence."""
    request = job.request
    if request is None:
        return "no round runs" if job.last_round >= 0 else "it has asked for no devices yet"
    if request.remaining > 0:
        return f"round {request.round} waits for {request.remaining} of {request.demand} devices"
    return f"round {request.round} has all its devices; {request.done} of {request.demand} have answered"


def _requirement(given: wire.Requirement) -> Requirement:
    """Raises: RequirementInvalid."""
    return Requirement(properties_of(given.numbers, given.versions, given.labels))


def _user(uid: int) -> str:
    """The user's name. Raises: CollabRefused: the uid has none here."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise CollabRefused("user", f"uid {uid} has no name on this machine") from None
