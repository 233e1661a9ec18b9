"""Runs the controller's policy plug-ins, with the built-in policies as fallback (docs/design.md, Policies).

Each plug-in runs in its own process and is queried with a deadline; its replies are checked against the rules for every
policy. At its first late, broken or illegal reply it is quarantined: the built-in decides until the controller
restarts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar

from offpath.dpu_daemon.controller.plugin_child import BUILD, PLACE, SHARE, TOPOLOGY
from offpath.dpu_daemon.policy.plugins import PluginProcess
from offpath.sched.errors import PlainError
from offpath.sched.gpu.plugin import PREFIX, AdvisorError, one_line
from offpath.sched.ina.conflicts import Limit
from offpath.sched.ina.sharing.policies import (
    Hosts,
    PolicyFault,
    Share,
    Sharing,
    TreeBuilder,
    Trees,
    checked_shares,
    checked_trees,
    over_capacity,
)
from offpath.sched.ina.trees import Tree
from offpath.sched.placement.checker import violations
from offpath.sched.placement.cluster import Cluster
from offpath.sched.placement.port import Decision, Placement, Request
from offpath.sched.plain import from_plain, to_plain
from offpath.sched.topology.graph import Topology

logger = logging.getLogger(__name__)
CHILD: Final = "offpath.dpu_daemon.controller.plugin_child"
MOST_BYTES: Final = 1 << 20
"""Limit of a reply: trees of ten thousand hosts. Parsing is limited only by size, not by a deadline: 16 MiB of empty
lists took the loop six seconds and 430 MiB."""
MOST_REASONS: Final = 16
"""Limit per decision. Operators and the state file get the reasons, each as one line."""
_T = TypeVar("_T")
_R = TypeVar("_R")


class PluginSlot(Generic[_T]):
    """One policy: a built-in and optionally a plug-in that takes precedence."""

    def __init__(self, group: str, built_in: _T, process: PluginProcess | None = None) -> None:
        self.group = group
        self.built_in = built_in
        self.process = process
        self.faults = 0

    @classmethod
    def of(cls, group: str, given: str, built_in: _T, deadline_s: float) -> PluginSlot[_T]:
        """``given``: the configured policy; ``plugin:NAME`` starts a process. Raises: PluginError."""
        if not given.startswith(PREFIX):
            return cls(group, built_in)
        name = given.removeprefix(PREFIX)
        process = PluginProcess(f"{group}/{name}", deadline_s, child=CHILD, most_bytes=MOST_BYTES)
        process.wait()
        return cls(group, built_in, process)

    @property
    def is_advised(self) -> bool:
        """Whether a plug-in decides."""
        return self.process is not None

    def query(self, kind: str, *arguments: Any, read: Callable[[Any], _R], instead: Callable[[], _R]) -> _R:
        """The plug-in's reply, converted from plain data by ``read``; the built-in's if the reply is unusable. ``read``
        raises PlainError, PolicyFault."""
        if self.process is None:
            return instead()
        try:
            self.process.begin()
            return read(self.process.query(kind, *arguments))
        except (AdvisorError, PlainError, PolicyFault) as fault:
            logger.warning(
                "plug-in for %s quarantined, using the built-in policy: %s",
                self.group,
                fault,
                extra={"code": "policy_quarantined"},
            )
            self.faults += 1
            self.close()
            return instead()

    def notify(self, kind: str, *arguments: Any) -> None:
        """Notify the plug-in."""
        if self.process is not None:
            self.process.begin()
            self.process.notify(kind, *arguments)

    def close(self) -> None:
        """Stop the plug-in's process. Idempotent."""
        if self.process is not None:
            self.process.close()
            self.process = None


class Placing:
    """Implements `Placement` with the configured policy."""

    def __init__(self, slot: PluginSlot[Placement], topology: str) -> None:
        """``topology``: its text, or the description of a regular one."""
        self.slot = slot
        self.name = slot.built_in.name
        slot.notify(TOPOLOGY, topology)

    def place(self, cluster: Cluster, request: Request) -> Decision:
        """See `Placement`."""

        def read(data: Any) -> Decision:
            decision: Decision = from_plain(Decision, data)
            if wrong := violations(cluster, request, decision):
                raise PolicyFault(f"invalid decision: {'; '.join(wrong)}")
            return replace(decision, reasons=tuple(map(one_line, decision.reasons[:MOST_REASONS])))

        return self.slot.query(
            PLACE, list(cluster.free_hosts()), request.hosts, read=read,
            instead=lambda: self.slot.built_in.place(cluster, request),
        )  # fmt: skip


class Building:
    """Implements `TreeBuilder` with the configured policy. ``usable``: the switches that aggregate."""

    def __init__(self, slot: PluginSlot[TreeBuilder], topology: str, usable: frozenset[int]) -> None:
        self.slot = slot
        self.name = slot.built_in.name
        self._usable = usable
        slot.notify(TOPOLOGY, topology)

    def build(self, topology: Topology, jobs: Hosts, former: Trees, limit: Limit) -> Trees:
        """See `TreeBuilder`."""

        def read(data: Any) -> Trees:
            if not isinstance(data, dict):
                raise PolicyFault("the reply is not an object of trees by job")
            trees: dict[str, Tree] = {job: from_plain(Tree, data[job]) for job in jobs if job in data}
            if unknown := data.keys() - jobs.keys():
                raise PolicyFault(f"a tree for {sorted(unknown)[0]!r:.80}, which is not in the query")
            checked_trees(topology, jobs, trees, self._usable)
            if wrong := over_capacity(trees, limit):
                raise PolicyFault(wrong)
            return trees

        return self.slot.query(
            BUILD, {job: list(hosts) for job, hosts in jobs.items()},
            {job: to_plain(each) for job, each in former.items()}, limit.capacity, read=read,
            instead=lambda: self.slot.built_in.build(topology, jobs, former, limit),
        )  # fmt: skip


class SharingOut:
    """Implements `Sharing` with the configured policy."""

    def __init__(self, slot: PluginSlot[Sharing]) -> None:
        self.slot = slot
        self.name = slot.built_in.name

    def share(self, group: Sequence[str], turn: int) -> Mapping[str, Share]:
        """See `Sharing`."""

        def read(data: Any) -> Mapping[str, Share]:
            if not isinstance(data, dict):
                raise PolicyFault("the reply is not an object of shares by job")
            shares: dict[str, Share] = {str(job): from_plain(Share, each) for job, each in data.items()}
            checked_shares(group, shares)
            return shares

        return self.slot.query(
            SHARE, list(group), turn, read=read, instead=lambda: self.slot.built_in.share(group, turn)
        )
