"""Builds the replies about requests for servers and switches."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from offpath.bindings.wire import inc_admin as wire
from offpath.bindings.wire.admin import Fault
from offpath.dpu_daemon.manager.inc.services import stores_of
from offpath.dpu_daemon.manager.inc.shell import IncShell
from offpath.dpu_daemon.manager.inc.translation import spec_of
from offpath.sched.inc import errors
from offpath.sched.inc.errors import IncError, TenantUnknown
from offpath.sched.inc.live.records import Request, RequestState, Service, Task, TaskState
from offpath.sched.inc.templates import Implementation
from offpath.sched.inc.units import SWITCH_DIMENSIONS

CODES: Final = {
    "unknown_template": errors.UnknownTemplate, "request_cyclic": errors.RequestCyclic,
    "flavors_contradict": errors.FlavorsContradict, "demand_invalid": errors.DemandInvalid,
    "request_too_large": errors.RequestTooLarge, "unhostable": errors.Unhostable,
    "quota_exceeded": errors.QuotaExceeded, "tenant_unknown": errors.TenantUnknown,
    "request_exists": errors.RequestExists, "request_unknown": errors.RequestUnknown,
    "program_missing": errors.ProgramMissing, "ranks_missing": errors.RanksMissing,
}  # fmt: skip
"""Codes of refusals. They are stable."""
_TEXT: Final = 300
_MOST_LINES: Final = 32
_MOST_SWITCHES: Final = 128


class IncAnswers:
    """``user``: the submitter's name for the engine, by uid. Raises WorkRefused."""

    def __init__(self, shell: IncShell, user: Callable[[int], str]) -> None:
        self._shell, self._user = shell, user

    async def to(self, request: wire.Request, uid: int) -> wire.Reply | Fault:
        """The reply to a request of the user ``uid``; a refusal is also a reply. Raises: WorkRefused, PlaceUnusable."""
        try:
            match request:
                case wire.SubmitRequest():
                    self._check_tenant(request.tenant, uid)
                    return self._shown(await self._shell.submit(spec_of(request, self._user(uid))), 0)
                case wire.ListRequest():
                    return self._list(request)
                case wire.ShowRequest():
                    return self._shown(self._shell.book.get(request.name), request.after)
                case wire.CancelRequest():
                    return self._shown(await self._shell.cancel(request.name), 0)
                case wire.TemplatesRequest():
                    return self._templates()
        except IncError as refused:
            return Fault(code=code_of(refused), detail=str(refused)[:400])

    def _check_tenant(self, tenant: str, uid: int) -> None:
        """Raises: TenantUnknown. Without tenants in the configuration every user may submit for any."""
        listed = {each.name: each.uids for each in self._shell.table.tenant}
        if listed and uid not in (0, os.getuid()) and uid not in listed.get(tenant, ()):
            raise TenantUnknown(f"uid {uid} may not submit for tenant {tenant}")

    def _list(self, request: wire.ListRequest) -> wire.RequestLines:
        requests = sorted(self._shell.book.requests.values(), key=lambda each: each.number)
        requests = [each for each in requests if request.is_ended or not each.state.is_final]
        page = requests[request.after : request.after + request.limit]
        after = request.after + len(page)
        return wire.RequestLines(
            requests=[self._line(each) for each in page], next=after if after < len(requests) else 0
        )

    def _line(self, request: Request) -> wire.RequestLine:
        return wire.RequestLine(
            name=request.spec.name, tenant=request.spec.tenant, state=str(request.state),
            age_s=max(0.0, (self._shell.now_ms() - request.submitted_ms) / 1e3), tasks=len(request.tasks),
            running=sum(each.state is TaskState.RUNNING for each in request.tasks.values()),
            chosen=dict(request.chosen), is_gang=request.spec.is_gang,
        )  # fmt: skip

    def _shown(self, request: Request, after: int) -> wire.Shown:
        tasks = sorted(request.tasks.values(), key=lambda each: (each.group, each.slot, each.identity))
        page = tasks[after : after + wire.MOST_TASKS]
        lines = [self._task(request, each) for each in page]
        caches = [name for name, program in request.spec.programs.items() if program.service is Service.CACHE]
        end = after + len(page)
        return wire.Shown(
            request=self._line(request), where=self._where(request)[:_TEXT], tasks=lines,
            reasons=_some(request.reasons), waits=_some(request.waits),
            history=[each[:_TEXT] for each in request.history],
            stores={name: stores_of(request, name) for name in caches}, next=end if end < len(tasks) else 0,
        )  # fmt: skip

    def _task(self, request: Request, task: Task) -> wire.TaskLine:
        job = self._shell.book.scheduler.jobs.get(request.spec.name)
        group = job.request.by_id.get((request.spec.name, task.group)) if job is not None else None
        size = job.size(group) if job is not None and group is not None else 0
        service = request.spec.programs[task.composite].service if task.address else Service.NONE
        return wire.TaskLine(
            identity=task.identity, composite=task.composite, group=task.group, flavor=task.implementation,
            where=task.node, is_inc=task.is_inc, slot=task.slot, of=size,
            service=service.value, state=str(task.state), address=task.address, reason=task.reason[:120],
        )  # fmt: skip

    def _where(self, request: Request) -> str:
        """The state in a sentence."""
        if request.state.is_final:
            left = f"; {len(request.tasks)} tasks are being stopped" if request.tasks else ""
            trees = f"; the INA controller has not released {len(request.trees)} trees" if request.trees else ""
            return f"it has ended: {request.state}{left}{trees}"
        if self._shell.round_fault:
            return f"it waits: no round can be decided: {self._shell.round_fault}"
        if request.state is RequestState.RUNNING:
            return "every task has its place"
        return "it waits: " + ("; ".join(f"{group}: {why}" for group, why in request.waits.items()) or "for a round")

    def _templates(self) -> wire.Templates:
        store, shell = self._shell.store, self._shell
        lines = []
        for name in store.names:
            template = store.template(name)
            demands = {each.name: _demand(each) for each in template.implementations if each.is_inc}
            names = [each.name for each in template.implementations]
            lines.append(wire.TemplateLine(name=name, implementations=names, demands=demands))
        resources = shell.book.scheduler.resources
        topology = resources.topology
        switches = []
        for node in range(topology.hosts, topology.nodes)[:_MOST_SWITCHES]:
            spec = resources.switches[node - topology.hosts]
            name = topology.names[node]
            switches.append(wire.SwitchLine(
                name=name, features=sorted(spec.features), services=sorted(resources.active(node)),
                free=list(resources.free(node)), capacity=list(spec.capacity), fault=shell.switch_faults.get(name, ""),
            ))  # fmt: skip
        return wire.Templates(templates=lines, switches=switches)


def code_of(refused: IncError) -> str:
    """The stable code of a refusal."""
    return next((code for code, kind in CODES.items() if isinstance(refused, kind)), "request_exists")


def _some(texts: dict[str, str]) -> dict[str, str]:
    return {key: text[:_TEXT] for key, text in list(texts.items())[:_MOST_LINES]}


def _demand(implementation: Implementation) -> str:
    """Ranges of one instance by dimension, and what is shared."""
    parts = []
    for group in implementation.groups:
        for at, name in enumerate(SWITCH_DIMENSIONS):
            if group.most[at] or group.shared[at]:
                shared = f" and {group.shared[at]} shared" if group.shared[at] else ""
                parts.append(f"{name} {group.least[at]}…{group.most[at]}{shared}")
    needs = f" on {', '.join(sorted(implementation.features))}" if implementation.features else ""
    return "; ".join(parts) + needs
