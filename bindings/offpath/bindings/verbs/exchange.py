"""Where the ends of sessions meet: tickets, which ends are in use, and ends as messages carry them."""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Final, Literal

from offpath.bindings.errors import TicketRefused
from offpath.bindings.loopback.fabric import Offer, TicketBook
from offpath.bindings.verbs.link import End
from offpath.bindings.verbs.queue import Address
from offpath.bindings.wire.control import QueuePairEnd


class VerbsListener(TicketBook):
    """Implements `offpath.bindings.ports.FabricListener`. It listens nowhere: ends come over negotiations."""

    carrier: Final[Literal["verbs"]] = "verbs"

    def __init__(self) -> None:
        super().__init__()
        self._in_use: set[tuple[str, int]] = set()

    def claim(self, ticket: bytes, end: End, now_ns: int) -> Offer:
        """Use the ticket up and note that ``end`` is taken, until it is given `back`.

        A queue pair that a session talks to already is refused: answers sent to it by another would end that session.
        Raises: TicketRefused.
        """
        offer = self.redeem(ticket, now_ns)
        key = _key(end)
        if key in self._in_use:
            raise TicketRefused("that queue pair belongs to another session")
        self._in_use.add(key)
        return offer

    def back(self, end: End) -> None:
        """Nobody talks to it any more. Repeating it is harmless."""
        self._in_use.discard(_key(end))


def _key(end: End) -> tuple[str, int]:
    return end.address.gid, end.address.qp_num


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
