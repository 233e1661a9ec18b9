"""An emulated rack with a statistical switch, as a process on this machine: for demonstrations and tests."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from offpath.bindings.errors import PeerGone
from offpath.cli.local.child import COMMAND_LINE, start

_START_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Rate:
    """Of the emulated links and the switch, see `offpath switch statistical`."""

    link_mbps: float = 20.0
    rtt_ms: float = 40.0
    mark_packets: float = 24.0
    drop_packets: float = 256.0


class StatisticalSwitch:
    """A context manager. ``directory`` holds socket, log and events."""

    def __init__(self, directory: str, servers: Sequence[str], aggregators: int, rate: Rate | None = None) -> None:
        self.directory = directory
        self.address = f"unix://{directory}/switch.sock"
        self._words = [
            "switch", "statistical", "--listen", self.address, "--servers", ",".join(servers), "--json", "--events",
            self.path("events"), "--aggregators", str(aggregators), *_flags(rate or Rate()),
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> StatisticalSwitch:
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        with open(self.path("log"), "w") as log, open(self.path("stats"), "w") as stats:
            self._process = start(COMMAND_LINE, *self._words, stdout=stats, stderr=log)
        until = time.monotonic() + _START_S
        while "ready at" not in self._text("log"):
            if self._process.poll() is not None or time.monotonic() > until:
                self.close()
                raise PeerGone(f"the statistical switch did not start: see {self.path('log')}")
            time.sleep(0.02)
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End it in order. Idempotent."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def path(self, what: str) -> str:
        """A file of the switch: ``log``, ``events``, ``stats`` (once it has ended)."""
        return os.path.join(self.directory, f"switch.{what}")

    def statistics(self) -> dict[str, Any]:
        """See `SwitchShell.statistics`; once it has ended."""
        found: dict[str, Any] = json.loads(self._text("stats"))
        return found

    def events(self) -> list[dict[str, Any]]:
        """Its statistics over time, each with ``t_ns``."""
        return [json.loads(line) for line in self._text("events").splitlines()]

    def _text(self, what: str) -> str:
        with open(self.path(what), encoding="utf-8") as file:
            return file.read()


def _flags(rate: Rate) -> list[str]:
    return [
        "--link-mbps", str(rate.link_mbps), "--rtt-ms", str(rate.rtt_ms), "--mark-packets", str(rate.mark_packets),
        "--drop-packets", str(rate.drop_packets),
    ]  # fmt: skip
