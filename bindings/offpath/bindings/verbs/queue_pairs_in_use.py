"""Which queue pairs a daemon has and talks to, over all its sessions and lanes.

Who names the end of another as its own would have us send there: from the address that the other expects, so that only
a packet number would still protect it.
"""

from __future__ import annotations

from offpath.bindings.verbs.queue import Address


class QueuePairsInUse:
    """A set of queue pairs, by GID and number."""

    def __init__(self) -> None:
        self._taken: set[tuple[str, int]] = set()

    def take(self, address: Address) -> bool:
        """Note it. False: it was noted before."""
        key = _key(address)
        if key in self._taken:
            return False
        self._taken.add(key)
        return True

    def give_back(self, address: Address) -> None:
        """Nobody has it any more. Repeating it is harmless."""
        self._taken.discard(_key(address))


def _key(address: Address) -> tuple[str, int]:
    return address.gid, address.qp_num
