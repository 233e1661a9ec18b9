"""MINA's placement (§III-B, Algorithm 1): finds the hosts with the least A + α·B, exactly.

A: fragments of the job's hosts, B: of the hosts left free. A pod that is all of one kind is one fragment, a pod with
none of it is zero, any other is the sum of its parts. Lines 16-18 of the printed algorithm have errors; intended is
S[i, j] = min over k of S[i-1, j-k] + F[i, k]. Of equal scores the one with the fewest hosts in the last part wins, then
in the last but one …: earlier pods are filled first.

It is fast without a library for two reasons:
- scores are integers (α is a fraction), and a row of S takes a few C-level passes over lists, no longer than the
  request;
- a pod's table depends on its parts' tables alone, so tables and rows are cached by their parts: equal pods share one,
  and after a change only the pods above it are recomputed, and in them only the rows after the changed part.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from operator import add
from typing import Final
from weakref import WeakKeyDictionary

from offpath.sched.placement.cluster import Cluster
from offpath.sched.placement.port import Decision, Request, too_few

ALPHA: Final = 0.5
"""The paper's default."""
_MOST_KEPT: Final = 4_000_000
"""Maximum number of scores in all tables; beyond it they are rebuilt. 32 MB of references to mostly shared numbers."""


class _Table:
    """F of all pods with this state: ``scores[n]`` for n taken hosts, up to the greatest n requested so far.

    ``row`` is the last row over its parts; None if its parts are hosts.
    """

    __slots__ = ("free", "is_whole", "number", "row", "scores")

    def __init__(self, number: int, free: int, is_whole: bool, row: _Row | None) -> None:
        self.number, self.free, self.is_whole, self.row = number, free, is_whole, row
        self.scores: list[int] = []


class _Row:
    """S over the first parts of a pod; ``before`` over all but the last of them, ``part`` that one's table."""

    __slots__ = ("before", "free", "number", "part", "scores")

    def __init__(self, number: int, before: _Row | None, part: _Table) -> None:
        self.number, self.before, self.part = number, before, part
        self.free: int = part.free + (before.free if before is not None else 0)
        self.scores: list[int] = []


