"""Messages of devices and of a collaboration controller's operators: what they take, and what no error shows."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from pydantic import TypeAdapter

from offpath.bindings.errors import ControlError
from offpath.bindings.wire import collab, collab_admin, control

TOKEN = "A" * collab.TOKEN_CHARACTERS
CHECK_IN: dict[str, Any] = {"device": "phone-1", "token": TOKEN, "sent_ms": 1}


def read(**changes: object) -> collab.CheckIn:
    return control.decode(collab.CHECK_IN, orjson.dumps({**CHECK_IN, **changes}))


def test_a_check_in_says_what_the_device_is() -> None:
    found = read(numbers={"mem_mib": 4096}, versions={"os": "14.2"}, labels=["wifi"])
    assert (found.numbers, found.versions, found.labels) == ({"mem_mib": 4096}, {"os": "14.2"}, ["wifi"])


@pytest.mark.parametrize(
    "changes",
    [
        {"device": ""},
        {"device": "a b"},
        {"device": "x" * 129},
        {"token": "short"},
        {"token": TOKEN + "A"},
        {"sent_ms": -1},
        {"sent_ms": 1.5},
        {"sent_ms": 1 << 54},
        {"numbers": {"mem": -1}},
        {"numbers": {"mem": 1.5}},
        {"numbers": {"mem": True}},
        {"numbers": {f"n{n}": 0 for n in range(collab.MOST_PROPERTIES + 1)}},
        {"versions": {"os": ""}},
        {"versions": {"os": "1" * 40}},
        {"labels": [""]},
        {"labels": ["a" * 65]},
        {"labels": ["a"] * (collab.MOST_PROPERTIES + 1)},
        {"unknown": 1},
    ],
)
def test_a_check_in_out_of_bounds_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ControlError):
        read(**changes)


def test_not_a_number_is_refused() -> None:
    with pytest.raises(ControlError):
        control.decode(collab.CHECK_IN, b'{"device":"a","token":"%s","sent_ms":NaN}' % TOKEN.encode())


@pytest.mark.parametrize("changes", [{"device": "secret name"}, {"token": "secret"}, {"sent_ms": "secret"}])
def test_no_error_shows_what_the_device_sent(changes: dict[str, object]) -> None:
    with pytest.raises(ControlError) as fault:
        read(**changes)
    assert "secret" not in fault.value.detail


def test_a_batch_is_bounded() -> None:
    item = {"kind": "checkin", **CHECK_IN}
    most = orjson.dumps({"kind": "batch", "number": 1, "items": [item] * collab.MOST_BATCH})
    assert len(control.decode(collab.FROM_GATEWAY, most).items) == collab.MOST_BATCH
    for count in (0, collab.MOST_BATCH + 1):
        body = orjson.dumps({"kind": "batch", "number": 1, "items": [item] * count})
        with pytest.raises(ControlError):
            control.decode(collab.FROM_GATEWAY, body)


def test_every_answer_to_a_device_is_read_back() -> None:
    answers: list[collab.Answer] = [
        collab.Leased(lease=1, job="a", round=0, expires_ms=2, now_ms=1),
        collab.NoJob(why="spent", retry_ms=5, now_ms=1),
        collab.Recorded(lease=1, now_ms=1),
        collab.Refusal(code="forged", detail="", retry_ms=0, now_ms=1),
    ]
    for each in answers:
        assert control.decode(collab.TO_DEVICE, control.encode(each)) == each
    batch = collab.Answers(number=3, items=answers)
    assert control.decode(collab.TO_GATEWAY, control.encode(batch)) == batch


@pytest.mark.parametrize("bad", ["NaN", "Infinity", "-1", "1e11"])
def test_a_deadline_that_is_no_time_is_refused(bad: str) -> None:
    with pytest.raises(ControlError):
        control.decode(
            collab_admin.TO_COLLAB,
            b'{"kind":"collab_request","job":"a","round":0,"demand":1,"deadline_s":%s}' % bad.encode(),
        )


@pytest.mark.parametrize(
    ("adapter", "body"),
    [
        (collab.CHECK_IN, b'{"device":"a","device":"b"}'),
        (collab.FROM_GATEWAY, b'{"kind":"batch","number":1,"number":2}'),
        (collab_admin.TO_COLLAB, b'{"kind":"collab_close","job":"a","job":"b"}'),
    ],
)
def test_a_key_twice_is_refused(adapter: TypeAdapter[Any], body: bytes) -> None:
    with pytest.raises(ControlError, match="a repeated key"):
        control.decode(adapter, body)


def test_an_open_request_has_the_defaults_of_the_paper() -> None:
    found = control.decode(collab_admin.TO_COLLAB, b'{"kind":"collab_open","job":"a"}')
    assert found == collab_admin.OpenRequest(job="a")
    assert isinstance(found, collab_admin.OpenRequest)
    assert (found.quorum_percent, found.requirement) == (80, collab_admin.Requirement())


def test_a_version_is_one_to_four_numbers() -> None:
    assert collab.version_of("14.2.0.1") == (14, 2, 0, 1)
    for text in ("", "14.", ".1", "1.2.3.4.5", "1" * 10, "1.a", "-1", "\u0661"):
        with pytest.raises(ValueError, match="one to four numbers"):
            collab.version_of(text)


ANSWERS: list[collab.Answer] = [
    collab.Leased(lease=(1 << 64) - 1, job='a "b"', round=2, expires_ms=1 << 53, now_ms=4),
    collab.NoJob(why="idle", retry_ms=1, now_ms=2),
    collab.Recorded(lease=1, now_ms=2),
    collab.Refusal(code="json", detail="é\x00", retry_ms=0, now_ms=2),
]


@pytest.mark.parametrize("answer", [*ANSWERS, collab.Answers(number=7, items=ANSWERS)])
def test_an_answer_is_written_as_it_is_read(answer: collab.Answer | collab.Answers) -> None:
    body = collab.body_of(answer)
    assert body == control.encode(answer)
    if isinstance(answer, collab.Answers):
        assert control.decode(collab.TO_GATEWAY, body) == answer
    else:
        assert control.decode(collab.TO_DEVICE, body) == answer
