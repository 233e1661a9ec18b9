"""The loop around the job book: events go in, the commands they lead to are journalled and carried out.

On the request path: no task per request, no log line, one timer for the book's earliest deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from offpath.bindings import faults
from offpath.dpu_daemon.durability.journal.log import Journal
from offpath.dpu_daemon.durability.journal.ring import JournalError
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.book import JobBook

logger = logging.getLogger(__name__)


class BookLoop:
    """Owns the book, its journal and the queue of events. Each type of command has one handler, set by `on`.

    Made inside a running loop. Counts ``journal_failures``.
    """

    def __init__(
        self, book: JobBook, now_ns: Callable[[], int], journal: Journal | None, counters: Counter[str]
    ) -> None:
        """``book`` is the one that ``journal`` was replayed to, if it was."""
        self.book = book
        self.now_ns = now_ns
        self.journal = journal
        self.is_read_only = False
        """The journal failed: what was accepted is finished, nothing is accepted."""
        self.on_broken: Callable[[], None] = lambda: None
        """An internal error left an event half handled. A served daemon ends at once: its journal is right."""
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._events: deque[events.Event] = deque()
        self.defer: Callable[[events.Event], None] = self._events.append
        """For handlers of commands: the event is handled after the commands of the present one."""
        self._handlers: dict[type, Callable[[Any], None]] = {}
        self._is_dispatching = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    def on(self, kind: type, handler: Callable[[Any], None]) -> None:
        """Carry out commands of this type by ``handler``."""
        self._handlers[kind] = handler

    def dispatch(self, event: events.Event) -> None:
        """Give an event to the book and carry out its commands, until no event is left.

        Events that arise while commands are carried out (a copy done in place) wait their turn, in order.
        """
        self._events.append(event)
        if not self._is_dispatching:
            self._run()

    def repeat(self, command: commands.Command) -> None:
        """Carry out a command once more that the process before this one did not finish, and what follows from it."""
        self._handlers[type(command)](command)
        self._run()

    def _run(self) -> None:
        waiting, handle, handlers, now_ns = self._events, self._decide, self._handlers, self.now_ns
        self._is_dispatching = True
        event: events.Event | None = None
        try:
            while waiting:
                event = waiting.popleft()
                for command in handle(event, now_ns()):
                    handlers[type(command)](command)
        except Exception:
            logger.critical("internal error handling %s; state may be inconsistent, exiting", event, exc_info=True)
            self.on_broken()
            raise
        finally:
            self._is_dispatching = False
        if self.journal is not None and self.journal.is_due():
            self._checkpoint(self.journal)
        next_ns = self.book.next_deadline_ns()
        if next_ns is not None and (self._timer is None or next_ns < self._timer_ns):
            self._arm_timer(next_ns)

    def _decide(self, event: events.Event, now_ns: int) -> tuple[commands.Command, ...]:
        """The book's commands for an event; both are journalled before any of them is carried out."""
        if faults.armed:
            faults.hit("daemon.handle")
        decided = self.book.handle(event, now_ns)
        if self.journal is not None:
            try:
                self.journal.record(event, decided, now_ns)
            except (OSError, JournalError) as fault:
                self._journal_failed(fault)
        return decided

    def _checkpoint(self, journal: Journal) -> None:
        try:
            journal.checkpoint(self.book, self.now_ns())
        except (OSError, JournalError) as fault:
            self._journal_failed(fault)

    def _journal_failed(self, fault: Exception) -> None:
        """No accept without a record: finish what was accepted, and let no later start trust this journal."""
        journal, self.journal = self.journal, None
        self.is_read_only = True
        self._counters["journal_failures"] += 1
        logger.error("journal failed, accepting no new requests: %s", fault, extra={"code": "journal_failed"})
        if journal is not None:
            journal.retire()
            journal.close()

    def _arm_timer(self, next_ns: int) -> None:
        """One timer for the book's earliest deadline; it is moved only to come earlier."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = next_ns
        wait_s = max(0.0, (next_ns - self.now_ns()) / 1e9)
        self._timer = self._loop.call_later(wait_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.dispatch(events.Tick())

    def close(self, *, is_final: bool) -> None:
        """Handle no further event. ``is_final``: no later process resumes the journal.

        Late timers and callbacks find a dispatch under way that never ends: their events are left to the next process.
        The asyncio loop may turn for seconds yet (a thread that makes a session's memory has to end).
        """
        self._is_dispatching = True
        if self._timer is not None:
            self._timer.cancel()
        if self.journal is not None:
            if is_final:
                self.journal.retire()
            self.journal.close()
