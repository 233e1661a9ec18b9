"""Flavor vectors over {0, 1, x}: which task groups exclude each other (HIRE §4.3, §5.3).

A job's active vector starts as all x and is overwritten by the vectors of the groups that are chosen. The rule is
§5.3's: a contradiction removes a group; a group whose 0s and 1s all agree is selected; any other is undecided. §5.1's
formula, s_G = (‖f ∧ x‖₁ > 0), never selects a group that is all x, which is in every flavor (`printed_selector`).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from offpath.sched.inc.errors import FlavorsContradict

Flavor = str
"""Letters ``0``, ``1``, ``x``; one for each decision variable of the job."""


class Status(StrEnum):
    """Of a task group, given the job's active flavor vector."""

    SELECTED = "selected"
    REMOVED = "removed"
    UNDECIDED = "undecided"


def checked(flavor: Flavor, length: int) -> Flavor:
    """Raises: FlavorsContradict: a letter other than 0, 1, x, or a wrong length."""
    if len(flavor) != length or set(flavor) - set("01x"):
        raise FlavorsContradict(f"flavor vector {flavor[:40]!r}: {length} letters of 0, 1, x")
    return flavor


def status(flavor: Flavor, active: Flavor) -> Status:
    """§5.3's rule, applied to a group's vector and the job's active one.

    >>> status("xx", "10"), status("x0", "xx"), status("x1", "10")
    (<Status.SELECTED: 'selected'>, <Status.UNDECIDED: 'undecided'>, <Status.REMOVED: 'removed'>)
    """
    decided = True
    for mine, chosen in zip(flavor, active, strict=True):
        if mine == "x":
            continue
        if chosen == "x":
            decided = False
        elif mine != chosen:
            return Status.REMOVED
    return Status.SELECTED if decided else Status.UNDECIDED


def printed_selector(flavor: Flavor, active: Flavor) -> bool:
    """s_G as §5.1 prints it: some 1 of the group's is a 1 of the job's; x is skipped."""
    return any(mine == chosen == "1" for mine, chosen in zip(flavor, active, strict=True))


def chosen(flavor: Flavor, active: Flavor) -> Flavor:
    """The active vector after a group with this vector was chosen. Raises: FlavorsContradict."""
    if status(flavor, active) is Status.REMOVED:
        raise FlavorsContradict(f"{flavor} contradicts the flavor chosen, {active}")
    return "".join(old if mine == "x" else mine for mine, old in zip(flavor, active, strict=True))


def released(flavor: Flavor, active: Flavor) -> Flavor:
    """The active vector after the choice of this group's vector was taken back."""
    return "".join(old if mine == "x" else "x" for mine, old in zip(flavor, active, strict=True))


def exclude(one: Flavor, other: Flavor) -> bool:
    """True if no active vector selects both."""
    return any({a, b} == {"0", "1"} for a, b in zip(one, other, strict=True))


def one_hot(at: int, count: int, before: int, after: int) -> Flavor:
    """Alternative ``at`` of ``count``, with ``before`` and ``after`` variables of other composites around them."""
    return "x" * before + "".join("1" if n == at else "0" for n in range(count)) + "x" * after


def joint(flavors: Iterable[Flavor], length: int) -> Flavor:
    """The active vector that selects all of these. Raises: FlavorsContradict."""
    active = "x" * length
    for flavor in flavors:
        active = chosen(checked(flavor, length), active)
    return active
