"""Controls the policy plug-in's process: starts it in advance, queries it with a deadline, kills it at its first fault.

A decision needs the reply, so the daemon's loop waits for it, at most for `leasing.plugin_ms`. Everything the plug-in
sends is treated as hostile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import orjson

from offpath.bindings.errors import ControlError, OffpathError
from offpath.bindings.wire import document
from offpath.dpu_daemon.config import DaemonConfig
from offpath.dpu_daemon.policy.plugin_child import ANSWER, LENGTH, RAISED, READY
from offpath.dpu_daemon.policy.plugin_output import PluginOutput
from offpath.dpu_daemon.requests.book_loop import BookLoop
from offpath.sched.gpu.plugin import PREFIX, START, AdvisorError, PluginDecision, PluginPolicy, gateway_of, one_line
from offpath.sched.jobs import events

logger = logging.getLogger(__name__)
DEADLINE_S: Final = 0.005
"""See docs/design.md, Policies."""
_START_S: Final = 10.0
_TAKE_OVER_S: Final = 0.25
_MOST_BYTES: Final = 4096
_CHILD: Final = "offpath.dpu_daemon.policy.plugin_child"
_EVENT_S: Final = 0.05
"""Time limit for all replies that one event needs together; a single one may always take `leasing.plugin_ms`."""
_ENVIRONMENT: Final = ("PATH", "PYTHONPATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR")
"""Environment variables passed to the plug-in: how to find Python, and no secrets."""


class PluginError(OffpathError):
    """The plug-in cannot be started: not installed, or it raises."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{PREFIX}{name} {one_line(why)}")


class PluginProcess:
    """A running plug-in. Implements `offpath.sched.gpu.plugin.Advisor`."""

    def __init__(
        self, name: str, deadline_s: float = DEADLINE_S, *, child: str = _CHILD, most_bytes: int = _MOST_BYTES
    ) -> None:
        """Starts the process with the module ``child``. Call `wait` before the first query. ``most_bytes``: per reply.

        Raises: PluginError: the process cannot be started."""
        self.name = name
        self._most_bytes = most_bytes
        self.deadline_s = deadline_s
        self._fault: AdvisorError | None = None
        self._left_s = 0.0
        self._is_dismissed = False
        environment = {key: os.environ[key] for key in _ENVIRONMENT if key in os.environ}
        # -P: the current directory must not be imported from.
        command = [sys.executable, "-P", "-m", child]
        self._output = PluginOutput()
        self._sock, child_end = socket.socketpair()
        try:
            with child_end:
                self._process = subprocess.Popen(
                    [*command, str(child_end.fileno()), name], pass_fds=(child_end.fileno(),), env=environment,
                    stdin=subprocess.DEVNULL, stdout=self._output.fd, stderr=self._output.fd, start_new_session=True,
                )  # fmt: skip
        except OSError as fault:
            self._sock.close()
            self._output.abandon()
            raise PluginError(name, f"cannot be started: {fault}") from None
        self._output.begin()

    def wait(self, most_s: float = _START_S) -> None:
        """Block until the plug-in is loaded. Raises: PluginError."""
        try:
            message = self._received(time.monotonic() + most_s)
        except AdvisorError as fault:
            self.close()
            raise PluginError(self.name, f"did not start: {fault}") from None
        if message != [READY]:
            self.close()
            why = message[1] if len(message) == 2 and isinstance(message[1], str) else "it sent an invalid message"
            raise PluginError(self.name, f"cannot be used: {why}")

    @property
    def is_alive(self) -> bool:
        """Whether it can be queried."""
        return self._fault is None

    def notify(self, kind: str, *arguments: Any) -> None:
        """See `Advisor.notify`."""
        try:
            self._send(orjson.dumps([kind, *arguments]), time.monotonic() + self.deadline_s)
        except AdvisorError as fault:
            self._fault = self._fault or fault

    def query(self, kind: str, *arguments: Any) -> Any:
        """See `Advisor.query`."""
        begun_s = time.monotonic()
        within_s = max(_TAKE_OVER_S, self.deadline_s) if kind == START else min(self.deadline_s, self._left_s)
        if within_s <= 0:
            raise AdvisorError("overrun", f"{_EVENT_S * 1e3:g} ms for the answers to one event")
        self._send(orjson.dumps([kind, *arguments]), begun_s + within_s)
        reply = self._received(begun_s + within_s)
        if kind != START:
            self._left_s -= time.monotonic() - begun_s
        match reply:
            case [str(what), answer] if what == ANSWER:
                return answer
            case [str(what), str(detail)] if what == RAISED:
                raise AdvisorError("raised", detail)
        raise AdvisorError("nonsense", "an unknown kind of reply")

    def begin(self) -> None:
        """See `Advisor.begin`."""
        self._left_s = max(_EVENT_S, self.deadline_s)

    def dismiss(self) -> None:
        """See `Advisor.dismiss`: kills the process and everything it started; a thread reaps it later."""
        if self._is_dismissed:
            return
        self._is_dismissed = True
        self._fault = self._fault or AdvisorError("gone", "dismissed")
        self._sock.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._output.end()
        threading.Thread(target=self._process.wait, name="reap-plugin", daemon=True).start()

    def close(self) -> None:
        """Kill and reap the process."""
        self.dismiss()
        self._process.wait()

    def _send(self, data: bytes, until_s: float) -> None:
        if self._fault is not None:
            raise self._fault
        try:
            self._sock.settimeout(max(1e-6, until_s - time.monotonic()))
            self._sock.sendall(LENGTH.pack(len(data)) + data)
        except TimeoutError:
            raise AdvisorError("overrun", "it does not read its messages") from None
        except OSError as fault:
            raise AdvisorError("gone", str(fault)) from None

    def _received(self, until_s: float) -> list[Any]:
        (nbytes,) = LENGTH.unpack(self._exactly(LENGTH.size, until_s))
        if nbytes > self._most_bytes:
            raise AdvisorError("nonsense", f"a reply of {nbytes} bytes")
        try:
            message = document.read(self._exactly(nbytes, until_s))
        except ControlError:
            raise AdvisorError("nonsense", "a reply that is not JSON") from None
        return message if isinstance(message, list) else [message]

    def _exactly(self, nbytes: int, until_s: float) -> bytes:
        data = b""
        while len(data) < nbytes:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise AdvisorError("overrun", f"no answer in {self.deadline_s * 1e3:g} ms")
            try:
                self._sock.settimeout(left_s)
                part = self._sock.recv(nbytes - len(data))
            except TimeoutError:
                raise AdvisorError("overrun", f"no answer in {self.deadline_s * 1e3:g} ms") from None
            except OSError as fault:
                raise AdvisorError("gone", str(fault)) from None
            if not part:
                raise AdvisorError("gone", "its process ended")
            data += part
        return data


