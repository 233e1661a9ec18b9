"""The agent's shell between a controller and a helper, as messages: no process, no socket."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from offpath.bindings.errors import ControlError, ProtocolError
from offpath.bindings.wire import cluster, control
from offpath.dpu_daemon.agent.shell import InaAgent
from offpath.sched.ina.protocol.records import (
    EpochRecord,
    Grant,
    RankState,
    RecordError,
    Step,
    epoch_from_data,
    epoch_to_data,
    state_to_data,
)


class Between:
    """An agent, and what it said to either side."""

    def __init__(self) -> None:
        self.reports: list[cluster.AgentReport] = []
        self.orders: list[control.InaEpoch | control.InaAsk] = []
        self.agent = InaAgent("h1", self._to_controller, self._to_helper)

    def _to_controller(self, message: BaseModel) -> bool:
        assert isinstance(message, cluster.AgentReport)
        self.reports.append(message)
        return True

    def _to_helper(self, message: control.InaEpoch | control.InaAsk) -> bool:
        self.orders.append(control.decode(control.DAEMON_TO_HOST, control.encode(message)))  # type: ignore[arg-type]
        return True

    def helper(self, *states: RankState, is_all: bool = False, patterns: tuple[Any, ...] = ()) -> None:
        text = json.dumps({"states": [state_to_data(each) for each in states], "patterns": patterns})
        for at in range(0, len(text), 100):
            part, is_last = text[at : at + 100], at + 100 >= len(text)
            self.agent.helper_sent(control.InaStates(part=part, is_last=is_last, is_all=is_all))

    def query(self, term: int) -> None:
        self.agent.controller_sent(control.encode(cluster.AskAll(term=term)))

    def epoch(self, record: EpochRecord) -> None:
        self.agent.controller_sent(control.encode(cluster.NewEpoch(epoch=epoch_to_data(record))))

    def handed(self) -> list[EpochRecord]:
        found, text = [], ""
        for order in self.orders:
            if isinstance(order, control.InaEpoch):
                text += order.part
                if order.is_last:
                    found.append(epoch_from_data(json.loads(text)))
                    text = ""
        return found


def rank(n: int, held: int = 0, **more: Any) -> RankState:
    return RankState("job", 7, n, 2, held, held, **more)


def test_a_question_waits_until_the_helper_has_said_everything() -> None:
    between = Between()
    between.query(4)
    assert between.reports == []
    between.agent.helper_sent(None)
    assert between.orders == [control.InaAsk()]
    between.helper(rank(0), rank(1), is_all=True)
    (*_, answer) = between.reports
    assert (answer.term, answer.is_whole) == (4, True)
    assert answer.states == [state_to_data(rank(0)), state_to_data(rank(1))]


def test_an_epoch_goes_to_the_helper_in_parts_and_whole() -> None:
    between = Between()
    between.helper(rank(0), is_all=True)
    many = tuple(range(2000))
    record = EpochRecord("job", 7, 4, 1, Grant("t", ("unix:///s1", "unix:///s1"), "k"), step=Step(9, many, many, many))
    between.epoch(record)
    assert between.handed() == [record]
    assert len(between.orders) > 1


def test_an_old_controller_hears_of_the_greater_term_and_hands_nothing_to_anybody() -> None:
    between = Between()
    between.helper(rank(0), is_all=True)
    between.query(9)
    between.epoch(EpochRecord("job", 7, 8, 1))
    between.query(8)
    assert between.handed() == []
    assert [(report.term, report.is_whole, report.states) for report in between.reports[-2:]] == [(9, False, [])] * 2


def test_a_rank_that_is_missing_from_all_has_ended() -> None:
    between = Between()
    between.helper(rank(0), rank(1), is_all=True)
    between.helper(rank(0), is_all=True)
    assert between.reports[-1].states == [state_to_data(rank(1, is_gone=True))]
    between.query(3)
    assert state_to_data(rank(1, is_gone=True)) in between.reports[-1].states, "a controller may have missed its end"


def test_a_pattern_is_said_once_and_to_every_new_controller() -> None:
    between = Between()
    pattern = {"job": "job", "incarnation": 7, "pattern": {"duration": 1.0, "allreduces": []}}
    between.helper(rank(0), is_all=True, patterns=(pattern,))
    between.helper(rank(0), patterns=(pattern,))
    assert [report.patterns for report in between.reports].count([pattern]) == 1
    between.query(3)
    assert between.reports[-1].patterns == [pattern]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"states": {}, "patterns": []}', '{"states": [1], "patterns": []}',
     '{"states": [], "patterns": [{}]}',
     '{"states": [], "patterns": [{"job": "a", "incarnation": "x", "pattern": {}}]}'],
)  # fmt: skip
def test_what_a_helper_says_is_checked(text: str) -> None:
    with pytest.raises((ControlError, RecordError)):
        Between().agent.helper_sent(control.InaStates(part=text))


@pytest.mark.parametrize("text", [b"", b"{}", b'{"kind":"new_epoch","epoch":{}}', b'{"kind":"ask_all","term":-1}'])
def test_what_a_controller_says_is_checked(text: bytes) -> None:
    with pytest.raises((ControlError, RecordError)):
        Between().agent.controller_sent(text)


def test_a_farewell_ends_the_conversation() -> None:
    with pytest.raises(ProtocolError, match="refused"):
        Between().agent.controller_sent(control.encode(cluster.Farewell(code="refused", detail="who are you?")))
