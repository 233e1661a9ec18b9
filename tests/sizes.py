"""The size of a run, and counts that depend on it.

``quick``: ./scripts/test --quick. ``fast``: ./scripts/test, which CI runs on every change. ``slow``: ./scripts/test
--slow and --stale. ``full``: the whole counts, by ./scripts/test --full.
"""

from __future__ import annotations

import os
from typing import Final, TypeVar

SIZES: Final = ("quick", "fast", "slow", "full")
SIZE: Final = os.environ.get("OFFPATH_TEST_SIZE", "fast")
if SIZE not in SIZES:
    raise ValueError(f"OFFPATH_TEST_SIZE={SIZE}: must be one of {', '.join(SIZES)}")

T = TypeVar("T")


def sized(quick: T, fast: T, slow: T, full: T) -> T:
    """The value of this run's size."""
    return dict(zip(SIZES, (quick, fast, slow, full), strict=True))[SIZE]
