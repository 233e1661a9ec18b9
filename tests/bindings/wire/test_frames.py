"""Length-prefixed frames: however the stream is cut, the same frames come out, and nothing grows without bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.bindings.errors import FrameError
from offpath.bindings.wire.frames import MAX_FRAME_BYTES, FrameReader, frame

bodies = st.lists(st.binary(min_size=1, max_size=300), max_size=8)


@given(bodies, st.data())
def test_frames_come_back_in_order_however_the_stream_is_cut(sent: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(frame, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    reader, taken = FrameReader(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        taken += reader.feed(stream[start:end])
    assert taken == sent
    assert reader.at_boundary()


@given(bodies, st.binary(min_size=1, max_size=50))
def test_a_stream_that_ends_inside_a_frame_is_not_at_a_boundary(sent: list[bytes], last: bytes) -> None:
    reader = FrameReader()
    assert reader.feed(b"".join(map(frame, sent)) + frame(last)[:-1]) == sent
    assert not reader.at_boundary()


@given(st.lists(st.binary(max_size=64), max_size=20))
def test_random_bytes_raise_frame_errors_only(chunks: list[bytes]) -> None:
    reader = FrameReader()
    try:
        for chunk in chunks:
            reader.feed(chunk)
    except FrameError:
        with pytest.raises(FrameError):
            reader.feed(b"")


@pytest.mark.parametrize("length", [0, MAX_FRAME_BYTES + 1, 0xFFFF_FFFF])
def test_a_length_beyond_the_limits_is_refused_before_its_body_came(length: int) -> None:
    with pytest.raises(FrameError, match="frame_length"):
        FrameReader().feed(length.to_bytes(4, "little"))


def test_a_frame_may_have_64_kib_and_not_a_byte_more() -> None:
    body = b"x" * MAX_FRAME_BYTES
    assert FrameReader().feed(frame(body)) == [body]
    for wrong in (b"", body + b"x"):
        with pytest.raises(FrameError, match="frame_length"):
            frame(wrong)


def test_the_bytes_of_a_frame_never_drift() -> None:
    assert frame(b'{"kind":"goodbye"}') == bytes.fromhex("12000000") + b'{"kind":"goodbye"}'
