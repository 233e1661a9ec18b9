"""Memory of ours that a device may reach: registered when it is first copied, and for as long as it lives.

To register is to pin pages: milliseconds for a session's memory, far too much for a request.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Final

from offpath.bindings.loopback.region import Region as Memory
from offpath.bindings.verbs.domain import Domain, Region


class Registration:
    """A registered memory and how many copies use it now; it outlives its memory until they have ended."""

    __slots__ = ("is_leaving", "region", "uses")

    def __init__(self, region: Region) -> None:
        self.region: Final = region
        self.uses = 0
        self.is_leaving = False

    def release(self) -> None:
        """One copy less."""
        self.uses -= 1
        self.close_if_idle()

    def leave(self) -> None:
        """Its memory is closed: no copy more."""
        self.is_leaving = True
        self.close_if_idle()

    def close_if_idle(self) -> None:
        """Let go of the mapping, if it is time."""
        if self.is_leaving and not self.uses:
            self.region.close()


class Registry:
    """Memories in one protection domain. ``by_peers``: what is written is written by the peer, not by what we read."""

    def __init__(self, domain: Domain, *, by_peers: bool = False) -> None:
        self._domain = domain
        self._by_peers = by_peers
        self._held: dict[int, dict[bool, Registration]] = {}

    def use(self, memory: Memory, *, is_written: bool) -> Registration:
        """For one copy; release it after. The device gets no more rights than asked for. Raises: VerbsError."""
        held = self._held.get(id(memory))
        if held is None:
            held = self._held[id(memory)] = {}
            memory.on_close.append(partial(self._leave, id(memory)))
            weakref.finalize(memory, self._leave, id(memory)).atexit = False  # of one that was never closed
        registration = held.get(is_written)
        if registration is None:
            region = self._domain.register(
                memory.view, local_write=is_written, remote_write=is_written and self._by_peers
            )
            registration = held[is_written] = Registration(region)
        registration.uses += 1
        return registration

    def _leave(self, key: int) -> None:
        for registration in self._held.pop(key, {}).values():
            registration.leave()
