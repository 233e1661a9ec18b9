"""Policies for federated jobs by name. Apart from `port`: planning needs NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from offpath.sched.collab.baselines import By, Ordered, apple, google, meta
from offpath.sched.collab.port import CollabPolicy, Draw
from offpath.sched.collab.scarce import Scarcest
from offpath.sched.collab.venn import Venn
from offpath.sched.errors import SchedError


def venn_paper(draw: Draw) -> Venn:
    """The paper's policy. It draws nothing; the book draws tiers."""
    return Venn()


COLLAB_POLICIES: Final[dict[str, Callable[[Draw], CollabPolicy]]] = {
    "venn": lambda draw: Scarcest(),
    "venn-paper": venn_paper,
    "venn-irs": lambda draw: Venn("venn-irs", has_tiers=False),
    "tiers-fifo": lambda draw: Ordered("tiers-fifo", By.ARRIVAL, has_tiers=True),
    "fifo": lambda draw: Ordered("fifo", By.ARRIVAL),
    "srsf": lambda draw: Ordered("srsf", By.REMAINING),
    "random": lambda draw: Ordered("random", By.RANK),
    "random-apple": apple,
    "random-meta": meta,
    "random-google": google,
}
"""``venn``: `scarce`, not the paper's.

``random``: the paper's optimised form, a random order of jobs for each round. ``venn-irs``: without tiers;
``tiers-fifo``: with tiers, without algorithm 1 (§5.3)."""


FAIR: Final = ("venn-paper", "venn-irs")
"""Policies with fairness (§4.4)."""
MOST_EPSILON: Final = 16.0
"""At 16 a job with half of another's share comes first with 65 536 times its demand too."""


def make(name: str, draw: Draw, epsilon: float = 0.0) -> CollabPolicy:
    """``epsilon``: fairness; 0: none. Raises: SchedError: unknown name, or ``epsilon`` is not for that policy."""
    if name not in COLLAB_POLICIES:
        raise SchedError(f"unknown policy {name!r:.60} for devices; known are {', '.join(COLLAB_POLICIES)}")
    if fault := epsilon_fault(name, epsilon):
        raise SchedError(fault)
    if epsilon:
        return Venn(name, epsilon=epsilon, has_tiers=name != "venn-irs")
    return COLLAB_POLICIES[name](draw)


def epsilon_fault(name: str, epsilon: float) -> str:
    """Why the policy ``name`` cannot have that ``epsilon``; empty: it can."""
    if not 0 <= epsilon <= MOST_EPSILON:
        return f"epsilon is 0 to {MOST_EPSILON:g}"
    return "" if not epsilon or name in FAIR else f"epsilon is for {' and '.join(FAIR)}, not for {name}"
