"""Jobs that share a tree, slowly: every instant on its own, gains by running the rest of the step both ways.

An oracle for `offpath.sched.ina.engine`. It knows the model's words and the paper's rule, none of the engine's
shortcuts: no max-plus tails, no bounds, no groups beyond the one that it is given, no repeated steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from offpath.sched.ina.mina_paper import Next, admits
from offpath.sched.ina.patterns import Timed


@dataclass
class Trainee:
    """A job: ``doing`` is "waits", "plain", "ina", "leaves" or "gone", ``until`` then."""

    pattern: Timed
    steps: int
    began: int = 0
    op: int = 0
    doing: str = "waits"
    until: int = 0
    ina_ns: int = 0
    ended: int = -1


def drawn(random: Random, operations: int = 5) -> Timed:
    """A small pattern of small numbers, in which everything ties now and then."""
    count = random.randint(1, operations)
    starts = sorted(random.randrange(0, 30) for _ in range(count))
    ina = [random.randint(1, 12) for _ in range(count)]
    plain = [each + random.randint(0, 12) for each in ina]
    return Timed("drawn", tuple(starts), tuple(plain), tuple(ina), random.randint(1, 60))


def rest_of_step(pattern: Timed, op: int, begins: int, uses_ina: bool) -> int:
    """When a step ends (from its begin) whose operation ``op`` begins at ``begins``, all after it plain."""
    now = begins + (pattern.ina[op] if uses_ina else pattern.plain[op])
    for after in range(op + 1, len(pattern.starts)):
        now = max(now, pattern.starts[after]) + pattern.plain[after]
    return max(now, pattern.duration_ns)


def gain(pattern: Timed, op: int, begins: int) -> int:
    return rest_of_step(pattern, op, begins, False) - rest_of_step(pattern, op, begins, True)


ASK_ONLY_IF_THEY_GAIN = ("plan", "plan-tuned", "mina-weighed")
LOOK_AT_OTHERS = ("mina-paper", "mina-weighed")
BY_TREE = ("greedy-by-tree", "plan", "plan-tuned", "mina-weighed")


class Class:
    """All of them in one group. ``rule``: by its name; ``meets``: whose trees meet a job's own, where that is what the
    rule goes by."""

    def __init__(
        self, jobs: Sequence[tuple[Timed, int]], rule: str, *, capacity: int = 1,
        meets: Mapping[int, Collection[int]] | None = None,
    ) -> None:  # fmt: skip
        self.jobs = [Trainee(pattern, steps, until=pattern.starts[0]) for pattern, steps in jobs]
        self.rule, self.capacity, self.now = rule, capacity, 0
        self.meets = meets if rule in BY_TREE else None
        self.most_at_once = 0

    def run(self, until: int) -> None:
        """Every instant to ``until``, that included."""
        while True:
            due = [job.until for job in self.jobs if job.doing != "gone"]
            if not due or min(due) > until:
                return
            self.now = min(due)
            while any(job.until == self.now and job.doing in ("plain", "ina", "leaves") for job in self.jobs):
                for job in self.jobs:
                    if job.until == self.now and job.doing in ("plain", "ina"):
                        self._deliver(job)
                    elif job.until == self.now and job.doing == "leaves":
                        job.doing, job.ended = "gone", self.now
            for job in self.jobs:
                if job.until == self.now and job.doing == "waits":
                    uses = self._may_use(job)
                    took = job.pattern.ina[job.op] if uses else job.pattern.plain[job.op]
                    job.doing, job.until = ("ina" if uses else "plain"), self.now + took
                    job.ina_ns += took if uses else 0
            self.most_at_once = max(self.most_at_once, sum(job.doing == "ina" for job in self.jobs))

    def _deliver(self, job: Trainee) -> None:
        job.op += 1
        if job.op < len(job.pattern.starts):
            job.doing, job.until = "waits", max(self.now, job.began + job.pattern.starts[job.op])
            return
        end = max(self.now, job.began + job.pattern.duration_ns)
        job.steps -= 1
        if not job.steps:
            job.doing, job.until = "leaves", end
        else:
            job.began, job.op = end, 0
            job.doing, job.until = "waits", end + job.pattern.starts[0]

    def _may_use(self, job: Trainee) -> bool:
        number = next(n for n, each in enumerate(self.jobs) if each is job)
        others = [
            other for n, other in enumerate(self.jobs)
            if n != number and (self.meets is None or n in self.meets[number])
        ]  # fmt: skip
        in_use = sum(other.doing == "ina" for other in others)
        mine = Next(self.now, job.pattern.ina[job.op], gain(job.pattern, job.op, self.now - job.began))
        if self.rule == "none" or (self.rule in ASK_ONLY_IF_THEY_GAIN and not mine.gain_ns and len(self.jobs) > 1):
            return False
        if self.rule in LOOK_AT_OTHERS:
            coming = [found for other in others if (found := self._next(other))]
            return admits(mine, coming, in_use=in_use, capacity=self.capacity)
        return in_use < self.capacity

    def _next(self, job: Trainee) -> Next | None:
        pattern, op, began, begins = job.pattern, job.op, job.began, job.until
        if job.doing in ("leaves", "gone"):
            return None
        if job.doing != "waits":
            op += 1
            if op == len(pattern.starts):
                if job.steps == 1:
                    return None
                op, began = 0, max(job.until, began + pattern.duration_ns)
            begins = max(job.until, began + pattern.starts[op])
        return Next(begins, pattern.ina[op], gain(pattern, op, begins - began))
