"""Lifetime management of DOCA objects."""

from __future__ import annotations

import warnings

from offpath.bindings.doca.load import Library
from offpath.bindings.errors import ResourceClosed


class Handle:
    """A DOCA object. It keeps its parents alive and closes its children first, in reverse order of creation. `close` is
    idempotent. If DOCA refuses, the object stays open, and `close` can be retried."""

    def __init__(self, doca: Library, what: str, pointer: int | None, destroy: str, *parents: Handle) -> None:
        assert pointer, f"DOCA returned neither a {what} nor an error"
        self.doca = doca
        self._what = what
        self._pointer: int | None = pointer
        self._destroy_by = destroy
        self._children: list[Handle] = []
        self._parents = parents
        for parent in parents:
            parent._children.append(self)

    @property
    def pointer(self) -> int:
        """DOCA's pointer. Raises: ResourceClosed."""
        if self._pointer is None:
            raise ResourceClosed(f"the {self._what} is closed")
        return self._pointer

    @property
    def is_closed(self) -> bool:
        """True after `close` succeeded."""
        return self._pointer is None

    def close(self) -> None:
        """Close children, then itself. Idempotent. Raises: DocaError: DOCA refused, and the object is still open."""
        while self._children:
            self._children[-1].close()
        if self._pointer is None:
            return
        self._destroy()
        self._pointer = None
        for parent in self._parents:
            parent._children.remove(self)
        self._parents = ()

    def _destroy(self) -> None:
        self.doca.call(self._destroy_by, self.pointer)

    def __del__(self) -> None:
        if getattr(self, "_pointer", None) is not None:
            warnings.warn(f"a DOCA {self._what} was not closed", ResourceWarning, stacklevel=2)
