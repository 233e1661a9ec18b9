"""Builds the replies of a controller's admin socket from the machine's ledger, the plan and the jobs."""

from __future__ import annotations

import os
from typing import Final

from offpath.bindings.wire import ina_admin
from offpath.bindings.wire.admin import Fault
from offpath.dpu_daemon.controller.jobs import Job, JobRefused
from offpath.dpu_daemon.controller.modes import Modes
from offpath.dpu_daemon.controller.shell import ControllerShell
from offpath.sched.ina.protocol import events
from offpath.sched.ina.protocol.ledger import Hold
from offpath.sched.ina.protocol.records import Wants
from offpath.sched.ina.sharing.layout import TreeUnusable
from offpath.sched.ina.sharing.planner import SwitchUnknown

_MS: Final = 1_000_000
_WANTS: Final = {Wants.PLAN: "the operations that the Plan selects", Wants.ALWAYS: "every operation"}


class Answers:
    """Replies for one controller. Runs in its event loop; no method waits."""

    def __init__(self, shell: ControllerShell, modes: Modes, ina_directory: str) -> None:
        self._shell, self._modes = shell, modes
        self._directory = ina_directory

    def to(self, request: ina_admin.Request) -> ina_admin.Reply:
        """The reply to a request; a refusal is also a reply."""
        try:
            match request:
                case ina_admin.StatusRequest():
                    return self._status()
                case ina_admin.SubmitRequest():
                    return self._submit(request)
                case ina_admin.JobsRequest():
                    return self._jobs(request)
                case ina_admin.JobRequest():
                    return self._job(request.job)
                case ina_admin.ExplainRequest():
                    return self._explain(request.job)
                case ina_admin.CancelRequest():
                    return self._cancel(request.job)
                case ina_admin.GroupsRequest():
                    return self._groups(request)
                case ina_admin.TreesRequest():
                    return self._trees(request)
                case ina_admin.HoldsRequest():
                    return self._holds(request)
                case ina_admin.ModeRequest():
                    return self._mode(request)
                case ina_admin.HostsRequest():
                    return self._hosts(request)
        except JobRefused as refused:
            return Fault(code=refused.code, detail=refused.detail[:512])

    def _status(self) -> ina_admin.ControllerStatus:
        it = self._shell
        settings = it.planner.settings
        return ina_admin.ControllerStatus(
            term=it.machine.term, pid=os.getpid(), uptime_ms=(it.now_ns() - it.started_ns) // _MS, mode=settings.mode,
            capacity=settings.capacity, agents=list(it.agents.hosts),
            silent=sorted(set(it.agents.hosts) - it.reporting), switches=it.switches.states(),
            jobs=len(it.jobs.known()), holds=len(it.machine.ledger.holds()), migrations=it.counters["migrations"],
            downtime_ms=[ns / _MS for ns in it.tracking.downtime_ns][-64:],
            quarantined={host: each.code for host, each in sorted(it.trust.quarantined.items())},
            memory=self._memory(),
            counters={
                **it.counters, "agents_refused": it.agents.refused, "connections_cut": it.agents.cut_off,
                "plugin_faults": self._modes.faults,
            },
        )  # fmt: skip

    def _memory(self) -> str:
        store = self._shell.store
        if store.lost:
            return f"not written: {store.lost[:400]}"
        return f"the previous file was moved aside: {store.remade[:400]}" if store.remade else ""

    def _hosts(self, request: ina_admin.HostsRequest) -> ina_admin.Hosts:
        it = self._shell
        if request.host and request.is_quarantined is not None:
            it.judge_host(request.host, request.is_quarantined)
        connected, held = it.agents.hosts, it.trust.quarantined
        names = sorted({*connected, *held})
        lines = []
        for name in names[request.after : request.after + request.limit]:
            why = held.get(name)
            lines.append(
                ina_admin.HostLine(
                    host=name, is_connected=name in connected, is_silent=name not in it.reporting,
                    quarantine=why.code if why else "", detail=why.detail if why else "",
                )
            )  # fmt: skip
        return ina_admin.Hosts(hosts=lines, next=self._cut(request.after, request.limit, len(names)))

    # -- jobs -----------------------------------------------------------------------------------------------------
    def _submit(self, request: ina_admin.SubmitRequest) -> ina_admin.Reply:
        it = self._shell
        if request.switches and request.on:
            self._check_switches(request)
        job = it.jobs.submit(
            request.job, request.hosts, request.on, request.ranks_per_host, it.now_ns(), request.switches
        )
        it.planner.restrict(job.name, job.switches)
        if not job.ranks:  # the hosts of live ranks are known better
            it.dispatch(events.JobSubmitted(job.name, job.rank_hosts()))
        it.plan_again()
        return self._job(job.name)

    def _check_switches(self, request: ina_admin.SubmitRequest) -> None:
        """Raises: JobRefused."""
        for host in request.on:
            if not self._shell.agents.is_host(host):
                raise JobRefused("unknown_host", f"the topology has no host named {host!r:.80}")
        try:
            self._shell.planner.check_switches(request.on, request.switches or ())
        except SwitchUnknown as fault:
            raise JobRefused("unknown_switch", str(fault)) from None
        except TreeUnusable as fault:
            raise JobRefused("no_tree", str(fault)) from None

    def _cancel(self, name: str) -> ina_admin.Reply:
        job = self._shell.jobs.cancel(name)
        self._shell.dispatch(events.JobEnded(name))
        self._shell.settle()
        self._shell.planner.restrict(name, job.switches if self._shell.jobs.knows(name) else None)
        return ina_admin.InaJob(job=self._line(job), ranks=[], reasons=list(job.reasons))

    def _jobs(self, request: ina_admin.JobsRequest) -> ina_admin.InaJobs:
        found = [job for job in self._shell.jobs.known() if job.name > request.after]
        page = found[: request.limit]
        return ina_admin.InaJobs(
            jobs=[self._line(job) for job in page], next=page[-1].name if len(page) < len(found) else ""
        )

    def _job(self, name: str) -> ina_admin.InaJob:
        job = self._shell.jobs.get(name)
        states = self._shell.machine.states(name)
        ranks = [
            ina_admin.RankLine(
                rank=state.rank, host=job.ranks.get(state.rank, ""), held=state.held, applied=state.applied,
                lost=state.lost, is_gone=state.is_gone,
            )
            for state in sorted(states, key=lambda state: state.rank)
        ]  # fmt: skip
        return ina_admin.InaJob(job=self._line(job), ranks=ranks[:256], reasons=list(job.reasons))

    def _line(self, job: Job) -> ina_admin.InaJobLine:
        it = self._shell
        granted = it.machine.granted(job.name)
        environment = {"OFFPATH_INA_JOB": job.name}
        if self._directory:
            environment["OFFPATH_INA_DIRECTORY"] = self._directory
        return ina_admin.InaJobLine(
            job=job.name, state=job.state, hosts=list(job.hosts), ranks_per_host=job.ranks_per_host,
            ranks=len(job.ranks), incarnation=job.incarnation, stamp=granted[0].stamp if granted is not None else 0,
            tree=granted[1].tree.name if granted is not None else "",
            root=granted[1].tree.root if granted is not None else "", age_ms=(it.now_ns() - job.since_ns) / _MS,
            environment=environment, switches=None if job.switches is None else list(job.switches),
        )  # fmt: skip

    def _explain(self, name: str) -> ina_admin.InaExplanation:
        job = self._shell.jobs.get(name)
        where, reasons = self._why(job)
        return ina_admin.InaExplanation(job=self._line(job), where=where, reasons=reasons)

    def _why(self, job: Job) -> tuple[str, list[str]]:
        it = self._shell
        plan, granted = it.planner.plan, it.machine.granted(job.name)
        placed = [f"it is on {', '.join(job.hosts)}: {'; '.join(job.reasons)}"] if job.hosts else []
        if job.state in ("cancelled", "ended"):
            return f"it is {job.state}: it gets no tree", placed
        if not job.ranks:
            return "none of its ranks was reported: check that they run with OFFPATH_INA_JOB set", placed
        states = it.machine.states(job.name)
        if not any(view.job == job.name for view in it.machine.views()):
            count = states[0].ranks if states else 0
            missing = sorted(set(range(count)) - {state.rank for state in states if not state.is_gone})
            return f"ranks {missing[:16]} of {count} were not reported", placed
        if granted is not None:
            epoch, assignment = granted
            behind = [state.rank for state in states if state.applied < epoch.stamp]
            share = plan.shares.get(job.name)
            how = f"for {_WANTS[share.wants]}" if share is not None else ""
            beside = [other for jobs in plan.groups.values() if job.name in jobs for other in jobs if other != job.name]
            placed.append(f"it shares the root with {', '.join(beside)}" if beside else "no other job uses this root")
            if behind:
                placed.append(f"ranks {behind[:16]} have not applied it yet: they apply it at a step's boundary")
            return f"it may use the tree {assignment.tree.name} {how}", placed
        if job.name in plan.without:
            return f"it runs without a tree: {plan.without[job.name]}", placed
        if job.name in plan.shares:
            holds = it.machine.ledger.holds()
            own = [self._waited_for(hold) for hold in holds if hold.permission.job == job.name]
            tree = plan.trees[job.name]
            names = {it.planner.name_of(switch) for switch in tree.switches}
            others = sorted({hold.permission.job for hold in holds if hold.switch in names} - {job.name})
            held = [f"{other} holds a place at a switch of its tree" for other in others]
            return "its planned tree is not free yet", [*placed, *own, *held][:32]
        return "no tree is planned for it", placed

    def _cut(self, after: int, limit: int, count: int) -> int:
        return after + limit if after + limit < count else 0

    # -- trees ----------------------------------------------------------------------------------------------------
    def _groups(self, request: ina_admin.GroupsRequest) -> ina_admin.Groups:
        planner = self._shell.planner
        plan = planner.plan
        lines = [
            ina_admin.GroupLine(
                root=planner.name_of(root), jobs=list(jobs),
                using={job: _WANTS[plan.shares[job].wants] for job in jobs if job in plan.shares},
            )
            for root, jobs in plan.groups.items()
        ]  # fmt: skip
        page = lines[request.after : request.after + request.limit]
        return ina_admin.Groups(
            mode=planner.settings.mode, groups=page, next=self._cut(request.after, request.limit, len(lines))
        )

    def _trees(self, request: ina_admin.TreesRequest) -> ina_admin.TreeLines:
        it = self._shell
        lines = []
        jobs = it.jobs.known()
        for job in jobs[request.after : request.after + request.limit]:
            granted = it.machine.granted(job.name)
            tree = it.planner.plan.trees.get(job.name)
            since_ns = it.tracking.since_ns(job.name)
            lines.append(
                ina_admin.TreeLine(
                    job=job.name, root=it.planner.name_of(tree.root) if tree is not None else "",
                    switches=[it.planner.name_of(switch) for switch in tree.switches] if tree is not None else [],
                    attach=list(granted[1].tree.attach) if granted is not None else [],
                    is_granted=granted is not None, stamp=granted[0].stamp if granted is not None else 0,
                    since_ms=(it.now_ns() - since_ns) / _MS if since_ns is not None else 0.0, why=self._why(job)[0],
                )
            )  # fmt: skip
        return ina_admin.TreeLines(trees=lines, next=self._cut(request.after, request.limit, len(jobs)))

    def _holds(self, request: ina_admin.HoldsRequest) -> ina_admin.Holds:
        it = self._shell
        holds = it.machine.ledger.holds()
        lines = [
            ina_admin.HoldLine(
                switch=hold.switch, job=hold.permission.job, incarnation=hold.permission.incarnation,
                stamp=hold.permission.stamp, slot=hold.slot, since_ms=(it.now_ns() - hold.since_ns) / _MS,
                is_allowed=hold.is_allowed, why=self._waited_for(hold),
            )
            for hold in holds[request.after : request.after + request.limit]
        ]  # fmt: skip
        return ina_admin.Holds(holds=lines, next=self._cut(request.after, request.limit, len(holds)))

    def _waited_for(self, hold: Hold) -> str:
        permission = hold.permission
        if not hold.is_allowed:
            return f"{hold.switch} has not confirmed the permission"
        if hold.fenced_by is not None:
            return f"{hold.switch} has not confirmed a fence"
        granted = self._shell.machine.granted(permission.job)
        if granted is not None and granted[0].stamp == permission.stamp:
            return "the job may use it"
        states = self._shell.machine.states(permission.job)
        behind = sorted(state.rank for state in states if state.applied <= permission.stamp)
        if behind:
            return f"ranks {behind[:16]} have not left it yet"
        return "its switches have not all confirmed it" if granted is None else "a newer epoch replaces it"

    def _mode(self, request: ina_admin.ModeRequest) -> ina_admin.Reply:
        if request.mode or request.link_bytes_per_s is not None:
            self._modes.set(request.mode, request.link_bytes_per_s)
        settings = self._shell.planner.settings
        return ina_admin.ModeNow(
            mode=settings.mode, capacity=settings.capacity, link_bytes_per_s=settings.link_bytes_per_s
        )
