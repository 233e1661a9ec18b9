"""A collaboration controller for tests: its configuration, its clock, devices with tokens."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from offpath.bindings.wire import collab_admin
from offpath.bindings.zeromq.keys import make_keys
from offpath.cli import collab_client
from offpath.dpu_daemon.collab.config import Loaded, load
from offpath.dpu_daemon.collab.tokens import Tokens
from offpath.dpu_daemon.steady import SteadyClock

from .processes import until

KEY = "k" * 32
S = 10**9
NOW_NS = 1_795_000_000 * S
"""Not at the end of a day."""


def configuration(
    folder: Path, *, http: str = "", policy: str = "", operation: str = "", gateways: bool = False, **devices: object
) -> Path:
    """The file, with its keys beside it. ``http``, ``policy``, ``operation``: more lines of those tables. ``devices``:
    of that table."""
    folder.mkdir(exist_ok=True)
    key = folder / "device.key"
    key.write_text(KEY)
    key.chmod(0o600)
    lines = ["[devices]", f'token_keys = ["{key}"]', *(f"{name} = {value}" for name, value in devices.items())]
    lines += ["[http]", 'listen = "127.0.0.1:0"', http]
    if gateways:
        if not (folder / "controller.key").exists():
            make_keys("controller", str(folder))
            (folder / "allowed").mkdir()
            make_keys("gw", str(folder / "allowed"))
        lines += ["[gateways]", 'bind = "tcp://127.0.0.1:0"', f'key_file = "{folder}/controller.key"']
        lines += [f'allowed = "{folder}/allowed"']
    lines += ["[policy]", policy] if policy else []
    lines += ["[operation]", f'state = "{folder}/state.db"', operation]
    path = folder / "collab.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def loaded(folder: Path, **more: Any) -> Loaded:
    """The configuration, read."""
    return load(str(configuration(folder, **more)))


@dataclass(slots=True)
class Clock:
    """Moves when a test says so."""

    now_ns: int = NOW_NS
    wrong_ns: int = 0
    """By how much the machine's clock is set wrong."""

    def __call__(self) -> int:
        return self.now_ns + self.wrong_ns

    def steady(self, last_ns: int) -> SteadyClock:
        return SteadyClock(last_ns, wall_ns=self, elapsed_ns=lambda: self.now_ns)

    def set_wrong_s(self, seconds: float) -> None:
        self.wrong_ns = round(seconds * S)

    def pass_s(self, seconds: float) -> None:
        self.now_ns += round(seconds * S)

    @property
    def ms(self) -> int:
        return self() // 10**6


def message(device: str, sent_ms: int, **more: object) -> dict[str, object]:
    """A device's message with its token, without a kind."""
    return {"device": device, "token": Tokens([KEY.encode()]).of(device), "sent_ms": sent_ms, **more}


_READY = "controller ready"


@dataclass(slots=True)
class Controller:
    """A controller in a process of its own; `start` after `kill` continues it."""

    folder: Path
    config: Path
    environment: dict[str, str]
    process: subprocess.Popen[str] | None = None
    address: tuple[str, int] = ("", 0)
    gateway: str = ""
    log: list[str] = field(default_factory=list)
    """Its standard error so far; whole after its end."""
    reader: threading.Thread | None = None

    @property
    def run_folder(self) -> str:
        return str(self.folder / "run")

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "offpath.cli.main", "collab", "run", str(self.config), "--runtime-dir",
             self.run_folder],
            stderr=subprocess.PIPE, text=True, env=self.environment,
        )  # fmt: skip
        before = len(self.log)
        self.reader = threading.Thread(target=self._read, args=(self.process.stderr,))
        self.reader.start()
        line = until(lambda: next((line for line in self.log[before:] if _READY in line or not line), None))
        assert line, "".join(self.log)
        places = line.split("devices: ")[1].strip().split(", ")
        host, _, port = places[0].removeprefix("http://").rpartition(":")
        self.address = host, int(port)
        self.gateway = places[1] if len(places) > 1 else ""

    def _read(self, errors: IO[str]) -> None:
        with errors:
            while line := errors.readline():
                self.log.append(line)
        self.log.append("")

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.ended()

    def ended(self) -> int:
        """Its exit code, after its end."""
        assert self.process is not None
        assert self.reader is not None
        code = self.process.wait(60)
        self.reader.join()
        self.process = None
        return code

    def stop(self) -> int:
        """SIGTERM."""
        assert self.process is not None
        self.process.terminate()
        return self.ended()

    def post(self, path: str, body: dict[str, object]) -> dict[str, Any]:
        """Raises: OSError, http.client.HTTPException: no answer."""
        connection = http.client.HTTPConnection(*self.address, timeout=30)
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps(body))
            found: dict[str, Any] = json.loads(connection.getresponse().read())
            return found

    def ask(self, request: Any, wanted: Any = collab_admin.JobAnswer) -> Any:
        """A job's or an operator's request."""
        with collab_client.client(self.run_folder) as client:
            return client.query(request, wanted)


@contextlib.contextmanager
def controller(folder: Path, environment: dict[str, str], **more: Any) -> Iterator[Controller]:
    """One that runs; it is killed at the end if it still runs."""
    made = Controller(folder, configuration(folder, **more), environment)
    made.start()
    try:
        yield made
    finally:
        if made.process is not None:
            made.kill()
