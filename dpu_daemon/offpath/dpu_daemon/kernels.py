"""Kernel names and their numbers in request headers: given once per daemon life, never reused for another name."""

from __future__ import annotations

from collections.abc import Iterable

from offpath.bindings.wire.control import KernelInfo, KernelOffer


class KernelRegistry:
    """What helpers have offered so far."""

    def __init__(self) -> None:
        self._known: dict[str, KernelInfo] = {}
        self._next = 1

    def restore(self, offers: Iterable[tuple[int, KernelOffer]]) -> None:
        """After a restart: the numbers that requesters and the book use."""
        for number, offer in offers:
            self._known[offer.name] = KernelInfo(name=offer.name, kernel_id=number, demand=offer.demand)
            self._next = max(self._next, number + 1)

    def learn(self, offers: Iterable[KernelOffer]) -> dict[str, int]:
        """Take a helper's kernels in; returns their numbers by name."""
        ids = {}
        for offer in offers:
            before = self._known.get(offer.name)
            number = before.kernel_id if before is not None else self._next
            if before is None:
                self._next += 1
            self._known[offer.name] = KernelInfo(name=offer.name, kernel_id=number, demand=offer.demand)
            ids[offer.name] = number
        return ids

    def infos(self) -> list[KernelInfo]:
        """For the welcome."""
        return list(self._known.values())
