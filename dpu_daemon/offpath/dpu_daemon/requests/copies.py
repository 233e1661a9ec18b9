"""Tracks the daemon's copies: allocates the copy engine's tokens and counts the copies in flight per lease."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set
from typing import Any, Final

from offpath.bindings.ports import CopyCompletion, CopyEngine, Memory

NO_LEASE: Final = 0
"""Marks a copy that involves no lane. Leases are numbered from 1."""
Done = Callable[[Any, CopyCompletion], None]
"""Receives the context that was posted with the copy, and its completion."""


class Copies:
    """The only source of the engine's tokens. A copy that completes synchronously enters no table.

    A lane's memory cannot be reused while a copy into or out of it is in flight: see `when_landed`.
    """

    def __init__(self, engine: CopyEngine) -> None:
        self.engine = engine
        self._next_token = 1
        self.in_flight: dict[int, tuple[int, Done, Any]] = {}
        """By token: the lease, the callback and its context."""
        self._by_lease: Counter[int] = Counter()
        self._waiting: list[tuple[set[int], Callable[[], None]]] = []
        self.own_bytes = 0
        """Bytes that health checks moved."""

    def post(
        self,
        source: Memory,
        source_offset: int,
        target: Memory,
        target_offset: int,
        nbytes: int,
        done: Done,
        context: Any,
        lease: int = NO_LEASE,
    ) -> CopyCompletion | None:
        """Start a copy. Returns the completion if the copy completes synchronously; else ``done(context, completion)``
        is called when it completes. Never both. ``lease``: of the source or target lane.

        Raises: RegionError: as `CopyEngine.post`; ``done`` is then not called.
        """
        token = self.take_token()
        completion = self.engine.post(token, source, source_offset, target, target_offset, nbytes)
        if completion is None:
            self.started(token, lease, done, context)
        return completion

    def take_token(self) -> int:
        """For the request path, which posts directly: `post` takes 0.15 µs longer. A copy that does not complete
        synchronously must be passed to `started` before the loop polls."""
        token = self._next_token
        self._next_token = token + 1
        return token

    def started(self, token: int, lease: int, done: Done, context: Any) -> None:
        """Record that the copy with this token is in flight."""
        self.in_flight[token] = lease, done, context
        if lease:
            self._by_lease[lease] += 1

    def poll(self) -> None:
        """Run the callback of each completed copy. Call this when the engine's descriptor is readable."""
        take = self.in_flight.pop
        for completion in self.engine.poll():
            lease, done, context = take(completion.token)
            if lease:
                self._landed(lease)
            done(context, completion)

    def contexts(self, done: Done) -> list[Any]:
        """The contexts of the copies in flight with the callback ``done``."""
        return [context for _, to, context in self.in_flight.values() if to == done]

    # -- per lease ------------------------------------------------------------------------------------------------
    def _landed(self, lease: int) -> None:
        """A copy of this lease completed or failed. After the last one, run the callbacks that wait for it."""
        self._by_lease[lease] -= 1
        if self._by_lease[lease]:
            return
        del self._by_lease[lease]
        for leases, _ in self._waiting:
            leases.discard(lease)
        ready = [then for leases, then in self._waiting if not leases]
        self._waiting = [entry for entry in self._waiting if entry[0]]
        for then in ready:
            then()

    def leases(self) -> Set[int]:
        """The leases with a copy in flight."""
        return self._by_lease.keys()

    def when_landed(self, leases: Set[int], then: Callable[[], None]) -> None:
        """Call ``then`` when these leases' copies that are in flight now have completed; at once if there are none."""
        copied = set(leases & self._by_lease.keys())
        if copied:
            self._waiting.append((copied, then))
        else:
            then()

    @property
    def bytes_copied(self) -> int:
        """Bytes moved for requests."""
        return self.engine.bytes_copied - self.own_bytes

    @property
    def bytes_by_cpu(self) -> int:
        """Of these, bytes that this process's CPU moved; an engine whose device copies moves few."""
        return max(0, self.engine.bytes_by_cpu - self.own_bytes)
