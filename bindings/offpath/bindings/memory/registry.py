"""Memory of ours that a device may reach: registered when it is first copied, and for as long as it lives.

To register is to pin pages: milliseconds for a session's memory, far too much for a request.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from offpath.bindings.memory.region import Region as Memory


class Closable(Protocol):
    """What a device knows a memory by."""

    def close(self) -> None:
        """Let go of the memory. Repeating it is harmless."""


R = TypeVar("R", bound=Closable)


class Registration(Generic[R]):
    """A registered memory and how many copies use it now; it outlives its memory until they have ended."""

    __slots__ = ("is_leaving", "region", "uses")

    def __init__(self, region: R) -> None:
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


class Registry(Generic[R]):
    """Memories that one device knows. ``register`` makes it known, to be written by the device or only to be read."""

    def __init__(self, register: Callable[[Memory, bool], R]) -> None:
        self._register = register
        self._held: dict[int, dict[bool, Registration[R]]] = {}

    def use(self, memory: Memory, *, is_written: bool) -> Registration[R]:
        """For one copy; release it after. The device gets no more rights than asked for. Raises: as ``register``."""
        held = self._held.get(id(memory))
        if held is None:
            held = self._held[id(memory)] = {}
            memory.on_close.append(partial(self._leave, id(memory)))
            weakref.finalize(memory, self._leave, id(memory)).atexit = False  # of one that was never closed
        registration = held.get(is_written)
        if registration is None:
            registration = held[is_written] = Registration(self._register(memory, is_written))
        registration.uses += 1
        return registration

    def _leave(self, key: int) -> None:
        for registration in self._held.pop(key, {}).values():
            registration.leave()
