"""SCRIPT: imports what the script imports; then runs it in a fork of itself for each call (`preloaded.Preloaded`)."""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import select
import signal
import socket
import sys
from typing import Any

MOST_BYTES = 1 << 20
FDS = 4
"""Standard input, output and error of the fork, and the socket on which its exit code is told."""


def serve(door: socket.socket) -> list[str]:
    """The arguments, in the fork of a call; in the process itself it never returns."""
    ends, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    forks: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([door, ends], [], [])
        if ends in ready:
            os.read(ends, 4096)
            reap(forks)
        if door not in ready:
            continue
        data, fds, _, _ = socket.recv_fds(door, MOST_BYTES, FDS)
        if not data:
            os._exit(0)  # the tests have ended
        pid = os.fork()
        if pid == 0:
            for each in (door, *forks.values()):
                each.detach()  # `become` closes them
            return become(json.loads(data), fds)
        for fd in fds[:-1]:
            os.close(fd)
        forks[pid] = socket.socket(fileno=fds[-1])
        pidfd = os.pidfd_open(pid)
        socket.send_fds(forks[pid], [str(pid).encode()], [pidfd])
        os.close(pidfd)


def reap(forks: dict[int, socket.socket]) -> None:
    """Tell the exit codes of the forks that have ended; negative: the signal."""
    while forks:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with forks.pop(pid) as end:
            end.send(str(os.waitstatus_to_exitcode(status)).encode())


def become(call: dict[str, Any], fds: list[int]) -> list[str]:
    """In the fork: what a process has that was just started."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, fd in enumerate(fds[:-1]):
        os.dup2(fd, number)
    os.closerange(3, 1 << 20)
    os.chdir(call["folder"])
    os.environ.clear()
    os.environ.update(call["environment"])
    arguments: list[str] = call["arguments"]
    return arguments


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: it never outlives the tests
    script = sys.argv[1]
    runpy.run_path(script, run_name="preloaded")
    sys.argv = [script, *serve(socket.socket(fileno=int(sys.argv[2])))]
    runpy.run_path(script, run_name="__main__")
