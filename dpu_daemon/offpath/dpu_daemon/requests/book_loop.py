"""Runs the job book: passes events in, journals the resulting commands, and executes them.

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
from offpath.dpu_daemon.requests.spinner import Spinner
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.book import JobBook

logger = logging.getLogger(__name__)


class BookLoop:
    """Owns the book, its journal and the queue of events. Each type of command has one handler, set by `on`.

    Create it inside a running loop. Counts ``journal_failures``.
    """

    def __init__(
        self, book: JobBook, now_ns: Callable[[], int], journal: Journal | None, counters: Counter[str]
    ) -> None:
        """``book``: the result of replaying ``journal``, if it was replayed."""
        self.book = book
        self.handle = book.handle
        """The simulation puts a witness around it: a method of a compiled class cannot be replaced."""
        self.now_ns = now_ns
        self.journal = journal
        self.is_read_only = False
        """The journal failed: accepted jobs are finished, new ones are refused."""
        self.on_broken: Callable[[], None] = lambda: None
        """Called when an internal error left an event half handled. A daemon in `serve` then exits: its journal is
        consistent."""
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self.spinner = Spinner(self._loop)
        self._events: deque[events.Event] = deque()
        self.defer: Callable[[events.Event], None] = self._events.append
        """For command handlers: the event is handled after the current event's commands."""
        self._handlers: dict[type, Callable[[Any], None]] = {}
        self._is_dispatching = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    def on(self, kind: type, handler: Callable[[Any], None]) -> None:
        """Register ``handler`` for commands of this type."""
        self._handlers[kind] = handler

    def dispatch(self, event: events.Event) -> None:
        """Pass an event to the book and execute its commands, until no event is left.

        Events that arise while commands execute (a synchronous copy completes) are queued in order.
        """
        self._events.append(event)
        if not self._is_dispatching:
            self._run()

    def repeat(self, command: commands.Command) -> None:
        """Execute again a command that the former process did not finish, and the events that follow from it."""
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
        if self.spinner.spin_ns:
            self.spinner.worked()
        if self.journal is not None and self.journal.is_due():
            self._checkpoint(self.journal)
        next_ns = self.book.next_deadline_ns()
        if next_ns is not None and (self._timer is None or next_ns < self._timer_ns):
            self._arm_timer(next_ns)

    def _decide(self, event: events.Event, now_ns: int) -> tuple[commands.Command, ...]:
        """The book's commands for an event; event and commands are journalled before any command executes."""
        if faults.armed:
            faults.hit("daemon.handle")
        decided = self.handle(event, now_ns)
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
        """Nothing is accepted without a record: finish accepted jobs, and retire the journal for later starts."""
        journal, self.journal = self.journal, None
        self.is_read_only = True
        self._counters["journal_failures"] += 1
        logger.error("journal failed, accepting no new requests: %s", fault, extra={"code": "journal_failed"})
        if journal is not None:
            journal.retire()
            journal.close()

    def _arm_timer(self, next_ns: int) -> None:
        """Set the one timer for the book's earliest deadline; it only ever moves earlier."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = next_ns
        wait_s = max(0.0, (next_ns - self.now_ns()) / 1e9)
        self._timer = self._loop.call_later(wait_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.dispatch(events.Tick())

    def close(self, *, is_final: bool) -> None:
        """Stop handling events. ``is_final``: no later process resumes the journal.

        Events of late timers and callbacks are queued but never handled; they are left to the next process. The
        asyncio loop may run for seconds more, until a thread that creates a session's memory ends.
        """
        self._is_dispatching = True
        self.spinner.close()
        if self._timer is not None:
            self._timer.cancel()
        if self.journal is not None:
            if is_final:
                self.journal.retire()
            self.journal.close()
