"""Policies by name, for command lines, configuration and journals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from offpath.sched.errors import SchedError
from offpath.sched.gpu.baselines import BestFit, Exclusive, FirstFitPolicy, MpsOnly
from offpath.sched.gpu.conspirator import ConspiratorPaper
from offpath.sched.gpu.greedy import GreedyFirstFit
from offpath.sched.gpu.migrating import Migrating
from offpath.sched.gpu.oldest_gpu_first import OldestGpuFirst
from offpath.sched.gpu.plugin import PREFIX, PluginDecision, PluginGateway, PluginPolicy
from offpath.sched.gpu.policy import DecisionPort, Policy

POLICIES: Final[dict[str, type[Policy]]] = {
    GreedyFirstFit.name: GreedyFirstFit,
    OldestGpuFirst.name: OldestGpuFirst,
    ConspiratorPaper.name: ConspiratorPaper,
    BestFit.name: BestFit,
    FirstFitPolicy.name: FirstFitPolicy,
    MpsOnly.name: MpsOnly,
    Exclusive.name: Exclusive,
}
"""Policies that a book can be created with and restored from its journal with."""

SIMULATED: Final[dict[str, Callable[[], Policy]]] = {
    **POLICIES,
    OldestGpuFirst.name: lambda: OldestGpuFirst(prefetch=False),
    Migrating.name: lambda: Migrating(prefetch=False),
}
"""The simulator gives each job a lane that its share allows, so a prefetch would only queue."""


def decision_port(emit: Callable[[PluginDecision], None]) -> DecisionPort:
    """Create the port for plug-ins. ``emit`` receives each of their decisions, for the journal."""
    return PluginGateway(emit)


def make(name: str) -> Policy:
    """Create the policy, or plug-in policy, of that name. Raises: SchedError: unknown name."""
    if name.startswith(PREFIX):
        return PluginPolicy(name.removeprefix(PREFIX))
    if name not in POLICIES:
        raise SchedError(f"unknown policy {name!r}; known policies: {', '.join(POLICIES)}, and {PREFIX}NAME")
    return POLICIES[name]()


def make_simulated(name: str) -> Policy:
    """Like `make`, for the simulator. Raises: SchedError."""
    if name.startswith(PREFIX):
        return PluginPolicy(name.removeprefix(PREFIX), OldestGpuFirst(prefetch=False))
    return SIMULATED[name]() if name in SIMULATED else make(name)
