"""The queue pairs that a daemon has and connects to, over all its sessions and lanes.

A peer could name another peer's end as its own. The daemon would then send there from the address that the other
expects, and only the packet number would protect it.
"""

from __future__ import annotations

from offpath.bindings.verbs.queue import Address


class QueuePairsInUse:
    """A set of queue pairs, by GID and number."""

    def __init__(self) -> None:
        self._taken: set[tuple[bytes, int]] = set()

    def take(self, address: Address) -> bool:
        """Register it. False: it was registered before."""
        key = _key(address)
        if key in self._taken:
            return False
        self._taken.add(key)
        return True

    def give_back(self, address: Address) -> None:
        """Unregister it. Idempotent."""
        self._taken.discard(_key(address))


def _key(address: Address) -> tuple[bytes, int]:
    return address.gid_bytes, address.qp_num
