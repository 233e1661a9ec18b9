"""A cluster on one machine: a controller, a daemon and a helper for each of four hosts, five switches, and ranks.

The paper's testbed has five switches and four hosts with two GPUs each (figure 10); here each host has a switch of its
own and a fifth joins them, and a job has one rank on each host. Every process is a child of this one and ends with it.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from offpath.bindings.errors import OffpathError
from offpath.bindings.ina.link import write_rate
from offpath.bindings.wire import ina_admin
from offpath.bindings.zeromq.keys import make_keys
from offpath.cli import ask_controller
from offpath.cli.demo.ina import orders
from offpath.cli.demo.ina.rank_spec import Spec

HOSTS: Final = ("host0", "host1", "host2", "host3")
ROOT: Final = "root"
SWITCHES: Final = (ROOT, *(f"leaf{n}" for n in range(len(HOSTS))))
RANKS: Final = len(HOSTS)
ALTERNATE_MS: Final = 2_200
"""Three steps of the demo."""
_READY_S: Final = 60.0
_END_S: Final = 5.0
_LOOK_S: Final = 0.02
_LAST_WORDS: Final = 20
_KERNELS: Final = """from offpath.host_helper.helper import Helper

helper = Helper()


@helper.kernel("echo", demand=14)
def echo(data):
    return data
"""


class ClusterFailed(OffpathError):
    """A process ended that should not have, or something did not come about in time."""


class Process:
    """A child; what it says goes to a file."""

    def __init__(self, name: str, arguments: list[str], directory: str, more: Mapping[str, str] | None = None) -> None:
        self.name, self._arguments, self._more = name, arguments, dict(more or {})
        self._said = os.path.join(directory, f"{name}.log")
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Also again, after its end."""
        one_thread = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        with open(self._said, "ab") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._arguments], stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                env={**os.environ, **one_thread, "OFFPATH_PARENT": str(os.getpid()), **self._more},
                start_new_session=True,
            )  # fmt: skip
        self.starts += 1

    @property
    def pid(self) -> int:
        """Of the running one. Raises: ClusterFailed: it never ran."""
        if self._process is None:
            raise ClusterFailed(f"{self.name} was not started")
        return self._process.pid

    def code(self) -> int | None:
        """Its exit code; None: it runs, or was not started, or was killed here."""
        return self._process.poll() if self._process is not None else None

    def says_ready(self) -> bool:
        """As often as it was started."""
        try:
            return Path(self._said).read_text("utf-8", "replace").count("ready") >= self.starts
        except FileNotFoundError:
            return False

    def kill(self) -> None:
        """kill -9, and wait; it may be started again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def ask_to_end(self) -> None:
        """SIGTERM."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def end(self, until: float) -> None:
        """Waits until ``until`` (monotonic seconds), then kills."""
        if self._process is None:
            return
        try:
            self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()

    def failure(self) -> ClusterFailed:
        """Its end with its last words."""
        try:
            lines = Path(self._said).read_text("utf-8", "replace").splitlines()[-_LAST_WORDS:]
        except OSError:
            lines = []
        said = "\n  ".join(lines) or "(it said nothing)"
        return ClusterFailed(f"{self.name} ended with {self.code()}:\n  {said}")


