"""Switches that are kept free for a group that waits too long.

A group on switches starts whole (`gangs`). If smaller groups take what becomes free on each switch, a group of many
switches waits as long as such groups come. Where there is another implementation, the flavor is taken back and that one
is chosen. For the others: as many switches as the group needs are kept free. No other job gets a place there until the
group starts, or until the time is over. One group at a time has this, the one that has waited longest.

The paper has no reservations.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from offpath.sched.inc.pending import PendingJob
from offpath.sched.inc.poly import GroupId, TaskGroup
from offpath.sched.inc.resources import Resources

RESERVE_MS: Final = 10_000
"""A group waits so long before switches are kept for it, and they are kept for at most `_TIMES` as long."""
_TIMES: Final = 6
"""After each reservation that ends without its start the group waits so many times as long as before, but at most
`_MOST_WAITS` as long: such a group takes room from others for a seventh of the time at most. Then nobody has a
reservation for as long as that one lasted, also if its request was cancelled: many such groups, of one tenant or of
several, leave half of the time."""
_MOST_WAITS: Final = 36
_MOST_LOOKS: Final = 4
"""In one round switches are sought for so many groups: each look reads all switches."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """``nodes``: switches where only ``group`` and other groups of its job get places, from ``since_ms`` to
    ``until_ms``."""

    group: GroupId
    nodes: frozenset[int]
    since_ms: int
    until_ms: int


class _Wait(NamedTuple):
    """A group waits since then, for so long before it gets a reservation."""

    since_ms: int
    wait_ms: int


class Reservations:
    """At most one at a time. No clock."""

    def __init__(self, resources: Resources, wait_ms: int = RESERVE_MS) -> None:
        self._resources, self._wait_ms = resources, wait_ms
        self.current: Reservation | None = None
        self._none_until_ms = 0
        self._waits: dict[GroupId, _Wait] = {}

    def renew(self, jobs: Sequence[PendingJob], now_ms: int) -> None:
        """End the reservation if it is not needed, and make another one. ``jobs``: all, in the order of submission."""
        waiting = {group.id: (job, group) for job in jobs for group in _without_choice(job)}
        self._waits = {
            name: self._waits.get(name, _Wait(job.submitted_ms, self._wait_ms)) for name, (job, _) in waiting.items()
        }
        if self.current is not None and self._goes_on(self.current, waiting, now_ms):
            return
        self.current = None
        if now_ms < self._none_until_ms:
            return
        due = [name for name, each in self._waits.items() if now_ms - each.since_ms > each.wait_ms]
        for name in sorted(due, key=lambda each: self._waits[each].since_ms)[:_MOST_LOOKS]:
            nodes = self._chosen(*waiting[name])
            if nodes:
                self.current = Reservation(name, nodes, now_ms, now_ms + _TIMES * self._wait_ms)
                return
            self._delay(name, now_ms)

    def _goes_on(self, held: Reservation, waiting: Container[GroupId], now_ms: int) -> bool:
        """False: it has ended, by the group's start, its time, a cancelled request or a lost switch."""
        is_waiting = held.group in waiting
        if is_waiting and now_ms <= held.until_ms:
            return not held.nodes & self._resources.lost
        if is_waiting:
            self._delay(held.group, now_ms)
        if is_waiting or not self._resources.is_running(held.group):
            self._none_until_ms = now_ms + now_ms - held.since_ms
        return False

    def _delay(self, group: GroupId, now_ms: int) -> None:
        wait_ms = min(self._waits[group].wait_ms * _TIMES, self._wait_ms * _MOST_WAITS)
        self._waits[group] = _Wait(now_ms, wait_ms)

    def _chosen(self, job: PendingJob, group: TaskGroup) -> frozenset[int]:
        """As many switches as the group needs: those where it fits now, then those with the fewest tasks. Empty: there
        are not so many."""
        resources, topology = self._resources, self._resources.topology
        able = [
            node for node in range(topology.hosts, topology.nodes)
            if resources.could_host(group, node) and not resources.is_lost(node)
            and not resources.is_running_on(group.id, node)
        ]  # fmt: skip
        able.sort(key=lambda node: (not resources.fits(group, node), resources.running(node).total(), node))
        count = job.waiting(group)
        return frozenset(able[:count]) if len(able) >= count else frozenset()


def _without_choice(job: PendingJob) -> Iterator[TaskGroup]:
    """Groups on switches that wait and have no other implementation."""
    return (each for each in job.materialized() if each.is_inc and each.composite not in job.decided)
