"""What a controller counts for its metrics, beside the book's tally."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from offpath.dpu_daemon.requests.histogram import Histogram
from offpath.sched.collab.records import RoundEnd

MOST_TENANTS: Final = 1_026
"""As many users as one configuration admits: `operation.uids`, root and the controller's own. Reloads may bring more:
their rounds count as `OTHERS`."""
OTHERS: Final = "(others)"


@dataclass(slots=True)
class Counts:
    """Since the start. ``answered``, ``unanswered``: leases that ended with a good result, or without.
    ``answer_times``: from a message to its answer, with the wait for the disk."""

    answered: int = 0
    unanswered: int = 0
    rounds: Counter[tuple[str, RoundEnd]] = field(default_factory=Counter)
    answer_times: Histogram = field(default_factory=Histogram)
    reloads: int = 0
    reloads_refused: int = 0
    descriptors_exhausted: int = 0
    _tenants: set[str] = field(default_factory=set)

    def exhausted(self) -> None:
        """A connection was not accepted: no descriptor or memory was left."""
        self.descriptors_exhausted += 1

    def ended(self, tenant: str, end: RoundEnd) -> None:
        """A round of a job of that tenant has ended."""
        self.rounds[self.label(tenant), end] += 1

    def label(self, tenant: str) -> str:
        """The tenant's name, or `OTHERS`: metrics have a bounded number of labels."""
        if tenant not in self._tenants:
            if len(self._tenants) >= MOST_TENANTS:
                return OTHERS
            self._tenants.add(tenant)
        return tenant
