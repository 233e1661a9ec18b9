"""The requester's end of a session over verbs. Importing this loads pyverbs, if it is there."""

from __future__ import annotations

import contextlib

from offpath.bindings.errors import VerbsMissing
from offpath.bindings.ports import RequesterSession
from offpath.bindings.verbs.devices import choose
from offpath.bindings.verbs.domain import Device
from offpath.bindings.verbs.exchange import as_message, from_message
from offpath.bindings.verbs.fabric import VerbsRequesterSession
from offpath.bindings.verbs.library import library
from offpath.bindings.verbs.link import Line
from offpath.bindings.wire import control
from offpath.host_helper.negotiate import Negotiation, Rdma

with contextlib.suppress(VerbsMissing):  # told when a session needs it
    library()


def over_verbs(negotiation: Negotiation, welcome: control.Welcome, rdma: Rdma) -> RequesterSession:
    """Exchange ends for the welcome's ticket. Raises: NegotiationRefused, PeerGone, ControlError, VerbsError."""
    choice = choose(device=rdma.device or None, netdev=rdma.netdev or None, near=rdma.near or None)
    session = VerbsRequesterSession(Device(choice), welcome.slots, welcome.payload_bytes, welcome.result_bytes)
    try:
        theirs = from_message(negotiation.redeem(welcome.ticket, as_message(session.end())))
        session.connect(theirs, Line(negotiation.fileno(), lambda: None))  # the negotiation ends by itself
    except BaseException:
        session.close()
        raise
    return session
