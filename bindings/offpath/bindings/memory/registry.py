"""Registers local memory with a device: at its first copy, and for as long as the memory lives.

Registration pins pages. It takes milliseconds for a session's memory, far too long for a single request.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from offpath.bindings.memory.region import Region as Memory


class Closable(Protocol):
    """A device's handle of a registered memory."""

    def close(self) -> None:
        """Unregister the memory. Idempotent."""


R = TypeVar("R", bound=Closable)


class Registration(Generic[R]):
    """A registered memory and the number of copies that use it. It outlives its memory until those copies have
    ended."""

    __slots__ = ("is_leaving", "region", "uses")

    def __init__(self, region: R) -> None:
        self.region: Final = region
        self.uses = 0
        self.is_leaving = False

    def release(self) -> None:
        """One copy has ended."""
        self.uses -= 1
        self.close_if_idle()

    def leave(self) -> None:
        """The memory was closed: no more copies."""
        self.is_leaving = True
        self.close_if_idle()

    def close_if_idle(self) -> None:
        """Unregister if the memory was closed and no copy uses it."""
        if self.is_leaving and not self.uses:
            self.region.close()


class Registry(Generic[R]):
    """The memories that are registered with one device. ``register``: called with the memory, and whether the device
    may write it."""

    def __init__(self, register: Callable[[Memory, bool], R]) -> None:
        self._register = register
        self._held: dict[int, dict[bool, Registration[R]]] = {}

    def use(self, memory: Memory, *, is_written: bool) -> Registration[R]:
        """The registration for one copy; release it afterwards. Grants no more rights than requested. Raises: as
        ``register``."""
        held = self._held.get(id(memory))
        if held is None:
            held = self._held[id(memory)] = {}
            memory.on_close.append(partial(self._leave, id(memory)))
            weakref.finalize(memory, self._leave, id(memory)).atexit = False  # for a memory that is never closed
        registration = held.get(is_written)
        if registration is None:
            registration = held[is_written] = Registration(self._register(memory, is_written))
        registration.uses += 1
        return registration

    def _leave(self, key: int) -> None:
        for registration in self._held.pop(key, {}).values():
            registration.leave()
