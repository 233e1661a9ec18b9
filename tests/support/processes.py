"""Processes of a test: started from a file, talked to by lines, never waited for without a bound, always reaped."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .preloaded import Fork, preloaded

BOUND_S = 120.0 if os.path.exists("/sys/class/infiniband/rxe0") else 60.0
"""Longest any wait may take: with six times as much work as cores a second of work takes seven, and a start of several
processes at once is five seconds of work; the machine of ./scripts/rxe-vm, where rxe0 is, is emulated. A missing event
never comes."""
HERE = Path(__file__).resolve().parent
_PRELOADED = ("daemon_main.py", "helper_main.py", "service_manager_main.py")
_FAULTS = ("Traceback (most recent call last)", "Warning:", "ERROR:", "Exception ignored")


def until(claim: Callable[[], Any], bound_s: float = BOUND_S) -> Any:
    """Wait until the claim holds; returns what it gave. Raises: AssertionError: it never did."""
    end = time.monotonic() + bound_s
    while not (got := claim()):
        assert time.monotonic() < end, f"never came true: {claim}"
        time.sleep(0.002)
    return got


def quickest(measure: Callable[[], float], bound: float, tries: int = 3, pause_s: float = 0.0) -> float:
    """The least of so many tries, or the first below ``bound``: other work on the cores may delay some, not all. With a
    pause between the tries the other work may end."""
    least = measure()
    for _ in range(tries - 1):
        if least < bound:
            break
        time.sleep(pause_s)
        least = min(least, measure())
    return least


def rss_anon(pid: int) -> int:
    """Bytes of a process's own memory: heap and stacks, without files and shared regions."""
    found = re.search(r"^RssAnon:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


class Process:
    """A script of this folder in its own Python, or in a fork of one that has imported the same in an equal
    environment; its standard error goes to a file that is judged at the end."""

    def __init__(
        self, name: str, folder: Path, script: str, *arguments: str, environment: dict[str, str] | None = None
    ) -> None:
        self.name = name
        self.error_file = folder / f"{name}.err"
        environment = {
            **os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", **(environment or {})
        }  # fmt: skip
        forking = preloaded(script, environment) if script in _PRELOADED else None
        self._popen: Fork | subprocess.Popen[bytes]
        with open(self.error_file, "wb") as errors:
            if forking is not None:
                self._popen = forking.start(arguments, environment, errors.fileno())
                self._pidfd = self._popen.pidfd
            else:
                self._popen = subprocess.Popen(
                    [sys.executable, "-W", "always", str(HERE / script), *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=environment,
                )
                self._pidfd = os.pidfd_open(self._popen.pid)
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._stdin, self._stdout = self._popen.stdin, self._popen.stdout
        self._read = b""

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_alive(self) -> bool:
        return self._popen.poll() is None

    @property
    def errors(self) -> str:
        return self.error_file.read_text("utf-8", "replace")

    def open_fds(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def fds_at_rest(self) -> int:
        """`open_fds`, once it has stayed for half a second: of sessions that began or ended, sockets still close."""
        seen = [-1]

        def has_stayed() -> bool:
            seen.append(self.open_fds())
            time.sleep(0.05)
            return len(set(seen[-10:])) == 1

        until(has_stayed)
        return seen[-1]

    def rss_anon(self) -> int:
        """As `rss_anon`."""
        return rss_anon(self.pid)

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        self._stdin.write(line.encode() + b"\n")
        self._stdin.flush()

    def hear(self, bound_s: float = BOUND_S) -> Any:
        """The next line of its standard output, as JSON."""
        end = time.monotonic() + bound_s
        while b"\n" not in self._read:
            ready, _, _ = select.select([self._stdout], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{self.name} said nothing:\n{self.errors}"
            data = os.read(self._stdout.fileno(), 65536)
            assert data, f"{self.name} ended:\n{self.errors}"
            self._read += data
        line, self._read = self._read.split(b"\n", 1)
        return json.loads(line)

    def ask(self, line: str) -> Any:
        self.tell(line)
        return self.hear()

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    @contextlib.contextmanager
    def stopped(self) -> Any:
        """Frozen for the block: what is rung meanwhile it finds all at once."""
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def ended(self, bound_s: float = BOUND_S) -> int:
        """Its exit code; negative: the signal."""
        return self._popen.wait(bound_s)

    def kill(self) -> None:
        """SIGKILL and reap; repeating it is harmless."""
        if self._pidfd >= 0:
            self.signal(signal.SIGKILL)
            self._popen.wait(BOUND_S)
            os.close(self._pidfd)
            self._pidfd = -1
            with contextlib.suppress(BrokenPipeError):
                self._stdin.close()
            self._stdout.close()

    def finish(self, *, is_notified: bool = False) -> None:
        """SIGTERM (unless it was told already); it must end by itself, with 0, and must have complained of nothing."""
        if self._pidfd < 0:
            return
        try:
            if not is_notified and self.is_alive:
                self.signal(signal.SIGTERM)
            code = self._popen.wait(BOUND_S)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGABRT)  # it says where it stands
            self._popen.wait(BOUND_S)
            raise AssertionError(f"{self.name} does not end:\n{self.errors[-8000:]}") from None
        finally:
            self.kill()
        errors = self.errors
        errors = re.sub(r"^  \| .*\n", "", errors, flags=re.MULTILINE)  # a kernel's own traceback, in the helper's log
        first = min((at for fault in _FAULTS if (at := errors.find(fault)) >= 0), default=-1)
        assert (code, first) == (0, -1), f"{self.name} ended with {code}:\n{errors[max(0, first - 500) :][:8000]}"
