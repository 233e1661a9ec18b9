"""Forwards the controller's epochs to the helper, and the ranks' states to the controller.

It stores nothing. After a restart it queries the helper for the contents of all rank state files. Until the helper has
answered, it does not answer the controller's queries, because a partial answer would look as if ranks had ended.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel

from offpath.bindings.errors import ControlError, OffpathError, ProtocolError
from offpath.bindings.wire import cluster, control, document, fields, parts
from offpath.dpu_daemon.agent.link import ControllerLink
from offpath.dpu_daemon.config import agent_keys
from offpath.sched.ina.protocol.agent import Agent, Report
from offpath.sched.ina.protocol.records import (
    MOST_RANKS,
    RankState,
    RecordError,
    epoch_from_data,
    epoch_to_data,
    state_from_data,
    state_to_data,
)

if TYPE_CHECKING:
    from offpath.dpu_daemon.daemon import Daemon

logger = logging.getLogger(__name__)
_MOST_PATTERNS: Final = 256
_MOST_GONE: Final = 256


class InaAgent:
    """The agent of one host. ``notify_helper`` sends if a helper is connected, and returns whether one is."""

    def __init__(
        self, host: str, notify_controller: Callable[[BaseModel], bool],
        notify_helper: Callable[[control.InaEpoch | control.InaAsk], bool],
    ) -> None:  # fmt: skip
        self.machine = Agent(host)
        self.states: dict[tuple[str, int, int], RankState] = {}
        """By job, incarnation and rank, as last reported by the helper."""
        self.epochs_passed = 0
        """Epochs sent to the helper."""
        self.reports = 0
        self._notify_controller = notify_controller
        self._notify_helper = notify_helper
        self._patterns: dict[tuple[str, int], dict[str, Any]] = {}
        self._is_whole = False
        """The helper has reported everything since it joined or since this agent started."""
        self._query: tuple[int, str] | None = None
        """A controller's query that waits for the helper's report: its term and the proof."""
        self._gone: deque[tuple[str, int, int]] = deque()
        self._joiner = parts.Joiner()

    # -- messages from the controller -----------------------------------------------------------------------------
    def controller_sent(self, text: bytes) -> None:
        """Raises: ControlError, RecordError: the message is invalid. ProtocolError: the controller disconnects."""
        message = control.decode(cluster.TO_AGENT, text)
        if isinstance(message, cluster.Farewell):
            raise ProtocolError(message.code, message.detail)
        if isinstance(message, cluster.AskAll):
            self._query = message.term, message.proof
            self._answer()
            return
        record = epoch_from_data(message.epoch)
        handed = self.machine.epoch(record)
        if handed is None:
            if record.term < self.machine.term:
                self._depose()
            return
        self.epochs_passed += 1
        body = json.dumps(epoch_to_data(handed.epoch), separators=(",", ":")).encode("ascii")
        for part, is_last in parts.cut(body, fields.MAX_PART_CHARACTERS):
            self._notify_helper(control.InaEpoch(part=part.decode("ascii"), is_last=is_last))

    def _answer(self) -> None:
        if self._query is None or not self._is_whole:
            return
        query, self._query = self._query, None
        report = self.machine.on_query(*query)
        if report is None:
            self._depose()
        else:
            self._report(report, list(self._patterns.values()))

    def _depose(self) -> None:
        """Report the greater term, and nothing else, to an old controller."""
        self._report(self.machine.greater(), [])

    # -- messages from the helper ---------------------------------------------------------------------------------
    def helper_sent(self, message: control.InaStates | None) -> None:
        """None: a helper has joined, possibly a new one. Raises: ControlError, RecordError."""
        if message is None:
            self._joiner.forget()
            self._notify_helper(control.InaAsk())
            return
        text = self._joiner.add(message.part.encode(), message.is_last)
        if text is None:
            return
        states, patterns = _read(text)
        for state in states:
            self._on_state(state)
        if message.is_all:
            there = {(state.job, state.incarnation, state.rank) for state in states}
            for key in self.states.keys() - there:
                self._on_state(replace(self.states[key], is_gone=True))
        fresh = [each for each in patterns if self._patterns.get((each["job"], each["incarnation"])) != each]
        jobs = {key[:2] for key in self.states}
        self._patterns = {key: each for key, each in self._patterns.items() if key in jobs}
        for each in fresh[:_MOST_PATTERNS]:
            self._patterns[each["job"], each["incarnation"]] = each
        if fresh:
            self._report(self.machine.greater(), fresh)
        if message.is_all:
            self._is_whole = True
            self._answer()

    def _on_state(self, state: RankState) -> None:
        key = state.job, state.incarnation, state.rank
        report = self.machine.on_state(state)
        if state.is_gone:
            self.states.pop(key, None)
        else:
            self.states[key] = state
        if report is not None:
            self._report(report, [])
        if state.is_gone:  # kept for a while: a controller that missed the report queries everything
            self._gone.append(key)
            if len(self._gone) > _MOST_GONE:
                self.machine.removed(*self._gone.popleft())

    def _report(self, report: Report, patterns: list[dict[str, Any]]) -> None:
        self.reports += 1
        self._notify_controller(
            cluster.AgentReport(
                term=report.term, proof=report.proof, is_whole=report.is_whole,
                states=[state_to_data(state) for state in report.states], patterns=patterns,
            )
        )  # fmt: skip


def _read(text: bytes) -> tuple[list[RankState], list[dict[str, Any]]]:
    """Raises: ControlError, RecordError."""
    data = document.read(text)
    if not isinstance(data, dict) or not all(isinstance(data.get(name), list) for name in ("states", "patterns")):
        raise ControlError("model", "states and patterns must be lists")
    if len(data["states"]) > MOST_RANKS:
        raise ControlError("model", "more ranks than a host may have")
    patterns = []
    for each in data["patterns"][:_MOST_PATTERNS]:
        if not isinstance(each, dict) or not isinstance(each.get("job"), str):
            raise RecordError("a pattern without a job")
        if not isinstance(each.get("incarnation"), int) or not isinstance(each.get("pattern"), dict):
            raise RecordError("an invalid pattern")
        patterns.append(each)
    return [state_from_data(each) for each in data["states"]], patterns


def start(daemon: Daemon) -> None:
    """Start the daemon's agent if one is configured. It ends with the daemon."""
    table = daemon.settings.config.ina
    if not table.controller:
        return

    def on_text(text: bytes) -> None:
        try:
            agent.controller_sent(text)
        except (ProtocolError, RecordError) as fault:
            daemon.counters["ina_refused"] += 1
            link.broke(fault if isinstance(fault, OffpathError) else ProtocolError("record", str(fault)))

    def send_states(message: control.InaStates | None) -> None:
        try:
            agent.helper_sent(message)
        except RecordError as fault:
            raise ProtocolError("record", str(fault)) from None

    link = ControllerLink(table, partial(agent_keys, daemon.settings.config), on_text)
    agent = InaAgent(table.host, link.send, daemon.host.notify_helper)
    daemon.host.on_ina = send_states
    daemon.closers.append(link.close)
    daemon.metrics |= {
        "offpath_ina_controller_up": ("1 while connected to the INA controller.", lambda: float(link.is_up)),
        "offpath_ina_epochs_total": ("Epochs sent to the helper.", lambda: float(agent.epochs_passed)),
        "offpath_ina_ranks": ("Ranks of training jobs on this host.", lambda: float(len(agent.states))),
    }  # fmt: skip
    link.open()
