"""A service manager for one daemon: `offpath daemon run --keep`, for demos, tests and machines without systemd.

It implements the manager's side of systemd's protocol: creates the listening sockets, stores the daemon's descriptors,
watches the daemon and restarts it after an abnormal exit. It must not fail, so it is minimal: standard library only,
one thread, a selector instead of an event loop. It never reads a connection or a request.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import logging
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NoReturn

from offpath.bindings.errors import PlaceUnusable, RegionError
from offpath.bindings.runtime import NOTIFY_SOCKET, make_runtime_directory
from offpath.bindings.sockets import SocketFile, listening_socket
from offpath.dpu_daemon.durability.boot import BOOT_ID, kernels_boot_id, some_boot_id
from offpath.dpu_daemon.durability.fdstore import DescriptorStore, open_notify_socket, read_notification
from offpath.dpu_daemon.durability.inherited import LISTENING
from offpath.dpu_daemon.durability.notify import FIRST_FD

logger = logging.getLogger(__name__)
EX_SOFTWARE: Final = 70
_PR_SET_PDEATHSIG: Final = 1
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_STOPS: Final = (signal.SIGTERM, signal.SIGINT)
_MAX_BACKOFF_S: Final = 5.0
_LOOK_S: Final = 1.0
"""Longest wait of the selector. One that took `_STILL_S` more shows that this process did not run."""
_STILL_S: Final = 0.5
_libc = ctypes.CDLL(None, use_errno=True)  # loaded before any fork


@dataclass(frozen=True, slots=True)
class ServiceManagerSettings:
    """Names in brackets are systemd's settings."""

    watchdog_s: float = 10.0
    """Longest time without WATCHDOG=1 once ready; 0: no watchdog. [WatchdogSec]"""
    start_s: float = 90.0
    """Longest time from start to READY. [TimeoutStartSec]"""
    stop_s: float = 90.0
    """Longest orderly shutdown. [TimeoutStopSec]"""
    abort_s: float = 5.0
    """From SIGABRT to SIGKILL. [TimeoutAbortSec]"""
    starts: int = 5
    """Starts allowed within ``starts_within_s``; 0: any number. [StartLimitBurst]"""
    starts_within_s: float = 10.0
    store_max: int = 4096
    """Most descriptors stored. [FileDescriptorStoreMax]"""


class _Phase(Enum):
    STARTING = auto()
    RUNNING = auto()
    STOPPING = auto()
    ABORTING = auto()


