"""Settings of Python's garbage collector for a process that computes rounds of HIRE."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

YOUNG: Final = 50_000
"""New objects before a collection. A round makes about so many that live until its end, and hardly any in a cycle.
After each 700, Python's default, the collector would scan them again and again while they are needed: 5 to 9 % of a
round. Garbage in cycles is freed only after so many objects: a few MiB."""


@contextmanager
def settled() -> Iterator[None]:
    """Objects of the start are permanent, and the collector runs rarely. The end restores both."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
