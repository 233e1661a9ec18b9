"""One-time tickets: the negotiation offers them, a connection to the fabric redeems them."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from offpath.bindings.errors import TicketRefused


@dataclass(frozen=True, slots=True)
class Offer:
    """What a ticket grants."""

    slots: int
    payload_bytes: int
    result_bytes: int
    expires_ns: int


class TicketBook:
    """One-time tickets. Stores their digests only. The peer cannot distinguish a late, a used and an unknown ticket."""

    def __init__(self, most: int = 4096) -> None:
        self._offers: OrderedDict[bytes, Offer] = OrderedDict()
        self._most = most

    def offer(self, ticket: str, slots: int, payload_bytes: int, result_bytes: int, expires_ns: int) -> None:
        """See `FabricListener.offer`. Beyond ``most`` offers the oldest is dropped."""
        while len(self._offers) >= self._most:
            self._offers.popitem(last=False)
        self._offers[_digest(ticket.encode())] = Offer(slots, payload_bytes, result_bytes, expires_ns)

    def withdraw(self, ticket: str) -> None:
        """See `FabricListener.withdraw`."""
        self._offers.pop(_digest(ticket.encode()), None)

    def redeem(self, ticket: bytes, now_ns: int) -> Offer:
        """Consume the ticket. Raises: TicketRefused."""
        offer = self._offers.pop(_digest(ticket), None)
        if offer is None:
            raise TicketRefused("unknown ticket, or redeemed before")
        if now_ns > offer.expires_ns:
            raise TicketRefused("the ticket has expired")
        return offer


def _digest(ticket: bytes) -> bytes:
    return hashlib.sha256(ticket).digest()
