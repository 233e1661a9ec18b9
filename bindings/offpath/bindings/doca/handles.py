"""What all owners of DOCA's objects share: lifetimes."""

from __future__ import annotations

import warnings

from offpath.bindings.doca.load import Library
from offpath.bindings.errors import ResourceClosed


class Handle:
    """An object of DOCA's. It keeps its parents, closes its children first, the last made first, and may be closed
    twice. If DOCA refuses, it stays open, and closing can be tried again."""

    def __init__(self, doca: Library, what: str, pointer: int | None, destroy: str, *parents: Handle) -> None:
        assert pointer, f"DOCA made no {what} and did not say so"
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
        """As DOCA knows it. Raises: ResourceClosed."""
        if self._pointer is None:
            raise ResourceClosed(f"the {self._what} is closed")
        return self._pointer

    @property
    def is_closed(self) -> bool:
        """True once `close` succeeded."""
        return self._pointer is None

    def close(self) -> None:
        """Children, then itself. Repeating it is harmless. Raises: DocaError: DOCA refused, and it is open still."""
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
            warnings.warn(f"a {self._what} of DOCA's was not closed", ResourceWarning, stacklevel=2)
