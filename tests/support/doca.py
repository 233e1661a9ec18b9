"""The DOCA emulator for tests: where its libraries are, its settings, and a host process that exports memory."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from offpath.bindings.memory.region import Region

from .compiler import built
from .processes import BOUND_S

ROOT = Path(__file__).resolve().parents[2]


def emulator(release: str = "3.0") -> str:
    """The folder of its libraries, built on first use; without a C compiler the test is skipped."""
    return built(ROOT / "scripts" / "doca-emulator", "--release", release)


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """This process's environment, changed for a while; the emulator reads it at each call."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def on_the_dpu(**values: str) -> Iterator[None]:
    """This process is the DPU's side, in a rendezvous folder of its own."""
    with tempfile.TemporaryDirectory(prefix="offpath-doca-") as folder:
        os.chmod(folder, 0o700)
        with environment(DOCA_EMULATOR_DIR=folder, DOCA_EMULATOR_SIDE="dpu", **values):
            yield


class HostProcess:
    """A process on the host's side, which exports what it is given as a worker exports its lane."""

    def __init__(self, release: str = "3.0", **values: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.doca_host", str(theirs.fileno()), emulator(release)],
                pass_fds=[theirs.fileno()], cwd=ROOT, env={**os.environ, "DOCA_EMULATOR_SIDE": "host", **values},
            )  # fmt: skip
        self._socket = ours
        ours.settimeout(BOUND_S)

    def export(self, region: Region, landing: int, result: int, *, dmabuf: bool = False) -> dict[str, Any]:
        """The descriptor of a lane that lies in ``region``. It stays exported until `withdraw`."""
        answer = self.ask_export(region, landing, result, dmabuf=dmabuf)
        assert "error" not in answer, answer
        return answer

    def ask_export(self, region: Region, landing: int, result: int, *, dmabuf: bool = False) -> dict[str, Any]:
        """As `export`, or the error."""
        fds = [region.fd]
        socket.send_fds(self._socket, [json.dumps({"landing": landing, "result": result, "dmabuf": dmabuf}).encode()],
                        fds)  # fmt: skip
        return self._answer()

    def again(self) -> dict[str, Any]:
        """Export the last lane once more: what was exported before is worth nothing from here on."""
        self._socket.send(b'{"again": true}')
        return self._answer()

    def withdraw(self) -> None:
        """All lanes."""
        self._socket.send(b'{"withdraw": true}')
        self._answer()

    def called(self) -> set[str]:
        """Functions of DOCA's that it used."""
        self._socket.send(b'{"called": true}')
        return set(self._answer()["called"])

    def start_talking(self, name: str, sizes: list[int]) -> None:
        """Have it connect to a Comch server and talk; `answer` says what came of it."""
        self._socket.send(json.dumps({"talk": name, "sizes": sizes}).encode())

    def has_answered(self) -> bool:
        """`answer` does not wait."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def answer(self) -> dict[str, Any]:
        """Of what was started."""
        return self._answer()

    def kill(self) -> None:
        """At once, with all that it exported."""
        self.process.kill()
        self.process.wait(BOUND_S)

    def close(self) -> None:
        """It ends by itself."""
        self._socket.close()
        self.process.wait(BOUND_S)

    def _answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._socket.recv(1 << 20) or b'{"error": "it ended"}')
        return answer
