"""Bodies in chunks: the decoder alone, by bytes, in pieces of every length."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.host_helper.gateway.chunks import MOST_CHUNKS, MOST_LINE_BYTES, MOST_TRAILERS, Chunks
from offpath.host_helper.gateway.errors import Refused


def decoded(sent: bytes, pieces: int = 1) -> tuple[bytes, bytes, bool]:
    """The data, what is behind the body, and whether it is whole; ``sent`` comes in pieces of so many bytes."""
    chunks, data, waiting = Chunks(), bytearray(), bytearray()
    for at in range(0, len(sent), pieces):
        waiting += sent[at : at + pieces]
        while waiting and not chunks.is_over:
            if chunks.left:
                piece = waiting[: chunks.left]
                data += piece
                chunks.took(len(piece))
                del waiting[: len(piece)]
            elif length := chunks.read(waiting, 0, len(waiting)):
                del waiting[:length]
            else:
                break
    return bytes(data), bytes(waiting), chunks.is_over


@pytest.mark.parametrize("pieces", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize(
    ("sent", "data"),
    [
        (b"0\r\n\r\n", b""),
        (b"3\r\nabc\r\n0\r\n\r\n", b"abc"),
        (b"3\r\nabc\r\n00a\r\n0123456789\r\n000\r\n\r\n", b"abc0123456789"),
        (b"A;name=value\r\n0123456789\r\n0 ; last\r\n\r\n", b"0123456789"),
        (b"2\r\n\r\n\r\n0\r\nDigest: x\r\nOther: y\r\n\r\n", b"\r\n"),
    ],
)
def test_the_data_of_the_chunks_and_where_the_body_ends(sent: bytes, data: bytes, pieces: int) -> None:
    got, behind, is_whole = decoded(sent + b"GET", pieces)
    assert (got, behind, is_whole) == (data, b"GET", True)
    assert not decoded(sent[:-1], pieces)[2]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"x\r\n", "as RFC 9112"),
        (b"\r\n", "as RFC 9112"),
        (b"-1\r\n", "as RFC 9112"),
        (b"0x1\r\n", "as RFC 9112"),
        (b"+1\r\n", "as RFC 9112"),
        (b" 1\r\n", "as RFC 9112"),
        (b"1 \r\n", "as RFC 9112"),
        (b"1_0\r\n", "as RFC 9112"),
        (b"1\n", "as RFC 9112"),
        (b"1;a\rb\r\n", "as RFC 9112"),
        (b"1;\0\r\n", "as RFC 9112"),
        (b"12345678901234567\r\n", "as RFC 9112"),
        (b"1\r\nab", "does not end with CR LF"),
        (b"1\r\na\n", "does not end with CR LF"),
        (b"1\r\na\rx", "does not end with CR LF"),
        (b"1\r\na\r\n\n", "as RFC 9112"),
        (b"0\r\nx\n", "as RFC 9112"),
        (b"0\r\nx\ry\r\n", "as RFC 9112"),
        (b"1;" + b"x" * MOST_LINE_BYTES, f"at most {MOST_LINE_BYTES} bytes"),
        (b"1;" + b"x" * MOST_LINE_BYTES + b"\r\n", f"at most {MOST_LINE_BYTES} bytes"),
        (b"0\r\nX: " + b"x" * MOST_LINE_BYTES + b"\r\n", f"at most {MOST_LINE_BYTES} bytes"),
        (b"0\r\n" + b"X: y\r\n" * (MOST_TRAILERS + 1), f"at most {MOST_TRAILERS} trailers"),
    ],
)
def test_what_is_no_body_in_chunks(sent: bytes, why: str) -> None:
    for pieces in (1, len(sent)):
        with pytest.raises(Refused, match=why) as refused:
            decoded(sent, pieces)
        assert refused.value.http == 400


def test_as_many_chunks_as_triton_takes() -> None:
    assert decoded(b"1\r\nA\r\n" * MOST_CHUNKS + b"0\r\n\r\n", 6)[0] == b"A" * MOST_CHUNKS
    with pytest.raises(Refused, match=f"at most {MOST_CHUNKS} chunks"):
        decoded(b"1\r\nA\r\n" * (MOST_CHUNKS + 1), 6)
    assert decoded(b"0\r\n" + b"X: y\r\n" * MOST_TRAILERS + b"\r\n")[2]


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.integers(1, 50), st.binary(max_size=10))
def test_any_data_comes_out_as_it_was(parts: list[bytes], pieces: int, behind: bytes) -> None:
    sent = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    data, left, is_whole = decoded(sent + behind, pieces)
    assert (data, left, is_whole) == (b"".join(parts), behind, True)


@given(st.binary(max_size=60), st.integers(1, 10))
def test_any_bytes_are_chunks_or_refused(sent: bytes, pieces: int) -> None:
    with contextlib.suppress(Refused):
        decoded(sent, pieces)
