"""The third category in the authors' later code: a job that conflicts with several groups merges them if that pays off.

The benefit is simulated: the part of its time that each job of a group saves under the paper's rule over a few steps,
summed, for the merged group against the separate ones. Among all jobs without a tree and all their trees the best merge
is done first, until none helps. (The later code also stops sampling early if gains vary little; the cache here makes
that unnecessary.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from offpath.sched.ina.conflicts import Limit, components, share
from offpath.sched.ina.engine import Engine, Rule
from offpath.sched.ina.patterns import Timed
from offpath.sched.ina.trees import Draws, Tree
from offpath.sched.sim.ina.planners import Mina, Moment, Trees

STEPS: Final = 3
"""Simulated steps of the slowest job of a group."""
MOST: Final = 30
"""Maximum number of jobs in a group."""
_RULE: Final = Rule("the paper's, one group", looks_ahead=True)


@lru_cache(maxsize=65_536)
def worth(group: tuple[Timed, ...]) -> float:
    """The parts of their time that jobs of one group save, summed over the jobs."""
    if len(group) == 1:
        return 1.0 - group[0].all_ns / group[0].none_ns
    engine = Engine(group, len(group), _RULE)
    jobs = list(range(len(group)))
    most = 10**6
    for job in jobs:
        engine.add(job, job, most)
    engine.share([], [], [jobs], {})
    engine.run(STEPS * max(each.none_ns for each in group))
    saved = 0.0
    for job, pattern in enumerate(group):
        progress = engine.progress(job)
        plain = (most - progress.steps_left) * pattern.none_ns
        saved += 1.0 - progress.step_began_ns / plain if plain else 0.0
    return saved


class Merge:
    """`Mina`, but jobs of the third category may also get a tree."""

    name = "mina-merge"
    reads_traffic = False

    def __init__(self, limit: Limit, random: Draws, k: int) -> None:
        self._limit = limit
        self._mina = Mina(limit, random, k)

    def plan(self, moment: Moment) -> Trees:
        """See `Planner`."""
        planned = self._mina.plan(moment)
        patterns = {each.job: each.pattern for each in moment.running}
        trees = {job: tree for job, tree in planned.items() if tree}
        groups = [set(each) for each in components(trees, self._limit)]
        waiting = [each.job for each in moment.running if len(each.hosts) > 1 and not planned[each.job]]
        while True:
            best: tuple[float, int, Tree, list[set[int]]] | None = None
            for job in waiting:
                for tree in self._mina.drawn.get(job, ()):
                    met = [group for group in groups if self._intersects(tree, group, trees)]
                    gain = self._gain(job, met, patterns)
                    if gain > (best[0] if best else 0.0):
                        best = gain, job, tree, met
            if best is None:
                return planned
            _, job, tree, met = best
            planned[job] = trees[job] = tree
            waiting.remove(job)
            groups = [group for group in groups if group not in met] + [{job}.union(*met)]

    def _intersects(self, tree: Tree, group: set[int], trees: Mapping[int, Tree]) -> bool:
        return any(share(tree, trees[job], self._limit) for job in group)

    def _gain(self, job: int, met: Sequence[set[int]], patterns: Mapping[int, Timed]) -> float:
        together = {job}.union(*met)
        if len(together) > MOST:
            return 0.0
        return _worth(together, patterns) - sum(_worth(group, patterns) for group in met)


def _worth(group: set[int], patterns: Mapping[int, Timed]) -> float:
    """Ordered by patterns, not by jobs, so that equal groups are simulated once."""
    return worth(tuple(sorted((patterns[job] for job in group), key=lambda each: (each.name, each.plain))))
