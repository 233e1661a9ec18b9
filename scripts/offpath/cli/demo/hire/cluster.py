"""The demo's cluster: emulated switches of different kinds, eight servers of an engine, a job manager."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from offpath.bindings.errors import PeerGone
from offpath.bindings.wire import inc_admin
from offpath.cli import inc_client
from offpath.cli.local.child import COMMAND_LINE, start
from offpath.cli.local.engines import Started
from offpath.cli.local.job_manager import JobManager

_START_S: Final = 60.0
_PORTS: Final = 64


@dataclass(frozen=True, slots=True)
class SwitchKind:
    """``hosts``: how many servers are below it. ``below``: switches."""

    features: tuple[str, ...]
    sram_kib: int = 22 * 1024
    hosts: int = 0
    below: tuple[str, ...] = ()


LEAVES: Final = ("leaf0", "leaf1", "leaf2", "leaf3")
SWITCHES: Final[dict[str, SwitchKind]] = {
    "leaf0": SwitchKind(("p4-14",), hosts=2),
    "leaf1": SwitchKind(("p4-14",), hosts=2),
    "leaf2": SwitchKind(("p4-14", "sharp"), hosts=2),
    "leaf3": SwitchKind(("openflow",), hosts=2),
    "spine0": SwitchKind(("p4-14", "sharp"), below=LEAVES),
    "spine1": SwitchKind(("p4-14",), 11 * 1024, below=LEAVES),
}
SERVERS: Final = {name: kind.hosts for name, kind in SWITCHES.items() if kind.hosts}
"""How many below each leaf switch: what the engine is started with."""
TENANTS: Final = ("web", "ml", "ops")


@dataclass(slots=True)
class Cluster:
    """Use `running`."""

    folder: str
    manager: JobManager
    switches: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def runtime_dir(self) -> str:
        """Of the job manager."""
        return self.manager.runtime_dir

    def submit(self, request: inc_admin.SubmitRequest) -> inc_admin.Shown:
        """Raises: Refused."""
        with inc_client.client(self.runtime_dir) as here:
            return here.query(request, inc_admin.Shown)

    def shown(self, name: str) -> inc_admin.Shown:
        """Raises: Refused."""
        return inc_client.shown(name, self.runtime_dir)

    def cancel(self, name: str) -> None:
        """Raises: Refused."""
        with inc_client.client(self.runtime_dir) as here:
            here.query(inc_admin.CancelRequest(name=name), inc_admin.Shown)

    def kill_switch(self, name: str) -> None:
        """As a loss of power would."""
        self.switches[name].send_signal(signal.SIGKILL)
        self.switches[name].wait()

    def end_tasks(self, names: list[str], within_s: float) -> None:
        """Cancel requests and wait until no process of theirs is left. Raises: PeerGone."""
        with inc_client.client(self.runtime_dir) as here:
            page = here.query(inc_admin.ListRequest(is_ended=True), inc_admin.RequestLines)
        names = [each.name for each in page.requests if each.name in names]
        for name in names:
            self.cancel(name)
        until = time.monotonic() + within_s
        while any(not task.is_inc for name in names for task in self.shown(name).tasks):
            if time.monotonic() > until:
                raise PeerGone(f"tasks on servers did not end in {within_s:g} s")
            time.sleep(0.1)


def tables(folder: str, first_port: int, engine: Started) -> dict[str, Any]:
    """The job manager's configuration."""
    switches = [
        {"name": name, "control": f"{folder}/{name}.sock", "features": list(kind.features), "sram_kib": kind.sram_kib,
         "hosts": list(engine.leaves.get(name, ())), "switches": list(kind.below)}
        for name, kind in SWITCHES.items()
    ]  # fmt: skip
    return {
        "engine": engine.table,
        "inc": {
            "round_ms": 200, "first_port": first_port, "last_port": first_port + _PORTS - 1,
            "server": [{"name": name, "cpu_milli": 4_000, "memory_mib": 8_192} for name in engine.nodes],
            "switch": switches,
            "tenant": [{"name": name, "cpu_milli": 16_000, "memory_mib": 32_768} for name in TENANTS],
        },
    }  # fmt: skip


@contextlib.contextmanager
def running(folder: str, engine: Started) -> Iterator[Cluster]:
    """While the block runs. ``engine``: with the servers of `SERVERS`. Raises: PeerGone: a process did not start."""
    first_port = random.Random(os.getpid()).randrange(20_000, 30_000 - _PORTS)
    cluster = Cluster(folder, JobManager(os.path.join(folder, "manager"), tables(folder, first_port, engine)))
    try:
        with open(os.path.join(folder, "switches.log"), "ab") as log:
            for name, kind in SWITCHES.items():
                cluster.switches[name] = start(
                    COMMAND_LINE, "switch", "inc", "--name", name, "--control", f"{folder}/{name}.sock", "--features",
                    ",".join(kind.features), "--sram-kib", str(kind.sram_kib), stdout=log, stderr=log,
                )  # fmt: skip
        until = time.monotonic() + _START_S
        while not all(os.path.exists(f"{folder}/{name}.sock") for name in SWITCHES):
            if time.monotonic() > until or any(each.poll() is not None for each in cluster.switches.values()):
                raise PeerGone(f"a switch did not start: see {folder}/switches.log")
            time.sleep(0.05)
        with cluster.manager:
            yield cluster
    finally:
        for each in cluster.switches.values():
            each.terminate()
        for each in cluster.switches.values():
            each.wait()
