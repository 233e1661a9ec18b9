"""Where the ends of sessions meet: tickets, which ends are in use, and ends as messages carry them."""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Final, Literal

from offpath.bindings.errors import TicketRefused
from offpath.bindings.ports import EndsInUse
from offpath.bindings.tickets import Offer, TicketBook
from offpath.bindings.verbs.link import End
from offpath.bindings.verbs.queue import Address
from offpath.bindings.verbs.queue_pairs_in_use import QueuePairsInUse
from offpath.bindings.wire.control import QueuePairEnd


class VerbsListener(TicketBook):
    """Implements `offpath.bindings.ports.FabricListener`. It listens nowhere: ends come over negotiations."""

    carrier: Final[Literal["verbs"]] = "verbs"
    paces_connections: Final = True

    def __init__(self, taken: EndsInUse | None = None) -> None:
        """``taken``: shared with the copy engine, if that has queue pairs too."""
        super().__init__()
        self._taken: EndsInUse = taken if taken is not None else QueuePairsInUse()

    def claim(self, ticket: bytes, end: End, now_ns: int) -> Offer:
        """Use the ticket up and note that ``end`` is taken, until it is given `back`.

        A queue pair that we talk to already, or that is ours, is refused: answers sent to it would end what goes on
        there. Raises: TicketRefused.
        """
        offer = self.redeem(ticket, now_ns)
        if not self._taken.take(end.address):
            raise TicketRefused("that queue pair belongs to another session, or a lane")
        return offer

    def made(self, ours: End) -> bool:
        """Our own queue pair is nobody's end, until it is given `back`. False: somebody named it before we had it."""
        return self._taken.take(ours.address)

    def back(self, *ends: End) -> None:
        """Nobody talks to them any more. Repeating it is harmless."""
        for end in ends:
            self._taken.give_back(end.address)


def as_message(end: End) -> QueuePairEnd:
    """As it is sent."""
    address = end.address
    return QueuePairEnd(
        qp_num=address.qp_num, psn=address.psn, gid=address.gid, mtu=address.mtu, doorbells=end.doorbells,
        memory=end.memory, rkey=end.rkey,
    )  # fmt: skip


def from_message(message: QueuePairEnd) -> End:
    """As it was received; the GID in its one spelling. Raises: TicketRefused: it is none."""
    try:
        gid = IPv6Address(message.gid)
    except ValueError:
        raise TicketRefused(f"{message.gid!r} is no GID") from None
    if gid.scope_id is not None:  # as good as any other to the device, so one GID would have many spellings
        raise TicketRefused(f"{message.gid!r} is no GID: it has a zone")
    address = Address(message.qp_num, message.psn, str(gid), message.mtu)
    return End(address, message.doorbells, message.memory, message.rkey)
