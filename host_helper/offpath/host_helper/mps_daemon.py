"""One MPS control daemon: started, driven and ended by NVIDIA's control program.

The program's exit code says only whether it reached a daemon, and a setting that is refused is answered with the old
value. So each setting is read back. All waits are bounded.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from typing import Final

from offpath.bindings.cuda.driver import VISIBLE_VARIABLE
from offpath.bindings.cuda.share import LOGS, PIPES
from offpath.bindings.errors import MpsError

logger = logging.getLogger(__name__)
_MOST_PATH: Final = 107
"""Longest path of a Unix socket."""
_LONGEST_NAME: Final = "control_privileged"
_START_S: Final = 10.0
_ASK_S: Final = 5.0
_QUIT_S: Final = 3.0
_KILL_S: Final = 2.0
_POLL_S: Final = 0.02
_MOST_ANSWER: Final = 200
_PROCESSES: Final = b"nvidia-cuda-mps-"
"""How the names of the control daemon and of its servers begin."""
_UNITS: Final = {"K": 1, "M": 1 << 10, "G": 1 << 20}


class MpsDaemon:
    """A control daemon with pipes and logs in ``folder``; one that lives if it was made by `start`."""

    def __init__(self, program: str, folder: str) -> None:
        self._program = program
        self._folder = folder
        self.pipes = os.path.join(folder, "pipe")
        self.logs = os.path.join(folder, "logs")
        self._start_log = os.path.join(self.logs, "start.log")
        self.pidfd = -1
        """Readable once the control daemon has ended."""

    @classmethod
    def start(cls, program: str, folder: str, visible: str, percentage: int, limit_mib: int) -> MpsDaemon:
        """A daemon for the device ``visible``, whose clients have at most ``percentage`` of its multiprocessors and
        ``limit_mib`` of its memory. Blocks for seconds. Raises: MpsError; nothing is left then."""
        made = cls(program, folder)
        longest = os.path.join(made.pipes, _LONGEST_NAME)
        if len(os.fsencode(longest)) > _MOST_PATH:
            raise MpsError(f"{longest} is too long for a socket: choose a shorter runtime directory")
        try:
            for path in (folder, made.pipes, made.logs):
                os.mkdir(path, 0o700)
            code = made._launch(visible)
            made._configure(percentage, limit_mib, is_expected=not code)
            made._watch()
        except MpsError:
            made.stop()
            raise
        except OSError as fault:
            made.stop()
            raise MpsError(f"MPS control daemon: {fault}") from fault
        return made

    @classmethod
    def left_over(cls, program: str, folder: str) -> MpsDaemon:
        """What a helper that was killed left in ``folder``, to be stopped. ``program``: empty if there is none."""
        return cls(program, folder)

    def has_ended(self) -> bool:
        """Whether the control daemon that `start` made has ended."""
        return self.pidfd < 0 or not _lives(self.pidfd)

    def terminate(self, pids: Iterable[int]) -> None:
        """Ask the servers to end these clients' work, which must precede their SIGKILL. Failures are logged."""
        wanted = list(pids)
        try:
            servers = [line for line in self._ask("get_server_list").split() if line.isdigit()]
            if wanted and servers:
                self._ask(*(f"terminate_client {server} {pid}" for server in servers for pid in wanted))
        except MpsError as fault:
            logger.info("%s: clients are killed without notice: %s", self.pipes, fault)

    def stop(self) -> bool:
        """End the daemon and its servers, by `quit`, then by SIGKILL; remove the directory. Clients must have ended.
        False: a process does not end, and the directory stays. Idempotent."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        if not os.path.isdir(self._folder):
            return True
        found = self._processes()
        try:
            if found and self._program:
                with contextlib.suppress(MpsError):
                    self._ask("quit -t 2")
                _await_ends(found, _QUIT_S)
            found += self._processes()  # a server may have started meanwhile
            for watched in filter(_lives, found):
                signal.pidfd_send_signal(watched, signal.SIGKILL)
            _await_ends(found, _KILL_S)
            if any(map(_lives, found)):
                logger.error("%s: a process of this MPS control daemon does not end", self._folder)
                return False
        finally:
            for watched in found:
                os.close(watched)
        shutil.rmtree(self._folder, ignore_errors=True)
        return not os.path.isdir(self._folder)

    # -- starting -----------------------------------------------------------------------------------------------------
    def _launch(self, visible: str) -> int:
        """Start it for the device ``visible``; what the program's exit says: 0, or a daemon is not expected. Raises:
        MpsError, OSError."""
        environment = {**self._environment(), VISIBLE_VARIABLE: visible}
        with open(self._start_log, "wb") as file:  # not a pipe: the daemon may keep it open
            try:
                done = subprocess.run(
                    [self._program, "-d"], env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                    timeout=_START_S, check=False, cwd="/", start_new_session=True,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise MpsError(f"{self._program} -d did not return within {_START_S:g} s") from None
        return done.returncode

    def _configure(self, percentage: int, limit_mib: int, *, is_expected: bool) -> None:
        """Set the defaults of its clients, once it answers. Raises: MpsError: none does, or it keeps other values."""
        deadline = time.monotonic() + _START_S
        while True:
            try:
                said = self._ask(
                    f"set_default_active_thread_percentage {percentage}",
                    f"set_default_device_pinned_mem_limit 0 {limit_mib}M",
                    "get_default_device_pinned_mem_limit 0",
                ).split()
                break
            except MpsError as fault:
                if not is_expected or time.monotonic() > deadline:
                    raise MpsError(f"no MPS control daemon: {_text(self._start_log) or fault}") from fault
                time.sleep(_POLL_S)
        if len(said) != 2 or _number(said[0]) != percentage or _kib(said[1]) != limit_mib << 10:
            kept = " ".join(said)[:_MOST_ANSWER]
            raise MpsError(f"the MPS control daemon keeps {kept!r} instead of {percentage} % and {limit_mib}M")

    def _watch(self) -> None:
        """Raises: MpsError."""
        found = self._processes()
        if not found:
            raise MpsError("an MPS control daemon answers that is not the one which was started")
        self.pidfd = found[0]
        for watched in found[1:]:
            os.close(watched)

    def _environment(self) -> dict[str, str]:
        """Without settings of MPS that this process was started with."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_MPS_")}
        return {**kept, PIPES: self.pipes, LOGS: self.logs}

    def _ask(self, *commands: str) -> str:
        """What the daemon answers. Raises: MpsError: none does in time."""
        try:
            done = subprocess.run(
                [self._program], env=self._environment(), input="".join(f"{each}\n" for each in commands),
                capture_output=True, text=True, errors="replace", timeout=_ASK_S, check=False, cwd="/",
                start_new_session=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise MpsError(f"the control daemon did not answer {commands[0]!r} within {_ASK_S:g} s") from None
        except OSError as fault:
            raise MpsError(f"{self._program}: {fault}") from fault
        # 1 is no failure of `quit`: a server has ended badly at some time. Without a daemon nothing is printed.
        if done.returncode and not done.stdout:
            raise MpsError(f"{commands[0]!r}: {done.stderr.strip()[:_MOST_ANSWER] or f'exit code {done.returncode}'}")
        return done.stdout

    # -- processes ----------------------------------------------------------------------------------------------------
    def _processes(self) -> list[int]:
        """pidfds of the control daemon, then of its servers: processes of this user that were started with this pipe
        directory. Neither program says which processes they are, and older ones write no pid file."""
        found: list[tuple[bool, int]] = []
        for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
            if not self._is_own(pid):
                continue
            with contextlib.suppress(OSError):
                watched = os.pidfd_open(pid)
                if self._is_own(pid):  # else another process has got its number
                    found.append((b"control" not in _command(pid), watched))
                else:
                    os.close(watched)
        return [watched for _, watched in sorted(found)]

    def _is_own(self, pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                variables = file.read().split(b"\0")
        except OSError:
            return False
        return os.fsencode(f"{PIPES}={self.pipes}") in variables and bool(_command(pid))


def _command(pid: int) -> bytes:
    """The name under which the process runs one of MPS's programs, possibly by an interpreter; empty: it does not."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            names = [os.path.basename(word) for word in file.read().split(b"\0")[:2]]
    except OSError:
        return b""
    return next((name for name in names if name.startswith(_PROCESSES)), b"")


def _lives(watched: int) -> bool:
    return not _poll([watched], 0)


def _await_ends(found: list[int], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while (alive := list(filter(_lives, found))) and (left := deadline - time.monotonic()) > 0:
        _poll(alive[:1], left)


def _poll(watched: list[int], seconds: float) -> bool:
    poll = select.poll()
    for each in watched:
        poll.register(each, select.POLLIN)
    return bool(poll.poll(seconds * 1e3))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


def _kib(text: str) -> float:
    """``4G`` → KiB; negative: no such quantity."""
    return _number(text[:-1]) * _UNITS.get(text[-1:].upper(), -1)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_ANSWER).strip()
    except OSError:
        return ""
