"""The helper's part of INA sharing: forwards the ranks' records to the daemon, and epochs to the ranks.

It decides nothing. Losses are repaired: a new agent requests all states, and the controller repeats an epoch for
ranks that do not hold it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from offpath.bindings.errors import ControlError, OffpathError
from offpath.bindings.wire import control, document, fields, parts
from offpath.host_helper.ina.folder import Measured, RankFileFolder
from offpath.host_helper.ina.rank_file import make_folder, pattern_to_data
from offpath.sched.ina.protocol.records import RankState, RecordError, epoch_from_data, state_to_data

POLL_S: Final = 0.02
IDLE_S: Final = 0.25
"""Poll interval while there are no ranks."""


class StateFileWatch:
    """The state files in ``directory``, as messages of the host channel. Single-threaded; no call blocks for long."""

    def __init__(self, directory: str) -> None:
        self._folder = RankFileFolder(directory)
        self._patterns: dict[tuple[str, int], Measured] = {}
        self._sent: dict[tuple[str, int, int], RankState] = {}
        self._joiner = parts.Joiner()
        with contextlib.suppress(OSError, OffpathError):  # on failure no rank can create a state file either
            make_folder(directory)

    @property
    def pause_s(self) -> float:
        """Seconds until the next poll."""
        return POLL_S if self._folder.states() else IDLE_S

    def changes(self) -> Iterator[control.InaStates]:
        """The records that changed since the last call; nothing if none did."""
        states = [state for state in self._folder.poll() if self._is_news(state)]
        patterns = [each for each in self._folder.patterns() if each.rank == 0]  # the ranks of a job measure alike
        for each in patterns:
            self._patterns[each.job, each.incarnation] = each
        there = {(state.job, state.incarnation) for state in self._folder.states()}
        self._patterns = {key: each for key, each in self._patterns.items() if key in there}
        if states or patterns:
            yield from _messages(states, patterns, is_all=False)

    def _is_news(self, state: RankState) -> bool:
        """A rank's operation index changes constantly, and only the rank needs it."""
        key, current = (state.job, state.incarnation, state.rank), replace(state, index=0)
        is_news = self._sent.get(key) != current
        self._sent[key] = current
        if state.is_gone:
            del self._sent[key]
        return is_news

    def on_message(self, message: control.InaEpoch | control.InaAsk) -> Iterator[control.InaStates]:
        """Publish an epoch, or send all states. An invalid epoch is ignored: the daemon has checked it."""
        if isinstance(message, control.InaAsk):
            yield from self.changes()  # later answers do not include ended ranks
            yield from _messages(self._folder.states(), self._patterns.values(), is_all=True)
            return
        with contextlib.suppress(ControlError, RecordError, ValueError, RecursionError):
            text = self._joiner.add(message.part.encode(), message.is_last)
            if text is not None:
                self._folder.publish(epoch_from_data(document.read(text)))

    def close(self) -> None:
        """Close the state files; the ranks keep theirs."""
        self._folder.close()


def _messages(
    states: Iterable[RankState], patterns: Iterable[Measured], *, is_all: bool
) -> Iterator[control.InaStates]:
    data: dict[str, Any] = {
        "states": [state_to_data(state) for state in states],
        "patterns": [
            {"job": each.job, "incarnation": each.incarnation, "pattern": pattern_to_data(each.pattern)}
            for each in patterns
        ],
    }
    text = json.dumps(data, separators=(",", ":")).encode("ascii")
    for part, is_last in parts.cut(text, fields.MAX_PART_CHARACTERS):
        yield control.InaStates(part=part.decode("ascii"), is_last=is_last, is_all=is_all)
