"""Errors of the host library; those of `offpath.bindings.errors` pass through unchanged.

OffpathError
├── RequestFailed        a request ended in a terminal state other than COMPLETED
├── RequestTimeout       no answer within the timeout; the request was cancelled
├── SlotsHeld            each slot holds an answer of a stream that its reader must take first
├── UnknownKernel        no helper serves a kernel of this name
└── PayloadTooLarge      the arrays do not fit a slot of the session
"""

from __future__ import annotations

from offpath.bindings.errors import OffpathError
from offpath.bindings.wire.codes import Reason, Status


class RequestFailed(OffpathError):
    """The daemon's terminal answer. Only ``status`` RETRY_SAFE guarantees that the request did not start; the library
    has retried it.
    """

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
    """The timeout passed; a cancel was sent, and a late answer is dropped."""


class SlotsHeld(OffpathError):
    """No slot can become free: each has an answer of a stream that this requester has not taken. Take the answers,
    close a stream, or connect with more ``slots``."""


class LoadEnded(OffpathError):
    """A function under ``lane_opened`` asked its worker's process to end."""


class RequesterShared(OffpathError):
    """A requester is used by a process that did not open it, or by two threads at once. Its owner's requests are
    unharmed. Open one per process, and one per thread."""


class UnknownKernel(OffpathError):
    """No helper serves this kernel at present."""


class PayloadTooLarge(OffpathError):
    """Request larger slots when connecting (``payload_bytes``), or send less at once."""
