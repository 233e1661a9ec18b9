"""Errors of the host library; the boundary's own (`offpath.bindings.errors`) pass through unchanged.

OffpathError
├── RequestFailed        a request ended in a terminal state other than COMPLETED
├── RequestTimeout       no answer within the caller's patience; the request was cancelled
├── UnknownKernel        no helper serves a kernel of this name
└── PayloadTooLarge      the arrays do not fit a slot of the session
"""

from __future__ import annotations

from offpath.bindings.errors import OffpathError
from offpath.bindings.wire.codes import Reason, Status


class RequestFailed(OffpathError):
    """The daemon's terminal answer. Only ``status`` RETRY_SAFE surely did not start; the library retried it."""

    def __init__(self, status: Status, reason: Reason, retry_after_ms: int = 0, detail: str = "") -> None:
        text = f"{status.name}: {reason.name.lower()}"
        if retry_after_ms:
            text += f" (try again in {retry_after_ms} ms)"
        super().__init__(f"{text}: {detail}" if detail else text)
        self.status = status
        self.reason = reason
        self.retry_after_ms = retry_after_ms
        self.detail = detail


class RequestTimeout(OffpathError):
    """The caller's time-out passed; a cancel was sent, and a late answer is dropped."""


class UnknownKernel(OffpathError):
    """No helper serves it (now)."""


class PayloadTooLarge(OffpathError):
    """Ask for larger slots when connecting (``payload_bytes``), or send less at once."""
