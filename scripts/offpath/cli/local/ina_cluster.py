"""A controller, and a daemon and a helper for each host, all on this machine: for demonstrations, benchmarks, tests.

The default hosts are those of the testbed of MINA (figure 10): host N is below switch sN, and all switches are below
s0.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final

from offpath.bindings.errors import PeerGone
from offpath.bindings.runtime import INA_FOLDER
from offpath.bindings.wire import ina_admin
from offpath.bindings.zeromq.keys import make_keys
from offpath.cli import admin_client, controller_client
from offpath.cli.local.child import COMMAND_LINE, start

_START_S: Final = 60.0
_KERNELS: Final = """
from offpath.host_helper import Helper
helper = Helper()

@helper.kernel("nothing", demand=1)
def nothing(*arrays):
    return arrays
"""


def star(hosts: Sequence[str]) -> str:
    """Slurm's topology.conf: s0 above s1 …, each with one of ``hosts``."""
    leaves = [f"SwitchName=s{number} Nodes={host}" for number, host in enumerate(hosts, 1)]
    return "\n".join([f"SwitchName=s0 Switches=s[1-{len(hosts)}]", *leaves, ""])


class InaCluster:
    """A context manager. ``directory`` holds everything: keys, configurations, sockets, logs.

    ``switches``: name → (address, control address). ``topology``: the text of a topology.conf, or the name of a
    regular one (`leaf-spine:2x1x2`), which defines the hosts and switches. ``policy``: the controller's table of that
    name. ``environment``: additional variables for all processes.
    """

    def __init__(
        self, directory: str, switches: Mapping[str, tuple[str, str]], *,
        hosts: Sequence[str] = ("h1", "h2", "h3", "h4"),
        topology: str | None = None, policy: Mapping[str, Any] | None = None, ranks_per_host: int = 8,
        environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.directory = directory
        self.hosts: Final = tuple(hosts)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._switches = switches
        self._topology = topology if topology is not None else star(hosts)
        self._is_regular = "\n" not in self._topology
        self._policy = dict(policy or {})
        self._ranks_per_host = ranks_per_host
        self._environment = dict(environment or {})

    def __enter__(self) -> InaCluster:
        try:
            self.prepare()
            for name in ("controller", *(f"daemon-{host}" for host in self.hosts)):
                self.start(name)
            for name in ("controller", *(f"daemon-{host}" for host in self.hosts)):
                self.await_line(name, "ready in")
            for host in self.hosts:
                self.start(f"helper-{host}")
            for host in self.hosts:
                self.await_line(f"helper-{host}", "joined as generation")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes in order, wait, and kill those that do not end. Idempotent."""
        for group in ("helper-", "daemon-", "controller"):
            ending = [process for name, process in self.processes.items() if name.startswith(group)]
            for process in ending:
                process.terminate()
            for process in ending:
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    # -- places -------------------------------------------------------------------------------------------------------
    def path(self, *words: str) -> str:
        """A path in the directory."""
        return os.path.join(self.directory, *words)

    def state_files(self, host: str) -> str:
        """``OFFPATH_INA_DIRECTORY`` of the host's ranks."""
        return self.path(host, INA_FOLDER)

    def prepare(self) -> None:
        """Write keys and configurations. Starts nothing."""
        for folder in ("", "keys", "allowed", "controller", *self.hosts):
            os.makedirs(self.path(folder), mode=0o700, exist_ok=True)
        make_keys("controller", self.path("keys"))
        for host in self.hosts:
            make_keys(host, self.path("keys"))
            os.rename(self.path("keys", f"{host}.pub"), self.path("allowed", f"{host}.pub"))
        with open(self.path("token"), "w", opener=_private) as file:
            file.write(secrets.token_hex(24))
        with open(self.path("kernels.py"), "w") as file:
            file.write(_KERNELS)
        if not self._is_regular:
            with open(self.path("topology.conf"), "w") as file:
                file.write(self._topology)
        self.configure()
        for host in self.hosts:
            with open(self.path(f"{host}.toml"), "w") as file:
                file.write(self._daemon_config(host))

    def configure(self) -> None:
        """Write the controller's configuration for its next start."""
        lines = [
            f"topology = {_text(self._topology if self._is_regular else self.path('topology.conf'))}",
            f"ranks_per_host = {self._ranks_per_host}",
            "[agents]", f"bind = {_text('ipc://' + self.path('agents'))}",
            f"key_file = {_text(self.path('keys', 'controller.key'))}", f"allowed = {_text(self.path('allowed'))}",
            "[operation]", 'log = "json"', f"state = {_text(self.path('controller', 'state.sqlite'))}",
            "[policy]", *(f"{key} = {_text(value)}" for key, value in self._policy.items()),
        ]  # fmt: skip
        for name, (address, control) in self._switches.items():
            lines += ["[[switch]]", f"name = {_text(name)}", f"address = {_text(address)}"]
            lines += [f"control = {_text(control)}"]
        with open(self.path("controller.toml"), "w") as file:
            file.write("\n".join([*lines, ""]))

    def _daemon_config(self, host: str) -> str:
        lines = [
            "[[tenant]]", 'name = "demo"', f"token_file = {_text(self.path('token'))}",
            "[durability]", "journal_mib = 1", "[operation]", 'log = "json"',
            "[ina]", f"controller = {_text('ipc://' + self.path('agents'))}", f"host = {_text(host)}",
            f"server_key_file = {_text(self.path('keys', 'controller.pub'))}",
            f"key_file = {_text(self.path('keys', host + '.key'))}",
        ]  # fmt: skip
        return "\n".join([*lines, ""])

    # -- processes ----------------------------------------------------------------------------------------------------
    def start(self, name: str) -> None:
        """Start or restart ``controller``, ``daemon-HOST`` or ``helper-HOST``."""
        role, _, host = name.partition("-")
        words = {
            "controller": ["controller", "run", "--config", self.path("controller.toml")],
            "daemon": ["daemon", "run", "--config", self.path(f"{host}.toml")],
            "helper": ["helper", "run", self.path("kernels.py"), "--emulate", "A100-40GB"],
        }[role]
        words += ["--runtime-dir", self.path(host or "controller")]
        more = {"OPENBLAS_NUM_THREADS": "1", **self._environment}
        with open(self.path(f"{name}.log"), "ab") as log:
            self.processes[name] = start(COMMAND_LINE, "-v", *words, more=more, stdout=log, stderr=log)

    def await_line(self, name: str, words: str, times: int = 1) -> None:
        """Wait until the process has logged ``words`` this often. Raises: PeerGone: it ended, or a minute has
        passed.
        """
        until = time.monotonic() + _START_S
        while self.log(name).count(words) < times:
            if self.processes[name].poll() is not None or time.monotonic() > until:
                raise PeerGone(f"{name} did not log {words!r}: see {self.path(name + '.log')}")
            time.sleep(0.02)

    def log(self, name: str) -> str:
        """Its log so far, over all restarts."""
        with open(self.path(f"{name}.log"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def kill(self, name: str) -> None:
        """Kill it with SIGKILL, as a crash would."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    # -- the controller's socket --------------------------------------------------------------------------------------
    def client(self) -> admin_client.AdminClient:
        """A new connection. Raises: DaemonUnreachable."""
        return controller_client.client(self.path("controller"))

    def status(self) -> ina_admin.ControllerStatus:
        """Raises: DaemonUnreachable."""
        with self.client() as client:
            return client.query(ina_admin.StatusRequest(), ina_admin.ControllerStatus)

    def submit(self, job: str, on: Sequence[str], ranks_per_host: int = 1) -> ina_admin.InaJob:
        """Raises: DaemonUnreachable, Refused."""
        request = ina_admin.SubmitRequest(job=job, on=list(on), ranks_per_host=ranks_per_host)
        with self.client() as client:
            return client.query(request, ina_admin.InaJob)

    def mode(self, mode: str = "", link_bytes_per_s: float | None = None) -> ina_admin.ModeNow:
        """Set the mode; empty: only query it. Raises: DaemonUnreachable, Refused."""
        with self.client() as client:
            return client.query(ina_admin.ModeRequest(mode=mode, link_bytes_per_s=link_bytes_per_s), ina_admin.ModeNow)

    def granted(self, jobs: Sequence[str], within_s: float = 30.0) -> dict[str, int]:
        """Wait until each of the jobs has a tree that all its ranks have applied; stamps by job. Raises: PeerGone."""
        until = time.monotonic() + within_s
        while True:
            found = self._granted(jobs)
            if len(found) == len(jobs):
                return found
            if time.monotonic() > until:
                raise PeerGone(f"no tree for {sorted(set(jobs) - set(found))} in {within_s:g} s")
            time.sleep(0.02)

    def _granted(self, jobs: Sequence[str]) -> dict[str, int]:
        found = {}
        with self.client() as client:
            for job in jobs:
                try:
                    shown = client.query(ina_admin.JobRequest(job=job), ina_admin.InaJob)
                except admin_client.Refused:
                    continue
                stamp = shown.job.stamp
                if stamp and shown.ranks and all(rank.applied >= stamp for rank in shown.ranks):
                    found[job] = stamp
        return found


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _text(value: Any) -> str:
    """A string or number as TOML."""
    return json.dumps(value)
