"""The job book's words and the wire's numbers are the same words."""

from __future__ import annotations

from offpath.bindings.wire import host
from offpath.bindings.wire.codes import Reason, Status
from offpath.dpu_daemon.requests.codes import REASON, RESULT_REASON, STATUS
from offpath.sched.jobs.states import FIRST_TERMINAL, EndReason, JobState


def test_every_reason_of_the_book_is_a_reason_of_the_wire_and_the_other_way_round() -> None:
    assert {reason.name for reason in EndReason} == {reason.name for reason in Reason}
    assert {reason.name: code.name for reason, code in REASON.items()} == {r.name: r.name for r in EndReason}


def test_every_terminal_state_of_the_book_is_a_status_of_the_wire_and_the_other_way_round() -> None:
    assert {state.name for state in JobState if state >= FIRST_TERMINAL} == {status.name for status in Status}
    assert {state.name: code.name for state, code in STATUS.items()} == {status.name: status.name for status in Status}


def test_no_two_words_share_a_number() -> None:
    assert len({int(code) for code in REASON.values()}) == len(EndReason)
    assert len({int(code) for code in STATUS.values()}) == len(Status)


def test_every_status_a_worker_can_report_has_a_reason() -> None:
    reported = {value for name, value in vars(host).items() if name.startswith("RESULT_") and name != "RESULT_BYTES"}
    assert set(RESULT_REASON) == reported
