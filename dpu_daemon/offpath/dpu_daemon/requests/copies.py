"""The daemon's copies: one space of tokens over the copy engine, and per lease which copies are in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Set
from typing import Any, Final

from offpath.bindings.ports import CopyCompletion, CopyEngine, Memory

NO_LEASE: Final = 0
"""Of a copy that concerns no lane. Leases are numbered from 1."""
Done = Callable[[Any, CopyCompletion], None]
"""Takes the context that was posted with the copy, and how the copy ended."""


class Copies:
    """The only source of tokens for the engine. A copy that ends in place enters no table.

    A lane's memory is not its lease's alone while a copy into or out of it is in flight: see `when_landed`.
    """

    def __init__(self, engine: CopyEngine) -> None:
        self.engine = engine
        self._next_token = 1
        self.in_flight: dict[int, tuple[int, Done, Any]] = {}
        """By token: the lease, the callback and its context."""
        self._by_lease: Counter[int] = Counter()
        self._waiting: list[tuple[set[int], Callable[[], None]]] = []
        self.own_bytes = 0
        """What health checks moved, for no request."""

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
        """Start a copy. Its completion is returned if it ended in place; else ``done(context, completion)`` is called
        when it ends. Never both. ``lease``: of the lane that is copied into or out of.

        Raises: RegionError: as `CopyEngine.post`; ``done`` is not called then.
        """
        token = self.take_token()
        completion = self.engine.post(token, source, source_offset, target, target_offset, nbytes)
        if completion is None:
            self.started(token, lease, done, context)
        return completion

    def take_token(self) -> int:
        """For the request path, which posts by itself: `post` costs it 0.15 µs more. A copy that does not end in place
        must be `started` then, before the loop polls."""
        token = self._next_token
        self._next_token = token + 1
        return token

    def started(self, token: int, lease: int, done: Done, context: Any) -> None:
        """The copy of this token is in flight."""
        self.in_flight[token] = lease, done, context
        if lease:
            self._by_lease[lease] += 1

    def poll(self) -> None:
        """Call back for each copy that has ended. To be called when the engine's descriptor is readable."""
        take = self.in_flight.pop
        for completion in self.engine.poll():
            lease, done, context = take(completion.token)
            if lease:
                self._landed(lease)
            done(context, completion)

    def contexts(self, done: Done) -> Iterator[Any]:
        """Of the copies in flight with the callback ``done``."""
        return (context for _, to, context in self.in_flight.values() if to == done)

    # -- per lease ------------------------------------------------------------------------------------------------
    def _landed(self, lease: int) -> None:
        """A copy of this lease landed, or failed; what waited for the last one happens now."""
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
        """Those with a copy in flight."""
        return self._by_lease.keys()

    def when_landed(self, leases: Set[int], then: Callable[[], None]) -> None:
        """Call ``then`` when no copy is in flight that is now, for any of these leases; at once if there is none."""
        copied = set(leases & self._by_lease.keys())
        if copied:
            self._waiting.append((copied, then))
        else:
            then()

    @property
    def bytes_copied(self) -> int:
        """What was moved for requests."""
        return self.engine.bytes_copied - self.own_bytes
