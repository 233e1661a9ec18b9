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


def make(name: str, draw: Draw) -> CollabPolicy:
    """Raises: SchedError: unknown name."""
    if name not in COLLAB_POLICIES:
        raise SchedError(f"unknown policy {name!r:.60} for devices; known are {', '.join(COLLAB_POLICIES)}")
    return COLLAB_POLICIES[name](draw)
