"""The placement port: which hosts a job gets, given which are free.

A policy does not take the hosts it names: its caller does, with `Cluster.take`. It is told of nothing: the cluster
keeps stamps of what changed where, so that a policy may keep what it worked out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from offpath.sched.placement.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Request:
    """A job that wants so many ``hosts``, 1 or more, all to itself."""

    hosts: int


@dataclass(frozen=True, slots=True)
class Decision:
    """``hosts``: sorted; none if the job cannot be placed now. ``score``: what the policy minimised, if it has a
    measure. ``reasons``: for people."""

    hosts: tuple[int, ...]
    score: float | None
    reasons: tuple[str, ...]

    @property
    def is_placed(self) -> bool:
        """The job may start."""
        return bool(self.hosts)


class Placement(Protocol):
    """A policy. Deterministic in the order of calls (a random one: and in the generator it was given)."""

    name: str

    def place(self, cluster: Cluster, request: Request) -> Decision:
        """Hosts that are free, as many as were asked for, or none. Changes nothing in ``cluster``."""


def too_few(cluster: Cluster, request: Request) -> Decision | None:
    """The answer where fewer hosts are free than wanted; None where enough are.

    Raises: ValueError: a request for no hosts.
    """
    if request.hosts < 1:
        raise ValueError("a job has at least one host")
    if request.hosts <= cluster.free:
        return None
    return Decision((), None, (f"{request.hosts} hosts wanted, {cluster.free} are free",))
