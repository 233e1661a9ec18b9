"""A real Ray on this machine: GCS, and a raylet with its agents per pretended node, each with an address of its own.

For demonstrations and tests. It uses what `./scripts/ray-env` installs. ``ray stop`` is never used: it ends every Ray
of the user. Everything ends with `close`, or with this process: a reaper is above all of it. Token authentication is
on, because raylets listen on all addresses.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from offpath.bindings.errors import EngineUnavailable
from offpath.cli.local.environments import fetched
from offpath.cli.local.reaper import Reaper

BOUND_S: Final = 120.0
_INSTALL_S: Final = 900
_QUICK: Final = {
    # A node that is gone is found out within two seconds instead of half a minute.
    "RAY_health_check_initial_delay_ms": "500", "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000", "RAY_health_check_failure_threshold": "3",
    "RAY_raylet_start_wait_time_s": "100", "RAY_memory_monitor_refresh_ms": "0",
}  # fmt: skip


def installed() -> Path:
    """The folder of `./scripts/ray-env`; made on first use. Raises: EngineMissing."""
    return fetched("ray-env", "Ray cannot be installed", _INSTALL_S)


def two_leaves(nodes: Sequence[str]) -> dict[str, str]:
    """Half of the nodes below ``s0``, half below ``s1``."""
    return {node: f"s{2 * number // len(nodes)}" for number, node in enumerate(nodes)}


class RayCluster:
    """Nodes h0, h1, … with two GPUs each (model a100). h0 is the head: it stays. ``leaves``: gives each node's leaf
    switch. ``folder``: a short path, because Ray's sockets are below it.

    Raises: EngineMissing.
    """

    def __init__(
        self, folder: Path, nodes: int = 4, *, leaves: Callable[[Sequence[str]], Mapping[str, str]] = two_leaves
    ) -> None:
        self.folder, self.nodes = folder, [f"h{n}" for n in range(nodes)]
        self._leaves = leaves(self.nodes)
        self.programs = installed() / "bin"
        self.token = folder / "token"
        self.token.touch(mode=0o600)
        self.token.write_text(secrets.token_hex(32))
        self._daemons = Reaper(folder / "log")
        # A block of addresses of its own: 127.1.0.0/16 and above, the head's is .1.
        self._net = f"127.{1 + os.getpid() % 250}.{os.getpid() // 250 % 250}"
        self._port = _free_port(f"{self._net}.1")
        self.address = f"{self._net}.1:{self._port}"
        self._environment = {
            **_QUICK, "PATH": os.environ["PATH"], "HOME": str(folder), "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token), "RAY_USAGE_STATS_ENABLED": "0",
        }  # fmt: skip

    def open(self) -> None:
        """All nodes; they take jobs when it returns. Raises: EngineUnavailable: they do not start."""
        self._start(self.nodes[:1])
        self._start(self.nodes[1:])

    def mend(self) -> None:
        """Every node runs."""
        self._start([node for node in self.nodes if node not in self._daemons.running])

    def kill(self, node: str) -> None:
        """As a power cut: SIGKILL to the node's raylet, its agents and its workers."""
        top = self._daemons.running[node]
        pids = [top, *_below(top)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        for pid in {*pids, *_below(top)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._daemons.kill(node)

    def supervisor(self, node: str) -> int:
        """The pid of the process of the engine's actor on a node."""
        below = _below(self._daemons.running[node])
        (pid,) = [pid for pid in below if b"Supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return pid

    def close(self) -> None:
        """End all of it, and all jobs."""
        self._daemons.close()

    def _start(self, nodes: Sequence[str]) -> None:
        for node in nodes:
            sockets = self._sockets()
            self._spawn(node)
            if node != nodes[-1]:  # two that start at the same time on one machine choose the same name for theirs
                self._until(partial(self._has_more_than, sockets), f"{node} has no socket")
        self._until(lambda: all("Ray runtime started" in self._log(node) for node in nodes), f"{nodes} do not start")

    def _has_more_than(self, sockets: set[str]) -> bool:
        return self._sockets() > sockets

    def _sockets(self) -> set[str]:
        return {path.name for path in self.folder.glob("session_2*/sockets/raylet*")}

    def _log(self, node: str) -> str:
        path = self.folder / f"{node}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _spawn(self, node: str) -> None:
        number = self.nodes.index(node)
        words: list[str | Path] = [
            self.programs / "ray", "start", "--block", "--disable-usage-stats", "--include-log-monitor=false",
            f"--node-ip-address={self._net}.{number + 1}", "--num-cpus=2", "--num-gpus=2",
            "--object-store-memory=80000000",
            f"--labels=offpath.io/host={node},offpath.io/switch={self._leaves[node]},"
            "ray.io/accelerator-type=a100",
        ]  # fmt: skip
        if number == 0:
            words += ["--head", f"--port={self._port}", f"--temp-dir={self.folder}", "--include-dashboard=false"]
        else:
            words.append(f"--address={self.address}")
        (self.folder / f"{node}.log").unlink(missing_ok=True)
        # A shell gives each node a log of its own, and is replaced.
        self._daemons.start(
            node, ["sh", "-c", f'exec "$@" >{self.folder}/{node}.log 2>&1', "sh", *words], self._environment,
            self.folder,
        )  # fmt: skip

    def _until(self, claim: Callable[[], bool], what: str) -> None:
        ends = time.monotonic() + BOUND_S
        while not claim():
            if time.monotonic() > ends:
                logs = "".join(self._log(node)[-2000:] for node in self.nodes)
                raise EngineUnavailable(f"{what}: {logs}")
            time.sleep(0.05)


def _below(top: int) -> list[int]:
    """All descendants of a process."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry))
    found, waiting = [], [top]
    while waiting:
        more = children.get(waiting.pop(), [])
        found += more
        waiting += more
    return found


def _free_port(address: str) -> int:
    """Free now; below the ports that Ray gives to workers, and the kernel to clients."""
    for port in range(6_400 + os.getpid() % 1_000, 9_999):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("0.0.0.0", port))
            return port
    raise EngineUnavailable(f"no free port at {address}")
