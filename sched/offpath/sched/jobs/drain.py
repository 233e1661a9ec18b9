"""Draining: the book finishes its jobs and accepts no new ones (`admission.refuse` checks the ledger's flag).

Leases stay: idle ones close after their usual time; if the drain is cancelled, the others are still warm.
"""

from __future__ import annotations

from offpath.sched.jobs.events import Drain
from offpath.sched.jobs.ledger import Ledger


class Draining:
    """Handles `Drain`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def handle(self, event: Drain, now_ns: int) -> None:
        """Set or clear the flag; idempotent."""
        self._ledger.is_draining = event.is_on


def is_drained(ledger: Ledger) -> bool:
    """True if no accepted job waits for its answer and no lane copies or runs for an answered one."""
    return not ledger.unanswered and not ledger.leaving
