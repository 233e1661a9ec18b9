"""Records exchanged between controller, agents, ranks and switches, and their conversion to and from plain data.

Plain data comes from other processes and from files: reading any data returns a record or raises `RecordError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from offpath.sched.errors import SchedError

MOST_RANKS: Final = 65_536
MOST_OPERATIONS: Final = 100_000
"""Per step."""
_MOST_INTEGER: Final = (1 << 63) - 1
_LONGEST_NAME: Final = 255
MOST_TERM: Final = (1 << 31) - 1
MOST_NUMBER: Final = (1 << 32) - 1
"""Largest epoch number within a term."""
_LONGEST_PROOF: Final = 64


class RecordError(SchedError):
    """The data does not have the form of the record."""


def stamp(term: int, number: int) -> int:
    """Position of an epoch in the order of all epochs of a job: terms first."""
    return term << 32 | number


class Wants(StrEnum):
    """The operations that request INA in an epoch, the same on all ranks."""

    PLAN = "plan"
    """Those chosen by the Plan (`ina.decision`)."""
    ALWAYS = "always"
    """All that the root has room for (no plan)."""


@dataclass(frozen=True, slots=True)
class Step:
    """A job's step as the Plan needs it, in ns: see `ina.patterns.Timed`. ``trust_percent``: `ina.decision.Epoch.trust`
    in percent."""

    duration_ns: int
    starts_ns: tuple[int, ...]
    plain_ns: tuple[int, ...]
    ina_ns: tuple[int, ...]
    trust_percent: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """The right to use a tree. ``attach``: by rank, the address of the switch that it joins; ``token``: identifies the
    job's ranks to the switches."""

    tree: str
    attach: tuple[str, ...]
    token: str


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """Rules for a job from one agreement to the next. Without ``grant`` it uses no INA."""

    job: str
    incarnation: int
    term: int
    number: int
    grant: Grant | None = None
    wants: Wants = Wants.PLAN
    is_shared: bool = True
    step: Step | None = None
    proof: str = ""
    """Proof of the term, by the controller that issued it: agents and ranks return it unread."""

    @property
    def stamp(self) -> int:
        """See `stamp`."""
        return stamp(self.term, self.number)


@dataclass(frozen=True, slots=True)
class RankState:
    """A rank's own state. ``held``, ``applied``: stamps; every operation older than the epoch ``applied`` is complete
    here (which frees a tree). ``lost``: the greatest stamp with a lost tree, 0: none. ``index``: of the next operation.
    ``is_gone``: the rank has ended (reported only by its host). ``proof``: from the epoch ``held``."""

    job: str
    incarnation: int
    rank: int
    ranks: int
    held: int = 0
    applied: int = 0
    lost: int = 0
    index: int = 0
    is_gone: bool = False
    proof: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    """Identity of an all-reduce. ``index``: its position in the order of issue on the job's communicator; ``stamp``: of
    the epoch applied when it was issued."""

    job: str
    incarnation: int
    stamp: int
    index: int
    nbytes: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Permission:
    """What a switch may do for a job: its part of the tree. ``parent``: the switch above, "" at the root; ``local``:
    the ranks that join here; ``below``: the switches under it, each with the ranks of its part; ``group``: jobs that
    take turns, one operation at a time ("": this job alone). A group has one root."""

    job: str
    incarnation: int
    term: int
    stamp: int
    token: str
    ranks: int
    parent: str = ""
    local: tuple[int, ...] = ()
    below: tuple[tuple[str, tuple[int, ...]], ...] = ()
    group: str = ""


# -- plain data -----------------------------------------------------------------------------------------------------
def epoch_to_data(epoch: EpochRecord) -> dict[str, Any]:
    """Uses JSON types only."""
    data: dict[str, Any] = {
        "job": epoch.job, "incarnation": epoch.incarnation, "term": epoch.term, "number": epoch.number,
        "wants": str(epoch.wants), "is_shared": epoch.is_shared, "proof": epoch.proof,
    }  # fmt: skip
    if epoch.grant:
        data["grant"] = {"tree": epoch.grant.tree, "attach": list(epoch.grant.attach), "token": epoch.grant.token}
    if epoch.step:
        data["step"] = {name: _plain(getattr(epoch.step, name)) for name in Step.__slots__}
    return data


