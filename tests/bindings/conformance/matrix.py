"""The table that ``-m conformance`` ends with: per port, its promises by adapter, and why one was skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest

_ORDER = ("failed", "skipped", "passed")


class Matrix:
    """Of the collected tests of this folder. Every case of a test with an adapter counts into one cell."""

    _reports: ClassVar[dict[str, tuple[str, str]]] = {}

    def __init__(self, items: Sequence[pytest.Item]) -> None:
        self._cells: dict[str, dict[str, dict[str, list[str]]]] = {}
        for item in items:
            if item.get_closest_marker("conformance") is not None:
                port = item.path.stem.removeprefix("test_")
                name = getattr(item, "originalname", item.name)
                cell = self._cells.setdefault(port, {}).setdefault(name, {}).setdefault(_adapter(item), [])
                cell.append(item.nodeid)

    @classmethod
    def saw(cls, report: pytest.TestReport) -> None:
        """One phase of a test: the first that is not passed counts, else the last."""
        before = cls._reports.get(report.nodeid, ("passed", ""))[0]
        if before == "passed":
            why = str(report.longrepr[-1]) if report.skipped and isinstance(report.longrepr, tuple) else ""
            cls._reports[report.nodeid] = report.outcome, why.removeprefix("Skipped: ")

    def lines(self) -> Iterator[str]:
        """Aligned text."""
        reasons: dict[str, int] = {}
        for port, tests in sorted(self._cells.items()):
            adapters = list(dict.fromkeys(adapter for cells in tests.values() for adapter in cells))
            table = [[port.replace("_", " "), *adapters]]
            for name, cells in tests.items():
                row = [name.removeprefix("test_").replace("_", " ")]
                row += [self._cell(cells.get(adapter, []), reasons) for adapter in adapters]
                table.append(row)
            widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
            for row in table:
                yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            yield ""
        for why, number in reasons.items():
            yield f"[{number}] {why}"

    def _cell(self, nodes: list[str], reasons: dict[str, int]) -> str:
        seen = [self._reports.get(node, ("not run", "")) for node in nodes]
        counted = Counter(outcome for outcome, _ in seen)
        if not counted:
            return "-"
        for _, why in seen:
            if why:
                reasons.setdefault(why, len(reasons) + 1)
        notes = "".join(f" [{number}]" for number in sorted({reasons[why] for _, why in seen if why}))
        worst = next((outcome for outcome in _ORDER if counted[outcome]), "not run")
        if worst == "passed" or len(counted) == 1:
            return worst + notes
        return ", ".join(f"{counted[one]} {one}" for one in _ORDER if counted[one]) + notes


def _adapter(item: Any) -> str:
    """What the rig's fixture was given, by its id: the first or the last part of the item's."""
    callspec = getattr(item, "callspec", None)
    rig = next((name for name in getattr(callspec, "params", ()) if name.endswith("_rig")), None)
    if callspec is None or rig is None:
        return "any"
    definition = item._fixtureinfo.name2fixturedefs[rig][-1]
    return str(definition.ids[callspec.indices[rig]] if definition.ids else _named(definition, callspec, rig))


def _named(definition: Any, callspec: Any, rig: str) -> str:
    given = definition.params[callspec.indices[rig]]
    return given.id if getattr(given, "id", None) else callspec.id
