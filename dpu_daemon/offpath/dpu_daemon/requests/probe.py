"""Health by trying: the loop runs a callback, the book takes an event, the copy engine carries bytes.

A flag would say what was true once; nobody's request need pass for this to notice. It costs a copy of a megabyte.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from offpath.bindings.errors import OffpathError
from offpath.bindings.loopback.copy import INLINE_BYTES
from offpath.bindings.memory.region import Region
from offpath.bindings.ports import CopyCompletion
from offpath.dpu_daemon.requests.book_loop import BookLoop
from offpath.dpu_daemon.requests.copies import Copies
from offpath.sched.jobs import events

ANSWER_S: Final = 1.0
"""A path that has not answered by then is not healthy."""
_OVERDUE_NS: Final = 1_000_000_000
_NBYTES: Final = INLINE_BYTES + 4096  # above the limit, so that the engine's thread and its event take part
_MARK_BYTES: Final = 8
_KEPT: Final = 64


class Checkup:
    """What the tests said so far; one that says nothing in time is what is wrong. Readable from any thread."""

    def __init__(self, when_done: Callable[[], None] | None = None) -> None:
        self.checks = dict.fromkeys(("loop", "book", "copy"), f"no answer within {ANSWER_S:g} s")
        self.is_accepting = False
        self.why_not_ready = "the loop did not answer"
        self._when_done = when_done
        self._done = threading.Event()

    @property
    def is_healthy(self) -> bool:
        """True when every test said ok."""
        return all(said == "ok" for said in self.checks.values())

    def wait(self) -> None:
        """Until all tests spoke, or `ANSWER_S` s. Not from the loop's own thread."""
        self._done.wait(ANSWER_S)

    def finish(self) -> None:
        """All tests have spoken."""
        self._done.set()
        if self._when_done is not None:
            self._when_done()


class PathProbe:
    """Runs checkups in the daemon's loop."""

    def __init__(self, book_loop: BookLoop, copies: Copies, why_not_ready: Callable[[], str]) -> None:
        """``why_not_ready`` says why nothing new is accepted; empty: it is."""
        self._book_loop = book_loop
        self._copies = copies
        self._why_not_ready = why_not_ready
        self._memory: tuple[Region, Region] | None = None
        self._waiting: deque[Checkup] = deque(maxlen=_KEPT)
        self._is_copying = False
        self._count = 0

    def run(self, checkup: Checkup) -> None:
        """In the loop: start the tests. One copy is in flight at most; checkups that come meanwhile share it."""
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

    def _report(self, said: str) -> None:
        while self._waiting:
            checkup = self._waiting.popleft()
            checkup.checks["copy"] = said
            checkup.finish()

    def close(self) -> None:
        """Give the memory back."""
        for region in self._memory or ():
            region.close()
        self._memory = None