class Cluster:
    """A context manager; ``directory`` is the caller's, with a short path; ``mode``: the controller's at its start.

    Raises: ClusterFailed, OSError.
    """

    def __init__(self, directory: str, mode: str = "none") -> None:
        self.directory, self._mode = directory, mode
        self.link = os.path.join(directory, "link")
        write_rate(self.link, 0)
        self.switches = {name: self._switch(name) for name in SWITCHES}
        self.controller = self._controller()
        self.daemons: dict[str, Process] = {}
        self.helpers: dict[str, Process] = {}
        for host in HOSTS:
            self.daemons[host], self.helpers[host] = self._host(host)
        self.ranks: dict[str, list[Process]] = {}

    # -- its parts ------------------------------------------------------------------------------------------------
    def _child(self, name: str, *arguments: str) -> Process:
        return Process(name, ["offpath.cli.child", *arguments], self.directory)

    def address(self, switch: str) -> str:
        """Where ranks and other switches join it."""
        return f"unix://{self.directory}/{switch}.sock"

    def control(self, switch: str) -> str:
        """Where the controller does."""
        return f"unix://{self.directory}/{switch}.ctl"

    def pages(self, host: str) -> str:
        """Where the ranks of a host put their pages."""
        return os.path.join(self.directory, host, "ina")

    def _switch(self, name: str) -> Process:
        return self._child(
            name, "switch", "run", "--name", name, "--listen", self.address(name), "--control", self.control(name)
        )

    def _controller(self) -> Process:
        allowed = os.path.join(self.directory, "hosts")
        os.mkdir(allowed, mode=0o700)
        key, _ = make_keys("controller", self.directory)
        for host in HOSTS:
            make_keys(host, allowed)
        leaves = "".join(f"SwitchName=leaf{n} Nodes={host}\n" for n, host in enumerate(HOSTS))
        topology = os.path.join(self.directory, "topology.conf")
        Path(topology).write_text(f"{leaves}SwitchName={ROOT} Switches=leaf[0-{len(HOSTS) - 1}]\n", "ascii")
        tables = "".join(
            f"\n[[switch]]\nname = {json.dumps(name)}\naddress = {json.dumps(self.address(name))}\n"
            f"control = {json.dumps(self.control(name))}\n"
            for name in SWITCHES
        )
        config = os.path.join(self.directory, "controller.toml")
        Path(config).write_text(
            f"topology = {json.dumps(topology)}\nranks_per_host = 2\n"
            f'[agents]\nbind = "ipc://{self.directory}/agents.zmq"\nkey_file = {json.dumps(key)}\n'
            f'allowed = {json.dumps(allowed)}\n[policy]\nmode = "{self._mode}"\nalternate_ms = {ALTERNATE_MS}\n'
            f"[operation]\nstate = {json.dumps(os.path.join(self.directory, 'controller.db'))}\n{tables}",
            "utf-8",
        )
        runtime = os.path.join(self.directory, "controller")
        os.mkdir(runtime, mode=0o700)
        return self._child("controller", "controller", "run", "--config", config, "--runtime-dir", runtime)

    def _host(self, host: str) -> tuple[Process, Process]:
        runtime = os.path.join(self.directory, host)
        os.mkdir(runtime, mode=0o700)
        token = os.path.join(runtime, "token")
        with open(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(24))
        config, kernels = os.path.join(runtime, "offpathd.toml"), os.path.join(runtime, "kernels.py")
        Path(config).write_text(
            f'[ina]\ncontroller = "ipc://{self.directory}/agents.zmq"\nhost = "{host}"\n'
            f"server_key_file = {json.dumps(os.path.join(self.directory, 'controller.pub'))}\n"
            f"key_file = {json.dumps(os.path.join(self.directory, 'hosts', f'{host}.key'))}\n"
            f'[[tenant]]\nname = "nobody"\ntoken_file = {json.dumps(token)}\n',
            "utf-8",
        )
        Path(kernels).write_text(_KERNELS, "ascii")
        return (
            self._child(f"{host}.daemon", "daemon", "run", "--config", config, "--runtime-dir", runtime),
            self._child(f"{host}.helper", "helper", "run", kernels, "--runtime-dir", runtime),
        )

    # -- its life -------------------------------------------------------------------------------------------------
    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        each = [process for ranks in self.ranks.values() for process in ranks]
        each += [*self.helpers.values(), *self.daemons.values(), self.controller, *self.switches.values()]
        for process in each:
            process.ask_to_end()
        until = time.monotonic() + _END_S
        for process in each:
            process.end(until)

    def start(self) -> None:
        """Everything but ranks; returns when all agents have been heard."""
        for process in (*self.switches.values(), self.controller, *self.daemons.values()):
            process.start()
        self.wait(lambda: all(each.says_ready() for each in (self.controller, *self.daemons.values())), "to be ready")
        for process in self.helpers.values():
            process.start()
        self.wait(lambda: not self.status().silent, "to have heard all agents")

    def wait(self, is_so: Callable[[], bool], what: str, seconds: float = _READY_S) -> None:
        """Raises: ClusterFailed: it does not come about, or a process ends."""
        until = time.monotonic() + seconds
        while not is_so():
            self.check()
            if time.monotonic() > until:
                raise ClusterFailed(f"not {what} within {seconds:g} s")
            time.sleep(_LOOK_S)

    def check(self) -> None:
        """Raises: ClusterFailed: a process has ended with an error."""
        ranks = [process for each in self.ranks.values() for process in each]
        for process in (*self.switches.values(), self.controller, *self.daemons.values(), *self.helpers.values()):
            if process.code() is not None:
                raise process.failure()
        for process in ranks:
            if process.code():
                raise process.failure()

    # -- its controller -------------------------------------------------------------------------------------------
    def ask(self, asked: Any, answer: type[Any]) -> Any:
        """The controller's admin socket."""
        with ask_controller.client(os.path.join(self.directory, "controller")) as client:
            return client.ask(asked, answer)

    def status(self) -> ina_admin.ControllerStatus:
        """Of the controller."""
        found: ina_admin.ControllerStatus = self.ask(ina_admin.StatusRequest(), ina_admin.ControllerStatus)
        return found

    def job(self, name: str) -> ina_admin.InaJob:
        """Of the controller."""
        found: ina_admin.InaJob = self.ask(ina_admin.JobRequest(job=name), ina_admin.InaJob)
        return found

    def set_mode(self, mode: str, rate: float) -> None:
        """How jobs share the root from now on; links carry ``rate`` bytes/s."""
        self.ask(ina_admin.ModeRequest(mode=mode, link_bytes_per_s=rate), ina_admin.ModeNow)

    # -- its jobs -------------------------------------------------------------------------------------------------
    def submit(self, job: str) -> None:
        """One rank on each host."""
        self.ask(ina_admin.SubmitRequest(job=job, hosts=0, on=list(HOSTS), ranks_per_host=1), ina_admin.InaJob)
        os.mkdir(self.folder(job), mode=0o700)

    def folder(self, job: str) -> str:
        """Where a job's files are."""
        return os.path.join(self.directory, f"job-{job}")

    def end_ranks(self, job: str) -> None:
        """kill -9 to all that are left of them."""
        for process in self.ranks.pop(job, []):
            process.kill()

    def train(self, job: str, seed: int, first: orders.Order, checkpoint_every: int = 0) -> None:
        """Start its ranks, also again."""
        port = _free_port()
        self.ranks[job] = []
        for rank, host in enumerate(HOSTS):
            spec = Spec(
                job, rank, RANKS, port, self.folder(job), self.pages(host), self.link, seed, asdict(first),
                checkpoint_every,
            )  # fmt: skip
            path = spec.path(f"spec.{rank}.json")
            Path(path).write_text(json.dumps(asdict(spec)), "utf-8")
            process = Process(f"{job}.{rank}", ["offpath.cli.demo.ina.rank", path], self.directory)
            process.start()
            self.ranks[job].append(process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
