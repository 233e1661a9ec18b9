"""The parts that a request passes in the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from offpath.bindings.ports import CopyEngine
    from offpath.dpu_daemon.requests.answers import Answers
    from offpath.dpu_daemon.requests.book_loop import BookLoop
    from offpath.dpu_daemon.requests.copies import Copies
    from offpath.dpu_daemon.requests.pacing import Pacing
    from offpath.dpu_daemon.requests.probe import PathProbe
    from offpath.dpu_daemon.requests.session_table import SessionTable
    from offpath.sched.jobs.book import JobBook


class RequestPath(NamedTuple):
    """In the order in which a request meets them; ``probe`` checks the path itself."""

    sessions: SessionTable
    pacing: Pacing
    book_loop: BookLoop
    copies: Copies
    answers: Answers
    probe: PathProbe

    @property
    def book(self) -> JobBook:
        """The job book: all decisions."""
        return self.book_loop.book

    @property
    def engine(self) -> CopyEngine:
        """The copy engine."""
        return self.copies.engine

    def now_ns(self) -> int:
        """The clock that the book's deadlines are on."""
        return self.book_loop.now_ns()
