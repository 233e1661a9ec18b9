"""Reloads a helper's kernels while it serves: a trial of the new file in a process of its own, then the file itself.

The trial finds whatever the file does wrong, an endless loop, a crash or the end of the process included. The helper
executes the file only after a trial that succeeded. Until then, and if that fails after all, its kernels stay.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel

from offpath.bindings import forked
from offpath.bindings.cuda.initialised import is_initialised
from offpath.bindings.errors import ControlError, OffpathError
from offpath.host_helper import reload_socket
from offpath.host_helper.kernels import Kernel, KernelTable

logger = logging.getLogger(__name__)
TRIAL_S: Final = 300.0
"""The longest time that a trial may take; a large library may be imported in it."""
_MOST_PEERS: Final = 8
Load = Callable[[], KernelTable]
Prepare = Callable[[Mapping[str, Kernel]], dict[str, Kernel]]


@dataclass(slots=True)
class _Trial:
    pid: int
    fd: int
    deadline_s: float
    result: bytes = b""


class Reloader:
    """Reloads ``table``, the helper's. ``load`` executes the file anew; ``prepare`` gives its kernels their measured
    demands, and raises for those that the helper cannot serve. ``log_line`` receives the outcome of each reload.

    ``listener``: the socket on which reloads are requested, or None. It is closed with the reloader.
    """

    def __init__(
        self,
        table: KernelTable,
        load: Load,
        prepare: Prepare,
        *,
        listener: socket.socket | None = None,
        trial_s: float = TRIAL_S,
        log_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.table = table
        self.revision = 0
        """How often it has reloaded."""
        self._load = load
        self._prepare = prepare
        self._log_line = log_line
        self._trial_s = trial_s
        self._is_requested = False
        self._trial: _Trial | None = None
        self._poll = select.epoll()
        self._listener = listener
        self._peers: dict[int, socket.socket] = {}
        """Connections that have sent no request yet, by descriptor."""
        self._asked: list[socket.socket] = []
        """Those that wait for the trial."""
        self._told: list[tuple[socket.socket, reload_socket.Reloaded]] = []
        """Those that wait until the daemon serves the new kernels."""
        if listener is not None:
            self._poll.register(listener.fileno(), select.EPOLLIN)

    def fileno(self) -> int:
        """Readable when `poll` has something to do."""
        return self._poll.fileno()

    @property
    def pause_s(self) -> float | None:
        """How long a wait for `fileno` may last; None: for ever."""
        return max(0.0, self._trial.deadline_s - time.monotonic()) if self._trial is not None else None

    def request(self) -> None:
        """Reload soon; may be called from a signal handler. `poll` must be called then."""
        self._is_requested = True

    def poll(self, in_child: Callable[[], None]) -> bool:
        """Do what is due, without waiting. True: the table has new kernels. ``in_child`` is called first in the trial's
        process, to close this process's connections there."""
        for fd, _ in self._poll.poll(0):
            if self._listener is not None and fd == self._listener.fileno():
                self._accept(self._listener)
            elif fd in self._peers:
                self._read(self._peers[fd])
            elif self._trial is not None and fd == self._trial.fd:
                self._trial.result += (received := os.read(fd, forked.MOST_BYTES))
                if not received or len(self._trial.result) > forked.MOST_BYTES:
                    return self._tried(self._end_trial())
        if self._trial is not None and not self.pause_s:
            self._end_trial()
            self._fail("file", f"the trial of the file took longer than {self._trial_s:g} s")
        elif self._is_requested and self._trial is None:
            self._is_requested = False
            self._begin_trial(in_child)
        return False

    # -- requests -------------------------------------------------------------------------------------------------
    def _accept(self, listener: socket.socket) -> None:
        try:
            peer, _ = listener.accept()
        except OSError:  # it left, or no descriptor is free
            return
        peer.setblocking(False)
        if not reload_socket.may_reload(peer) or len(self._peers) >= _MOST_PEERS:
            peer.close()
            return
        self._peers[peer.fileno()] = peer
        self._poll.register(peer.fileno(), select.EPOLLIN)

    def _read(self, peer: socket.socket) -> None:
        try:
            body = peer.recv(reload_socket.MAX_BYTES)
        except BlockingIOError:
            return
        except OSError:
            body = b""
        del self._peers[peer.fileno()]
        self._poll.unregister(peer.fileno())
        if not body:
            peer.close()
            return
        try:
            reload_socket.read_request(body)
        except ControlError as fault:
            reload_socket.answer(peer, reload_socket.failed("message", str(fault)))
            return
        if self._trial is not None or self._told:
            reload_socket.answer(peer, reload_socket.failed("busy", "a reload is under way; try again"))
            return
        self._asked.append(peer)
        self._is_requested = True

    # -- the trial ------------------------------------------------------------------------------------------------
    def _begin_trial(self, in_child: Callable[[], None]) -> None:
        def tried() -> str:
            in_child()
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            self._executed()
            if is_initialised():
                raise OffpathError(
                    "the file initialises CUDA when it is loaded, and no worker could use a GPU then; do it in a "
                    "function under @helper.lane_opened"
                )
            return ""

        try:
            pid, fd = forked.begin(tried, "the trial of a reload")
        except OSError as fault:
            self._fail("file", f"no process for its trial: {fault}")
            return
        self._trial = _Trial(pid, fd, time.monotonic() + self._trial_s)
        self._poll.register(fd, select.EPOLLIN)

    def _executed(self) -> tuple[KernelTable, dict[str, Kernel]]:
        """The file's table, and its kernels as they are served. Raises: OffpathError: anything that it raised."""
        try:
            table = self._load()
            return table, self._prepare(table.kernels)
        except OffpathError:
            raise
        except BaseException as fault:  # boundary to user code, which may also end the process
            raise OffpathError(f"the file cannot be served: {type(fault).__name__}: {fault}") from None

    def _end_trial(self) -> bytes:
        """What the trial's process wrote. It has ended when this returns, unless it hangs in a driver: then it is left
        behind."""
        trial, self._trial = self._trial, None
        assert trial is not None
        self._poll.unregister(trial.fd)
        os.close(trial.fd)
        os.kill(trial.pid, signal.SIGKILL)
        status = forked.reap(trial.pid, "the trial of a reload")
        if status is None or trial.result or not os.WIFSIGNALED(status) or os.WTERMSIG(status) == signal.SIGKILL:
            return trial.result
        return forked.FAILED + f"its trial was ended by {signal.Signals(os.WTERMSIG(status)).name}".encode()

    def _tried(self, result: bytes) -> bool:
        """The trial has ended: execute the file if it succeeded. True: the new kernels are in force."""
        if result != forked.DONE:
            is_told = result[:1] == forked.FAILED
            text = result[1:].decode("utf-8", "replace") if is_told else "the process of its trial ended early"
            self._fail("file", text)
            return False
        try:
            table, kernels = self._executed()
        except OffpathError as fault:
            self._fail("file", str(fault))
            return False
        former, self.table.kernels = self.table.kernels, kernels
        self.table.on_lane_open = table.on_lane_open
        self.revision += 1
        reloaded = reload_socket.Reloaded(
            revision=self.revision,
            added=[name for name in kernels if name not in former],
            replaced=[name for name in kernels if name in former],
            removed=[name for name in former if name not in kernels],
            is_joined=True,
        )
        self._log_line(outcome(reloaded))
        self._told += [(peer, reloaded) for peer in self._asked]
        self._asked = []
        return True

    # -- outcomes -------------------------------------------------------------------------------------------------
    def _fail(self, code: Literal["file", "ends"], detail: str) -> None:
        logger.error("reload refused, the kernels stay as they are: %s", detail)
        self._log_line(f"not reloaded: {detail.splitlines()[0] if detail else code}; the kernels stay as they are")
        self._answer_all(reload_socket.failed(code, detail))

    def _answer_all(self, reply: BaseModel) -> None:
        for peer in self._asked:
            reload_socket.answer(peer, reply)
        self._asked = []

    def taken_over(self, revision: int) -> None:
        """The daemon serves the kernels of this revision."""
        if revision >= self.revision:
            self._settle(is_joined=True)

    def not_joined(self) -> None:
        """No daemon is there: it serves the kernels when the helper joins it."""
        self._settle(is_joined=False)

    def _settle(self, *, is_joined: bool) -> None:
        for peer, reloaded in self._told:
            reload_socket.answer(peer, reloaded.model_copy(update={"is_joined": is_joined}))
        self._told = []

    def close_in_child(self) -> None:
        """In a forked process: close its copies of the descriptors."""
        for each in (self._listener, *self._peers.values(), *self._asked, *(peer for peer, _ in self._told)):
            if each is not None:
                each.close()
        if self._trial is not None:
            os.close(self._trial.fd)
        self._poll.close()

    def close(self) -> None:
        """End a trial, and refuse those that wait. Idempotent."""
        if self._trial is not None:
            self._end_trial()
        self._answer_all(reload_socket.failed("ends", "the helper ends"))
        self._settle(is_joined=False)
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._listener.getsockname())
            self._listener.close()
            self._listener = None
        self._poll.close()


def outcome(reloaded: reload_socket.Reloaded) -> str:
    """What a reload changed, in one line."""
    parts = [("added", reloaded.added), ("replaced", reloaded.replaced), ("removed", reloaded.removed)]
    return f"reloaded, revision {reloaded.revision}: " + "; ".join(
        f"{what} {', '.join(names)}" for what, names in parts if names
    )
