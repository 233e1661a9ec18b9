"""Builds the replies of a job manager's admin socket."""

from __future__ import annotations

import os
import pwd
from collections import Counter
from typing import Final

from offpath.bindings.errors import PlaceUnusable
from offpath.bindings.wire import inc_admin
from offpath.bindings.wire import work_admin as wire
from offpath.bindings.wire.admin import Fault
from offpath.dpu_daemon.manager.inc.answers import IncAnswers
from offpath.dpu_daemon.manager.shell import ManagerShell
from offpath.sched.workload.information import Estimate
from offpath.sched.workload.records import Placed, Spec, Work, WorkState
from offpath.sched.workload.workload import WorkRefused

_MOST_NODES: Final = 256
_MOST_OTHERS: Final = 256
_MOST_SHARES: Final = 512
_NS: Final = 1e9


class Answers:
    """Replies for one job manager."""

    def __init__(self, shell: ManagerShell) -> None:
        self._shell = shell
        self._inc = IncAnswers(shell.inc, _user) if shell.inc is not None else None

    async def to(self, request: wire.Request | inc_admin.Request, uid: int) -> wire.Reply | inc_admin.Reply:
        """The reply to a request of the user ``uid``; a refusal is also a reply."""
        try:
            match request:
                case wire.SubmitRequest():
                    return await self._explained(self._submit(request, uid))
                case wire.WhatIfRequest():
                    return await self._whatif(request)
                case wire.StatusRequest():
                    return self._status()
                case wire.ListRequest():
                    return await self._list(request)
                case wire.ExplainRequest():
                    return await self._explained(self._shell.workload.get(request.job))
                case wire.CancelRequest():
                    return await self._explained(self._shell.cancel(request.job))
                case _ if self._inc is not None:
                    return await self._inc.to(request, uid)
                case _:
                    return Fault(code="no_inc", detail="the job manager's configuration has no [inc]")
        except WorkRefused as refused:
            return Fault(code=refused.code, detail=refused.detail[:400])
        except PlaceUnusable as fault:
            return Fault(code="jobs_file", detail=str(fault)[:400])

    def _submit(self, request: wire.SubmitRequest, uid: int) -> Work:
        environment = tuple(sorted(request.environment.items()))
        spec = Spec(
            request.job, request.gpus, request.model, request.data_bytes, request.value, tuple(request.argv),
            environment, request.directory, request.output, _user(uid),
        )  # fmt: skip
        return self._shell.submit(spec)

    async def _whatif(self, request: wire.WhatIfRequest) -> wire.WhatIf:
        spec = Spec(request.job, request.gpus, request.model, request.data_bytes, request.value, ("whatif",))
        found = await self._shell.propose(spec)
        placed, estimate = found.placed or Placed(()), found.estimate
        names = {work.identity: work.spec.name for work in self._shell.workload.active}
        return wire.WhatIf(
            shares=_shares(placed), server=placed.server, uses_ina=placed.uses_ina, reasons=list(found.reasons),
            rate_bps=estimate.rate_gbps * _NS if estimate is not None else 0.0,
            comm_s=_finite(estimate.comm_s) if estimate is not None else 0.0,
            bottleneck=estimate.bottleneck if estimate is not None else "",
            others=[
                wire.RateLine(job=names.get(job, job), before_bps=before * _NS, after_bps=after * _NS)
                for job, (before, after) in list(found.others.items())[:_MOST_OTHERS]
            ],
        )  # fmt: skip

    def _status(self) -> wire.Status:
        shell = self._shell
        workload, config = shell.workload, shell.config
        free = workload.free()
        nodes = [
            wire.NodeLine(
                node=node.name, switch=node.switch, gpus=node.gpus, free=len(free.get(node.name, ())),
                is_ready=node.is_ready, reason=node.reason[:400],
                unaccounted=shell.unaccounted.reported.get(node.name, 0),
                remedy=shell.remedies[node.name] if node.name in shell.unaccounted.reported else "",
            )
            for node in workload.nodes[:_MOST_NODES]
        ]  # fmt: skip
        states = Counter(str(work.state) for work in workload.works.values())
        return wire.Status(
            pid=os.getpid(), uptime_s=(shell.now_ns() - shell.started_ns) / _NS, engine=shell.engine.name,
            engine_fault=shell.engine_fault, policy=config.policy.name, batch_s=config.policy.batch_ms / 1e3,
            batches=workload.batches, jobs=dict(states), nodes=nodes, node_count=len(workload.nodes),
            counters=dict(shell.counters),
        )  # fmt: skip

    async def _list(self, request: wire.ListRequest) -> wire.JobLines:
        estimates = await self._shell.estimates()
        works = [work for work in self._shell.workload.works.values() if request.is_ended or not work.state.is_final]
        page = works[request.after : request.after + request.limit]
        after = request.after + len(page)
        lines = [self._line(work, estimates.get(work.identity)) for work in page]
        return wire.JobLines(jobs=lines, next=after if after < len(works) else 0)

    async def _explained(self, work: Work) -> wire.Explanation:
        estimate = (await self._shell.estimates()).get(work.identity)
        return wire.Explanation(
            job=self._line(work, estimate), where=self._where(work), reasons=list(work.reasons),
            detail=work.detail[:1000], bottleneck=estimate.bottleneck if estimate is not None else "",
            comm_s=_finite(estimate.comm_s) if estimate is not None else 0.0,
        )  # fmt: skip

    def _where(self, work: Work) -> str:
        """The state in a sentence."""
        shell = self._shell
        if work.state is WorkState.QUEUED:
            if shell.engine_fault:
                return f"it waits: engine {shell.engine.name} does not answer: {shell.engine_fault[:400]}"
            before = shell.workload.queued.index(work)
            holder = f"held by {shell.engine.name}, " if work.is_held else ""
            passed = f"{before} jobs were submitted before it, {work.batches} batches passed it over"
            return f"{holder}it waits for GPUs; {passed}"
        if work.state is WorkState.STARTING:
            return f"placed; engine {shell.engine.name} has not started it yet"
        if work.state is WorkState.RUNNING:
            return "it is cancelled and is being ended" if work.is_cancelled else "it runs"
        code = f", exit code {work.exit_code}" if work.exit_code is not None else ""
        return f"it has ended: {work.state}{code}"

    def _line(self, work: Work, estimate: Estimate | None) -> wire.JobLine:
        shell, placed = self._shell, work.placed or Placed(())
        now_ns = work.ended_ns or shell.now_ns()
        return wire.JobLine(
            job=work.spec.name, identity=work.identity, state=str(work.state), gpus=max(0, work.spec.gpus),
            model=work.spec.model, data_bytes=work.spec.data_bytes, value=work.spec.value, user=work.spec.user,
            shares=_shares(placed), server=placed.server, uses_ina=placed.uses_ina,
            rate_bps=estimate.rate_gbps * _NS if estimate is not None else 0.0, batches=work.batches,
            age_s=max(0.0, (now_ns - work.submitted_ns) / _NS),
            run_s=max(0.0, (now_ns - work.started_ns) / _NS) if work.started_ns else 0.0, exit_code=work.exit_code,
            is_held=work.is_held, is_cancelled=work.is_cancelled,
        )  # fmt: skip


def _shares(placed: Placed) -> list[wire.ShareLine]:
    return [
        wire.ShareLine(node=share.node, count=share.count, gpus=list(share.gpus))
        for share in placed.shares[:_MOST_SHARES]
    ]


def _finite(seconds: float) -> float:
    """JSON has no infinity."""
    return min(seconds, 1e15)


def _user(uid: int) -> str:
    """The submitter's name, if it is not the job manager's own user: the engine then starts the job as that user, or
    refuses it. Raises: WorkRefused: the uid has no name here."""
    if uid == os.getuid():
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise WorkRefused("user", f"uid {uid} has no name on this machine") from None
