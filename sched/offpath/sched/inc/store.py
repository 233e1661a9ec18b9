"""CompStore: the templates that requests may name (HIRE §4.1). The built-in ones are Table 3's, and DAIET.

Table 3 gives each service's demand per switch, before "|", and a range per instance, after it. Where the paper refers
to figure 4c (DistCache, NetChain) or gives no number (SHArP's share of servers), the table below says what is assumed.
DAIET is not in Table 3; its numbers are those of the authors' simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from offpath.sched.inc.errors import TemplateInvalid, UnknownTemplate
from offpath.sched.inc.templates import MOST_NAME, Implementation, Template, template_of

MOST_TEMPLATES: Final = 1_000

MIB: Final = 1024

_FEW: Final = {"growth": "log", "least": 3}
_RARE: Final = {"growth": "per", "per": 9_000}
_CACHE: Final = {"shared": [0, 8, 0], "least": [0, 0, 6 * MIB], "most": [10, 8, 12 * MIB]}


def _single(count: Mapping[str, Any], connectivity: str = "single", **demand: Any) -> list[Mapping[str, Any]]:
    return [{"connectivity": connectivity, "count": count, **demand}]


BUILT_IN: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    "server": {"server": {}},
    "aggregate": {  # gradients and other sums; the workers stay, the servers that would sum are saved
        "sharp": {
            "features": ["sharp"],
            "groups": _single({"growth": "log"}, "tree", least=[0, 0, MIB], most=[0, 0, 8 * MIB]),
        },
        "daiet": {  # the authors' simulator: 18 stages shared; 10 % recirculation, 1 stage, 10 MB each
            "features": ["p4-14"],
            "groups": _single({"growth": "log"}, "tree", shared=[0, 18, 0], least=[10, 1, 10 * MIB],
                              most=[10, 1, 10 * MIB]),
        },
        "server": {},
    },
    "cache": {
        "incbricks": {
            "features": ["openflow", "accelerator"],
            "groups": _single(_FEW, least=[0, 4, 3 * MIB], most=[40, 8, 12 * MIB]),
        },
        "netcache": {"features": ["p4-14"], "groups": _single(_FEW, "tor", **_CACHE)},
        "distcache": {  # figure 4c has two groups, spine and leaf; assumed: half as many spines as leaves
            "features": ["p4-14"],
            "groups": [
                {"suffix": "spine", "connectivity": "spine", "count": {**_FEW, "divisor": 2}, **_CACHE},
                {"suffix": "leaf", "connectivity": "leaf", "count": _FEW, **_CACHE},
            ],
        },
        "server": {},
    },
    "coordinator": {
        "netchain": {  # figure 4c: a chain
            "features": ["p4-14"],
            "groups": _single({"growth": "per", "factor": 3, "per": 1_000, "least": 3}, "chain", **_CACHE),
        },
        "server": {},
    },
    "replicate": {
        "harmonia": {
            "features": ["p4-14"],
            "groups": _single(_RARE, shared=[0, 3, 0], least=[0, 0, 768], most=[0, 3, 2048]),
        },
        "hovercraft": {
            "features": ["p4-14"],
            "groups": _single(_RARE, shared=[0, 18, 0], most=[10, 18, 128]),
        },
        "server": {},
    },
    "balance": {
        "r2p2": {
            "features": ["p4-14"],
            "groups": _single(_RARE, least=[0, 0, 1], most=[30, 48, 64], stages_by_tasks=True),
        },
        "server": {},
    },
}  # fmt: skip


class CompStore:
    """Templates by name, checked once."""

    def __init__(self, tables: Mapping[str, object] = BUILT_IN) -> None:
        """Raises: TemplateInvalid: names the template, or two templates describe one service differently."""
        if len(tables) > MOST_TEMPLATES:
            raise TemplateInvalid(f"more than {MOST_TEMPLATES} templates")
        self._templates = {name: template_of(name, plain) for name, plain in tables.items()}
        self._services: dict[str, Implementation] = {}
        for template in self._templates.values():
            for each in template.implementations:
                if each.is_inc and self._services.setdefault(each.name, each) != each:
                    raise TemplateInvalid(f"{template.name}.{each.name}: another template has a different {each.name}")

    def template(self, name: str) -> Template:
        """Raises: UnknownTemplate."""
        found = self._templates.get(name)
        if found is None:
            known = ", ".join(sorted(self._templates)[:20])
            raise UnknownTemplate(f"template {name[:MOST_NAME]!r}: known are {known}")
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """Of all templates, sorted."""
        return tuple(sorted(self._templates))

    @property
    def services(self) -> Mapping[str, Implementation]:
        """Implementations on switches by name: what a switch may run."""
        return self._services
