"""Planners for the modes of sharing that the demonstration compares. Pure: trees and time are arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from offpath.sched.ina.protocol.events import Assignment, JobView, Planner, Tree
from offpath.sched.ina.protocol.records import Step, Wants


class Mode(StrEnum):
    """How jobs share one place."""

    NONE = "none"
    """No job uses INA."""
    ALL = "all"
    """Every job uses INA all the time, independently: needs one place per job."""
    EXCLUSIVE = "exclusive"
    """The first job uses the place until it ends."""
    ALTERNATE = "alternate"
    """One job at a time, in turns."""
    TRYLOCK = "trylock"
    """Every operation requests INA; the root admits it if the place is free."""
    SHARED = "shared"
    """Jobs request INA for the operations chosen by the Plan (`ina.decision`)."""


TreeOf = Callable[[JobView, Mapping[str, int]], Tree | None]
"""A job's tree over the switches that are up, or None."""
StepOf = Callable[[str], Step | None]
"""A job's step, once known."""


def planner(mode: Mode, tree_of: TreeOf, step_of: StepOf = lambda job: None, turn_ns: int = 1_000_000_000) -> Planner:
    """Return a planner for `controller.Controller`. ``turn_ns``: length of a turn (`Mode.ALTERNATE`)."""

    def plan(jobs: tuple[JobView, ...], switches: Mapping[str, int], now_ns: int) -> Mapping[str, Assignment]:
        chosen = jobs
        if mode is Mode.NONE:
            chosen = ()
        elif mode is Mode.EXCLUSIVE:
            chosen = jobs[:1]
        elif mode is Mode.ALTERNATE and jobs:
            turn = now_ns // turn_ns % len(jobs)
            chosen = jobs[turn : turn + 1]
        out = {}
        for view in chosen:
            tree = tree_of(view, switches)
            if tree is None:
                continue
            is_shared = mode in (Mode.TRYLOCK, Mode.SHARED) and len(jobs) > 1
            step = step_of(view.job) if mode is Mode.SHARED else None
            wants = Wants.PLAN if mode is Mode.SHARED else Wants.ALWAYS
            group = "shared" if mode in (Mode.TRYLOCK, Mode.SHARED) else view.job
            out[view.job] = Assignment(tree, group, wants, is_shared, step)
        return out

    return plan
