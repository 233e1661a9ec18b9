"""The process that runs the command of one place of a job of the engine `ray`, started by Ray's worker process.

Its source is sent to the nodes, which need no offpath: standard library only. stdin is a line of JSON (see `main`),
then the life line: ``T`` means SIGTERM and `GRACE_S` later SIGKILL; its end means that the worker has died, or its
node's raylet: SIGKILL at once. stdout: the pid of the command, then its exit code, a line each; negative: a signal.

It is no child of the worker for long: Ray kills a worker's children with it, and the command would go on without this
process.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import select
import signal
import time
from collections.abc import Mapping
from typing import Any, NoReturn

GRACE_S = 5.0
"""From SIGTERM to SIGKILL."""
CANNOT_RUN = 127


def signal_group(pid: int, number: int) -> None:
    """To all processes that kept the group of the command."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def become(order: Mapping[str, Any], gate: int) -> NoReturn:
    """The child: the command."""
    try:
        os.setpgid(0, 0)
        if os.read(gate, 1) != b".":
            os._exit(CANNOT_RUN)  # the parent died
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number in (signal.SIGPIPE, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        if order["user"]:
            entry = pwd.getpwnam(order["user"])
            if entry.pw_uid != os.geteuid():
                os.initgroups(entry.pw_name, entry.pw_gid)
                os.setgid(entry.pw_gid)
                os.setuid(entry.pw_uid)
        os.chdir(order["working_directory"])
        nothing = os.open(os.devnull, os.O_RDWR)
        target = nothing
        if order["output"]:
            target = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(nothing, 0)
        os.dup2(target, 1)
        os.dup2(target, 2)
        os.closerange(3, 1024)
        os.execvpe(order["argv"][0], order["argv"], order["environment"])
    except BaseException as fault:
        with contextlib.suppress(OSError):
            os.write(2, f"cannot run {order['argv'][0]}: {fault}\n".encode())
    os._exit(CANNOT_RUN)


def wait(pid: int, pidfd: int) -> int:
    """Until the command has ended, on its own or by the life line."""
    kill_at: float | None = None
    watched = [0, pidfd]
    while True:
        left = None if kill_at is None else max(kill_at - time.monotonic(), 0)
        ready, _, _ = select.select(watched, [], [], left)
        if pidfd in ready:
            _, status = os.waitpid(pid, 0)
            signal_group(pid, signal.SIGKILL)  # what the command left behind
            return os.waitstatus_to_exitcode(status)
        if not ready:
            signal_group(pid, signal.SIGKILL)
            kill_at = None
        elif os.read(0, 1):
            signal_group(pid, signal.SIGTERM)
            kill_at = kill_at or time.monotonic() + GRACE_S
        else:
            signal_group(pid, signal.SIGKILL)
            watched = [pidfd]


def main() -> None:
    """Run what stdin asks for: ``argv``, ``environment``, ``working_directory``, ``output`` (empty: nowhere),
    ``user`` (empty: this one)."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1 << 16)
        if not byte:
            return
        line += byte
    order = json.loads(line)
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    gate, opener = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(opener)
        become(order, gate)
    os.close(gate)
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpgid(pid, pid)  # here and in the child: a signal to the group must not come too early
    pidfd = os.pidfd_open(pid)
    os.write(1, f"{pid}\n".encode())
    os.write(opener, b".")
    os.close(opener)
    code = wait(pid, pidfd)
    with contextlib.suppress(BrokenPipeError):
        os.write(1, f"{code}\n".encode())


if __name__ == "__main__":
    main()
