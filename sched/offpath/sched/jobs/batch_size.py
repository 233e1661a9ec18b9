"""How many rows a batch has that does not wait for others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from offpath.sched.jobs.events import Batching

MOST_MEMBERS: Final = 256
"""Jobs of one batch."""


def formed(batching: Batching, rows: Iterable[int]) -> int:
    """Rows of the batch that jobs with these rows, in this order, form without waiting for others; 0: they wait.

    The largest exact size that the first jobs have; or if the next job would exceed all sizes, all before it. Source:
    Triton's `DynamicBatchScheduler::GetDynamicBatch`. At most the first `MOST_MEMBERS` are counted.
    """
    sizes = batching.sizes
    total = best = 0
    for before, each in enumerate(rows):
        if before and total + each > sizes[-1]:
            return best or total
        total += each
        if total in sizes:
            best = total
        if before + 1 == MOST_MEMBERS:
            return best or total
    return best or (total if total >= sizes[-1] else 0)
