"""Heads of HTTP/1.1 requests. httptools parses them; what could be read in two ways is refused before.

A body has a Content-Length, or it comes in chunks. A head with both, or with two of one, is refused, so that no proxy
in front can see another boundary between requests than the gateway does. An offer of another protocol is ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from offpath.host_helper.gateway.errors import GatewayMissing, Refused, invalid, too_large, unsupported

MOST_HEAD_BYTES: Final = 8 * 1024
MOST_HEADERS: Final = 64
_MOST_LENGTH: Final = 1 << 40
_LINE: Final = re.compile(rb"[A-Z]{1,16} [!-~\x80-\xff]+ HTTP/([0-9]\.[0-9])\r\n")
_FOLDED: Final = re.compile(rb"\n[ \t]")
_TARGET: Final = re.compile(r"(?:https?://[A-Za-z0-9._~%:\[\]-]+)?(?P<path>/[!-~]*)?", re.IGNORECASE)
"""A path, or an absolute address (RFC 9112 §3.2.2), whose host is as good as any."""
_METHODS: Final = {"GET": "GET", "HEAD": "GET", "POST": "POST"}
_SINGLE: Final = frozenset((
    "authorization", "content-encoding", "content-length", "host", "inference-header-content-length",
    "transfer-encoding",
))  # fmt: skip
"""Headers that say where a body ends, what it is or whose: a second one is refused. Others are lists, RFC 9110 §5.3."""


@dataclass(frozen=True, slots=True)
class Head:
    """A request without its body. ``headers``: by their names in lower case, several of one joined to a list.
    ``length``: of the body; 0 if it comes in chunks."""

    method: str
    """GET or POST."""
    path: str
    headers: dict[str, str]
    length: int
    is_chunked: bool
    keeps: bool
    """The connection stays open after the answer."""
    is_bare: bool
    """HEAD: the answer is that to GET, without its body."""

    @property
    def has_body(self) -> bool:
        """Whether a body follows."""
        return self.is_chunked or self.length > 0

    @property
    def expects(self) -> bool:
        """Whether the client waits for leave to send its body. Raises: Refused: it expects something else."""
        expected = self.headers.get("expect", "")
        if expected and {each.strip().lower() for each in expected.split(",")} - {"", "100-continue"}:
            raise Refused(417, "INVALID_ARGUMENT", "Expect: 100-continue is served")
        return bool(expected)

    @property
    def host(self) -> str:
        """The header; empty: there is none."""
        return self.headers.get("host", "")

    @property
    def origin(self) -> str:
        """The header, which browsers send; empty: there is none."""
        return self.headers.get("origin", "")

    @property
    def site(self) -> str:
        """The header Sec-Fetch-Site, which browsers send: how the page that asks is related; empty: there is none."""
        return self.headers.get("sec-fetch-site", "")

    @property
    def bearer(self) -> str:
        """The token; empty: none."""
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else ""


class _Collector:
    """Called by httptools."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))


def httptools() -> Any:
    """The module. Raises: GatewayMissing."""
    try:
        import httptools
    except ImportError:
        raise GatewayMissing('the gateway needs httptools: pip install "offpath[gateway]"') from None
    return httptools


def parse(head: bytes) -> Head:
    """``head`` ends with its empty line. Raises: Refused: not a request that is served here."""
    if head.count(b"\r\n") != head.count(b"\n") or head.count(b"\r\n") != head.count(b"\r") or b"\0" in head:
        raise invalid("a line of the head does not end with CR LF")
    if _FOLDED.search(head):
        raise invalid("a header is folded")
    line = _LINE.match(head)
    if line is None:
        raise invalid("not an HTTP/1.1 request that is served here")
    if line[1] not in (b"1.0", b"1.1"):
        raise Refused(505, "INVALID_ARGUMENT", "HTTP/1.1 is served here")
    library = httptools()
    collector = _Collector()
    parser = library.HttpRequestParser(collector)
    try:
        parser.feed_data(head)
    except library.HttpParserUpgrade:
        pass  # RFC 9110 §7.8: a server may ignore the offer. Java's HttpClient makes it with each first request.
    except library.HttpParserError:
        raise invalid("not an HTTP/1.1 request that is served here") from None
    version = line[1].decode()
    headers = _headers(collector.headers)
    if version == "1.1" and "host" not in headers:
        raise invalid("the header Host is missing")
    given = parser.get_method().decode("ascii")
    method = _METHODS.get(given)
    if method is None:
        raise Refused(405, "UNIMPLEMENTED", "Method Not Allowed")
    target = _TARGET.fullmatch(collector.url.decode("latin-1"))
    if target is None:
        raise invalid("the target is a path of printable ASCII characters, or http:// with a host and such a path")
    path = (target["path"] or "/").partition("?")[0]
    is_chunked, length = _is_chunked(headers, version), _length(headers)
    return Head(method, path, headers, length, is_chunked, _keeps(headers, version), given == "HEAD")


def _keeps(headers: dict[str, str], version: str) -> bool:
    """httptools has forgotten it when the head is at its end."""
    return version == "1.1" and "close" not in (
        each.strip().lower() for each in headers.get("connection", "").split(",")
    )


def _headers(pairs: list[tuple[bytes, bytes]]) -> dict[str, str]:
    if len(pairs) > MOST_HEADERS:
        raise Refused(431, "INVALID_ARGUMENT", f"more than {MOST_HEADERS} headers")
    headers: dict[str, str] = {}
    for name, value in pairs:
        key, text = name.decode("latin-1"), value.decode("latin-1").strip(" \t")
        if key not in headers:
            headers[key] = text
        elif key in _SINGLE:
            raise invalid(f"the header {key} occurs twice")
        else:
            headers[key] += ", " + text
    return headers


def _is_chunked(headers: dict[str, str], version: str) -> bool:
    """Raises: Refused: another transfer encoding, or also a length."""
    coding = headers.get("transfer-encoding")
    if coding is None:
        return False
    if coding.lower() != "chunked":
        raise unsupported("Transfer-Encoding: chunked is served, and no other")
    if version != "1.1" or "content-length" in headers:
        raise invalid("Transfer-Encoding excludes Content-Length, and HTTP/1.0")
    return True


def _length(headers: dict[str, str]) -> int:
    text = headers.get("content-length")
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise invalid("Content-Length is not a number")
    length = int(text)
    if length > _MOST_LENGTH:
        raise too_large("the body is too long")
    return length
