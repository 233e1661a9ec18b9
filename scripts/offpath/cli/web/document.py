"""The page's data as JSON. Lists are tables: the names of the fields once, then a row per line.

Session and job numbers have 64 bits; they are strings, because a number of JavaScript has 53.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pydantic import BaseModel

from offpath.bindings.mig import WHOLE, GpuModel, gpu_models
from offpath.bindings.wire import admin, ina_admin
from offpath.cli.commands.request_show import STAGES
from offpath.cli.web.history import Held, Span
from offpath.cli.web.reader import ControllerSeen, DaemonSeen, ManagerSeen
from offpath.sched.topology.graph import Topology

MOST_NODES: Final = 512
"""Hosts and switches of the topology that the page draws."""
_LEASE: Final = (
    "lease", "tenant", "gpu", "profile", "start", "alpha", "state", "is_pinned", "jobs", "running", "running_share",
    "lanes", "held_ms", "is_restricted", "load_ms",
)  # fmt: skip
_TENANT: Final = (
    "tenant", "jobs", "queued", "running", "sessions", "leases", "held_share", "max_share", "p50_ms", "p99_ms",
)  # fmt: skip
_JOB: Final = ("tenant", "kernel", "demand", "priority", "state", "reason", "lease", "age_ms", "deadline_in_ms")
_SPAN: Final = ("number", "lease", "tenant", "gpu", "start", "slices", "profile", "begin_ms", "end_ms")
_INA_JOB: Final = ("job", "state", "hosts", "ranks_per_host", "ranks", "tree", "root", "age_ms")
_GROUP: Final = ("root", "jobs", "using")
_TREE: Final = ("job", "root", "switches", "is_granted", "since_ms", "why")
_HOLD: Final = ("switch", "job", "slot", "since_ms", "is_allowed", "why")
_WORK: Final = ("job", "state", "gpus", "model", "server", "uses_ina", "rate_bps", "age_s")
_HOSTS_OF_A_JOB: Final = 64
Table = dict[str, Any]


@cache
def _model(name: str) -> GpuModel | None:
    return gpu_models().get(name)


def held(daemon: DaemonSeen) -> list[Held]:
    """What each lease occupies; a gang's lease every GPU that it has."""
    lines = {line.gpu: line for line in daemon.status.gpus}
    found = []
    for lease in daemon.leases:
        line = lines.get(lease.gpu)
        slices = instance_slices(lease.profile, line.model if line else "", line.compute_slices if line else 1)
        for gpu in (lease.gpu, *lease.others):
            found.append(
                Held(lease.lease, lease.generation, gpu, lease.start, slices, lease.profile, lease.tenant,
                     lease.held_ms)
            )  # fmt: skip
    return found


def gpu_slices(model: str, compute_slices: int) -> int:
    """Memory slices of a GPU. A model that is not in the table has as many as compute slices."""
    known = _model(model)
    return known.memory_slices if known is not None else compute_slices


def instance_slices(profile: str, model: str, compute_slices: int) -> int:
    """Memory slices of an instance. Without the model's table: the compute slices in the profile's name.

    >>> instance_slices("3g.20gb", "A100-40GB", 7), instance_slices("2g.9gb", "X", 7), instance_slices("whole", "X", 1)
    (4, 2, 1)
    """
    if profile == WHOLE:
        return gpu_slices(model, compute_slices)
    known = _model(model)
    for each in known.profiles if known is not None else ():
        if each.name == profile:
            return each.memory_slices
    first = profile[:1]
    return max(1, int(first)) if first.isascii() and first.isdigit() else 1


def table(lines: Iterable[BaseModel], fields: Sequence[str], *, is_cut: bool = False) -> Table:
    """A row per line. ``is_cut``: there are more lines."""
    rows = [[_rounded(getattr(line, name)) for name in fields] for line in lines]
    return {"fields": fields, "rows": rows, "is_cut": is_cut}


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


def _jobs(lines: Iterable[admin.JobLine], *, is_cut: bool = False) -> Table:
    made = table(lines, _JOB, is_cut=is_cut)
    rows = [
        [str(line.job), f"{line.session}/{line.request_id}", *row]
        for line, row in zip(lines, made["rows"], strict=True)
    ]
    return {**made, "fields": ("job", "request", *_JOB), "rows": rows}


def rates(before: DaemonSeen, now: DaemonSeen) -> dict[str, float]:
    """Completed jobs per second by tenant between two polls. None are known if the daemon restarted in between."""
    passed_ms = now.status.uptime_ms - before.status.uptime_ms
    if before.status.pid != now.status.pid or passed_ms <= 0:
        return {}
    earlier = {line.tenant: line.ended.get("completed", 0) for line in before.tenants}
    return {
        line.tenant: (line.ended.get("completed", 0) - earlier[line.tenant]) / passed_ms * 1e3
        for line in now.tenants
        if line.tenant in earlier
    }


