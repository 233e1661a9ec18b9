"""The cluster of the training demo: hosts (`cli.local.ina_cluster`), switches (`cli.local.switches`), and ranks.

The paper's testbed has five switches and four hosts with two GPUs each (figure 10). Here each host has its own switch,
a fifth switch joins them, and a job has one rank on each host.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from offpath.bindings.errors import OffpathError
from offpath.bindings.ina.rate_limiter import write_rate
from offpath.bindings.wire import ina_admin
from offpath.cli.demo.ina import orders
from offpath.cli.demo.ina.rank_spec import Spec
from offpath.cli.local.child import ONE_THREAD, start
from offpath.cli.local.ina_cluster import InaCluster
from offpath.cli.local.switches import ROOT, Switches

HOSTS: Final = ("h1", "h2", "h3", "h4")
SWITCHES: Final = (ROOT, *(f"s{n}" for n in range(1, len(HOSTS) + 1)))
RANKS: Final = len(HOSTS)
ALTERNATE_MS: Final = 2_200
"""Three steps of the demo."""
_WAIT_S: Final = 60.0
_END_S: Final = 5.0
_LOOK_S: Final = 0.02
_LAST_WORDS: Final = 20


class ClusterFailed(OffpathError):
    """A process ended unexpectedly, or a condition was not reached in time."""


class RankProcess:
    """A rank of a job: a child that ends with this process; its output goes to a file."""

    def __init__(self, name: str, spec: str, directory: str) -> None:
        self.name = name
        self._log = os.path.join(directory, f"{name}.log")
        with open(self._log, "ab") as output:
            self._process = start(
                "demo.ina.rank", spec, more=ONE_THREAD, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        self._is_killed = False

    def has_failed(self) -> bool:
        """It ended with an error, and was not killed from here."""
        return not self._is_killed and bool(self._process.poll())

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self._is_killed = True
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        """SIGTERM."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def end(self, until: float) -> None:
        """Wait until ``until`` (monotonic seconds), then kill."""
        try:
            self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()

    def failure(self) -> ClusterFailed:
        """Its exit code with its last lines."""
        output = "\n  ".join(_last_words(self._log)) or "(no output)"
        return ClusterFailed(f"{self.name} ended with {self._process.poll()}:\n  {output}")


class Cluster:
    """A context manager; ``directory`` is the caller's, with a short path; ``mode``: the controller's at its start.

    Raises: ClusterFailed, PeerGone, OSError.
    """

    def __init__(self, directory: str, mode: str = "none") -> None:
        self.directory, self._mode = directory, mode
        self.link = os.path.join(directory, "link")
        write_rate(self.link, 0)
        self.ranks: dict[str, list[RankProcess]] = {}
        self._open = contextlib.ExitStack()
        self._switches: Switches
        self._cluster: InaCluster
        self._killed: set[str] = set()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        ranks = [process for each in self.ranks.values() for process in each]
        for process in ranks:
            process.terminate()
        until = time.monotonic() + _END_S
        for process in ranks:
            process.end(until)
        self._open.close()

    def start(self) -> None:
        """Start everything but ranks; returns when all agents have reported."""
        self._switches = self._open.enter_context(Switches(os.path.join(self.directory, "s"), leaves=len(HOSTS)))
        where = {
            name: (self._switches.addresses[name], "unix://" + self._switches.path(name, "control"))
            for name in SWITCHES
        }
        policy = {"mode": self._mode, "alternate_ms": ALTERNATE_MS}
        self._cluster = self._open.enter_context(
            InaCluster(os.path.join(self.directory, "c"), where, hosts=HOSTS, policy=policy, ranks_per_host=2)
        )
        self.wait(lambda: not self.status().silent, "connected to all agents")

    # -- its processes --------------------------------------------------------------------------------------------
    def kill(self, name: str) -> None:
        """SIGKILL: a switch, ``controller``, ``daemon-HOST`` or ``helper-HOST``."""
        self._killed.add(name)
        if name in SWITCHES:
            self._switches.processes[name].kill()
            self._switches.processes[name].wait()
        else:
            self._cluster.kill(name)

    def revive(self, name: str) -> None:
        """Start it again."""
        self._killed.discard(name)
        if name in SWITCHES:
            self._switches.restart(name)
        else:
            self._cluster.start(name)

    def check(self) -> None:
        """Raises: ClusterFailed: a process ended that was not killed."""
        logs = {name: self._switches.path(name, "log") for name in SWITCHES}
        logs |= {name: self._cluster.path(f"{name}.log") for name in self._cluster.processes}
        for name, process in (*self._switches.processes.items(), *self._cluster.processes.items()):
            if name not in self._killed and process.poll() is not None:
                output = "\n  ".join(_last_words(logs[name])) or "(no output)"
                raise ClusterFailed(f"{name} ended with {process.poll()}:\n  {output}")
        for rank in [rank for ranks in self.ranks.values() for rank in ranks]:
            if rank.has_failed():
                raise rank.failure()

    def wait(self, is_so: Callable[[], bool], what: str, seconds: float = _WAIT_S) -> None:
        """Raises: ClusterFailed: a timeout, or a process ended."""
        until = time.monotonic() + seconds
        while not is_so():
            self.check()
            if time.monotonic() > until:
                raise ClusterFailed(f"not {what} within {seconds:g} s")
            time.sleep(_LOOK_S)

    # -- its controller -------------------------------------------------------------------------------------------
    def status(self) -> ina_admin.ControllerStatus:
        """The controller's status."""
        return self._cluster.status()

    def job(self, name: str) -> ina_admin.InaJob:
        """The controller's record of the job."""
        with self._cluster.client() as client:
            return client.query(ina_admin.JobRequest(job=name), ina_admin.InaJob)

    def has_tree(self, name: str) -> bool:
        """Whether all ranks of the job have applied an epoch with a grant that still holds; False also without a
        controller.
        """
        try:
            job = self.job(name)
        except OffpathError:
            return False
        return bool(job.job.stamp and job.ranks) and all(rank.applied >= job.job.stamp for rank in job.ranks)

    def set_mode(self, mode: str, rate: float) -> None:
        """Set how jobs share the root; links carry ``rate`` bytes/s."""
        self._cluster.mode(mode, rate)

    # -- its jobs -------------------------------------------------------------------------------------------------
    def submit(self, job: str) -> None:
        """Submit the job with one rank on each host."""
        self._cluster.submit(job, HOSTS)
        os.mkdir(self.folder(job), mode=0o700)

    def folder(self, job: str) -> str:
        """The folder of a job's files."""
        return os.path.join(self.directory, f"job-{job}")

    def end_ranks(self, job: str) -> None:
        """SIGKILL all its remaining ranks."""
        for process in self.ranks.pop(job, []):
            process.kill()

    def train(self, job: str, seed: int, first: orders.Order, checkpoint_every: int = 0) -> None:
        """Start or restart its ranks."""
        port = _free_port()
        self.ranks[job] = []
        for rank, host in enumerate(HOSTS):
            spec = Spec(
                job, rank, RANKS, port, self.folder(job), self._cluster.state_files(host), self.link, seed,
                asdict(first), checkpoint_every,
            )  # fmt: skip
            path = spec.path(f"spec.{rank}.json")
            Path(path).write_text(json.dumps(asdict(spec)), "utf-8")
            self.ranks[job].append(RankProcess(f"{job}.{rank}", path, self.directory))


def _last_words(path: str) -> list[str]:
    try:
        return Path(path).read_text("utf-8", "replace").splitlines()[-_LAST_WORDS:]
    except OSError:
        return []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
