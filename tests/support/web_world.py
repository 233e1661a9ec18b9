"""Generated state for the page's server: a cluster of any size, hostile names, training jobs on trees."""

from __future__ import annotations

import time
from typing import Any

from offpath.bindings.errors import OffpathError
from offpath.bindings.wire import admin, ina_admin, work_admin
from offpath.cli.admin_client import Refused, request
from offpath.cli.web.reader import ControllerSeen, DaemonSeen, ManagerSeen, Seen

HOSTILE = "<img src=x onerror=alert(1)>"
TWISTED = "a\u202eb\x1b[2J"
MODEL = "A100-40GB"


def status(gpus: int, leases: int, tenants: int) -> admin.Status:
    lines = [
        admin.GpuLine(gpu=f"helper/GPU-{n}", model=MODEL, is_emulated=True, compute_slices=7, held_share=98)
        for n in range(gpus)
    ]
    return admin.Status(
        release="0", lineage="l", pid=1, uptime_ms=60_000, is_draining=False, is_last_good=False, drain_ms=1000,
        has_helper=True, helpers=[], gpus=lines, kernels=["echo"], tenants=tenants, sessions=tenants, leases=leases,
        unanswered=1, queued=1, leaving=0,
    )  # fmt: skip


def tenant(name: str, leases: int = 1, completed: int = 0) -> admin.TenantLine:
    return admin.TenantLine.model_construct(
        tenant=name, jobs=2, queued=1, running=1, sessions=1, leases=leases, held_share=14 * leases, max_share=100_000,
        ended={"completed": completed, "failed": 1}, p50_ms=1.5, p99_ms=20.0,
    )  # fmt: skip


def lease(number: int, name: str, gpu: int, start: int, profile: str = "1g.5gb", **more: Any) -> admin.LeaseLine:
    line: dict[str, Any] = {
        "lease": number, "generation": 1, "tenant": name, "gpu": f"helper/GPU-{gpu}", "profile": profile,
        "start": start, "alpha": 14, "lanes": 2, "state": "warm", "is_pinned": False, "jobs": number % 3,
        "running": int(number % 3 > 0), "running_share": 14 * int(number % 3 > 0),
        "held_ms": 5000.0 + 7919 * number % 53_000, "is_restricted": False,
        "load_ms": 12, "others": [],
    } | more  # fmt: skip
    return admin.LeaseLine.model_construct(**line)


def job(number: int, name: str, state: str = "queued", **more: Any) -> admin.JobLine:
    line: dict[str, Any] = {
        "job": number, "session": (1 << 63) + 1, "request_id": number, "tenant": name, "kernel": "classify",
        "demand": 14, "priority": 0, "payload_bytes": 4096, "state": state, "reason": "none",
        "age_ms": 12.0, "deadline_in_ms": 900.0,
        "lease": 0, "attempt": 0, "is_ended": state not in ("queued", "launched"), "cancelled_by_uid": None,
    } | more  # fmt: skip
    return admin.JobLine.model_construct(**line)


