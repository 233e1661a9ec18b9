"""Processes that start without importing anything: forks of one that has imported all that their script needs.

Daemon and helper of a test need a second of processor time for their imports, and a hundred milliseconds for the test.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from .limits import LIMITS

HERE = Path(__file__).resolve().parent
MOST = 6
"""Processes that are kept; they end with the tests, because their forks would end with them."""
_CHANGES = ("PYTEST_CURRENT_TEST", LIMITS)
"""No library reads them when it is imported."""
_lock = threading.Lock()
_Key = tuple[str, frozenset[tuple[str, str]]]
_kept: dict[_Key, Preloaded] = {}
_uses: dict[_Key, int] = {}


class Fork:
    """A forked process, used like `subprocess.Popen`."""

    def __init__(self, pid: int, pidfd: int, end: socket.socket, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid, self.pidfd, self.stdin, self.stdout = pid, pidfd, stdin, stdout
        self._end: socket.socket | None = end
        self._code = 0

    def poll(self) -> int | None:
        """The exit code; None: it runs."""
        if self._end is None:
            return self._code
        if not select.select([self.pidfd], [], [], 0)[0]:
            return None
        return self.wait(None)

    def wait(self, timeout: float | None) -> int:
        """Its exit code; negative: the signal. Raises: subprocess.TimeoutExpired: it runs on."""
        if self._end is not None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self._code = int(self._end.recv(64))
            self._end.close()
            self._end = None
        return self._code


class Preloaded:
    """A process that has imported what ``script`` imports."""

    def __init__(self, script: str, environment: Mapping[str, str]) -> None:
        self._door, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = [sys.executable, "-W", "always", str(HERE / "preloaded_main.py"), str(HERE / script)]
        self._popen = subprocess.Popen(
            [*program, str(theirs.fileno())], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            env=dict(environment), pass_fds=(theirs.fileno(),),
        )  # fmt: skip
        theirs.close()

    def close(self) -> None:
        """End it, and with it the forks that still run."""
        self._door.close()
        self._popen.wait(30)

    def start(self, arguments: tuple[str, ...], environment: Mapping[str, str], stderr: int) -> Fork:
        """The script with these arguments."""
        end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stdin, to_stdin = os.pipe()
        from_stdout, stdout = os.pipe()
        call = {"arguments": arguments, "environment": dict(environment), "folder": os.getcwd()}
        socket.send_fds(self._door, [json.dumps(call).encode()], [stdin, stdout, stderr, theirs.fileno()])
        os.close(stdin)
        os.close(stdout)
        theirs.close()
        said, fds, _, _ = socket.recv_fds(end, 64, 1)
        return Fork(int(said), fds[0], end, os.fdopen(to_stdin, "wb"), os.fdopen(from_stdout, "rb", 0))


def preloaded(script: str, environment: Mapping[str, str]) -> Preloaded | None:
    """The process to fork for this script; None: it must start anew.

    Libraries read the environment when they are imported, so each environment has a process of its own, from its second
    use on: most tests share one.
    """
    same = {name: value for name, value in environment.items() if name not in _CHANGES}
    key = (script, frozenset(same.items()))
    with _lock:
        if key not in _kept:
            _uses[key] = _uses.get(key, 0) + 1
            if _uses[key] < 2 or len(_kept) >= MOST:
                return None
            _kept[key] = Preloaded(script, same)
        return _kept[key]
