"""Heads of requests: what is read, and what could be read in two ways."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.host_helper.gateway.bodies import chosen, inflate
from offpath.host_helper.gateway.errors import Refused
from offpath.host_helper.gateway.heads import MOST_HEADERS, parse


def head(*lines: str, first: str = "POST /v2 HTTP/1.1") -> bytes:
    return "\r\n".join((first, "Host: x", *lines, "", "")).encode("latin-1")


def test_what_a_head_says() -> None:
    read = parse(head("Content-Length: 12", "authorization: bearer  abc ", "X-Own: 1", first="POST /v2/a?b=c HTTP/1.1"))
    assert (read.method, read.path, read.length, read.keeps, read.bearer) == ("POST", "/v2/a", 12, True, "abc")
    assert read.headers["x-own"] == "1"
    assert not parse(head("Connection: close")).keeps
    assert not parse(b"GET / HTTP/1.0\r\n\r\n").keeps


@pytest.mark.parametrize(
    "name",
    [
        "Accept-Encoding",
        "tracestate",
        "baggage",
        "Forwarded",
        "Cache-Control",
        "X-Forwarded-Proto",
        "Content-Type",
        "X-Own",
    ],
)
def test_a_list_that_is_spread_over_several_headers_is_one_list(name: str) -> None:
    assert parse(head(f"{name}: a=1", f"{name.upper()}:  b=2 ")).headers[name.lower()] == "a=1, b=2"


@pytest.mark.parametrize(
    "name",
    ["Content-Length", "Host", "Authorization", "Content-Encoding", "Inference-Header-Content-Length"],
)
def test_a_header_of_framing_or_identity_occurs_once_or_the_refusal_names_it(name: str) -> None:
    with pytest.raises(Refused) as refused:
        parse(head(f"{name}: 1", f"{name.lower()}: 1"))
    assert refused.value.http == 400
    if name != "Content-Length":  # the parser refuses two of them itself
        assert str(refused.value) == f"the header {name.lower()} occurs twice"


@pytest.mark.parametrize(
    "lines",
    [
        ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"),
        ("Connection: Upgrade", "Upgrade: websocket"),
        ("Connection: keep-alive, upgrade", "Upgrade: TLS/1.0, h2c"),
        ("Upgrade: h2c",),
    ],
)
def test_an_offer_of_another_protocol_is_ignored(lines: tuple[str, ...]) -> None:
    """RFC 9110 §7.8. The headers behind it count too."""
    for more, length, is_chunked in (("Content-Length: 7", 7, False), ("Transfer-Encoding: chunked", 0, True)):
        read = parse(head(*lines, more, "X-Own: 1"))
        assert (read.length, read.is_chunked, read.keeps, read.headers["x-own"]) == (length, is_chunked, True, "1")
    read = parse(head(*lines, "X-Own: 1", first="GET /v2 HTTP/1.1"))
    assert (read.method, read.path, read.headers["x-own"]) == ("GET", "/v2", "1")


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("http://x/v2/models/a?b=c", "/v2/models/a"),
        ("HTTP://[::1]:8000/v2", "/v2"),
        ("https://gateway.example:8000/", "/"),
        ("http://x", "/"),
    ],
)
def test_a_target_may_be_a_whole_address(target: str, path: str) -> None:
    """RFC 9112 §3.2.2: a server accepts it."""
    assert parse(head(first=f"GET {target} HTTP/1.1")).path == path


def test_a_head_wants_the_answer_to_get_without_its_body() -> None:
    read = parse(head(first="HEAD /v2 HTTP/1.1"))
    assert (read.method, read.is_bare) == ("GET", True)
    assert not parse(head(first="GET /v2 HTTP/1.1")).is_bare


def test_a_body_comes_with_its_length_or_in_chunks() -> None:
    read = parse(head("Transfer-Encoding: Chunked"))
    assert (read.has_body, read.is_chunked, read.length) == (True, True, 0)
    assert parse(head("Content-Length: 1")).has_body
    assert not parse(head("Content-Length: 0")).has_body
    for method in ("GET", "HEAD"):
        assert parse(head("Content-Length: 5", first=f"{method} /v2 HTTP/1.1")).length == 5
        assert parse(head("Transfer-Encoding: chunked", first=f"{method} /v2 HTTP/1.1")).is_chunked


@pytest.mark.parametrize(
    ("value", "waits"), [("100-continue", True), ("100-Continue, 100-continue", True), ("", False)]
)
def test_a_client_may_wait_for_leave(value: str, waits: bool) -> None:
    assert parse(head(f"Expect: {value}")).expects is waits
    with pytest.raises(Refused, match="Expect") as refused:
        assert parse(head("Expect: 100-continue, 200-ok")).expects
    assert refused.value.http == 417


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (head("Content-Length: 1", "Content-Length: 1"), 400),
        (head("Content-Length: 1", "content-length: 2"), 400),
        (head("Content-Length: 1, 1"), 400),
        (head("Content-Length: +1"), 400),
        (head("Content-Length: 0x1"), 400),
        (head("Content-Length: -1"), 400),
        (head("Content-Length: \xb2"), 400),
        (head("Content-Length:"), 400),
        (head("Content-Length: " + "9" * 40), 400),
        (head("Content-Length: 9999999999999999"), 413),
        (head("Transfer-Encoding: gzip, chunked"), 501),
        (head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), 400),
        (head("Transfer-Encoding: chunked", first="POST /v2 HTTP/1.0"), 400),
        (head("Connection: Upgrade", "Upgrade: h2c", "Content-Length: 1", "Transfer-Encoding: chunked"), 400),
        (head("Connection: Upgrade", "Upgrade: h2c", "Content-Length: 1", "Content-Length: 1"), 400),
        (head("Transfer-Encoding: identity"), 400),
        (head("Content-Length: 1", "Transfer-Encoding: chunked"), 400),
        (head("Transfer-Encoding : chunked"), 400),
        (head("Content-Length : 1"), 400),
        (head("X: a", " Content-Length: 1"), 400),
        (head("X: a", "\tfolded"), 400),
        (head("Content-Length: 1\nX: y"), 400),
        (head("Content-Length: 1\rX: y"), 400),
        (head("X: \0"), 400),
        (head("no colon"), 400),
        (head(": empty"), 400),
        (head("Host: y"), 400),
        (head("Authorization: Bearer a", "Authorization: Bearer b"), 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (head("Content-Length: 5", "Transfer-Encoding: chunked", first="GET /v2 HTTP/1.1"), 400),
        (head(first="GET http://me@x/v2 HTTP/1.1"), 400),
        (head(first="GET ftp://x/v2 HTTP/1.1"), 400),
        (head(first="GET http:///v2 HTTP/1.1"), 400),
        (head(first="GET x:80 HTTP/1.1"), 400),
        (head(first="OPTIONS * HTTP/1.1"), 405),
        (head(first="GET /v2 HTTP/2.0"), 505),
        (head(first="GET /v2"), 400),
        (head(first="GET  /v2 HTTP/1.1"), 400),
        (head(first="GET /\x80 HTTP/1.1"), 400),
        (head(first="PUT /v2 HTTP/1.1"), 405),
        (head(first="CONNECT x:1 HTTP/1.1"), 405),
        (head(*(f"X-{n}: {n}" for n in range(MOST_HEADERS))), 431),
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\r\n\r\n", 400),
    ],
)
def test_what_is_not_served(data: bytes, status: int) -> None:
    with pytest.raises(Refused) as refused:
        parse(data)
    assert refused.value.http == status, str(refused.value)


@given(st.binary(max_size=200), st.lists(st.sampled_from([
    b"Content-Length: 5", b"Transfer-Encoding: chunked", b"Host: x", b"\r\n", b"\n", b" ", b":", b"X: y", b"\r\n\r\n",
    b"GET / HTTP/1.1\r\n", b"POST /v2 HTTP/1.1\r\n", b"\0", b"Content-Length: 7\r\n",
]), max_size=8))  # fmt: skip
def test_anything_is_a_head_or_refused(rest: bytes, parts: list[bytes]) -> None:
    data = b"".join(parts) + rest + b"\r\n\r\n"
    try:
        read = parse(data)
    except Refused:
        return
    assert data.lower().count(b"content-length") <= 1 or read.length == 0 or b"X" in data
    assert not (read.is_chunked and "content-length" in read.headers)


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("", ""),
        ("gzip", "gzip"),
        ("br, GZIP;q=0.5", "gzip"),
        ("gzip;q=0, deflate", "deflate"),
        ("*", ""),
        ("identity", ""),
    ],
)
def test_the_coding_of_an_answer(accepted: str, coding: str) -> None:
    assert chosen(accepted) == coding


@given(st.binary(max_size=100), st.sampled_from(["gzip", "deflate", "identity", "", "br", "gzip, gzip"]))
def test_any_compressed_body_is_whole_or_refused(data: bytes, coding: str) -> None:
    with contextlib.suppress(Refused):
        assert inflate(memoryview(data), coding, 1000).nbytes <= 1000
