"""The agent's shell: carries the controller's words to the helper, and the ranks' to the controller.

It keeps nothing: after its restart the helper is asked for everything that the ranks' pages say, and until it has
answered, a controller that asks gets no answer; half an answer would look as if ranks had ended.
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
from offpath.bindings.wire import cluster, control, document, parts
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
    """Of one host. ``tell_helper`` sends if there is a helper, and says whether there was one."""

    def __init__(
        self, host: str, notify_controller: Callable[[BaseModel], bool],
        notify_helper: Callable[[control.InaEpoch | control.InaAsk], bool],
    ) -> None:  # fmt: skip
        self.machine = Agent(host)
        self.states: dict[tuple[str, int, int], RankState] = {}
        """By job, incarnation and rank, as of the helper's last word."""
        self.epochs_passed = 0
        """Epochs that were given to the helper."""
        self.reports = 0
        self._notify_controller = notify_controller
        self._notify_helper = notify_helper
        self._patterns: dict[tuple[str, int], dict[str, Any]] = {}
        self._is_whole = False
        """The helper has said everything since it joined, or we began."""
        self._asked: tuple[int, str] | None = None
        """A controller's question that waits for it: its term and the proof."""
        self._gone: deque[tuple[str, int, int]] = deque()
        self._joiner = parts.Joiner()

    # -- the controller's words -----------------------------------------------------------------------------------
    def controller_sent(self, text: bytes) -> None:
        """Raises: ControlError, RecordError: it is none of ours to understand. ProtocolError: it hangs up."""
        message = control.decode(cluster.TO_AGENT, text)
        if isinstance(message, cluster.Farewell):
            raise ProtocolError(message.code, message.detail)
        if isinstance(message, cluster.AskAll):
            self._asked = message.term, message.proof
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
        for part, is_last in parts.cut(body, control.MAX_PART_CHARACTERS):
            self._notify_helper(control.InaEpoch(part=part.decode("ascii"), is_last=is_last))

    def _answer(self) -> None:
        if self._asked is None or not self._is_whole:
            return
        asked, self._asked = self._asked, None
        report = self.machine.on_query(*asked)
        if report is None:
            self._depose()
        else:
            self._report(report, list(self._patterns.values()))

    def _depose(self) -> None:
        """An old controller speaks: it is told of the greater term, and nothing else."""
        self._report(self.machine.greater(), [])

    # -- the helper's words ---------------------------------------------------------------------------------------
    def helper_sent(self, message: control.InaStates | None) -> None:
        """None: a helper has joined, and may not be the one that was there. Raises: ControlError, RecordError."""
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
        if state.is_gone:  # kept for a while: a controller that did not hear it will ask for everything
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
        raise ControlError("model", "no lists of states and patterns")
    if len(data["states"]) > MOST_RANKS:
        raise ControlError("model", "more ranks than any host has")
    patterns = []
    for each in data["patterns"][:_MOST_PATTERNS]:
        if not isinstance(each, dict) or not isinstance(each.get("job"), str):
            raise RecordError("a pattern of no job")
        if not isinstance(each.get("incarnation"), int) or not isinstance(each.get("pattern"), dict):
            raise RecordError("a pattern that is none")
        patterns.append(each)
    return [state_from_data(each) for each in data["states"]], patterns


def start(daemon: Daemon) -> None:
    """The daemon's agent, if its configuration wants one. Ends with the daemon."""
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
        "offpath_ina_controller_up": ("1 while the INA controller is reached.", lambda: float(link.is_up)),
        "offpath_ina_epochs_total": ("Epochs that were given to the helper.", lambda: float(agent.epochs_passed)),
        "offpath_ina_ranks": ("Ranks of training jobs on this host.", lambda: float(len(agent.states))),
    }  # fmt: skip
    link.open()
