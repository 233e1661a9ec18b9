"""The exactness tests are worth something only if they find bugs: each of these is planted, and must be found."""

from __future__ import annotations

from collections.abc import Callable
from operator import add

import pytest

from offpath.sched.placement import fragments as module
from offpath.sched.placement.cluster import Cluster
from offpath.sched.placement.fragments import Fragments

from .test_fragments import exact

SEEDS = 150


def ignores_what_is_left(patch: pytest.MonkeyPatch) -> None:
    made = Fragments.__init__

    def init(self: Fragments, alpha: float = 0.5) -> None:
        made(self, alpha)
        self._left = 0

    patch.setattr(Fragments, "__init__", init)


def counts_a_whole_pod_as_its_hosts(patch: pytest.MonkeyPatch) -> None:
    table = module._Table.__init__
    patch.setattr(
        module._Table, "__init__", lambda self, number, free, is_whole, row: table(self, number, free, False, row)
    )


def forgets_the_last_split(patch: pytest.MonkeyPatch) -> None:
    def convolved(sums: list[int], part: list[int], reach: int) -> list[int]:
        """One part is never emptied."""
        turned, last, most = part[::-1], len(part) - 1, len(sums) - 1
        found = []
        for n in range(reach + 1):
            low, high = max(0, n - last), min(n, most)
            low = min(low + 1, high)
            found.append(min(map(add, sums[low : high + 1], turned[last - n + low : last - n + high + 1])))
        return found

    patch.setattr(module, "_convolved", convolved)


def does_not_see_releases(patch: pytest.MonkeyPatch) -> None:
    release = Cluster.release

    def quiet(self: Cluster, hosts: tuple[int, ...]) -> None:
        before = list(self.stamp)
        release(self, hosts)
        self.stamp[:] = before

    patch.setattr(Cluster, "release", quiet)


def stamps_only_the_leaf(patch: pytest.MonkeyPatch) -> None:
    change = Cluster._set

    def one(self: Cluster, hosts: list[int], *, free: bool) -> None:
        before = list(self.stamp)
        change(self, hosts, free=free)
        leaves = {self._leaf[host] for host in hosts}
        self.stamp[:] = [
            now if pod in leaves else old for pod, (old, now) in enumerate(zip(before, self.stamp, strict=True))
        ]

    patch.setattr(Cluster, "_set", one)


def takes_pods_alike_for_the_same(patch: pytest.MonkeyPatch) -> None:
    """Tables by how many hosts are free, not by where."""
    row = Fragments._row

    def alike(self: Fragments, before: module._Row | None, part: module._Table) -> module._Row:
        for known in self._rows.values():
            if known.free == part.free + (before.free if before else 0):
                return known
        return row(self, before, part)

    patch.setattr(Fragments, "_row", alike)


def fills_the_later_pods_first(patch: pytest.MonkeyPatch) -> None:
    def choose(
        self: Fragments, cluster: Cluster, pod: int, table: module._Table, wanted: int, found: module._Found
    ) -> None:
        if not wanted:
            return
        if table.row is None or (table.is_whole and wanted == table.free):
            found.take(pod, wanted, table.is_whole)
            return
        row: module._Row | None = table.row
        for part in reversed(cluster.children[pod]):
            if not cluster.free_in[part]:
                continue
            assert row is not None
            mine = wanted
            if row.before is not None:
                before, here, goal = row.before, row.part.scores, row.scores[wanted]
                splits = range(max(0, wanted - before.free), min(wanted, row.part.free) + 1)
                mine = next(k for k in reversed(splits) if before.scores[wanted - k] + here[k] == goal)
            self._choose(cluster, part, row.part, mine, found)
            wanted -= mine
            row = row.before

    patch.setattr(Fragments, "_choose", choose)


BUGS: list[Callable[[pytest.MonkeyPatch], None]] = [
    ignores_what_is_left, counts_a_whole_pod_as_its_hosts, forgets_the_last_split, does_not_see_releases,
    stamps_only_the_leaf, takes_pods_alike_for_the_same, fills_the_later_pods_first,
]  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_the_planted_bug_is_found(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    found = 0
    for seed in range(SEEDS):
        try:
            exact(f"fragments {seed}")
        except (AssertionError, StopIteration, IndexError):
            found += 1
    assert found


def test_without_a_bug_nothing_is_found() -> None:
    for seed in range(SEEDS):
        exact(f"fragments {seed}")
