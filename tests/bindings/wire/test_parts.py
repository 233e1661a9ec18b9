"""Texts in parts: whatever is cut comes together again; one without end is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.bindings.errors import ControlError
from offpath.bindings.wire import parts


@given(st.lists(st.binary(max_size=500), max_size=5), st.integers(2, 64))
def test_texts_come_together_in_their_order(texts: list[bytes], most: int) -> None:
    joiner = parts.Joiner()
    got = [text for body in texts for part in parts.messages(body, most) if (text := joiner.message(part)) is not None]
    assert got == texts
    assert all(len(part) <= most for body in texts for part in parts.messages(body, most))


def test_a_text_that_is_too_long_is_refused_on_both_sides() -> None:
    with pytest.raises(ControlError, match="too_long"):
        list(parts.cut(bytes(parts.MOST_BYTES + 1), 1000))
    joiner = parts.Joiner()
    for _ in range(parts.MOST_BYTES // 4096):
        assert joiner.add(bytes(4096), is_last=False) is None
    with pytest.raises(ControlError, match="too_long"):
        joiner.add(b"x", is_last=False)
    assert joiner.add(b"new", is_last=True) == b"new"


@given(st.binary(max_size=50))
def test_any_message_is_a_part_or_refused(message: bytes) -> None:
    joiner = parts.Joiner()
    if message[:1] in (b"+", b"."):
        assert joiner.message(message) == (message[1:] if message[:1] == b"." else None)
    else:
        with pytest.raises(ControlError, match="part"):
            joiner.message(message)
