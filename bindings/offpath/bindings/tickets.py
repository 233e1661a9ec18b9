"""One-time tickets: what the negotiation offers, and a fabric's connection uses up."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from offpath.bindings.errors import TicketRefused


@dataclass(frozen=True, slots=True)
class Offer:
    """What a ticket is good for."""

    slots: int
    payload_bytes: int
    result_bytes: int
    expires_ns: int


class TicketBook:
    """One-time tickets. Only their digests are kept; a late, used or unknown ticket looks the same to the peer."""

    def __init__(self, most: int = 4096) -> None:
        self._offers: OrderedDict[bytes, Offer] = OrderedDict()
        self._most = most

    def offer(self, ticket: str, slots: int, payload_bytes: int, result_bytes: int, expires_ns: int) -> None:
        """See `FabricListener.offer`; the oldest offer goes when there are too many."""
        while len(self._offers) >= self._most:
            self._offers.popitem(last=False)
        self._offers[_digest(ticket.encode())] = Offer(slots, payload_bytes, result_bytes, expires_ns)

    def withdraw(self, ticket: str) -> None:
        """See `FabricListener.withdraw`."""
        self._offers.pop(_digest(ticket.encode()), None)

    def redeem(self, ticket: bytes, now_ns: int) -> Offer:
        """Use the ticket up. Raises: TicketRefused."""
        offer = self._offers.pop(_digest(ticket), None)
        if offer is None:
            raise TicketRefused("unknown ticket, or redeemed before")
        if now_ns > offer.expires_ns:
            raise TicketRefused("the ticket came too late")
        return offer


def _digest(ticket: bytes) -> bytes:
    return hashlib.sha256(ticket).digest()
