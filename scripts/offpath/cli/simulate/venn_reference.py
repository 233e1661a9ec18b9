"""Printed figures of the Venn paper, for the rows of `offpath simulate venn`."""

from __future__ import annotations

from typing import Final

SPEEDUPS: Final = {
    "even": (1.38, 1.69, 1.87), "small": (1.48, 1.68, 1.78), "large": (1.64, 1.57, 1.72), "low": (1.55, 1.66, 1.88),
    "high": (1.42, 1.41, 1.63), "general": (1.46, 1.78, 1.94), "compute-heavy": (1.73, 2.08, 2.23),
    "memory-heavy": (1.68, 2.05, 2.27), "resource-heavy": (1.65, 1.90, 2.01),
}  # fmt: skip
"""Tables 1 and 4: average JCT of random matching over that of FIFO, SRSF, Venn."""
BY_DEMAND: Final = {
    "even": (11.5, 7.2, 5.6), "small": (6.8, 5.2, 4.3), "large": (3.7, 2.9, 2.7), "low": (11.6, 7.5, 4.7),
    "high": (5.1, 3.3, 3.1),
}  # fmt: skip
"""Table 2: of the jobs with the lowest 25, 50 and 75 % of total demands."""
BY_CATEGORY: Final = {
    "even": (1.5, 7.2, 5.3, 3.9), "small": (0.9, 6.0, 2.8, 2.6), "large": (0.9, 3.7, 1.8, 2.6),
    "low": (0.8, 3.4, 2.1, 8.7), "high": (0.8, 2.2, 2.2, 5.6),
}  # fmt: skip
"""Table 3: general, compute-rich, memory-rich, high-performance."""
FAIR_SHARE_AT_2: Final = 0.69
"""Figure 14b: part of the jobs that have their fair share with ε = 2."""


def paper_of(policy: str, workload: str) -> float | None:
    """The printed speed-up over random matching; None: not printed."""
    places = {"fifo": 0, "srsf": 1, "venn-paper": 2}
    return SPEEDUPS[workload][places[policy]] if policy in places and workload in SPEEDUPS else None
