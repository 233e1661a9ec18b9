"""migd in this process (`Rig`) and as a process (`Migd`), and what instances a machine has."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offpath.bindings import faults
from offpath.bindings.nvml import cut
from offpath.bindings.nvml.session import Nvml
from offpath.bindings.sockets import listening_socket
from offpath.host_helper.migd import protocol
from offpath.host_helper.migd.client import MigdClient
from offpath.host_helper.migd.config import load_config
from offpath.host_helper.migd.driver import Driver
from offpath.host_helper.migd.holders import Caller
from offpath.host_helper.migd.ledger import Ledger
from offpath.host_helper.migd.nodes import CapabilityNodes
from offpath.host_helper.migd.server import MigdServer
from offpath.host_helper.migd.service import MigService

from ...support.gpu_machine import Machine
from ...support.processes import until

HELPER, OTHER = 4711, 4712
"""Uids of two helpers."""
Place = tuple[str, int]


def places(nvml: Nvml, gpu: str) -> list[Place]:
    """(profile, start) of each GPU instance that exists."""
    return [(each.profile, each.start) for each in nvml.instances(gpu)]


def cut_foreign(nvml: Nvml, gpu: str, profile: str, start: int, *, compute: bool = True) -> int:
    """An instance that somebody else cuts; its id."""
    (found,) = [each for each in nvml.profiles(gpu) if each.name == profile]
    number = cut.create_gpu_instance(nvml, gpu, found, start)
    if compute:
        cut.create_compute_instance(nvml, gpu, number)
    return number


class Rig:
    """The service without its socket. Time is a number, and sleeping moves it."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        folder.mkdir()
        self.machine = machine
        self.folder = folder
        self.now_ns = 1
        self.slept: list[float] = []
        self.nodes = CapabilityNodes(str(folder / "caps"), str(folder / "mig-minors"), str(folder / "devices"))
        self._driver: Driver | None = None
        self.settings: dict[str, Any] = {"uids": [HELPER, OTHER]}
        self.start()

    def start(self, boot: str = "boot-1", **settings: Any) -> MigService:
        """A migd after the last one ended, with the ledger that it left."""
        self.stop()
        self.settings |= settings
        self._driver = Driver(Nvml)
        self.ledger = Ledger(str(self.folder / "ledger"), boot)
        config = load_config(None, self.settings)
        self.service = MigService(config, self._driver, self.ledger, self.nodes, lambda: self.now_ns, self._sleep)
        return self.service

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_ns += int(seconds * 1e9)

    def caller(self, uid: int = HELPER, connection: int = 1, *, alive: bool = True) -> Caller:
        return Caller(uid, connection, uid == 0, lambda: alive)

    def ask(self, request: protocol.Request, uid: int = HELPER, connection: int = 1) -> Any:
        return self.service.handle(request, self.caller(uid, connection))

    def gpu(self) -> str:
        """The machine's first GPU."""
        uuid: str = self.ask(protocol.List()).gpus[0].uuid
        return uuid

    def create(self, profile: str, start: int, handle: str = "", uid: int = HELPER, connection: int = 1) -> Any:
        made = protocol.Create(handle=handle or secrets.token_hex(16), gpu=self.gpu(), profile=profile, start=start)
        return self.ask(made, uid, connection)

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    close = stop


class Migd:
    """A process that runs `offpath migd run`, and a client of it as this user."""

    def __init__(self, machine: Machine, folder: Path, faults: str = "", **settings: Any) -> None:
        self.machine = machine
        self.folder = folder
        self.path = str(folder / "migd.sock")
        self._words = [word for key, value in settings.items() for word in (f"--{key.replace('_', '-')}", str(value))]
        self._log = folder.with_suffix(".log")
        self.process: subprocess.Popen[bytes] | None = None
        self._clients: list[MigdClient] = []
        self.start(faults)

    def start(self, faults: str = "") -> None:
        """Start it, or start it again after its end."""
        if self.process is not None:
            self.process.wait(20)
        command = [sys.executable, "-P", "-m", "offpath.cli.main", "migd", "run", "--runtime-dir", str(self.folder)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *self._words], stdout=log, stderr=log, env={**os.environ, "OFFPATH_FAULTS": faults}
            )
        until(lambda: self.is_listening() or self.has_ended())
        assert self.is_listening(), self.log()

    def is_listening(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            return sock.connect_ex(self.path) == 0

    def has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def client(self) -> MigdClient:
        self._clients.append(MigdClient(self.path))
        return self._clients[-1]

    def end(self, number: int = signal.SIGKILL) -> int:
        """Signal it and wait; its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(20)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.end()


def killed_at(fault: str, body: Callable[[], object]) -> bool:
    """Run ``body`` in a forked process with one fault armed: whether the fault killed it. NVML must be closed here."""
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: forking beside threads; the body needs none
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            faults.arm(fault)
            body()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL), f"the child ended with {code}"
    return code != 0


class Served:
    """The service behind its socket, in a thread of this process."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.path = str(rig.folder / "migd.sock")
        listener = listening_socket(self.path, socket.SOCK_SEQPACKET)
        os.chmod(self.path, 0o666)  # the tests' other users are in no group
        self.server = MigdServer(load_config(None, rig.settings), rig.service, listener)
        self._thread = threading.Thread(target=self.server.run, name="served")
        self._thread.start()
        self._clients: list[MigdClient] = []

    def client(self) -> MigdClient:
        self._clients.append(MigdClient(self.path))
        return self._clients[-1]

    def connect(self) -> socket.socket:
        """A plain connection, for what a client does not send."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(20)
        sock.connect(self.path)
        return sock

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.server.stop()
        self._thread.join(20)
        assert not self._thread.is_alive()
        self.server.close()
        os.unlink(self.path)
