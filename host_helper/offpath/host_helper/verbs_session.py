"""The requester's end of a session over verbs."""

from __future__ import annotations

from offpath.bindings.ports import RequesterSession
from offpath.bindings.verbs.devices import choose
from offpath.bindings.verbs.domain import Device
from offpath.bindings.verbs.exchange import as_message, from_message
from offpath.bindings.verbs.fabric import VerbsRequesterSession
from offpath.bindings.verbs.link import LivenessChannel
from offpath.bindings.wire import negotiating
from offpath.host_helper.negotiate import Negotiation, Rdma


def prepared(rdma: Rdma, slots: int, payload_bytes: int, result_bytes: int) -> VerbsRequesterSession:
    """A requester's end with its memory registered, which may outlast a ticket. Raises: VerbsError."""
    choice = choose(device=rdma.device or None, netdev=rdma.netdev or None, near=rdma.near or None)
    return VerbsRequesterSession(Device(choice), slots, payload_bytes, result_bytes)


def over_verbs(
    negotiation: Negotiation, welcome: negotiating.Welcome, rdma: Rdma, session: VerbsRequesterSession | None
) -> RequesterSession:
    """Exchange ends for the welcome's ticket. ``session`` is what `prepared` returned, or None; this function owns it.

    Raises: NegotiationRefused, PeerGone, ControlError, VerbsError.
    """
    sizes = welcome.slots, welcome.payload_bytes, welcome.result_bytes
    if session is None or not session.fit(*sizes):
        if session is not None:
            session.close()
        session = prepared(rdma, *sizes)
    try:
        theirs = from_message(negotiation.redeem(welcome.ticket, as_message(session.end())))
        session.connect(theirs, LivenessChannel(negotiation.fileno(), lambda: None))  # the negotiation closes by itself
    except BaseException:
        session.close()
        raise
    return session
