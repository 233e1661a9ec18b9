"""What the gateway answers instead of a result: an HTTP status, a gRPC code and a text, as Triton has them.

Clients know Triton's answers: the same case gets the same status and, where clients show it, a like text.
"""

from __future__ import annotations

from typing import Final

from offpath.bindings.errors import OffpathError
from offpath.bindings.wire.codes import Reason, Status
from offpath.host_helper.errors import RequestFailed


class GatewayConfigInvalid(OffpathError):
    """The gateway's configuration has faults; its text names them."""


class GatewayMissing(OffpathError):
    """A package that the gateway needs is not installed."""


class Refused(OffpathError):
    """A request of a client that is not served. ``http``: the status. ``grpc``: the name of gRPC's code. ``retry_s``:
    when it may be tried again; 0: not stated."""

    def __init__(self, http: int, grpc: str, text: str, retry_s: float = 0.0) -> None:
        super().__init__(text)
        self.http, self.grpc, self.text, self.retry_s = http, grpc, text, retry_s

    @property
    def code(self) -> str:
        """The status in a word."""
        return str(self.http)


def invalid(text: str) -> Refused:
    """The request is at fault."""
    return Refused(400, "INVALID_ARGUMENT", text)


def unparsable(text: str) -> Refused:
    """The body is no request. Triton answers such with 500."""
    return Refused(500, "INVALID_ARGUMENT", text)


def not_found(text: str) -> Refused:
    """It names something that is not there."""
    return Refused(404, "NOT_FOUND", text)


def unsupported(text: str) -> Refused:
    """It asks for a part of the protocol that the gateway does not have."""
    return Refused(501, "UNIMPLEMENTED", text)


def too_large(text: str) -> Refused:
    """Beyond a bound."""
    return Refused(413, "RESOURCE_EXHAUSTED", text)


def unavailable(text: str, retry_s: float = 1.0) -> Refused:
    """Not now."""
    return Refused(503, "UNAVAILABLE", text, retry_s)


def unauthenticated() -> Refused:
    """The same for every request without a valid token: it tells nothing about what there is."""
    return Refused(401, "UNAUTHENTICATED", "no valid bearer token")


_BUSY: Final = frozenset((Reason.TENANT_QUEUE_FULL, Reason.DAEMON_FULL, Reason.TOO_MANY_SEQUENCES))
_SIZES: Final = frozenset((Reason.PAYLOAD_TOO_LARGE, Reason.RESULT_TOO_LARGE))


def of_request(failed: RequestFailed) -> Refused:
    """The end of an offpath request as the client's answer."""
    text = str(failed)
    if failed.status is Status.EXPIRED or failed.reason is Reason.DEADLINE_UNREACHABLE:
        return Refused(504, "DEADLINE_EXCEEDED", text)
    if failed.reason in _SIZES:
        return too_large(text)
    if failed.reason is Reason.SEQUENCE_LOST:
        return Refused(409, "ABORTED", text)
    if failed.status is Status.CANCELLED:
        return Refused(499, "CANCELLED", text)
    if failed.status is Status.RETRY_SAFE:
        return unavailable(text, max(failed.retry_after_ms / 1e3, 0.1))
    if failed.status is Status.OUTCOME_UNKNOWN:
        return Refused(500, "UNKNOWN", text)
    if failed.status is Status.REJECTED:
        if failed.reason in _BUSY:
            return Refused(429, "RESOURCE_EXHAUSTED", text, failed.retry_after_ms / 1e3)
        if failed.reason is Reason.KERNEL_NOT_PERMITTED:
            return Refused(403, "PERMISSION_DENIED", text)
        if failed.reason is Reason.DRAINING:
            return unavailable(text, max(failed.retry_after_ms / 1e3, 1.0))
        return Refused(503, "UNAVAILABLE", text, failed.retry_after_ms / 1e3)
    return Refused(500, "INTERNAL", text)
