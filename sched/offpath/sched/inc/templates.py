"""Templates of composites as data: implementations, their task groups, and what those need of a switch (HIRE §4.1,
Table 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, log
from typing import Any, Final, TypeVar

from offpath.sched.inc.errors import DemandInvalid, TemplateInvalid
from offpath.sched.inc.units import SWITCH_DIMENSIONS, Vector, vector

MOST_SWITCHES: Final = 1_000
"""Tasks of one INC group."""


class Connectivity(StrEnum):
    """How the switches of a task group are connected."""

    SINGLE = "single"
    TOR = "tor"
    """Switches that have servers below them."""
    CHAIN = "chain"
    """Traversed one after the other."""
    TREE = "tree"
    SPINE = "spine"
    """The upper half of spine-leaf: switches above those that have servers."""
    LEAF = "leaf"
    """The lower half: switches that have servers."""


class Growth(StrEnum):
    """How the number of switches depends on the number of tasks served, |G|."""

    LOG = "log"
    """⌈ln |G|⌉: the paper writes log; the authors' simulator takes the natural one."""
    PER = "per"
    """``factor`` · ⌈|G| / ``per``⌉."""


@dataclass(frozen=True, slots=True)
class SwitchCount:
    """Switches of a group; never fewer than ``least`` and 1."""

    growth: Growth
    least: int = 1
    factor: int = 1
    per: int = 1
    divisor: int = 1
    """A part of the whole: DistCache's spine has half as many switches as its leaves."""

    def of(self, tasks: int) -> int:
        """For ``tasks`` tasks, 1 or more."""
        grown = ceil(log(tasks)) if self.growth is Growth.LOG else self.factor * -(-tasks // self.per)
        return max(1, -(-max(self.least, grown) // self.divisor))


@dataclass(frozen=True, slots=True)
class SwitchGroup:
    """A task group on switches. ``shared``: needed once per switch, however many instances of the service run there;
    ``least`` … ``most``: what each instance needs, a request chooses within. Shape [3] each.

    ``stages_by_tasks``: an instance needs up to |G| stages (R2P2).
    """

    suffix: str
    connectivity: Connectivity
    count: SwitchCount
    shared: Vector
    least: Vector
    most: Vector
    stages_by_tasks: bool = False


@dataclass(frozen=True, slots=True)
class Implementation:
    """Of a composite. Without ``groups`` it runs on servers, as many as the request says.

    ``features``: of the switch. ``servers_percent``: servers that are still needed beside the switches, in percent of
    those of the implementation on servers, if the request does not say.
    """

    name: str
    features: frozenset[str] = frozenset()
    groups: tuple[SwitchGroup, ...] = ()
    servers_percent: int = 0

    @property
    def is_inc(self) -> bool:
        """True if it runs on switches."""
        return bool(self.groups)


@dataclass(frozen=True, slots=True)
class Template:
    """A function with its alternative implementations."""

    name: str
    implementations: tuple[Implementation, ...]

    def implementation(self, name: str) -> Implementation | None:
        """By name."""
        return next((each for each in self.implementations if each.name == name), None)


SERVER: Final = Implementation("server")


# -- templates from plain data -------------------------------------------------------------------------------------

_GROUP_KEYS: Final = {"suffix", "connectivity", "count", "shared", "least", "most", "stages_by_tasks"}
_COUNT_KEYS: Final = {"growth", "least", "factor", "per", "divisor"}
_KEYS: Final = {"features", "groups", "servers_percent"}
MOST_GROUPS: Final = 8
MOST_IMPLEMENTATIONS: Final = 16
MOST_NAME: Final = 64

_Word = TypeVar("_Word", bound=StrEnum)


def template_of(name: str, plain: object) -> Template:
    """A template from plain data, as a TOML file gives it: implementations by name, each with ``features``,
    ``groups`` and ``servers_percent``; an empty one runs on servers.

    Raises: TemplateInvalid: names what is wrong and where.
    """
    _name(name, "template")
    table = _table(plain, name, None)
    if not 1 <= len(table) <= MOST_IMPLEMENTATIONS:
        raise TemplateInvalid(f"{name}: from 1 to {MOST_IMPLEMENTATIONS} implementations")
    return Template(name, tuple(_implementation(name, each, value) for each, value in table.items()))


def _implementation(template: str, name: str, plain: object) -> Implementation:
    where = f"{template}.{_name(name, template)}"
    table = _table(plain, where, _KEYS)
    features, groups = table.get("features", ()), table.get("groups", ())
    if not isinstance(features, list | tuple) or not isinstance(groups, list | tuple) or len(groups) > MOST_GROUPS:
        raise TemplateInvalid(f"{where}: features and groups are lists, of at most {MOST_GROUPS} groups")
    built = tuple(_group(f"{where}.groups[{n}]", each) for n, each in enumerate(groups))
    if len({each.suffix for each in built}) != len(built):
        raise TemplateInvalid(f"{where}: two groups have the same suffix")
    if features and not built:
        raise TemplateInvalid(f"{where}: features are of switches, but it has no groups on switches")
    percent = _whole(table.get("servers_percent", 0), f"{where}.servers_percent", 0, 100)
    return Implementation(name, frozenset(_name(each, where) for each in features), built, percent)


def _group(where: str, plain: object) -> SwitchGroup:
    table = _table(plain, where, _GROUP_KEYS)
    count = _table(table.get("count"), f"{where}.count", _COUNT_KEYS)
    try:
        shared, least, most = (
            vector(_list(table.get(key, [0, 0, 0]), f"{where}.{key}"), SWITCH_DIMENSIONS, f"{where}.{key}")
            for key in ("shared", "least", "most")
        )
    except DemandInvalid as fault:
        raise TemplateInvalid(str(fault)) from fault
    if any(low > high for low, high in zip(least, most, strict=True)):
        raise TemplateInvalid(f"{where}: least exceeds most")
    by_tasks = table.get("stages_by_tasks", False)
    if not isinstance(by_tasks, bool):
        raise TemplateInvalid(f"{where}.stages_by_tasks: true or false")
    numbers = {
        key: _whole(count.get(key, 1), f"{where}.count.{key}", 1, 10**6) for key in sorted(_COUNT_KEYS - {"growth"})
    }
    growth = SwitchCount(_choice(Growth, count.get("growth"), f"{where}.count.growth"), **numbers)
    connectivity = _choice(Connectivity, table.get("connectivity"), f"{where}.connectivity")
    suffix = table.get("suffix", "")
    return SwitchGroup(
        _name(suffix, where) if suffix != "" else "", connectivity, growth, shared, least, most, by_tasks
    )


def _table(plain: object, where: str, keys: set[str] | None) -> Mapping[str, Any]:
    if not isinstance(plain, Mapping) or not all(isinstance(key, str) for key in plain):
        raise TemplateInvalid(f"{where}: a table is needed")
    unknown = sorted(plain.keys() - keys) if keys is not None else []
    if unknown:
        raise TemplateInvalid(
            f"{where}: unknown key {unknown[0][:MOST_NAME]!r}; known are {', '.join(sorted(keys or ()))}"
        )
    return plain


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list | tuple):
        raise TemplateInvalid(f"{where}: a list is needed")
    return list(value)


def _name(value: object, where: str) -> str:
    if not isinstance(value, str) or len(value) > MOST_NAME or not value.replace("-", "").replace("_", "").isalnum():
        raise TemplateInvalid(f"{where}: {value!r:.40} is no name: letters, digits, - and _, at most {MOST_NAME}")
    return value


def _whole(value: object, where: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise TemplateInvalid(f"{where} is {value!r:.30}: a whole number of {least} … {most} is needed")
    return value


def _choice(words: type[_Word], value: object, where: str) -> _Word:
    if value not in [each.value for each in words]:
        raise TemplateInvalid(f"{where} is {value!r:.30}: one of {', '.join(words)}")
    return words(value)
