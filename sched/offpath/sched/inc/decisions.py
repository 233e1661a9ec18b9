"""What a policy decides in a round. The caller carries it out; reasons are for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from offpath.sched.inc.poly import GroupId


class Why(StrEnum):
    """Kinds of reasons."""

    CHEAPEST = "cheapest"
    """The terms that favour the place over the next one, with their hundredths."""
    NO_CHEAPER = "no-cheaper"
    """Another place costs the same or less; a different task got it, or it is a tie."""
    ONLY = "only"
    """No other place fits."""
    RULE = "rule"
    """A baseline's rule, or one of a reading; the text has it."""
    NO_ROOM = "no-room"
    """No node fits now."""
    CROWDED = "crowded"
    """Nodes fit, but other tasks get them in this round, or waiting is cheaper."""
    BACKLOG = "backlog"
    """The job waits for a place in the network."""
    TIMED_OUT = "timed-out"
    """The chosen flavor did not get all its places in time."""
    GANG = "gang"
    """The job did not get all its places in time and gives up those that it holds; or it waits after that."""
    CANCELLED = "cancelled"
    """By its tenant."""
    NODE_LOST = "node-lost"


@dataclass(frozen=True, slots=True)
class Reason:
    """``terms``: of the cost model, with how many hundredths each favours the choice, greatest first."""

    why: Why
    text: str
    terms: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class FlavorChosen:
    """The composite runs on this implementation. Comes before its first `Placed`."""

    job: str
    composite: str
    implementation: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Placed:
    """``tasks`` tasks of the group start on the node."""

    group: GroupId
    node: int
    tasks: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Postponed:
    """``tasks`` tasks of the group wait; of an undecided group all."""

    group: GroupId
    tasks: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Preempted:
    """The choice for a composite is taken back. Its tasks, in `Stopped`, end first."""

    job: str
    composite: str
    implementation: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Stopped:
    """``tasks`` tasks of the group on the node end now."""

    group: GroupId
    node: int
    tasks: int
    reason: Reason


Decision = FlavorChosen | Placed | Postponed | Preempted | Stopped