def daemon(leases: int, tenants: int = 6, names: list[str] | None = None) -> DaemonSeen:
    """Seven 1g.5gb on each GPU."""
    names = names or [f"tenant-{n + 1}" for n in range(tenants)]
    gpus = max(1, -(-leases // 7))
    lines = [lease(n + 1, names[n * 5 % len(names)], n // 7, n % 7) for n in range(leases)]
    count = {name: sum(line.tenant == name for line in lines) for name in names}
    return DaemonSeen(
        status(gpus, leases, len(names)), [tenant(name, count[name]) for name in names], lines,
        [job(n, names[n % len(names)]) for n in range(1, 4)],
        [job(n, names[n % len(names)], "completed") for n in range(4, 8)],
    )  # fmt: skip


def controller() -> ControllerSeen:
    """Two jobs that share the root s0, on the hosts h1 … h8 under s1 … s4."""
    state = ina_admin.ControllerStatus(
        term=3, pid=2, uptime_ms=9000, mode="shared", capacity=1, agents=[f"h{n}" for n in range(1, 9)], silent=[],
        quarantined={}, memory="", switches={"s0": True, "s1": True, "s2": True, "s3": True, "s4": False}, jobs=2,
        holds=2, migrations=0, downtime_ms=[], counters={},
    )  # fmt: skip
    jobs = [
        ina_admin.InaJobLine(
            job=name, state="running", hosts=hosts, ranks_per_host=2, ranks=2 * len(hosts), incarnation=1, stamp=7,
            tree=f"tree-{name}", root="s0", age_ms=61_000.0, environment={},
        )
        for name, hosts in (("resnet", ["h1", "h2", "h3", "h4"]), ("vgg", ["h3", "h5", "h6"]))
    ]  # fmt: skip
    trees = [
        ina_admin.TreeLine(
            job="resnet", root="s0", switches=["s0", "s1", "s2"], attach=[], is_granted=True, stamp=7, since_ms=4000.0,
            why="it may use the tree tree-resnet for every all-reduce",
        ),
        ina_admin.TreeLine(
            job="vgg", root="s0", switches=["s0", "s2", "s3"], attach=[], is_granted=False, stamp=0, since_ms=0.0,
            why="resnet may use the root; it waits for its turn",
        ),
    ]  # fmt: skip
    holds = [
        ina_admin.HoldLine(
            switch=switch, job="resnet", incarnation=1, stamp=7, slot="0", since_ms=4000.0, is_allowed=True,
            why="the job may use it",
        )
        for switch in ("s0", "s1", "s2")
    ]  # fmt: skip
    group = ina_admin.GroupLine(root="s0", jobs=["resnet", "vgg"], using={"resnet": "every all-reduce"})
    return ControllerSeen(state, jobs, [group], trees, holds)


def manager() -> ManagerSeen:
    state = work_admin.Status(
        pid=3, uptime_s=5.0, engine="local", engine_fault="", policy="netpack", batch_s=1.0, batches=4, jobs={},
        nodes=[], node_count=0, counters={},
    )  # fmt: skip
    line = work_admin.JobLine(
        job="night", identity="night-1", state="running", gpus=8, model="vgg16", data_bytes=528_000_000, value=1.0,
        user="ada", shares=[work_admin.ShareLine(node="n1", count=4, gpus=[0, 1, 2, 3]),
                            work_admin.ShareLine(node="n2", count=4, gpus=[0, 1, 2, 3])],
        server="n1", uses_ina=True, rate_bps=41.3e9, batches=1, age_s=100.0, run_s=99.0, exit_code=None, is_held=False,
        is_cancelled=False,
    )  # fmt: skip
    return ManagerSeen(state, [line])


class Failing:
    """A source that reads three polls, and then either hangs, or reads nothing and has a fault of each service."""

    def __init__(self, world: World, *, hangs: bool) -> None:
        self._world, self._hangs = world, hangs
        self.explain, self.explain_job = world.explain, world.explain_job

    def read(self) -> Seen:
        seen = self._world.read()
        if self._world.reads <= 3:
            return seen
        if self._hangs:
            time.sleep(3600)
        return Seen(faults=dict.fromkeys(("daemon", "controller", "job manager"), "<b>not an operator</b>"))


class World:
    """A source of what does not change, but for the age of its leases."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self.reads = 0
        self.explained: list[dict[str, int]] = []
        self.fault: OffpathError | None = None
        """Of each explanation."""

    def read(self) -> Seen:
        self.reads += 1
        return self.seen

    def explain(self, identity: dict[str, int]) -> admin.Explanation:
        self.explained.append(identity)
        if self.fault is not None:
            raise self.fault
        if identity.get("request_id") == 404:
            raise Refused("unknown_request", "there is no such request")
        hold = admin.HoldLine(
            cause="no_room", text="no legal start of 1g.5gb is free", unblocked_by=["lease 1 ends"],
            holders=[
                admin.HolderLine(
                    lease=1, tenant="tenant-1", gpu="helper/GPU-0", profile="1g.5gb", start=0, state="warm", jobs=2
                )
            ], starts=[],
        )  # fmt: skip
        line = job(identity.get("request_id", identity.get("job", 1)), "tenant-2", session=identity.get("session", 1))
        return admin.Explanation(
            job=admin.JobLine(**line.__dict__), where="it waits for a lease", holds=[hold], ahead=2, estimate_ms=40.0
        )

    def explain_job(self, name: str) -> ina_admin.InaExplanation:
        request(ina_admin.ExplainRequest, job=name)
        seen = self.seen.controller
        found = [line for line in seen.jobs if line.job == name] if seen is not None else []
        if not found:
            raise Refused("unknown_job", "there is no such job")
        return ina_admin.InaExplanation(
            job=found[0], where="it may use the tree", reasons=["no other job uses this root"]
        )
