"""A node under load whose processes are killed, and the books that must balance afterwards."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from offpath.bindings.wire import admin
from offpath.cli.admin_client import AdminClient

from ..host_helper.gateway.process import GatewayProcess
from ..host_helper.gateway.rig import Rig
from ..host_helper.migd.rig import Migd
from ..support.carriers import Carrier
from ..support.cluster import Cluster, pids_of
from ..support.doca import emulator
from ..support.processes import BOUND_S, Process, until

TENANTS = ("ada", "bob", "cyd")
HELPERS = ("a", "b")
"""Of a node with several."""
_SIZES = {"slots": 6, "payload_bytes": 4096, "result_bytes": 8192}
"""Of a session."""
ATTEMPTS = 3  # of an idempotent request


@dataclass(slots=True)
class Books:
    """What the logs of all requesters and of the kernel say, added up."""

    begun: dict[str, str] = field(default_factory=dict)
    """By tag: the kernel, or "gateway"."""
    ends: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    launches: Counter[str] = field(default_factory=Counter)
    rung: dict[str, float] = field(default_factory=dict)
    completed: list[tuple[float, float]] = field(default_factory=list)
    """(rung, ended) of completed requests"""

    def statuses(self) -> Counter[str]:
        return Counter(status for ends in self.ends.values() for status, _ in ends)

    def forms(self) -> Counter[str]:
        """How many of each form were completed."""
        return Counter(self.begun[tag] for tag, ends in self.ends.items() if ends[0][0] == "COMPLETED")


class Node:
    """A daemon under a service manager, a helper, and a requester per tenant, all at work."""

    def __init__(
        self, seed: int, *, daemon: dict[str, str] | None = None, helper: dict[str, str] | None = None,
        requester: dict[str, str] | None = None, channel: str = "", copy_engine: str = "", migd: Migd | None = None,
        forms: bool = False, **durability: Any,
    ) -> None:  # fmt: skip
        """``channel``: it joins helper and daemon, and DOCA's emulator copies; else all is loopback, but a
        ``copy_engine`` that is named. ``migd``: it cuts the helper's instances, on emulators of NVML and CUDA; else the
        GPU is loopback's. ``forms``: two helpers; requests that share launches, steps of sequences; and a gateway with
        clients of the first two tenants."""
        self.random = Random(seed)
        self.seed = seed
        self.dead: set[str] = set()
        """Names of requesters that were killed: nobody is left to hear their answers."""
        settings = {"resume_ttl_s": 4, "adopt_ms": 1500, "journal_mib": 1, **durability}
        narrow = {"max_share": 14, "profile": "1g.5gb"}
        if channel:
            emulator()  # skips before anything is made that the test would have to end
        self._carried = tempfile.TemporaryDirectory(prefix="offpath-c-")
        tables: dict[str, Any] = {"datapath": {"copy_engine": copy_engine}} if copy_engine else {}
        carrier = Carrier(Path(self._carried.name), channel) if channel else None
        self.cluster = Cluster(
            dict.fromkeys(TENANTS, narrow), keep={"starts": 0, "watchdog_s": 0},
            environment={**(carrier.environment("dpu") if carrier else {}), **(daemon or {})},
            durability=settings, leasing={"keep_warm_ms": 500, "landing_bytes": 8192, "result_bytes": 8192},
            **(carrier.tables() if carrier else tables),
        )  # fmt: skip
        self._helper_environment = {
            "OFFPATH_TEST_TALLY": str(self.cluster.folder / "tally"),
            **(carrier.environment("host") if carrier else {}), **(helper or {}),
        }  # fmt: skip
        self._helper_options: dict[str, Any] = carrier.options() if carrier else {}
        self._migd = migd
        if migd is not None:
            self._helper_options |= {"emulate": [], "gpus": "migd", "migd": migd.path}
        self._forms = forms
        self._helpers: dict[str, Process] = {}
        self._gateway: GatewayProcess | None = None
        self._clients: list[Process] = []
        self._born = time.monotonic()
        self._names = 0
        self.requesters: dict[str, Process] = {}
        try:
            for name in HELPERS if forms else ("",):
                self._start_helper(name, self._helper_environment)
            for tenant in TENANTS:
                self.start_requester(tenant, requester if tenant == TENANTS[0] else None)
            if forms:
                self._start_gateway()
                self._clients = [self._start_clients(tenant) for tenant in TENANTS[:2]]
        except BaseException:
            self.kill_all()
            raise

    def start_requester(self, tenant: str, environment: dict[str, str] | None = None) -> str:
        self._names += 1
        name, folder = f"{tenant}{self._names}", self.cluster.folder
        process = self.cluster.start(
            name, "sweep_main.py", self.cluster.address, tenant, str(folder / f"{tenant}.token"), name,
            str(folder / f"{name}.log"), str(self.random.randrange(1 << 30)), *(["forms"] if self._forms else []),
            environment=environment,
        )  # fmt: skip
        self.requesters[name] = process
        if environment is None:
            assert process.hear() == "ready"
        return name

    def _start_helper(self, name: str, environment: dict[str, str]) -> None:
        more = {"name": name, "forms": True} if name else {}
        self._helpers[name] = self.cluster.start_helper(environment, **self._helper_options, **more)

    def _start_gateway(self) -> None:
        """Its clients find it by the address in a file."""
        folder = self.cluster.folder / "gateway"
        folder.mkdir(exist_ok=True)
        self._gateway = GatewayProcess(self.cluster, folder, _SIZES, grpc="")
        written = folder / "address.new"
        written.write_text(self._gateway.addresses["http"])
        written.replace(folder / "address")

    def _start_clients(self, tenant: str) -> Process:
        name, folder = f"web.{tenant}", self.cluster.folder
        process = self.cluster.start(
            name, "sweep_web_main.py", str(folder / "gateway" / "address"), Rig.token(tenant), name,
            str(folder / f"{name}.log"), str(self.random.randrange(1 << 30)),
        )  # fmt: skip
        assert process.hear() == "ready"
        return process

    # -- load -----------------------------------------------------------------------------------------------------
    def lines(self) -> int:
        """Requests that ended so far."""
        return sum(path.read_bytes().count(b"\nE ") for path in self.cluster.folder.glob("*.log"))

    def work(self, ends: int = 20) -> None:
        """Until so many more requests have ended: the node lives. Then up to 30 ms more, so that moments differ."""
        before = self.lines()
        until(lambda: self.lines() >= before + ends)
        time.sleep(self.random.random() * 0.03)

    # -- kills ----------------------------------------------------------------------------------------------------
    def kill(self, victim: str) -> float:
        """Kill one process of the kind and see to its replacement, as its service manager would. Returns when."""
        if victim == "daemon":  # the service manager delays the restart after runs shorter than a second
            time.sleep(max(0.0, self._born + 1.1 - time.monotonic()))
        now = time.monotonic()
        if victim == "daemon":
            os.kill(pids_of(self.cluster.daemon)[0], signal.SIGKILL)
            self.reborn()
        elif victim == "worker":
            if workers := [pid for helper in self._helpers.values() for pid in pids_of(helper)]:
                os.kill(self.random.choice(workers), signal.SIGKILL)
        elif victim == "gateway":
            assert self._gateway is not None
            self._gateway.kill()
            self._start_gateway()
        elif victim == "migd":
            assert self._migd is not None
            self._migd.end()
            self._migd.start()
        elif victim == "helper":
            name = self.random.choice(sorted(self._helpers))
            self._helpers[name].kill()
            self.restart_helper(name)
        else:
            name = self.random.choice([name for name in self.requesters if name not in self.dead])
            self.requesters[name].kill()
            self.dead.add(name)
            self.start_requester(name[:3])
        return now

    def restart_helper(self, name: str = "") -> None:
        """Without the faults that the first had."""
        clean = {key: text for key, text in self._helper_environment.items() if key != "OFFPATH_FAULTS"}
        self._start_helper(name, clean)

    def reborn(self) -> None:
        """The service manager has started the daemon again, and it goes on with the same journal."""
        assert self.cluster.daemon.hear()["lineage"] == self.cluster.lineage
        self._born = time.monotonic()

    # -- the end --------------------------------------------------------------------------------------------------
    def settle(self) -> Books:
        """Everybody stops asking and waits for what is under way; then no lease is left."""
        alive = {name: process for name, process in self.requesters.items() if name not in self.dead}
        alive |= {process.name: process for process in self._clients}
        for process in alive.values():
            process.tell("stop")
        for name, process in alive.items():
            left = process.hear(2 * BOUND_S)
            assert left == {"left": []}, f"seed {self.seed}: {name} never got {left}"
            process.finish(is_notified=True)  # it ends by itself; a SIGTERM could still kill it on its way out
        if self._gateway is not None:
            self._gateway.close()
        nothing = {"jobs": 0, "leases": 0, "sessions": 0}
        until(lambda: held_by(self.cluster) == nothing, BOUND_S)
        books = self.books()
        self.cluster.close()
        return books

    def books(self) -> Books:
        books = Books()
        for path in self.cluster.folder.glob("*.log"):
            for line in path.read_text().splitlines():
                kind, tag, *rest = line.split()
                if kind == "B":
                    books.begun[tag] = rest[0]
                elif kind == "R":
                    books.rung[tag] = float(rest[0])
                else:
                    books.ends.setdefault(tag, []).append((rest[0], rest[1]))
                    if rest[0] == "COMPLETED":
                        books.completed.append((books.rung[tag], float(rest[2])))
        tally = self.cluster.folder / "tally"
        if tally.exists():
            books.launches.update(tally.read_text().split())
        return books

    def kill_all(self) -> None:
        if self._gateway is not None:
            self._gateway.kill()
        self.cluster.kill()
        self._carried.cleanup()


def held_by(cluster: Cluster) -> dict[str, int]:
    """What the daemon's admin socket says it holds."""
    with AdminClient(str(cluster.run_folder)) as client:
        jobs = client.query(admin.JobsRequest(), admin.Jobs).jobs
        leases = client.query(admin.LeasesRequest(), admin.Leases).leases
        sessions = client.query(admin.SessionsRequest(), admin.Sessions).sessions
    return {"jobs": len(jobs), "leases": len(leases), "sessions": len(sessions)}


