"""Runs checks one after the other, each as a process group of its own with a time limit, and keeps what they wrote."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import IO, Any, Final

import orjson

from offpath.cli.bench.gpu.setting import Setting
from offpath.cli.gpu_check.plan import Check
from offpath.cli.local.child import ONE_THREAD, start

OK, FAILED, NOT_POSSIBLE = "ok", "failed", "not possible"
_GRACE_S: Final = 5.0
_LOG_CHARACTERS: Final = 3000
_TICK_S: Final = 0.2


@dataclass(slots=True)
class Outcome:
    """A check's end. ``log``: the last of what it wrote to standard output and error, if it is not ok."""

    check: Check
    status: str = OK
    why: str = ""
    seconds: float = 0.0
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    unmet: list[str] = field(default_factory=list)
    met: list[str] = field(default_factory=list)
    log: str = ""
    _end: str = ""

    def read(self, line: bytes) -> None:
        """One line of the check."""
        try:
            found = orjson.loads(line)
        except orjson.JSONDecodeError:
            return  # cut off by a kill
        if "figure" in found:
            self.figures[found["figure"]] = {"value": found["value"], "unit": found["unit"]}
        elif "expectation" in found:
            name, detail = found["expectation"], found["detail"]
            (self.met if found["is_met"] else self.unmet).append(f"{name}: {detail}" if detail else name)
        else:
            self._end, self.why = found["end"], found["why"]

    def judge(self, code: int, is_late: bool, limit_s: float) -> None:
        """Decide its status once its process has ended with ``code``."""
        if is_late:
            self.status, self.why = FAILED, f"not finished after {limit_s:.0f} s"
        elif not self._end:
            self.status, self.why = FAILED, f"its process ended with code {code}"
        elif self._end == NOT_POSSIBLE:
            self.status = NOT_POSSIBLE
        elif self._end == FAILED or self.unmet:
            self.status = FAILED


def run(check: Check, setting: Setting, limit_s: float) -> Outcome:
    """Run a check for at most ``limit_s``, and end everything that it has started."""
    outcome = Outcome(check)
    if check.needs_device and not setting.uuid:
        outcome.status, outcome.why = NOT_POSSIBLE, setting.problem
        return outcome
    began = time.monotonic()
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    with tempfile.TemporaryFile() as log:
        try:
            process = start(
                "gpu_check.child", check.module, check.function, str(writing), orjson.dumps(asdict(setting)).decode(),
                more=ONE_THREAD, pass_fds=(writing,), start_new_session=True, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log,
            )  # fmt: skip
            os.set_blocking(writing, True)
            os.close(writing)
            is_late = _follow(process, reading, outcome, began + limit_s)
            outcome.judge(process.wait(), is_late, limit_s)
        finally:
            os.close(reading)
        outcome.seconds = round(time.monotonic() - began, 1)
        if outcome.status != OK:
            outcome.log = _tail(log)
    return outcome


def _follow(process: subprocess.Popen[bytes], reading: int, outcome: Outcome, deadline: float) -> bool:
    """Read until the process has ended; True: the deadline passed. Its group is dead afterwards, itself not reaped."""
    left, is_late, killed_at = b"", False, float("inf")
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while True:
        has_ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        if poll.poll(0 if has_ended else _TICK_S * 1e3):
            left = _take(reading, left, outcome)
        if has_ended:
            break
        now = time.monotonic()
        if now > deadline and not is_late:
            is_late, killed_at = True, now + _GRACE_S
            os.kill(process.pid, signal.SIGTERM)
        elif now > killed_at:
            process.kill()
            killed_at = float("inf")
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what it forked; it is not reaped yet, so the group's number is its own
    _take(reading, left, outcome)
    return is_late


def _take(reading: int, left: bytes, outcome: Outcome) -> bytes:
    """Read what is there; returns the part of a line at its end."""
    with suppress(BlockingIOError):
        while received := os.read(reading, 1 << 16):
            left += received
    *lines, left = left.split(b"\n")
    for line in lines:
        outcome.read(line)
    return left


def _tail(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode("utf-8", "replace")[-_LOG_CHARACTERS:]
