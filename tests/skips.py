"""One line at the end of a run: what was skipped, counted by reason. `-rs` lists each place.

A reason says what is missing, then, after a colon, more about it: "needs a C compiler: cc, and Python's headers".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable

import pytest

_MARK = "Skipped: "


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """After all that pytest lists, before its own last line."""
    yield
    if line := told(_reason(report) for report in terminalreporter.stats.get("skipped", ())):
        terminalreporter.write_line(line)


def told(reasons: Iterable[str]) -> str:
    """What was skipped, most first; empty: nothing was. A module that is skipped while it is collected counts once."""
    counts = Counter(reason.partition(": ")[0] for reason in reasons)
    listed = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return "skipped: " + " · ".join(f"{count} {reason}" for reason, count in listed) if listed else ""


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    place = report.longrepr
    text = str(place[2]) if isinstance(place, tuple | list) else str(place)
    return text.removeprefix(_MARK)
