"""Checks health by live tests: the loop runs a callback, the book handles an event, the copy engine copies bytes.

Unlike a flag, the result is current, and it needs no request traffic. One check costs a copy of a megabyte.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from offpath.bindings.errors import OffpathError
from offpath.bindings.loopback.copy import INLINE_BYTES
from offpath.bindings.memory.region import Region
from offpath.bindings.ports import CopyCompletion
from offpath.dpu_daemon.listening.checkup import Checkup
from offpath.dpu_daemon.requests.book_loop import BookLoop
from offpath.dpu_daemon.requests.copies import Copies
from offpath.sched.jobs import events

TESTS: Final = ("loop", "book", "copy")
_OVERDUE_NS: Final = 1_000_000_000
_NBYTES: Final = INLINE_BYTES + 4096  # above the limit, so that the test uses the engine's thread and event
_MARK_BYTES: Final = 8
_KEPT: Final = 64


class PathProbe:
    """Runs health checks in the daemon's loop."""

    def __init__(self, book_loop: BookLoop, copies: Copies, why_not_ready: Callable[[], str]) -> None:
        """``why_not_ready`` returns the reason why new work is refused; empty: it is accepted."""
        self._book_loop = book_loop
        self._copies = copies
        self._why_not_ready = why_not_ready
        self._memory: tuple[Region, Region] | None = None
        self._waiting: deque[Checkup] = deque(maxlen=_KEPT)
        self._is_copying = False
        self._count = 0

    def run(self, checkup: Checkup) -> None:
        """Start the tests; call this in the loop. At most one copy is in flight; checkups that start meanwhile share
        it."""
        checkup.checks["loop"] = "ok"
        checkup.why_not_ready = self._why_not_ready()
        checkup.is_accepting = not checkup.why_not_ready
        checkup.checks["book"] = self._book()
        self._waiting.append(checkup)
        if self._is_copying:
            return
        try:
            self._copy()
        except (OffpathError, OSError) as fault:
            self._report(f"refused: {fault}")

    def _book(self) -> str:
        try:
            self._book_loop.dispatch(events.Tick())
        except Exception as fault:  # whatever the book raises, the daemon is not healthy
            return f"raised {type(fault).__name__}"
        next_ns = self._book_loop.book.next_deadline_ns()
        if next_ns is not None and next_ns < self._book_loop.now_ns() - _OVERDUE_NS:
            return "a timer is overdue by more than a second"
        return "ok"

    def _copy(self) -> None:
        if self._memory is None:
            self._memory = Region.create("offpath-probe", _NBYTES), Region.create("offpath-probe", _NBYTES)
        source, target = self._memory
        self._count += 1
        mark = self._count.to_bytes(_MARK_BYTES, "little")
        source.view[:_MARK_BYTES] = source.view[_NBYTES - _MARK_BYTES : _NBYTES] = mark
        self._is_copying = True
        done = self._copies.post(source, 0, target, 0, _NBYTES, self._copied, mark)
        if done is not None:
            self._copied(mark, done)

    def _copied(self, mark: bytes, done: CopyCompletion) -> None:
        assert self._memory is not None
        self._is_copying = False
        self._copies.own_bytes += _NBYTES if done.error is None else 0
        view = self._memory[1].view
        is_there = view[:_MARK_BYTES] == mark == view[_NBYTES - _MARK_BYTES : _NBYTES]
        self._report("ok" if is_there and done.error is None else f"the bytes did not arrive: {done.error}")

    def _report(self, result: str) -> None:
        while self._waiting:
            checkup = self._waiting.popleft()
            checkup.checks["copy"] = result
            checkup.finish()

    def close(self) -> None:
        """Free the memory."""
        for region in self._memory or ():
            region.close()
        self._memory = None