class Fragments:
    """See the module. One object may serve several clusters; they share tables."""

    name = "fragments"

    def __init__(self, alpha: float | Fraction = ALPHA) -> None:
        """``alpha`` ≥ 0: weight of later jobs relative to this one. Raises: ValueError: it is negative."""
        self.alpha = Fraction(str(alpha)) if isinstance(alpha, float) else Fraction(alpha)
        if self.alpha < 0:
            raise ValueError("α must be 0 or more")
        self._own, self._left = self.alpha.denominator, self.alpha.numerator  # integer weights of A and B
        self._tables: dict[tuple[int, ...], _Table] = {}
        self._rows: dict[tuple[int, int], _Row] = {}
        self._known: WeakKeyDictionary[Cluster, tuple[list[int], list[_Table | None]]] = WeakKeyDictionary()
        self._kept = 0

    def place(self, cluster: Cluster, request: Request) -> Decision:
        """See `Placement`. The score is A + α·B of the whole cluster after the placement."""
        refused = too_few(cluster, request)
        if refused is not None:
            return refused
        if self._kept > _MOST_KEPT:
            self._forget()
        table = self._table(cluster, 0)
        score = self._scores(table, request.hosts)[request.hosts]
        found = _Found(cluster)
        self._choose(cluster, 0, table, request.hosts, found)
        left = f"{(score - self._own * found.fragments) // self._left} of those left free" if self._left else "α = 0"
        return Decision(
            tuple(sorted(found.hosts)),
            score / self._own,
            (
                f"{found.fragments} fragments of the job's hosts",
                left,
                f"no choice scores lower than {score / self._own:g}",
            ),
        )

    def _forget(self) -> None:
        self._tables.clear()
        self._rows.clear()
        self._known.clear()
        self._kept = 0

    def _table(self, cluster: Cluster, pod: int) -> _Table:
        """The table of a pod in its current state; recursion depth is that of the pods."""
        known = self._known.get(cluster)
        if known is None:
            known = self._known[cluster] = ([-1] * len(cluster.stamp), [None] * len(cluster.stamp))
        stamps, tables = known
        table = tables[pod]
        if table is None or stamps[pod] != cluster.stamp[pod]:
            free, parts = cluster.free_in[pod], cluster.children[pod]
            is_whole = free == cluster.count[pod]
            if not parts or not free:
                key: tuple[int, ...] = (free, is_whole)
                row = None
            else:
                row = None
                for part in parts:
                    if cluster.free_in[part]:
                        row = self._row(row, self._table(cluster, part))
                assert row is not None
                key = (row.number, is_whole, 0)
            table = self._tables.get(key)
            if table is None:
                table = self._tables[key] = _Table(len(self._tables), free, is_whole, row)
            tables[pod], stamps[pod] = table, cluster.stamp[pod]
        return table

    def _row(self, before: _Row | None, part: _Table) -> _Row:
        key = (before.number if before is not None else -1, part.number)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = _Row(len(self._rows), before, part)
        return row

    def _scores(self, table: _Table, most: int) -> list[int]:
        """F[0 … most], or up to the number of free hosts."""
        most = min(most, table.free)
        if len(table.scores) > most:
            return table.scores
        if table.row is None:
            scores = [self._own * n + self._left * (table.free - n) for n in range(table.free + 1)]
        else:
            scores = list(self._sums(table.row, most))
        if table.is_whole:
            scores[0] = self._left
            if len(scores) == table.free + 1:
                scores[table.free] = self._own
        self._kept += len(scores) - len(table.scores)
        table.scores = scores
        return scores

    def _sums(self, row: _Row, most: int) -> list[int]:
        """S[0 … most] of a row, or up to the number of free hosts: a loop over its parts, not a recursion."""
        waiting = []
        at: _Row | None = row
        while at is not None and len(at.scores) <= min(most, at.free):
            waiting.append(at)
            at = at.before
        for each in reversed(waiting):
            part = self._scores(each.part, most)
            reach = min(most, each.free)
            scores = part[: reach + 1] if each.before is None else _convolved(each.before.scores, part, reach)
            self._kept += len(scores) - len(each.scores)
            each.scores = scores
        return row.scores

    def _choose(self, cluster: Cluster, pod: int, table: _Table, wanted: int, found: _Found) -> None:
        """Trace the choices back: the fewest hosts from the last part that still give the best score."""
        if not wanted:
            return
        if table.row is None or (table.is_whole and wanted == table.free):
            found.take(pod, wanted, table.is_whole)
            return
        row: _Row | None = table.row
        for part in reversed(cluster.children[pod]):
            if not cluster.free_in[part]:
                continue
            assert row is not None
            mine = wanted
            if row.before is not None:
                goal, here, before = row.scores[wanted], row.part.scores, row.before
                least = max(0, wanted - before.free)
                most = min(wanted, row.part.free)
                mine = next(k for k in range(least, most + 1) if before.scores[wanted - k] + here[k] == goal)
            self._choose(cluster, part, row.part, mine, found)
            wanted -= mine
            row = row.before


class _Found:
    """The hosts chosen so far, and their fragments."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.hosts: list[int] = []
        self.fragments = 0

    def take(self, pod: int, wanted: int, is_whole: bool) -> None:
        """Take the first free hosts of the pod."""
        count = self._cluster.count[pod]
        hosts: Iterator[int] = self._cluster.free_hosts(self._cluster.first[pod], count)
        self.hosts += [next(hosts) for _ in range(wanted)]
        self.fragments += 1 if is_whole and wanted == count else wanted


def _convolved(sums: list[int], part: list[int], reach: int) -> list[int]:
    """min over k of sums[n - k] + part[k], for n up to ``reach``."""
    turned = part[::-1]
    last, most = len(part) - 1, len(sums) - 1
    found = []
    for n in range(reach + 1):
        low, high = max(0, n - last), min(n, most)
        found.append(min(map(add, sums[low : high + 1], turned[last - n + low : last - n + high + 1])))
    return found