async def started(config: DaemonConfig) -> PluginProcess | None:
    """The loaded process of the configured plug-in; None: no plug-in is configured. Raises: PluginError."""
    name = config.leasing.policy
    if not name.startswith(PREFIX):
        return None
    process = PluginProcess(name.removeprefix(PREFIX), config.leasing.plugin_ms / 1e3)
    try:
        await asyncio.to_thread(process.wait)
    except BaseException:
        process.close()
        raise
    return process


class PluginSlot:
    """A daemon's policy plug-in, if its configuration names one. Handles `PluginDecision`. Counts ``plugin_faults``."""

    def __init__(self, book_loop: BookLoop, policy: Callable[[], str], counters: Counter[str]) -> None:
        """``policy`` returns the policy name of the configuration in force."""
        self._book_loop = book_loop
        self._ledger = book_loop.book.ledger
        self._policy = policy
        self.counters = counters
        self._process: PluginProcess | None = None
        self._next: PluginProcess | None = None
        """Process prepared for the next configuration."""
        book_loop.on(PluginDecision, self.on_decision)

    async def prepare(self, config: DaemonConfig) -> None:
        """Start a process if ``config`` names a plug-in, before anything depends on it; `adopt` activates it.

        Raises: PluginError.
        """
        self.drop()
        self._next = await started(config)

    def drop(self) -> None:
        """Discard the prepared process."""
        if self._next is not None:
            self._next.close()
            self._next = None

    def offer(self, process: PluginProcess | None) -> None:
        """Provide a process that is already `started` for `adopt`; this slot owns it from here on."""
        self._next = process

    def adopt(self) -> None:
        """Activate the prepared process if the book's policy is the plug-in's. Call between events. Without a process,
        a plug-in that the book still uses is quarantined. Idempotent."""
        policy, gateway = self._ledger.policy, gateway_of(self._ledger.decisions)
        former = self._process
        is_wanted = former is not None and PREFIX + former.name == self._policy()
        if self._next is not None or not is_wanted:
            self._process, self._next = self._next, None
            if former is not None:
                former.close()
        is_its = self._process is not None and self._process.is_alive and PREFIX + self._process.name == policy.name
        is_new = gateway.advisor is not self._process
        if isinstance(policy, PluginPolicy) and (is_new if is_its else policy.is_advised):
            gateway.arriving = self._process if is_its else None
            self._book_loop.dispatch(events.PluginStarted())
            if policy.is_advised:
                logger.warning("active policy: %s", policy.name, extra={"code": "plugin_decides"})

    def on_decision(self, decision: PluginDecision) -> None:
        """Handles a decision: only a fault is logged and counted."""
        if decision.fault:
            self.counters["plugin_faults"] += 1
            policy = self._ledger.policy.name
            logger.warning(
                "policy plug-in quarantined, using the built-in policy: %s: %s: %s",
                policy, decision.query, decision.fault,
                extra={"code": "plugin_quarantined"},
            )  # fmt: skip

    @property
    def is_quarantined(self) -> bool:
        """Whether a plug-in is configured but the built-in policy decides."""
        policy = self._ledger.policy
        return isinstance(policy, PluginPolicy) and not policy.is_advised

    def close(self) -> None:
        """End the process."""
        self.drop()
        if self._process is not None:
            self._process.close()


NAMES: Final[dict[str, str]] = {
    "offpath_policy_plugin_quarantined": "1 while a policy plug-in is configured and the built-in policy decides.",
    "offpath_policy_plugin_faults_total": "Quarantines of the policy plug-in: its reply was late, broken or invalid.",
}
"""Metric → help."""


def plugin_metrics(slot: PluginSlot) -> dict[str, tuple[str, Callable[[], float]]]:
    """See `offpath.dpu_daemon.operation.metrics.Extra`."""
    give: dict[str, Callable[[], float]] = {
        "offpath_policy_plugin_quarantined": lambda: slot.is_quarantined,
        "offpath_policy_plugin_faults_total": lambda: slot.counters["plugin_faults"],
    }
    return {name: (text, give[name]) for name, text in NAMES.items()}
