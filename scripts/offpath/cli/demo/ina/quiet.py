"""Decides from the kernel's counters whether a block of the demo had the machine's cores to itself.

A score compares times of processes that share the cores. Other work makes all of them longer, but not in the same
proportion, so a disturbed block measures the machine and not the schedule.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MOST_TAKEN: Final = 0.10
"""Part of all cores' time that other processes may use in a quiet block; an idle machine's services use some
percent.
"""
LEAST_QUIET: Final = 0.6
"""Part of the wanted blocks that must be quiet for a verdict."""
MOST_BLOCKS: Final = 2
"""Limit on blocks, repeated ones included, as a multiple of the wanted ones."""
_GUEST: Final = 8
"""Fields of /proc/stat from here on (guest, guest_nice) are already contained in user and nice."""
_IDLE: Final = (3, 4)
"""idle, iowait."""
_PARENT, _OWN_TICKS = 1, slice(11, 15)
"""Of /proc/PID/stat after the name: the parent; utime, stime, and both of children that were waited for."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Clock ticks since the start: of all cores, ``busy`` of them (time stolen by a hypervisor too), and those of this
    process and its descendants.
    """

    total: int
    busy: int
    ours: int


def taken_by_others(before: Cores, after: Cores) -> float:
    """Part of all cores' time between the two that was neither idle nor this demo's, from 0 to 1."""
    total = after.total - before.total
    if total <= 0:
        return 0.0
    others = (after.busy - before.busy) - (after.ours - before.ours)
    return min(1.0, max(0.0, others / total))


def is_quiet(taken: float) -> bool:
    """Whether others used no more than an otherwise idle machine does."""
    return taken <= MOST_TAKEN


def has_enough(quiet: int, wanted: int) -> bool:
    """Whether this many quiet blocks, of the wanted ones, allow a verdict."""
    return quiet >= max(1, LEAST_QUIET * wanted)


def goes_on(taken: Sequence[float], wanted: int) -> bool:
    """Whether another block is needed after those in which others used ``taken``: not all wanted blocks are quiet yet,
    at most `MOST_BLOCKS` times the wanted ones were run, and a verdict is still possible.
    """
    quiet = sum(is_quiet(each) for each in taken)
    left = MOST_BLOCKS * wanted - len(taken)
    return quiet < wanted and left > 0 and has_enough(quiet + left, wanted)


def chosen(taken: Sequence[float], wanted: int) -> tuple[list[int], bool]:
    """The blocks that count, and whether they allow a verdict: the quiet ones, or all, without a verdict."""
    quiet = [number for number, each in enumerate(taken) if is_quiet(each)]
    if has_enough(len(quiet), wanted):
        return quiet, True
    return list(range(len(taken))), False


def cores_of(text: str) -> tuple[int, int]:
    """Total and busy ticks, from the text of /proc/stat. Raises: ValueError: it has no line for all cores.

    >>> cores_of("cpu  10 0 5 80 5 0 0 2 7 0")
    (102, 17)
    """
    for line in text.splitlines():
        name, *fields = line.split()
        if name == "cpu":
            ticks = [int(field) for field in fields[:_GUEST]]
            return sum(ticks), sum(ticks) - sum(ticks[at] for at in _IDLE)
    raise ValueError("no line of all cores")


def ticks_of(stats: Sequence[str], root: int) -> int:
    """Ticks of a process and all that descend from it, from texts of /proc/PID/stat.

    >>> ticks_of(["7 (a b) S 1 0 0 0 0 0 0 0 0 0 4 3 2 1 0", "9 (c) S 7 0 0 0 0 0 0 0 0 0 1 1 0 0 0"], 7)
    12
    """
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for text in stats:
        pid = int(text.split(" ", 1)[0])
        fields = text.rpartition(")")[2].split()
        parents[pid] = int(fields[_PARENT])
        ticks[pid] = sum(int(each) for each in fields[_OWN_TICKS])

    def descends(pid: int) -> bool:
        seen: set[int] = set()
        while pid != root and pid in parents and pid not in seen:
            seen.add(pid)
            pid = parents[pid]
        return pid == root

    return sum(count for pid, count in ticks.items() if descends(pid))


def look() -> Cores:
    """The cores now, with this process and its descendants as the demo's. Raises: OSError: /proc is unreadable."""
    total, busy = cores_of(Path("/proc/stat").read_text("ascii"))
    stats = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stats.append(Path("/proc", name, "stat").read_text("utf-8", "replace"))
            except OSError:
                continue  # it ended meanwhile
    return Cores(total, busy, ticks_of(stats, os.getpid()))
