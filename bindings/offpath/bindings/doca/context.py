"""Contexts: objects that run DOCA's work on a progress engine, and their states."""

from __future__ import annotations

import time
from ctypes import byref
from typing import Any, Final

from offpath.bindings.doca._abi_ctx import STATE_CHANGED, State
from offpath.bindings.doca._abi_errors import Status
from offpath.bindings.doca._abi_types import ENUM
from offpath.bindings.doca.engine import Engine
from offpath.bindings.doca.handles import Handle
from offpath.bindings.errors import DocaError

_STOP_S: Final = 2.0
_NAP_S: Final = 50e-6


class Context(Handle):
    """Common part of all contexts. IDLE, then RUNNING, for some after STARTING; STOPPING while tasks are returned; IDLE
    again. A fatal failure moves it to STOPPING by itself."""

    def __init__(
        self, engine: Engine, what: str, pointer: int | None, destroy: str, as_context: str, *parents: Handle
    ) -> None:
        super().__init__(engine.doca, what, pointer, destroy, *parents, engine)
        self._engine = engine
        self.state = State.IDLE
        """As last reported by DOCA."""
        self._kept: list[Any] = []
        self._context: int = self.doca.value(as_context, self.pointer)

    def keep(self, callback: Any) -> Any:
        """Keep ``callback`` alive: DOCA may call it until the context is destroyed."""
        self._kept.append(callback)
        return callback

    def start(self) -> State:
        """RUNNING, or STARTING, which the engine's progress completes. Raises: DocaError, DeviceGone."""
        self.doca.call("doca_ctx_start", self._context, expect=(Status.IN_PROGRESS,))
        self._engine.raise_kept()
        return self.look()

    def stop(self) -> bool:
        """Request a stop. True: it has stopped; otherwise the engine's progress returns its tasks. Idempotent.

        Raises: DocaError.
        """
        if self.look() in (State.RUNNING, State.STARTING):
            self.doca.call("doca_ctx_stop", self._context, expect=(Status.IN_PROGRESS,))
            self._engine.raise_kept()
        return self.look() is State.IDLE

    def look(self) -> State:
        """Its state now. Raises: DocaError."""
        found = ENUM()
        self.doca.call("doca_ctx_get_state", self._context, byref(found))
        self.state = State(found.value)
        return self.state

    def _connect(self) -> None:
        """Once, before the first start. Raises: DocaError."""
        changed = self.keep(STATE_CHANGED(self._engine.guarded(self._changed)))
        self.doca.call("doca_ctx_set_state_changed_cb", self._context, changed)
        self.doca.call("doca_pe_connect_ctx", self._engine.pointer, self._context)

    def _changed(self, _data: int, _context: int, _before: int, after: int) -> None:
        self.state = State(after)

    def _give_back(self) -> None:
        """Free the returned tasks: with one left, the context never becomes IDLE."""

    def close(self) -> None:
        """See `Handle.close`. Waits a bounded time for tasks in flight. Raises: DocaError: they were not returned, and
        the context is still open."""
        if not self.is_closed:
            self._come_to_rest()
        super().close()
        self._kept.clear()

    def _come_to_rest(self) -> None:
        until = time.monotonic() + _STOP_S
        while not self.stop():
            moved = self._engine.progress()
            self._give_back()
            if not moved:
                if time.monotonic() > until:
                    raise DocaError(f"stop a {self._what}", f"not idle after {_STOP_S:g} s")
                time.sleep(_NAP_S)
        self._give_back()
