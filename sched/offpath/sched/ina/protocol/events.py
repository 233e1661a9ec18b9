"""What the controller is told and what it tells: `controller.Controller.handle` takes the ones and gives the others.

Every message to and from a switch names the switch's ``boot``, which is another one for each of its lives: words that
were meant for a life that has ended must not reach the next one, which knows of no permission.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from offpath.sched.ina.protocol.agent import Report
from offpath.sched.ina.protocol.records import EpochRecord, Permission, Step, Wants


# -- events -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job was admitted; ``hosts`` by rank. Jobs that run already are known from reports alone."""

    job: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobEnded:
    """It was cancelled, or its owner says that it is over."""

    job: str


@dataclass(frozen=True, slots=True)
class AgentUp:
    """An agent can be spoken to (again)."""

    host: str


@dataclass(frozen=True, slots=True)
class AgentGone:
    """It cannot be."""

    host: str


@dataclass(frozen=True, slots=True)
class HostQuarantined:
    """Nothing that this host's agent reports counts any more. What its jobs hold is fenced."""

    host: str


@dataclass(frozen=True, slots=True)
class HostReleased:
    """The host's reports count again; ``is_up``: its agent can be spoken to."""

    host: str
    is_up: bool


@dataclass(frozen=True, slots=True)
class SwitchUp:
    """A switch was told this controller's term and answered with what it allows: `root.Root.permissions`."""

    switch: str
    boot: int
    capacity: int
    permissions: tuple[Permission, ...] = ()


@dataclass(frozen=True, slots=True)
class SwitchDown:
    """It cannot be spoken to. That says nothing of what goes through it."""

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
    """A switch has nothing left of the job up to (``incarnation``, ``stamp``) and admits no more of it."""

    switch: str
    boot: int
    job: str
    incarnation: int
    stamp: int


@dataclass(frozen=True, slots=True)
class Deposed:
    """Another controller rules in ``term``, which is this one's or a greater one."""

    term: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: what went unanswered is said again."""


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
    """To a host's agent; answered by a whole `Report`."""

    host: str
    term: int
    proof: str = ""


Command = Allow | Fence | Publish | Ask


# -- the planner's vocabulary -----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TreeMember:
    """A switch's part of a job's tree: see `records.Permission`."""

    switch: str
    parent: str = ""
    local: tuple[int, ...] = ()
    below: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Tree:
    """A job's tree. ``parts``: one per switch, the root's (without parent) among them; ``attach``: by rank, the
    address of the switch where it joins."""

    name: str
    parts: tuple[TreeMember, ...]
    attach: tuple[str, ...]

    @property
    def root(self) -> str:
        """The switch where operations are admitted."""
        return next(part.switch for part in self.parts if not part.parent)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a job is to have. Jobs of one ``group`` with one root take turns, and count once at every switch."""

    tree: Tree
    group: str
    wants: Wants = Wants.PLAN
    is_shared: bool = True
    step: Step | None = None

    @property
    def slot(self) -> str:
        """What takes a place at a switch. The root is part of it: jobs take turns at one root only."""
        return f"{self.group}@{self.tree.root}"


@dataclass(frozen=True, slots=True)
class JobView:
    """What a planner sees of a job: ``hosts`` by rank."""

    job: str
    incarnation: int
    hosts: tuple[str, ...]
    since_ns: int


Planner = Callable[[tuple[JobView, ...], Mapping[str, int], int], Mapping[str, Assignment]]
"""(jobs in the order of their coming, capacity by switch that is up, now_ns) → who is to have what; the others nothing.
What does not fit is given as soon as it does."""
