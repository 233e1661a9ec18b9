"""Exchange of the ends of sessions: tickets, the ends in use, and ends as messages."""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Final, Literal

from offpath.bindings.errors import TicketRefused
from offpath.bindings.ports import EndsInUse
from offpath.bindings.tickets import Offer, TicketBook
from offpath.bindings.verbs.link import End
from offpath.bindings.verbs.queue import Address
from offpath.bindings.verbs.queue_pairs_in_use import QueuePairsInUse
from offpath.bindings.wire.negotiating import QueuePairEnd


class VerbsListener(TicketBook):
    """Implements `offpath.bindings.ports.FabricListener`. It has no socket: ends arrive over negotiations."""

    carrier: Final[Literal["verbs"]] = "verbs"
    paces_connections: Final = True

    def __init__(self, taken: EndsInUse | None = None) -> None:
        """``taken``: shared with the copy engine, if that has queue pairs too."""
        super().__init__()
        self._taken: EndsInUse = taken if taken is not None else QueuePairsInUse()

    def claim(self, ticket: bytes, end: End, now_ns: int) -> Offer:
        """Consume the ticket and register ``end`` as in use, until `back`.

        Refuses a queue pair that is the daemon's own or already a peer: answers sent to it would break that connection.
        Raises: TicketRefused.
        """
        offer = self.redeem(ticket, now_ns)
        if not self._taken.take(end.address):
            raise TicketRefused("that queue pair belongs to another session, or a lane")
        return offer

    def made(self, ours: End) -> bool:
        """Reserve the daemon's own queue pair, until `back`. False: a peer had named it as its own before."""
        return self._taken.take(ours.address)

    def back(self, *ends: End) -> None:
        """Unregister ends. Idempotent."""
        for end in ends:
            self._taken.give_back(end.address)


def as_message(end: End) -> QueuePairEnd:
    """Encode an end."""
    address = end.address
    return QueuePairEnd(
        qp_num=address.qp_num, psn=address.psn, gid=address.gid, mtu=address.mtu, doorbells=end.doorbells,
        memory=end.memory, rkey=end.rkey,
    )  # fmt: skip


def from_message(message: QueuePairEnd) -> End:
    """Decode an end. Raises: TicketRefused: it is invalid."""
    try:
        gid = IPv6Address(message.gid)
    except ValueError:
        raise TicketRefused(f"{message.gid!r} is not a GID") from None
    if gid.scope_id is not None:  # the device ignores the zone, so one GID would have many spellings
        raise TicketRefused(f"{message.gid!r} is not a GID: it has a zone")
    address = Address(message.qp_num, message.psn, str(gid), message.mtu)
    return End(address, message.doorbells, message.memory, message.rkey)
