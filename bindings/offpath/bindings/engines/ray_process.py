"""The process that runs the command of one place of a job of the engine `ray`, started by Ray's worker process.

Its source is sent to the nodes, which need no offpath: standard library only. stdin is a line of JSON (see `main`),
then the life line: ``T`` means SIGTERM and `GRACE_S` later SIGKILL; its end means that the worker has died, or its
node's raylet: SIGKILL at once. stdout: the pid of the command, then its exit code, a line each; negative: a signal;
then the reason why it did not start, if it did not.

It is the subreaper of what the command starts: a process that leaves the command's group is ended with it, and the
exit code is reported when none is left.

It is no child of the worker for long: Ray kills a worker's children with it, and the command would go on without this
process.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
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
_PR_SET_CHILD_SUBREAPER = 36
_PAUSE_S = 0.02
_MOST_REASON_BYTES = 2_000


def signal_group(pid: int, number: int) -> None:
    """To all processes that kept the group of the command."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def why(fault: BaseException, program: str = "", search: str = "") -> str:
    """The reason why the command does not start. ``program``: if exec(2) failed; ``search``: its PATH."""
    if not isinstance(fault, OSError) or fault.errno is None:
        return f"{type(fault).__name__}: {fault}"
    if program and fault.errno == errno.ENOENT and "/" not in program:
        return f"not found in PATH={search}"
    if program and fault.errno == errno.EACCES:
        return f"{os.strerror(fault.errno)}: it must be a file with permission to execute (chmod +x)"
    return os.strerror(fault.errno)


def become(order: Mapping[str, Any], gate: int, teller: int) -> NoReturn:
    """The child: the command. ``teller``: takes the reason if it does not start."""
    step, program = "cannot begin", ""
    try:
        os.setpgid(0, 0)
        if os.read(gate, 1) != b".":
            os._exit(CANNOT_RUN)  # the parent died
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number in (signal.SIGPIPE, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        step = f"cannot run as user {order['user']}"
        if order["user"]:
            entry = pwd.getpwnam(order["user"])
            if entry.pw_uid != os.geteuid():
                os.initgroups(entry.pw_name, entry.pw_gid)
                os.setgid(entry.pw_gid)
                os.setuid(entry.pw_uid)
        step = f"cannot enter the working directory {order['working_directory']}"
        os.chdir(order["working_directory"])
        step = f"cannot open the output {order['output']}"
        nothing = os.open(os.devnull, os.O_RDWR)
        target = nothing
        if order["output"]:
            target = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(nothing, 0)
        os.dup2(target, 1)
        os.dup2(target, 2)
        os.closerange(3, teller)
        os.closerange(teller + 1, 1024)
        program = order["argv"][0]
        step = f"cannot run {program}"
        os.execvpe(program, order["argv"], order["environment"])
    except BaseException as fault:
        text = f"{step}: {why(fault, program, order['environment'].get('PATH', ''))}\n".encode()
        for descriptor in (teller, 2):
            with contextlib.suppress(OSError):
                os.write(descriptor, text[:_MOST_REASON_BYTES])
    os._exit(CANNOT_RUN)


def reaped(pid: int) -> int | None:
    """Reaps all that ended. The exit code of the command, if it is among them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] == pid:
                code = os.waitstatus_to_exitcode(found[1])
    return code


def end_all() -> None:
    """SIGKILL to the children, and to what becomes a child when its parent has ended, until none is left."""
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            for child in file.read().split():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(int(child), signal.SIGKILL)
        time.sleep(_PAUSE_S)


def wait(pid: int, waking: int) -> int:
    """Until the command has ended, on its own or by the life line, and all that it started. ``waking``: readable after
    SIGCHLD."""
    kill_at: float | None = None
    watched = [0, waking]
    while True:
        left = None if kill_at is None else max(kill_at - time.monotonic(), 0)
        ready, _, _ = select.select(watched, [], [], left)
        if waking in ready:
            os.read(waking, 4096)
            code = reaped(pid)
            if code is not None:
                signal_group(pid, signal.SIGKILL)  # what the command left behind
                end_all()
                return code
        if not ready:
            signal_group(pid, signal.SIGKILL)
            kill_at = None
        elif 0 not in ready:
            continue
        elif os.read(0, 1):
            signal_group(pid, signal.SIGTERM)
            kill_at = kill_at or time.monotonic() + GRACE_S
        else:
            signal_group(pid, signal.SIGKILL)
            watched = [waking]


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
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    waking, awake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(awake, warn_on_full_buffer=False)
    gate, opener = os.pipe()
    faults, teller = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(opener)
        become(order, gate, teller)
    os.close(gate)
    os.close(teller)
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpgid(pid, pid)  # here and in the child: a signal to the group must not come too early
    os.write(1, f"{pid}\n".encode())
    os.write(opener, b".")
    os.close(opener)
    code = wait(pid, waking)
    with contextlib.suppress(BrokenPipeError):
        os.write(1, f"{code}\n".encode() + os.read(faults, _MOST_REASON_BYTES))


if __name__ == "__main__":
    main()
