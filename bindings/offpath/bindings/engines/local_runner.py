"""The process that runs one job of the engine `local`: ``python local_runner.py FOLDER``, detached from the controller.

It outlives the controller, because only a parent learns an exit code. The ledger is the job's folder; all files appear
by rename, after fsync:

- ``start.json``: what to run; written by the controller, which made the folder.
- ``started.json``: pid, start time and boot of this process. The command never runs before it is there, and no runner
  runs it when it is there: at most once.
- ``children.json``: the processes, before any of them runs the command.
- ``left.json``: processes that SIGKILL did not end yet, if there are any.
- ``ended.json``: state, exit code, reason; final. No process of the job is left then.

A command may start processes that leave its process group (setsid, a double fork). This process is their subreaper:
the kernel makes it the parent of each of them whose own parent ends. The job ends when it has no child any more.

Standard library only: it is run by its path, without offpath's packages.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import pwd
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

GRACE_S = 5.0
"""From SIGTERM to SIGKILL."""
CANNOT_RUN = 127
_SIGNALS = {signal.SIGCHLD, signal.SIGTERM}
_PR_SET_CHILD_SUBREAPER = 36
_LOOKS_S = (0.01, 1.0)
"""The first and the longest pause between two looks for processes that are to end."""
_MOST_REASON_BYTES = 2_000


def boot() -> str:
    """The kernel's id of this boot: processes of another one have ended."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def stat(pid: int) -> list[str] | None:
    """Of /proc/PID/stat what follows the name: state, parent, group, …; None: no such process."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def start_time(pid: int) -> int | None:
    """When the process started, in the kernel's ticks since boot; None: no such process, or a zombie."""
    fields = stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def processes() -> dict[int, list[str]]:
    """All processes, each with its `stat`; no zombies but those that still have threads."""
    found = ((int(name), stat(int(name))) for name in os.listdir("/proc") if name.isdecimal())
    return {
        pid: fields for pid, fields in found if fields is not None and (fields[0] not in "ZX" or int(fields[17]) > 1)
    }


def descendants(pids: Sequence[int], there: Mapping[int, Sequence[str]]) -> set[int]:
    """Children of ``pids``, their children, and so on, among `processes`."""
    children: dict[int, list[int]] = {}
    for pid, fields in there.items():
        children.setdefault(int(fields[1]), []).append(pid)
    found: set[int] = set()
    waiting = list(pids)
    while waiting:
        new = [pid for pid in children.get(waiting.pop(), ()) if pid not in found]
        found.update(new)
        waiting += new
    return found


def send(pids: Iterable[int], number: int) -> None:
    """A signal to each process that still is there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def private(path: str, flags: int) -> int:
    """Open a file that only this user can read if it is made here. The opener of `open`."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def write(folder: str, name: str, document: Mapping[str, Any]) -> None:
    """All or nothing, and on the disk when this returns."""
    with open(f"{folder}/{name}.new", "w", opener=private) as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{folder}/{name}.new", f"{folder}/{name}")
    sync(folder)