def balance(books: Books, dead: set[str], *, may_be_unknown: bool, may_be_lost: bool = False) -> None:
    """Every request of a living requester ended once, as its status says, and no kernel ran twice. ``may_be_lost``: a
    gateway was killed, which leaves its clients without an answer."""
    for tag in sorted(books.begun):
        kind, name, _ = tag.split("-")
        ends, launches = books.ends.get(tag, []), books.launches[tag]
        assert launches <= (ATTEMPTS if kind == "i" else 1), f"{tag} was launched {launches} times"
        if name in dead:
            assert len(ends) <= 1, f"{tag} ended {ends}"
            continue
        assert len(ends) == 1, f"{tag} ended {ends}"
        status, reason = ends[0]
        if status == "COMPLETED":
            assert launches >= 1, f"{tag} completed without a launch"
        elif status in ("RETRY_SAFE", "REJECTED", "NOT_BEGUN"):
            assert launches == 0, f"{tag} is {status} ({reason}) and was launched"
        elif status == "LOST":
            assert may_be_lost, f"{tag}: no gateway died, yet {reason}"
            assert name.startswith("web."), f"{tag} is no request of a gateway's client"
        elif status == "OUTCOME_UNKNOWN":
            assert may_be_unknown, f"{tag}: nothing died that could have run it, yet {reason}"
        else:
            assert status in ("CANCELLED", "EXPIRED"), f"{tag}: {status} {reason}"
    strangers = books.launches.keys() - books.begun.keys()
    assert not strangers, f"launched, but begun by nobody: {sorted(strangers)[:3]}"


def percentiles(values: list[float]) -> tuple[float, float]:
    """(p50, p99)"""
    ranked = sorted(values)
    return ranked[len(ranked) // 2], ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))]
