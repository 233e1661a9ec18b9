"""Input events and output commands of `controller.Controller.handle`.

Every message to and from a switch carries the switch's ``boot``, which changes with each restart. A message for an
earlier boot thus cannot reach a restarted switch, which has no permissions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from offpath.sched.ina.protocol.agent import Report
from offpath.sched.ina.protocol.records import EpochRecord, Permission, Step, Wants


# -- events -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job was admitted; ``hosts`` by rank. Jobs that already run are known from reports alone."""

    job: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job was cancelled, or its owner reported its end."""

    job: str


@dataclass(frozen=True, slots=True)
class AgentUp:
    """An agent is reachable (again)."""

    host: str


@dataclass(frozen=True, slots=True)
class AgentGone:
    """The agent is unreachable."""

    host: str


@dataclass(frozen=True, slots=True)
class HostQuarantined:
    """Ignore the reports of this host's agent. What its jobs hold is fenced."""

    host: str


@dataclass(frozen=True, slots=True)
class HostReleased:
    """Accept the host's reports again; ``is_up``: its agent is reachable."""

    host: str
    is_up: bool


@dataclass(frozen=True, slots=True)
class SwitchUp:
    """A switch received this controller's term and returned its permissions: `root.Root.permissions`."""

    switch: str
    boot: int
    capacity: int
    permissions: tuple[Permission, ...] = ()


@dataclass(frozen=True, slots=True)
class SwitchDown:
    """The switch is unreachable. Its data traffic may still flow."""

    switch: str


@dataclass(frozen=True, slots=True)
class Allowed:
    """A switch's answer to `Allow`."""

    switch: str
    boot: int
    job: str
    incarnation: int
    stamp: int
    is_allowed: bool = True


@dataclass(frozen=True, slots=True)
class Fenced:
    """A switch has nothing left of the job up to (``incarnation``, ``stamp``) and admits nothing more of it."""

    switch: str
    boot: int
    job: str
    incarnation: int
    stamp: int


@dataclass(frozen=True, slots=True)
class Deposed:
    """Another controller is in control in ``term``, which is equal to or greater than this one's."""

    term: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: repeat unanswered messages."""


Event = (
    JobSubmitted
    | JobEnded
    | AgentUp
    | AgentGone
    | HostQuarantined
    | HostReleased
    | Report
    | SwitchUp
    | SwitchDown
    | Allowed
    | Fenced
    | Deposed
    | Tick
)


# -- commands ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Allow:
    """To a switch; answered by `Allowed`."""

    switch: str
    boot: int
    permission: Permission


@dataclass(frozen=True, slots=True)
class Fence:
    """To a switch; answered by `Fenced`."""

    switch: str
    boot: int
    term: int
    job: str
    incarnation: int
    stamp: int


@dataclass(frozen=True, slots=True)
class Publish:
    """To a host's agent."""

    host: str
    epoch: EpochRecord


@dataclass(frozen=True, slots=True)
class Ask:
    """Query to a host's agent; answered by a whole `Report`."""

    host: str
    term: int
    proof: str = ""


Command = Allow | Fence | Publish | Ask


# -- types of the planner ---------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TreeMember:
    """A switch's part of a job's tree: see `records.Permission`."""

    switch: str
    parent: str = ""
    local: tuple[int, ...] = ()
    below: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Tree:
    """A job's tree. ``parts``: one per switch, including the root (without parent). ``attach``: by rank, the address of
    the switch that it joins."""

    name: str
    parts: tuple[TreeMember, ...]
    attach: tuple[str, ...]

    @property
    def root(self) -> str:
        """The switch where operations are admitted."""
        return next(part.switch for part in self.parts if not part.parent)


@dataclass(frozen=True, slots=True)
class Assignment:
    """The tree planned for a job. Jobs of one ``group`` with one root take turns, and count once at every switch."""

    tree: Tree
    group: str
    wants: Wants = Wants.PLAN
    is_shared: bool = True
    step: Step | None = None

    @property
    def slot(self) -> str:
        """Key of a place at a switch. It includes the root: jobs take turns at one root only."""
        return f"{self.group}@{self.tree.root}"


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as a planner sees it: ``hosts`` by rank."""

    job: str
    incarnation: int
    hosts: tuple[str, ...]
    since_ns: int


Planner = Callable[[tuple[JobView, ...], Mapping[str, int], int], Mapping[str, Assignment]]
"""(jobs in order of arrival, capacity by switch that is up, now_ns) → assignments; other jobs get nothing. An
assignment that does not fit is granted as soon as it does."""
