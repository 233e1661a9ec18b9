"""Fast approximation of the largest set of jobs with trees that do not conflict. Deterministic.

C = 1: reduce and peel on the conflict graph. C > 1: greedy, jobs with small trees first. The result is improved by
moves until none helps: a job moves to another of its trees to make room, over a few steps; or one job leaves and two
enter. Then each job without a tree is forced in, in turn, and the jobs it displaces look for room; the change is kept
if no fewer jobs are served. With former trees the search starts from those, unless a fresh start serves more jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from offpath.sched.ina.conflicts import Candidates, Instance, Limit, bits
from offpath.sched.ina.peeling import independent_set

_DEPTH: Final = 3
"""Maximum number of jobs that one move may displace in a chain."""
_TRIES: Final = 400
"""Moves tried in one search for room."""
_PRESSED_TRIES: Final = 50
"""The same while jobs are forced in."""
_MOST_MOVES: Final = 8_000
"""No job is forced in after this many moves: bounds the time when hundreds of jobs wait."""
EFFORT: Final = 24
"""Successive forced jobs without gain before the search ends."""


def solve(
    candidates: Candidates, limit: Limit, former: Mapping[int, int] | None = None, *, effort: int = EFFORT
) -> dict[int, int]:
    """Return a tree, as an index into ``candidates``, for as many jobs as possible.

    ``former``: the current trees, as indices; kept if that costs no job its tree. ``effort``: 0 is several times faster
    and serves fewer jobs, 0.23 % on average (docs/measurements.md).
    """
    instance = Instance(candidates, limit)
    was = {job: tree for job, tree in (former or {}).items() if job in instance.by_job}
    best = _Assignment(instance)
    if was:
        best.put_all(instance.by_job[job][tree] for job, tree in was.items())
        best.improve()
    if not best.is_all:
        fresh = _Assignment(instance)
        fresh.put_all(_first(instance))
        fresh.improve()
        if len(fresh.at) > len(best.at) or not was:
            best = fresh
    best.press(effort)
    best.restore(was)
    return {job: instance.vertices[vertex].tree for job, vertex in sorted(best.at.items())}


def _first(instance: Instance) -> Iterable[int]:
    """Initial vertices, in the order in which each is placed if it fits."""
    if instance.limit.capacity == 1:
        return independent_set(instance.neighbours(), instance.by_job.values())

    def crowd(vertex: int) -> int:
        return sum(instance.on[need].bit_count() for need in instance.vertices[vertex].needs)

    return sorted(range(len(instance.vertices)), key=lambda vertex: (crowd(vertex), vertex))


class _Assignment:
    """Jobs at vertices, at most C of them on any need."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self.at: dict[int, int] = {}
        self._number = {job: n for n, job in enumerate(instance.by_job)}
        self._jobs = list(instance.by_job)
        self._on = dict.fromkeys(instance.on, 0)  # need: bit set of job numbers
        self._tries = self._moves = 0

    def _put(self, job: int, vertex: int) -> None:
        self.at[job] = vertex
        bit = 1 << self._number[job]
        for need in self._instance.vertices[vertex].needs:
            self._on[need] |= bit

    def _take(self, job: int) -> int:
        vertex = self.at.pop(job)
        bit = 1 << self._number[job]
        for need in self._instance.vertices[vertex].needs:
            self._on[need] ^= bit
        return vertex

    def _blockers(self, vertex: int) -> int:
        """Bit set of the jobs of which any single one must leave for ``vertex`` to fit; -1: it fits already."""
        on, capacity = self._on, self._instance.limit.capacity
        found = -1
        for need in self._instance.vertices[vertex].needs:
            there = on[need]
            if there and (capacity == 1 or there.bit_count() >= capacity):
                found &= there
                if not found:
                    return 0
        return found

    def put_all(self, vertices: Iterable[int]) -> None:
        """Place each vertex that fits, unless its job has one."""
        for vertex in vertices:
            job = self._instance.vertices[vertex].job
            if job not in self.at and self._blockers(vertex) == -1:
                self._put(job, vertex)

    @property
    def is_all(self) -> bool:
        """True if every job has a tree."""
        return len(self.at) == len(self._jobs)

    def improve(self, tries: int = _TRIES) -> None:
        """Repeat both kinds of moves until neither helps."""
        while self._make_room(tries) or self._one_for_two():
            pass

    def press(self, effort: int) -> None:
        """Force waiting jobs in, in turn; see the module."""
        idle, turn = 0, 0
        for _ in range(3 * effort):
            waiting = self._waiting()
            if idle >= effort or not waiting or self._moves >= _MOST_MOVES:
                break
            job = waiting[turn % len(waiting)]
            turn += 7  # jobs close in arrival are often close in the network
            before = dict(self.at)
            vertex = min(self._instance.by_job[job], key=lambda each: (self._crowd(each).bit_count(), each))
            driven = [self._jobs[number] for number in bits(self._crowd(vertex))]
            for other in driven:
                self._take(other)
            self._put(job, vertex)
            self._tries = _PRESSED_TRIES
            for other in driven:
                self._place(other, 1, {job, other})
            self.improve(_PRESSED_TRIES)
            idle = 0 if len(self.at) > len(before) else idle + 1
            if len(self.at) < len(before):
                for other in list(self.at):
                    self._take(other)
                for other, at in before.items():
                    self._put(other, at)

    def _crowd(self, vertex: int) -> int:
        """Bit set of all jobs where ``vertex`` finds no room; with C > 1 these are more than must leave."""
        found = 0
        for need in self._instance.vertices[vertex].needs:
            there = self._on[need]
            if there.bit_count() >= self._instance.limit.capacity:
                found |= there
        return found

    def _waiting(self) -> list[int]:
        return [job for job in self._jobs if job not in self.at]

    def _make_room(self, tries: int) -> bool:
        helped = False
        for job in self._waiting():
            self._tries = tries
            helped |= self._place(job, _DEPTH, {job})
        return helped

    def _place(self, job: int, depth: int, moved: set[int]) -> bool:
        """Give the job a tree, moving at most ``depth`` others, none of ``moved``."""
        options = []
        for vertex in self._instance.by_job[job]:
            blockers = self._blockers(vertex)
            if blockers == -1:
                self._put(job, vertex)
                return True
            if blockers:
                options.append((vertex, blockers))
        if not depth:
            return False
        for vertex, blockers in options:
            for number in bits(blockers):
                other = self._jobs[number]
                if other in moved or len(self._instance.by_job[other]) < 2 or not self._tries:
                    continue
                self._tries -= 1
                self._moves += 1
                before = self._take(other)
                self._put(job, vertex)
                if self._place(other, depth - 1, moved | {other}):
                    return True
                self._take(job)
                self._put(other, before)
        return False

    def _one_for_two(self) -> bool:
        """Replace one job by two or more."""
        behind: dict[int, list[int]] = {}
        for job in self._waiting():
            for vertex in self._instance.by_job[job]:
                for number in bits(max(0, self._blockers(vertex))):
                    behind.setdefault(number, []).append(vertex)
        for number, vertices in sorted(behind.items()):
            job = self._jobs[number]
            if job not in self.at or len({self._instance.vertices[v].job for v in vertices}) < 2:
                continue
            before, count = self._take(job), len(self.at)
            for order in (vertices, vertices[::-1]):
                self.put_all(order)
                if len(self.at) > count + 1:
                    return True
                for vertex in vertices:
                    if self.at.get(self._instance.vertices[vertex].job) == vertex:
                        self._take(self._instance.vertices[vertex].job)
            self._put(job, before)
        return False

    def kept(self, was: Mapping[int, int]) -> int:
        """Number of jobs that keep their former tree."""
        return sum(self._instance.vertices[v].tree == was.get(job) for job, v in self.at.items())

    def restore(self, was: Mapping[int, int]) -> None:
        """Move jobs back to former trees, if no job loses its tree and no other leaves a former one."""
        changed = True
        while changed:
            changed = False
            for job, tree in was.items():
                changed |= self._restored(job, self._instance.by_job[job][tree], was)

    def _restored(self, job: int, vertex: int, was: Mapping[int, int]) -> bool:
        now = self.at.get(job)
        if now == vertex:
            return False
        if now is not None:
            self._take(job)
        blockers = self._blockers(vertex)
        if blockers == -1:
            self._put(job, vertex)
            return True
        for number in bits(blockers):
            other = self._jobs[number]
            at = self.at[other]
            if self._instance.vertices[at].tree == was.get(other):
                continue
            self._take(other)
            self._put(job, vertex)
            if self._place(other, 0, set()) or now is None:
                return True
            self._take(job)
            self._put(other, at)
        if now is not None:
            self._put(job, now)
        return False
