"""Steps that single launches and batches share when a worker's result arrives."""

from __future__ import annotations

from offpath.bindings.wire import host
from offpath.dpu_daemon.requests.inflight import JobRef, LaneConnection, Workers
from offpath.dpu_daemon.requests.request_stats import DETAIL_BYTES


def as_text(ref: JobRef, result: host.Result, text: bytes) -> host.Result:
    """The text in the place of a result, as far as the session has room for it."""
    ref.detail = text[:DETAIL_BYTES]
    if not ref.session.is_closed:
        text = text[: ref.session.fabric.result_bytes]  # the next slot's answer follows in memory
    return result._replace(result_bytes=len(text), is_inline=True, tensors=b"", inline=text)


def too_large(nbytes: int, allowed: int) -> bytes:
    """Why the session cannot take a result of ``nbytes``."""
    return f"the result has {nbytes} bytes; the session allows {allowed}".encode()


def check_alive(workers: Workers, link: LaneConnection, number: int) -> bool:
    """True if the worker is known to have lived while its result was fetched, or was lost before. False: it is lost
    now, or was pinged, and its pong will prove it.

    A lane's memory is valid only while its worker lives. Bytes copied later may be anything: a helper that gave up this
    daemon scrubs, a driver reclaims a dead process's memory."""
    if not workers.holds(link):
        return True
    if link.connection.has_ended():
        workers.worker_gone(link, "its process ended before its result was fetched")
        return False
    if link.connection.death_fileno() >= 0:
        return True
    # This channel does not detect the worker's death; a pong proves that it lived until now.
    if not workers.request_proof(link, number):
        workers.worker_gone(link, "it cannot be pinged after its result was fetched")
    return False