def epoch_from_data(data: Any) -> EpochRecord:
    """Raises: RecordError."""
    it = _object("an epoch", data)
    grant = step = None
    if it.get("grant") is not None:
        part = _object("a grant", it["grant"])
        attach = tuple(_name(each, "attach", _LONGEST_NAME) for each in _list(part, "attach", MOST_RANKS))
        if not attach:
            raise RecordError("a grant without ranks")
        grant = Grant(_name(part.get("tree"), "tree"), attach, _name(part.get("token"), "token"))
    if it.get("step") is not None:
        part = _object("a step", it["step"])
        starts, plain, ina = (_integers(part, name, MOST_OPERATIONS) for name in ("starts_ns", "plain_ns", "ina_ns"))
        if not starts or not len(starts) == len(plain) == len(ina):
            raise RecordError("a step whose lists are empty or of different lengths")
        trust = _integer({"trust_percent": 0, **part}, "trust_percent", 100)
        step = Step(_integer(part, "duration_ns"), starts, plain, ina, trust)
    wants = it.get("wants", Wants.PLAN)
    if wants not in tuple(Wants):
        raise RecordError(f"wants is {wants!r:.80}")
    return EpochRecord(
        _name(it.get("job"), "job"), _integer(it, "incarnation"), _integer(it, "term", MOST_TERM),
        _integer(it, "number", MOST_NUMBER), grant, Wants(wants), _flag(it, "is_shared", True), step, _proof(it),
    )  # fmt: skip


def state_to_data(state: RankState) -> dict[str, Any]:
    """Uses JSON types only."""
    return {name: getattr(state, name) for name in RankState.__slots__}


def state_from_data(data: Any) -> RankState:
    """Raises: RecordError."""
    it = _object("a rank's state", data)
    ranks = _integer(it, "ranks", MOST_RANKS)
    rank = _integer(it, "rank", MOST_RANKS)
    if rank >= ranks:
        raise RecordError(f"rank {rank} of {ranks}")
    held, applied, lost, index = (_integer(it, name) for name in ("held", "applied", "lost", "index"))
    if applied > held:
        raise RecordError("a rank that applied more than it holds")
    if lost > held:
        raise RecordError("a rank that lost more than it holds")
    return RankState(
        _name(it.get("job"), "job"), _integer(it, "incarnation"), rank, ranks, held, applied, lost, index,
        _flag(it, "is_gone", False), _proof(it),
    )  # fmt: skip


def permission_to_data(permission: Permission) -> dict[str, Any]:
    """Uses JSON types only."""
    return {name: _plain(getattr(permission, name)) for name in Permission.__slots__}


def permission_from_data(data: Any) -> Permission:
    """Raises: RecordError."""
    it = _object("a permission", data)
    ranks = _integer(it, "ranks", MOST_RANKS)
    below = []
    for each in _list(it, "below", MOST_RANKS):
        if not isinstance(each, list | tuple) or len(each) != 2:
            raise RecordError("a permission's below is not a list of switch and ranks")
        below.append((_name(each[0], "switch"), _integers({"ranks": each[1]}, "ranks", MOST_RANKS)))
    local = _integers(it, "local", MOST_RANKS)
    named = sorted([*local, *(rank for _, part in below for rank in part)])
    if not named or len(set(named)) != len(named) or named[-1] >= ranks:
        raise RecordError(f"a permission names no ranks, one twice, or one beyond {ranks}")
    parent, group = it.get("parent", ""), it.get("group", "")
    if parent == "" and len(named) != ranks:
        raise RecordError(f"a root with {len(named)} of {ranks} ranks")
    return Permission(
        _name(it.get("job"), "job"), _integer(it, "incarnation"), _integer(it, "term", MOST_TERM),
        _integer(it, "stamp"), _name(it.get("token"), "token"), ranks, _name(parent, "parent") if parent != "" else "",
        local, tuple(below), _name(group, "group") if group != "" else "",
    )  # fmt: skip


def _plain(value: Any) -> Any:
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _object(what: str, data: Any) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise RecordError(f"{what} is not an object")
    return data


def _name(value: Any, what: str, longest: int = _LONGEST_NAME) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= longest or not value.isprintable():
        raise RecordError(f"{what} is {value!r:.80}, not 1 to {longest} printable characters")
    return value


def _proof(data: Mapping[str, Any]) -> str:
    value = data.get("proof", "")
    return _name(value, "proof", _LONGEST_PROOF) if value != "" else ""


def _integer(data: Mapping[str, Any], name: str, most: int = _MOST_INTEGER) -> int:
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise RecordError(f"{name} is {value!r:.80}, not a number of 0 to {most}")
    return value


def _flag(data: Mapping[str, Any], name: str, default: bool) -> bool:
    value = data.get(name, default)
    if not isinstance(value, bool):
        raise RecordError(f"{name} is {value!r:.80}, not true or false")
    return value


def _list(data: Mapping[str, Any], name: str, most: int) -> Sequence[Any]:
    value = data.get(name)
    if not isinstance(value, list | tuple) or len(value) > most:
        raise RecordError(f"{name} is not a list of at most {most}")
    return value


def _integers(data: Mapping[str, Any], name: str, most: int) -> tuple[int, ...]:
    values = _list(data, name, most)
    return tuple(_integer({name: each}, name) for each in values)
