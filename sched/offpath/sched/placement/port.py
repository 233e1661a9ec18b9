"""The placement port: selects hosts for a job among the free ones.

A policy does not take the hosts that it returns; its caller does, with `Cluster.take`. A policy is not notified of
changes: the cluster has stamps of what changed, so that a policy may cache results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from offpath.sched.placement.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Request:
    """A job that needs ``hosts`` hosts, 1 or more, exclusively."""

    hosts: int


@dataclass(frozen=True, slots=True)
class Decision:
    """``hosts``: sorted; empty if the job cannot be placed now. ``score``: the minimized value, if the policy has one.
    ``reasons``: human-readable."""

    hosts: tuple[int, ...]
    score: float | None
    reasons: tuple[str, ...]

    @property
    def is_placed(self) -> bool:
        """True if the job may start."""
        return bool(self.hosts)


class Placement(Protocol):
    """A policy. Deterministic in the order of calls (a random one also in its generator)."""

    name: str

    def place(self, cluster: Cluster, request: Request) -> Decision:
        """Return the requested number of free hosts, or none. Does not change ``cluster``."""


def too_few(cluster: Cluster, request: Request) -> Decision | None:
    """The refusal if fewer hosts are free than requested; None if enough are.

    Raises: ValueError: a request for no hosts.
    """
    if request.hosts < 1:
        raise ValueError("a job has at least one host")
    if request.hosts <= cluster.free:
        return None
    return Decision((), None, (f"{request.hosts} hosts wanted, {cluster.free} are free",))
