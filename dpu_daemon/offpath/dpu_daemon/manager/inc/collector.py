"""Settings of Python's garbage collector for a process that computes rounds of HIRE."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

YOUNG: Final = 50_000
"""A round makes so many objects that live until its end, and hardly any of them in a cycle. With Python's default of 700
each is looked at several times while it is needed, a tenth of a round; so many are looked at after it, when few are
left. Garbage in cycles waits until there is that much, a few MiB."""


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
