"""Requests of HTTP/1.1 whose offers of another protocol are ignored, as RFC 9110 §7.8 allows.

Java's HttpClient offers HTTP/2 with its first request. httptools ends its parse with the head that makes the offer; so
another parser gets that head without it, and what is behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import httptools

_LEFT_OUT = frozenset((b"upgrade", b"expect"))
"""Of the head that is parsed again: the offer, and what was answered when its end came first."""


class Calls(Protocol):
    """What a `Parser` calls, as httptools does."""

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header. Those of a head with an offer come twice, but for those that are left out."""

    def on_headers_complete(self) -> None:
        """The head is whole. It is called twice for one with an offer."""

    def on_body(self, body: bytes) -> None:
        """A part of the body."""

    def on_message_complete(self) -> None:
        """A request is whole, and `Parser` has its method and its target."""


class Parser:
    """Parses requests; its own methods named on_… are called by httptools."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._parser = httptools.HttpRequestParser(self)
        self.url = b""
        """Target of the present request."""
        self._headers: list[tuple[bytes, bytes]] = []

    def feed(self, data: bytes, is_enough: Callable[[], bool]) -> None:
        """Parse it. ``is_enough``: there are so many requests that no further offer is looked at.

        Raises: HttpParserError: it is no request. HttpParserUpgrade: CONNECT.
        """
        while not is_enough():
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                method, version = self.method, self._parser.get_http_version().encode()
                if method == b"CONNECT":
                    raise
                kept = (each for each in self._headers if each[0].lower() not in _LEFT_OUT)
                lines = b"".join(b"%b: %b\r\n" % each for each in kept)
                data = b"%b %b HTTP/%b\r\n%b\r\n" % (method, self.url, version, lines) + data[offer.args[0] :]
                self._parser = httptools.HttpRequestParser(self)
            else:
                return

    @property
    def method(self) -> bytes:
        """Of the present request."""
        return self._parser.get_method()

    @property
    def keeps(self) -> bool:
        """The connection stays open after the present request."""
        return self._parser.should_keep_alive()

    # -- httptools ------------------------------------------------------------------------------------------------
    def on_message_begin(self) -> None:
        """A request follows."""
        self.url = b""
        self._headers.clear()

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        self._headers.append((name, value))
        self._calls.on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._calls.on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._calls.on_body(body)

    def on_message_complete(self) -> None:
        """A request is whole, or httptools ends with its head."""
        if not self._parser.should_upgrade():
            self._calls.on_message_complete()
