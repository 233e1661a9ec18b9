"""A real Flower on this machine: a SuperLink and SuperNodes, each a process. For demonstrations and tests.

It uses what `./scripts/flower-env` installs. All processes end with `close`, or with this one: a reaper is above them.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from offpath.bindings.errors import EngineAnswerInvalid, EngineUnavailable
from offpath.cli.local.environments import fetched
from offpath.cli.local.ports import free_port
from offpath.cli.local.reaper import Reaper

BOUND_S: Final = 120.0
_INSTALL_S: Final = 900
_ROOT: Final = Path(__file__).resolve().parents[4]
_ACTIVATED: Final = re.compile(r"Activated node_id=(\d+)")


def installed() -> Path:
    """The folder of `./scripts/flower-env`; made on first use. Raises: EngineMissing."""
    return fetched("flower-env", "Flower cannot be installed", _INSTALL_S)


@dataclass(frozen=True, slots=True)
class RunState:
    """``status``: pending, running, finished:completed, finished:failed …; ``detail``: Flower's reason."""

    status: str
    detail: str

    @property
    def is_over(self) -> bool:
        """It has ended, rightly or not."""
        return self.status.startswith("finished")


class FlowerCluster:
    """``nodes``: each SuperNode's ``--node-config``. ``environment``: more variables of all processes.

    Raises: EngineMissing.
    """

    def __init__(
        self, folder: Path, nodes: Sequence[Mapping[str, int | str]], environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder, self._nodes = folder, nodes
        self._programs = installed() / "bin"
        self._port = free_port()
        self._home = folder / "flower"
        self._home.mkdir()
        (self._home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self._port}"\ninsecure = true\n'
        )
        self._environment = {
            "PATH": f"{self._programs}:{os.environ['PATH']}", "HOME": str(folder), "FLWR_HOME": str(self._home),
            "FLWR_TELEMETRY_ENABLED": "0", "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": ":".join(str(_ROOT / each) for each in ("bindings", "host_helper", "sched")),
            **(environment or {}),
        }  # fmt: skip
        self._daemons = Reaper(folder / "flower.log")

    def open(self) -> None:
        """All nodes are activated when it returns. Raises: EngineUnavailable."""
        self._spawn("link", [
            "flower-superlink", "--insecure", "--disable-runtime-dependency-installation", "--host", "127.0.0.1",
            "--port", str(self._port),
        ])  # fmt: skip
        self._until(self._answers, "the SuperLink does not listen")
        for number in range(len(self._nodes)):
            self.start(number)
        self._until(lambda: len(self.activated()) >= len(self._nodes), "not all SuperNodes are there")

    def start(self, number: int) -> None:
        """The SuperNode, anew."""
        config = " ".join(
            f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}"
            for key, value in self._nodes[number].items()
        )
        self._spawn(f"node{number}", [
            "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self._port}", "--port", str(free_port()),
            "--node-config", config,
        ])  # fmt: skip

    def kill(self, number: int) -> None:
        """SIGKILL to a SuperNode."""
        self._daemons.kill(f"node{number}")

    def activated(self) -> list[int]:
        """Numbers of the nodes that were activated, one for each start."""
        path = self.folder / "link.log"
        return [int(each) for each in _ACTIVATED.findall(path.read_text(errors="replace"))] if path.exists() else []

    def run(self, app: Path, config: Mapping[str, int | float | str]) -> int:
        """Submit a run of the app; returns its number. Raises: EngineUnavailable, EngineAnswerInvalid."""
        words = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        told = self._flwr("run", str(app), "here", "--run-config", words)
        try:
            return int(told["run-id"])
        except (KeyError, ValueError):
            raise EngineAnswerInvalid(f"flwr run: {str(told)[:400]}") from None

    def state(self, run: int) -> RunState:
        """Raises: EngineUnavailable, EngineAnswerInvalid."""
        told = self._flwr("list", "here", "--run-id", str(run))
        try:
            (row,) = (each for each in told["runs"] if int(each["run-id"]) == run)
            return RunState(str(row["status"]), str(row["status-details"]))
        except (KeyError, ValueError):
            raise EngineAnswerInvalid(f"flwr list: {str(told)[:400]}") from None

    def close(self) -> None:
        """End all of it."""
        self._daemons.close()

    def _flwr(self, *words: str) -> dict[str, Any]:
        try:
            done = subprocess.run([self._programs / "flwr", *words, "--format", "json"], env=self._environment,
                                  capture_output=True, text=True, timeout=BOUND_S, check=False)  # fmt: skip
            found: dict[str, Any] = json.loads(done.stdout)
        except (OSError, subprocess.TimeoutExpired) as fault:
            raise EngineUnavailable(f"flwr {words[0]}: {fault}") from None
        except ValueError:
            raise EngineUnavailable(f"flwr {words[0]}: {(done.stderr or done.stdout).strip()[-400:]}") from None
        return found

    def _spawn(self, name: str, words: Sequence[str]) -> None:
        # A shell gives each process a log of its own, and is replaced.
        program = self._programs / words[0]
        self._daemons.start(
            name, ["sh", "-c", f'exec "$@" >>{self.folder}/{name}.log 2>&1', "sh", program, *words[1:]],
            self._environment, self.folder,
        )  # fmt: skip

    def _answers(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self._port)) == 0

    def _until(self, claim: Callable[[], bool], what: str) -> None:
        ends = time.monotonic() + BOUND_S
        while not claim():
            if time.monotonic() > ends:
                raise EngineUnavailable(f"{what} within {BOUND_S:g} s; logs are in {self.folder}")
            time.sleep(0.1)