def sync(folder: str) -> None:
    """The folder's entries are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(folder: str) -> int | None:
    """The folder's lock as a descriptor; None: another process has it."""
    descriptor = os.open(f"{folder}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def signal_group(pid: int, number: int) -> None:
    """To all processes that kept the group of a child."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def has_children() -> bool:
    """Reaps all that ended. False: nothing that this process or a descendant started is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def why(fault: BaseException, program: str = "", search: str = "") -> str:
    """The reason why a command does not start. ``program``: if exec(2) failed; ``search``: its PATH."""
    if not isinstance(fault, OSError) or fault.errno is None:
        return f"{type(fault).__name__}: {fault}"
    text = os.strerror(fault.errno)
    if not program:
        return text
    if fault.errno == errno.ENOENT and "/" not in program:
        return f"not found in PATH={search}"
    if fault.errno == errno.ENOENT and os.path.exists(program):
        return f"{text}: the interpreter in its first line (#!), or the loader that it needs"
    if fault.errno == errno.EACCES:
        return f"{text}: it must be a file with permission to execute (chmod +x), and its folders must be accessible"
    if fault.errno == errno.ENOEXEC:
        return f"{text}: no first line with #!, or made for another architecture"
    return text


class Runner:
    """The life of one job."""

    def __init__(self, folder: str, start: Mapping[str, Any]) -> None:
        self._folder = folder
        self._start = start
        self._children: dict[int, int] = {}
        self._running: set[int] = set()
        self._code = 0
        self._is_cancelled = False
        self._kill_at: float | None = None

    def run(self) -> None:
        """Start the children, wait for them and for all that they started, record the end."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        write(self._folder, "started.json", {"pid": os.getpid(), "start": start_time(os.getpid()), "boot": boot()})
        gate, opener = os.pipe()
        faults, teller = os.pipe()
        for index, place in enumerate(self._start["places"]):
            pid = os.fork()
            if pid == 0:
                os.close(opener)
                self._become(index, place, gate, teller)
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.setpgid(pid, pid)  # here and in the child: a signal to the group must not come too early
            self._children[pid] = start_time(pid) or 0
        os.close(gate)
        os.close(teller)
        write(self._folder, "children.json", {str(pid): start for pid, start in self._children.items()})
        os.write(opener, b"." * len(self._children))
        os.close(opener)
        self._running = set(self._children)
        with contextlib.suppress(BrokenPipeError):  # the controller ended
            os.write(1, b"running\n")
        self._point_away()
        self._wait()
        self._end_left()
        # Empty, and at its end, unless a child failed before its command: only such a child writes.
        reason = os.read(faults, _MOST_REASON_BYTES).decode("utf-8", "replace").partition("\n")[0]
        state = "cancelled" if self._is_cancelled else "failed" if self._code else "succeeded"
        write(self._folder, "ended.json", {"state": state, "code": self._code, "reason": reason})

    def _point_away(self) -> None:
        """The controller's end of the pipe must not stay open as long as the job."""
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        os.close(nothing)

    def _wait(self) -> None:
        while self._running:
            left = None if self._kill_at is None else max(self._kill_at - time.monotonic(), 0)
            got = signal.sigwaitinfo(_SIGNALS) if left is None else signal.sigtimedwait(_SIGNALS, left)
            if got is None:
                self._send(signal.SIGKILL)
                self._kill_at = None
            elif got.si_signo == signal.SIGTERM:
                self._is_cancelled = True
                self._end_others()
            self._reap()

    def _reap(self) -> None:
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid not in self._running:
                continue  # started by a command; its parent ended before it
            self._running.discard(pid)
            signal_group(pid, signal.SIGKILL)  # what the command left behind
            code = os.waitstatus_to_exitcode(status)
            if code:
                self._code = self._code or code
                self._end_others()

    def _end_others(self) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + GRACE_S
            self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        """To the commands' groups, and once to each process that left them."""
        there = processes()
        for pid in self._running:
            signal_group(pid, number)
        send({pid for pid in descendants([os.getpid()], there) if int(there[pid][2]) not in self._running}, number)

    def _end_left(self) -> None:
        """No child is left when this returns. It repeats SIGKILL: a process that starts another may escape one look."""
        pause, ends = _LOOKS_S[0], time.monotonic() + GRACE_S
        while has_children():
            there = processes()
            left = descendants([os.getpid()], there)
            send(left, signal.SIGKILL)
            if left and time.monotonic() > ends:
                write(self._folder, "left.json", {"pids": sorted(left)[:8]})
            signal.sigtimedwait(_SIGNALS, pause)
            pause = min(2 * pause, _LOOKS_S[1])

    def _become(self, index: int, place: list[Any], gate: int, teller: int) -> NoReturn:
        """The child: the command of one place. It never returns into the runner's code."""
        step, program = "cannot begin", ""
        try:
            os.setpgid(0, 0)
            if os.read(gate, 1) != b".":
                os._exit(CANNOT_RUN)  # the runner died; this child is not in the ledger
            os.close(gate)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            step = f"cannot run as user {self._start['user']}"
            self._drop_privileges()
            step = f"cannot enter the working directory {self._start['working_directory']}"
            os.chdir(self._start["working_directory"])
            step = f"cannot open the output {self._start['output']}.{index}"
            self._redirect(index)
            program = self._start["argv"][0]
            step = f"cannot run {program}"
            os.execvpe(program, self._start["argv"], self._environment(index, place))
        except BaseException as fault:
            text = f"{step}: {why(fault, program, self._environment(index, place)['PATH'])}\n".encode()
            for descriptor in (teller, 2):
                with contextlib.suppress(OSError):
                    os.write(descriptor, text[:_MOST_REASON_BYTES])
        os._exit(CANNOT_RUN)

    def _drop_privileges(self) -> None:
        if self._start["user"]:
            entry = pwd.getpwnam(self._start["user"])
            if entry.pw_uid != os.geteuid():
                os.initgroups(entry.pw_name, entry.pw_gid)
                os.setgid(entry.pw_gid)
                os.setuid(entry.pw_uid)

    def _redirect(self, index: int) -> None:
        nothing = os.open(os.devnull, os.O_RDWR)
        target = nothing
        if self._start["output"]:
            target = os.open(f"{self._start['output']}.{index}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(nothing, 0)
        os.dup2(target, 1)
        os.dup2(target, 2)

    def _environment(self, index: int, place: list[Any]) -> dict[str, str]:
        return {
            "PATH": self._start["path"],
            **self._start["environment"],
            "OFFPATH_JOB": self._start["identity"],
            "OFFPATH_NODE": place[0],
            "OFFPATH_PLACE": str(index),
            "OFFPATH_PLACES": str(len(self._start["places"])),
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, place[2])),
        }


def main(folder: str) -> None:
    """Leave the controller, and run the job unless another runner has or had it."""
    if os.fork():
        os._exit(0)  # the controller reaps this process at once; the job's belongs to init
    os.setsid()
    held = lock(folder)
    if held is None or any(os.path.exists(f"{folder}/{name}.json") for name in ("started", "ended")):
        return
    with open(f"{folder}/start.json") as file:
        start = json.load(file)
    Runner(folder, start).run()


if __name__ == "__main__":
    main(sys.argv[1])