def daemon(seen: DaemonSeen, by_tenant: dict[str, float]) -> dict[str, Any]:
    """The daemon's part. ``by_tenant``: completed jobs per second."""
    status = seen.status
    tenants = table(seen.tenants, _TENANT, is_cut="tenants" in seen.cut)
    tenants["fields"] = (*_TENANT, "jobs_per_s", "ended")
    for line, row in zip(seen.tenants, tenants["rows"], strict=True):
        row += [round(by_tenant.get(line.tenant, 0.0), 1), line.ended]
    gpus = [
        {**line.model_dump(mode="json"), "memory_slices": gpu_slices(line.model, line.compute_slices)}
        for line in status.gpus
    ]
    return {
        "status": status.model_dump(mode="json", exclude={"kind", "gpus"}),
        "gpus": gpus,
        "tenants": tenants,
        "leases": table(seen.leases, _LEASE, is_cut="leases" in seen.cut),
        "jobs": _jobs(seen.jobs, is_cut="jobs" in seen.cut),
        "ended": _jobs(seen.ended),
    }


def controller(seen: ControllerSeen, plan: Plan | None) -> dict[str, Any]:
    """The controller's part. ``plan``: of the topology, if one was given."""
    jobs = table(seen.jobs, _INA_JOB, is_cut="jobs" in seen.cut)
    for row in jobs["rows"]:
        row[2] = row[2][:_HOSTS_OF_A_JOB]
    return {
        "status": seen.status.model_dump(mode="json", exclude={"kind"}),
        "jobs": jobs,
        "groups": table(seen.groups, _GROUP, is_cut="groups" in seen.cut),
        "trees": table(seen.trees, _TREE, is_cut="trees" in seen.cut),
        "holds": table(seen.holds, _HOLD, is_cut="holds" in seen.cut),
        "network": network(seen, plan),
    }


def manager(seen: ManagerSeen) -> dict[str, Any]:
    """The job manager's part."""
    jobs = table(seen.jobs, _WORK, is_cut="jobs" in seen.cut)
    jobs["fields"] = (*_WORK, "nodes")
    for line, row in zip(seen.jobs, jobs["rows"], strict=True):
        row.append([f"{share.node}:{share.count}" for share in line.shares[:_HOSTS_OF_A_JOB]])
    return {"status": seen.status.model_dump(mode="json", exclude={"kind", "nodes"}), "jobs": jobs}


@dataclass(frozen=True, slots=True)
class Plan:
    """A network as the page draws it: the level of each node, and the nodes that its links lead up to. ``is_known``:
    it is a topology's, and not only what the controller names."""

    level: dict[str, int]
    above: dict[str, dict[str, None]]
    is_known: bool

    @classmethod
    def of(cls, level: dict[str, int], links: Iterable[tuple[str, str]], *, is_known: bool) -> Plan:
        """``links``: (lower, upper)."""
        above: dict[str, dict[str, None]] = {}
        for low, high in links:
            above.setdefault(low, {})[high] = None
        return cls(level, above, is_known)


def plan_of(topology: Topology) -> Plan:
    """Made once for a topology: a large one has tens of thousands of nodes."""
    names = topology.names
    level = dict(zip(names, topology.level, strict=True))
    return Plan.of(level, ((names[low], names[high]) for low, high in topology.links), is_known=True)


def network(seen: ControllerSeen, plan: Plan | None) -> dict[str, Any]:
    """Nodes with their levels, and links. Without a plan: the switches and hosts that the controller names, with the
    links that a tree has in any case. Of more than `MOST_NODES` nodes those that a job uses come first. The time that
    it takes does not grow with the plan."""
    hosts = dict.fromkeys(host for job in seen.jobs for host in job.hosts)
    switches = dict.fromkeys([name for tree in seen.trees for name in tree.switches] + list(seen.status.switches))
    if plan is None:
        roots = {tree.root for tree in seen.trees}
        level = {name: 2 if name in roots and len(switches) > 1 else 1 for name in switches} | dict.fromkeys(hosts, 0)
        links = ((low, tree.root) for tree in seen.trees for low in tree.switches if low != tree.root and tree.root)
        plan = Plan.of(level, links, is_known=False)
    first = (name for name in (*switches, *hosts) if name in plan.level)
    number: dict[str, int] = {}
    for name in itertools.chain(first, plan.level):
        if len(number) == MOST_NODES:
            break
        number.setdefault(name, len(number))
    return {
        "nodes": [[name, plan.level[name]] for name in number],
        "links": [
            [n, number[high]] for name, n in number.items() for high in plan.above.get(name, ()) if high in number
        ],
        "is_known": plan.is_known,
        "left_out": len(plan.level) - len(number),
    }


def spans(found: Iterable[Span]) -> Table:
    """Spans of the chart."""
    rows = [
        [span.number, span.held.lease, span.held.tenant, span.held.gpu, span.held.start, span.held.slices,
         span.held.profile, round(span.begin_ms), None if span.end_ms is None else round(span.end_ms)]
        for span in found
    ]  # fmt: skip
    return {"fields": _SPAN, "rows": rows}


def explanation(found: admin.Explanation) -> dict[str, Any]:
    """An explained request."""
    made = found.model_dump(mode="json", exclude={"kind"})
    made["job"] |= {"job": str(found.job.job), "session": str(found.job.session)}
    made["stages"] = [[name, round(ms, 3)] for name, ms in zip(STAGES, found.stages_ms, strict=False)]
    return made


def job_explanation(found: ina_admin.InaExplanation) -> dict[str, Any]:
    """An explained training job."""
    return found.model_dump(mode="json", exclude={"kind"})
