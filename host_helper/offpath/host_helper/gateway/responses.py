"""Answers over HTTP: the head of each, and the protocol's error object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from offpath.host_helper.gateway.errors import Refused

_PHRASES: Final = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    408: "Request Timeout", 413: "Content Too Large", 415: "Unsupported Media Type",
    417: "Expectation Failed", 429: "Too Many Requests", 431: "Request Header Fields Too Large",
    499: "Client Closed Request", 500: "Internal Server Error", 501: "Not Implemented", 503: "Service Unavailable",
    504: "Gateway Timeout", 505: "HTTP Version Not Supported",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Response:
    """An answer. ``chunks`` are the body, one behind the other."""

    status: int
    chunks: Sequence[bytes] = ()
    content_type: str = "application/json"
    header_length: int | None = None
    coding: str = ""
    retry_s: float = 0.0

    @property
    def nbytes(self) -> int:
        """Length of the body."""
        return sum(map(len, self.chunks))


def refusal(refused: Refused) -> Response:
    """The protocol's error object."""
    return Response(refused.http, (orjson.dumps({"error": refused.text}),), retry_s=refused.retry_s)


def head_of(response: Response, keeps: bool) -> bytes:
    """The answer's head. ``keeps``: the connection stays open. An empty body is no JSON, so it is text, as Triton's."""
    lines = [
        f"HTTP/1.1 {response.status} {_PHRASES.get(response.status, 'Error')}",
        f"Content-Type: {response.content_type if response.nbytes else 'text/plain'}",
        f"Content-Length: {response.nbytes}",
    ]
    if response.header_length is not None:
        lines.append(f"Inference-Header-Content-Length: {response.header_length}")
    if response.coding:
        lines.append(f"Content-Encoding: {response.coding}")
    if response.retry_s:
        lines.append(f"Retry-After: {max(round(response.retry_s), 1)}")
    if response.status == 401:
        lines.append("WWW-Authenticate: Bearer")
    if not keeps:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
