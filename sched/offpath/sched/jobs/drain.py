"""Draining: the book finishes what it holds and accepts no new job (`admission.refuse` looks at the ledger's mark).

Leases stay: idle ones close in their own time, and a drain that is called off finds the others warm.
"""

from __future__ import annotations

from offpath.sched.jobs.events import Drain
from offpath.sched.jobs.ledger import Ledger


class Draining:
    """The book's answer to `Drain`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def handle(self, event: Drain, now_ns: int) -> None:
        """Repeating it changes nothing."""
        self._ledger.is_draining = event.is_on


def is_drained(ledger: Ledger) -> bool:
    """True when no accepted job waits for its answer and no lane copies or runs for an answered one."""
    return not ledger.unanswered and not ledger.leaving