class ServiceManager:
    """Runs ``command`` (an argument vector, the first an absolute path) as its child and restarts it when it fails."""

    def __init__(self, directory: str, command: Sequence[str], settings: ServiceManagerSettings | None = None) -> None:
        self._directory = directory
        self._command = list(command)
        self._settings = settings or ServiceManagerSettings()
        self._listening: dict[str, socket.socket] = {}
        self._files: dict[str, SocketFile] = {}
        self._store = DescriptorStore(self._settings.store_max)
        self._selector = selectors.DefaultSelector()
        self._starts: deque[float] = deque()
        self._pid = 0
        self._pidfd = -1
        self._phase = _Phase.STARTING
        self._deadline_s = 0.0
        self._limit_s = float("inf")
        self._was_ever_ready = False
        self._is_stopping = False
        self._owes_hangup = False
        self._boot = kernels_boot_id() or some_boot_id()
        self._lives = 0
        self._short_lives = 0
        self._ready_s = 0.0

    def run(self) -> int:
        """Serve until the daemon exits in order, SIGTERM or SIGINT arrives, or the start limit is reached. Blocks.

        Returns: the daemon's exit code; 128 + n when a signal ended it; 70 at the start limit.
        Raises: RegionError, PlaceUnusable: the runtime directory or a socket in it cannot be created.
        """
        make_runtime_directory(self._directory)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the daemon also opens every descriptor stored here
        with contextlib.ExitStack() as held:
            self._open(held)
            while True:
                if not self._may_start():
                    logger.error(
                        "giving up after %d restarts",
                        len(self._starts),
                        extra={"code": "start_limit"},
                    )
                    return EX_SOFTWARE
                self._start()
                code = self._attend()
                if self._is_over(code):
                    if self._is_stopping and code == -signal.SIGTERM:
                        return 0  # the signal arrived before the daemon had installed its handler
                    return 128 - code if code < 0 else code
                self._pause()
                if self._is_stopping:
                    return 0

    def _open(self, held: contextlib.ExitStack) -> None:
        held.callback(self._store.close)
        held.enter_context(self._selector)
        for name, (file, kind) in LISTENING.items():
            path = os.path.join(self._directory, file)
            try:
                self._listening[name] = listening_socket(path, kind)
            except OSError as fault:
                raise PlaceUnusable(f"{path}: {fault.strerror or fault}") from None
            self._files[name] = SocketFile(path, is_own=True)
            held.callback(self._unlisten, name)
        self._notify_path = os.path.join(os.path.abspath(self._directory), NOTIFY_SOCKET)
        self._notify = open_notify_socket(self._notify_path)
        self._notify_file = SocketFile(self._notify_path, is_own=True)
        held.callback(self._unnotify)
        self._woken, waker = socket.socketpair()
        held.enter_context(self._woken)
        held.enter_context(waker)
        for end in (self._woken, waker):
            end.setblocking(False)
        before = {number: signal.signal(number, _only_wake) for number in _SIGNALS}
        held.callback(lambda: [signal.signal(number, was) for number, was in before.items()])
        held.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(waker.fileno()))
        self._selector.register(self._notify, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        held.callback(self._end_child)  # runs first, in case this process is the one that fails

    def _unlisten(self, name: str) -> None:
        self._files[name].remove()
        self._listening.pop(name).close()

    def _unnotify(self) -> None:
        self._notify_file.remove()
        self._notify.close()

    def _remake(self) -> None:
        """Recreate the file of each socket if it was removed: a daemon that cannot send READY would be restarted
        endlessly. A running daemon recreates the listening sockets itself, but those end with it."""
        try:
            for name, file in self._files.items():
                if not file.is_there():
                    make_runtime_directory(self._directory)
                    former, self._listening[name] = self._listening[name], file.remake(LISTENING[name][1])
                    former.close()
                    logger.warning(
                        "listening socket %s was removed; created it again", file.path, extra={"code": "socket_remade"}
                    )
        except (OSError, RegionError) as fault:
            logger.error(
                "listening socket %s was removed and cannot be created again: %s",
                file.path,
                fault,
                extra={"code": "socket_lost"},
            )
        self._remake_notify()

    def _remake_notify(self) -> None:
        if self._notify_file.is_there():
            return
        try:
            make_runtime_directory(self._directory)
            sock = open_notify_socket(self._notify_path)
        except (OSError, RegionError, PlaceUnusable) as fault:
            logger.error(
                "socket %s was removed and cannot be created again: %s",
                self._notify_path,
                fault,
                extra={"code": "socket_lost"},
            )
            return
        self._read_notifications()
        self._selector.unregister(self._notify)
        self._notify.close()
        self._notify, self._notify_file = sock, SocketFile(self._notify_path, is_own=True)
        self._selector.register(sock, selectors.EVENT_READ)
        logger.warning("socket %s was removed; created it again", self._notify_path, extra={"code": "socket_remade"})

    # -- one run of the daemon ------------------------------------------------------------------------------------
    def _may_start(self) -> bool:
        now_s = time.monotonic()
        settings = self._settings
        while self._starts and self._starts[0] < now_s - settings.starts_within_s:
            self._starts.popleft()
        if settings.starts and len(self._starts) >= settings.starts:
            return False
        self._starts.append(now_s)
        self._lives += 1
        return True

    def _start(self) -> None:
        self._remake()
        names, fds = list(self._listening), [sock.fileno() for sock in self._listening.values()]
        for name, fd in self._store.entries():
            names.append(name)
            fds.append(fd)
        sys.stdout.flush()
        sys.stderr.flush()
        manager = os.getpid()
        # A signal between fork and exec would run this process's handler in the child and be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            self._pid = os.fork()
            if not self._pid:
                self._become_daemon(manager, names, fds)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        self._pidfd = os.pidfd_open(self._pid)
        self._selector.register(self._pidfd, selectors.EVENT_READ)
        self._ready_s = 0.0
        self._enter(_Phase.STARTING, self._settings.start_s)

    def _become_daemon(self, manager: int, names: Sequence[str], fds: Sequence[int]) -> NoReturn:
        """In the child: places descriptors from 3 on, sets the protocol's variables, then executes the daemon."""
        try:
            signal.set_wakeup_fd(-1)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
            if os.getppid() != manager:
                os._exit(1)  # the parent died before PR_SET_PDEATHSIG was set
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # core dumps would contain tokens and payloads
            # First move all descriptors above the target range, because a source may itself be a target number.
            moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_FD + len(fds)) for fd in fds]
            for to, fd in enumerate(moved, FIRST_FD):
                os.dup2(fd, to, inheritable=True)
            pid = str(os.getpid())
            environment = {**os.environ, "NOTIFY_SOCKET": self._notify_path, "LISTEN_PID": pid}
            environment |= {"LISTEN_FDS": str(len(fds)), "LISTEN_FDNAMES": ":".join(names)}
            environment.setdefault(BOOT_ID, self._boot)
            if self._lives > 1:
                environment.pop("OFFPATH_FAULTS", None)  # an armed fault applies to the first run only
                if self._lives == 2 and "OFFPATH_FAULTS_AGAIN" in environment:
                    environment["OFFPATH_FAULTS"] = environment["OFFPATH_FAULTS_AGAIN"]  # or to the second, if set
            environment.pop("WATCHDOG_USEC", None)
            environment.pop("WATCHDOG_PID", None)
            if self._settings.watchdog_s:
                environment |= {"WATCHDOG_USEC": str(int(self._settings.watchdog_s * 1e6)), "WATCHDOG_PID": pid}
            os.execve(self._command[0], self._command, environment)
        except BaseException as fault:
            os.write(2, f"offpath: the daemon cannot be started: {fault}\n".encode())
        finally:
            os._exit(127)

    def _attend(self) -> int:
        """Waits until the child exits and handles all of its messages. Returns: exit code, or minus the signal."""
        while not self._turn(self._deadline_s - time.monotonic()):
            self._remake_notify()
            self._judge()
        self._read_notifications()  # before the child is reaped, while its pid is not reused
        self._selector.unregister(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return os.waitstatus_to_exitcode(status)

    def _turn(self, wait_s: float) -> bool:
        """Wait once, at most `_LOOK_S`, and handle what is ready. True: the child has exited."""
        has_ended = False
        began_s, wait_s = time.monotonic(), min(max(0.0, wait_s), _LOOK_S)
        found = self._selector.select(wait_s)
        if time.monotonic() - began_s > wait_s + _STILL_S:
            self._excuse()
        for key, _ in found:
            if key.fileobj is self._woken:
                self._signals()
            elif key.fileobj is self._notify:
                self._read_notifications()
            else:
                has_ended = True
        return has_ended

    def _enter(self, phase: _Phase, limit_s: float) -> None:
        self._phase = phase
        self._limit_s = limit_s or float("inf")
        self._deadline_s = time.monotonic() + self._limit_s

    def _excuse(self) -> None:
        """This process stood still (stopped, swapped out). Messages that found its queue full are lost: the phase has
        its whole time from now on."""
        self._deadline_s = max(self._deadline_s, time.monotonic() + self._limit_s)

    def _judge(self) -> None:
        """End a daemon whose phase takes too long. A message that is queued may move the deadline."""
        if time.monotonic() >= self._deadline_s:
            self._read_notifications()
        if time.monotonic() >= self._deadline_s:
            self._too_late()

    def _too_late(self) -> None:
        """The phase took too long: send SIGABRT, which dumps where the daemon hangs; then SIGKILL."""
        if self._phase in (_Phase.STARTING, _Phase.RUNNING):
            what = "has not become ready" if self._phase is _Phase.STARTING else "does not feed its watchdog"
            logger.error("the daemon (pid %d) %s; sending SIGABRT", self._pid, what, extra={"code": "daemon_aborted"})
            self._signal(signal.SIGABRT)
            self._enter(_Phase.ABORTING, self._settings.abort_s)
        else:
            logger.error(
                "the daemon (pid %d) does not exit; sending SIGKILL", self._pid, extra={"code": "daemon_killed"}
            )
            self._signal(signal.SIGKILL)
            self._enter(self._phase, self._settings.abort_s)

    # -- signals and notifications --------------------------------------------------------------------------------
    def _signals(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in self._woken.recv(4096):
                if number in _STOPS:
                    self._is_stopping = True
                    self._signal(signal.SIGTERM)
                    if self._phase is not _Phase.ABORTING:
                        self._enter(_Phase.STOPPING, self._settings.stop_s)
                elif number == signal.SIGHUP:
                    # Before READY, SIGHUP would kill it. A starting daemon reads its configuration anyway.
                    self._owes_hangup = self._phase is _Phase.STARTING
                    if self._phase is _Phase.RUNNING:
                        self._signal(signal.SIGHUP)

    def _read_notifications(self) -> None:
        """Handle every queued message; messages of other processes are ignored."""
        while (message := read_notification(self._notify)) is not None:
            if message.pid != self._pid or not self._pid:
                logger.warning(
                    "ignored a message of pid %d, which is not the daemon",
                    message.pid,
                    extra={"code": "notify_foreign"},
                )
                message.close()
                continue
            fields = message.fields
            if fields.get("FDSTORE") == "1":
                self._store.add(fields.get("FDNAME", "stored"), message.take_fds())
            if fields.get("FDSTOREREMOVE") == "1" and "FDNAME" in fields:
                self._store.remove(fields["FDNAME"])
            message.close()  # also for BARRIER=1, where closing the descriptor is the reply
            if fields.get("READY") == "1" and self._phase is _Phase.STARTING:
                self._was_ever_ready = True
                self._ready_s = time.monotonic()
                self._enter(_Phase.RUNNING, self._settings.watchdog_s)
                if self._owes_hangup:
                    self._owes_hangup = False
                    self._signal(signal.SIGHUP)
            if fields.get("WATCHDOG") == "1" and self._phase is _Phase.RUNNING:
                self._enter(_Phase.RUNNING, self._settings.watchdog_s)
            if fields.get("WATCHDOG") == "trigger" and self._phase is _Phase.RUNNING:
                self._deadline_s = time.monotonic()
            if fields.get("STOPPING") == "1" and self._phase is _Phase.RUNNING:
                self._enter(_Phase.STOPPING, self._settings.stop_s)
            if "STATUS" in fields:
                logger.info(
                    "the daemon (pid %d): %s", self._pid, fields["STATUS"][:200], extra={"code": "daemon_status"}
                )

    def _signal(self, number: signal.Signals) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    # -- after an exit --------------------------------------------------------------------------------------------
    def _is_over(self, code: int) -> bool:
        """True: the daemon exited in order, or was never able to start, so it is not restarted."""
        if code == 0 or self._is_stopping:
            return True
        if code > 0 and not self._was_ever_ready:
            return True  # it has logged the reason; an invalid configuration fails at the next start too
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        logger.warning(
            "the daemon ended %s; restarting it with %d kept descriptors",
            how,
            len(self._store),
            extra={"code": "daemon_ended"},
        )
        return False

    def _pause(self) -> None:
        """Restart at once after a run of a second or more; after shorter ones wait 0, 0.1, 0.2 … 5 s."""
        lived_s = time.monotonic() - self._ready_s if self._ready_s else 0.0
        self._short_lives = 0 if lived_s >= 1.0 else self._short_lives + 1
        if self._short_lives < 2:
            return
        end_s = time.monotonic() + min(_MAX_BACKOFF_S, 0.1 * 2 ** (self._short_lives - 2))
        while not self._is_stopping and (left_s := end_s - time.monotonic()) > 0:
            self._turn(left_s)

    def _end_child(self) -> None:
        if self._pid:
            self._signal(signal.SIGKILL)
            os.waitpid(self._pid, 0)
            os.close(self._pidfd)


def _only_wake(number: int, frame: object) -> None:
    """Does nothing: the wake-up descriptor already carries the signal number."""
