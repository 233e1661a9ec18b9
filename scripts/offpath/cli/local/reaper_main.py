"""Starts daemons, reaps whatever they orphan, and kills all of it when stdin ends: also when their starter is killed.

A line of JSON on stdin starts one: ``{"argv": …, "env": …, "cwd": …, "log": …}``; its pid is printed. Where the
machine's process 1 reaps late, Slurm takes zombies for running jobs.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import time
from collections.abc import Mapping
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36


def start(wish: Mapping[str, Any]) -> int:
    """Fork and run it."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        os.chdir(wish["cwd"])
        log = os.open(wish["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for number, source in ((0, os.open(os.devnull, os.O_RDWR)), (1, log), (2, log)):
            os.dup2(source, number)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.execvpe(wish["argv"][0], wish["argv"], wish["env"])
    finally:
        os._exit(127)


def reap() -> bool:
    """All that ended; False: no child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def kill_all() -> None:
    """Children, and what becomes a child when its parent has died."""
    while reap():
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            for pid in file.read().split():
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.01)


def main() -> None:
    """See the module's text."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    waking, awake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(awake)
    lines = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115
    rest = b""
    while True:
        ready, _, _ = select.select([0, waking], [], [])
        if waking in ready:
            os.read(waking, 4096)
            reap()
        if 0 in ready:
            piece = lines.read(1 << 16)
            if not piece:
                break
            *wishes, rest = (rest + piece).split(b"\n")
            for wish in wishes:
                print(start(json.loads(wish)), flush=True)
    kill_all()


if __name__ == "__main__":
    main()
