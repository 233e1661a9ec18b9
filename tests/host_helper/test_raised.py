"""What a kernel's exception leaves behind is bounded, readable, and there even if it cannot be described."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from offpath.host_helper.kernels import Kernel, call_kernel
from offpath.host_helper.raised import BURST, MOST_CHARACTERS, PER_S, Raised, story, summary

S = 1_000_000_000


class Unspeakable(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise KeyError("no text")


def caught(fault: BaseException) -> BaseException:
    """From a kernel of a file `theirs.py`, called as a worker calls it."""
    theirs: dict[str, Any] = {"fault": fault}
    exec(compile("def bad():\n    raise fault", "theirs.py", "exec"), theirs)
    kernel = Kernel("bad", theirs["bad"], 14, None, None, False)
    try:
        call_kernel(kernel, ())
    except BaseException as raised:
        return raised
    raise AssertionError


def test_the_traceback_begins_in_the_kernels_own_code_behind_a_margin() -> None:
    ours = {__file__, call_kernel.__code__.co_filename}
    assert story(caught(ValueError("odd")), frozenset(ours)).split("\n") == [
        "  | Traceback (most recent call last):",
        '  |   File "theirs.py", line 2, in bad',
        "  | ValueError: odd",
    ]
    told = story(caught(ValueError("odd")), frozenset({*ours, "theirs.py"}))
    assert "in call_kernel" in told, "all of it, where no frame is another's"


def test_a_text_cannot_move_a_cursor_or_pass_for_a_log_line() -> None:
    told = story(caught(ValueError("\x1b[2J\x9b1m\u202e\nERROR offpath: all is lost")), frozenset())
    assert "\n  | ERROR offpath: all is lost" in told
    assert not {"\x1b", "\x9b", "\u202e"} & set(told)


def test_a_long_text_is_cut_in_its_middle() -> None:
    told = story(caught(ValueError("a" * 1_000_000 + "z")), frozenset())
    assert len(told) < MOST_CHARACTERS + 1_000
    assert "Traceback" in told
    assert told.endswith("z")
    assert "characters left out" in told


def test_an_exception_whose_text_cannot_be_made_is_told_all_the_same() -> None:
    fault = caught(Unspeakable())
    assert summary(fault) == "Unspeakable: its text cannot be formatted (KeyError)"
    assert "Unspeakable" in story(fault, frozenset())


def test_a_worker_logs_a_burst_then_two_a_second_and_says_how_many_it_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, fault = Raised("lease 1 lane 0", __file__), caught(ValueError("odd"))
    with caplog.at_level(logging.WARNING):
        for job in range(BURST + 7):
            log.note(fault, "bad", job, now_ns=S)
        assert len(caplog.records) == BURST
        log.note(fault, "bad", 99, now_ns=S + int(S / PER_S))
    last = caplog.records[-1].getMessage()
    assert last.startswith("lease 1 lane 0: kernel bad raised in job 99 (7 earlier ones left out):\n  | Traceback")
