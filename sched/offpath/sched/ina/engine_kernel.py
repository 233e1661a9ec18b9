"""Inner loop of the engine: jobs of sharing groups, operation by operation, over plain arrays.

`build` creates the functions in two forms from this text: plain Python over lists, or compiled by numba over int64
arrays. All times are integer ns, so both give the same numbers.

Arrays are flat, because each array argument costs the compiled loop time. A job's record starts at its number ·
`WIDTH`, with the fields below. A kind's entry in ``kinds`` is the index of its first operation, their count, and its
duration. An operation's entry in ``ops`` is its start, its plain duration and its duration with INA. ``rests`` has per
operation and one more (of kind k: first + k + operation) the `patterns.Rest` under two assumptions about the rest of a
step: all of it uses INA, and a rule's guess.

At one instant all ends precede all starts; starts follow the order of the group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

KIND: Final = 0
ORIGIN: Final = 1
"""Start of its step."""
OP: Final = 2
MODE: Final = 3
AT: Final = 4
"""End of the current mode."""
LEFT: Final = 5
"""Steps that have not ended."""
BLOCKED: Final = 6
"""Time before which it must not use INA."""
WEIGHT: Final = 7
"""Weight of its gains."""
INA_NS: Final = 8
WITH_INA: Final = 9
REFUSED: Final = 10
HAS_TREE: Final = 11
NEAR: Final = 12
"""Index in ``near`` of the first job with a conflicting tree."""
NEAR_END: Final = 13
WIDTH: Final = 14

WAITS: Final = 0
"""Waits until its next operation may start."""
PLAIN: Final = 1
"""Runs its operation until it ends."""
INA: Final = 2
LEAVING: Final = 3
"""Waits for the end of its last step."""
ENDED: Final = 4
FOREVER: Final = 1 << 60


def build(jit: Callable[[Any], Any]) -> tuple[Any, Any]:
    """``(forward, run)``, each processed by ``jit``."""

    @jit
    def follow(s: int, end: int, jobs: Any, kinds: Any, ops: Any) -> None:
        """An operation of the job with record ``s`` ended: set what it waits for next."""
        k = 3 * jobs[s + KIND]
        if jobs[s + OP] < kinds[k + 1]:
            jobs[s + MODE] = WAITS
            jobs[s + AT] = max(end, jobs[s + ORIGIN] + ops[3 * (kinds[k] + jobs[s + OP])])
            return
        end = max(end, jobs[s + ORIGIN] + kinds[k + 2])
        jobs[s + LEFT] -= 1
        if jobs[s + LEFT] == 0:
            jobs[s + MODE] = LEAVING
            jobs[s + AT] = end
            return
        jobs[s + ORIGIN] = end
        jobs[s + OP] = 0
        jobs[s + MODE] = WAITS
        jobs[s + AT] = end + ops[3 * kinds[k]]

    @jit
    def begin(s: int, uses: bool, jobs: Any, kinds: Any, ops: Any) -> None:
        """Start the job's next operation."""
        o = 3 * (kinds[3 * jobs[s + KIND]] + jobs[s + OP])
        if uses:
            jobs[s + MODE] = INA
            jobs[s + AT] += ops[o + 2]
            jobs[s + INA_NS] += ops[o + 2]
            jobs[s + WITH_INA] += 1
        else:
            jobs[s + MODE] = PLAIN
            jobs[s + AT] += ops[o + 1]

    @jit
    def forward(job: int, until: int, uses: bool, step: int, step_ina: int, jobs: Any, kinds: Any, ops: Any) -> None:
        """Advance an independent job to ``until``, in whole steps. ``step``: the length of one, of which ``step_ina``
        is in operations that use INA."""
        s = WIDTH * job
        while jobs[s + AT] <= until and jobs[s + MODE] != ENDED:
            if jobs[s + MODE] == LEAVING:
                jobs[s + MODE] = ENDED
            elif jobs[s + MODE] == WAITS:
                whole = 0
                if jobs[s + OP] == 0:
                    whole = min((until - jobs[s + ORIGIN]) // step, jobs[s + LEFT] - 1)
                if whole > 0:
                    jobs[s + ORIGIN] += whole * step
                    jobs[s + AT] += whole * step
                    jobs[s + LEFT] -= whole
                    if uses:
                        jobs[s + INA_NS] += whole * step_ina
                        jobs[s + WITH_INA] += whole * kinds[3 * jobs[s + KIND] + 1]
                else:
                    begin(s, uses, jobs, kinds, ops)
            else:
                jobs[s + OP] += 1
                follow(s, jobs[s + AT], jobs, kinds, ops)

    @jit
    def gain(kind: int, index: int, since: int, ops: Any, rests: Any) -> int:
        """Time by which the step gets shorter if the operation at ``index``, which starts ``since`` after the step,
        uses INA; 0 if not at all."""
        o, r = 3 * index, 4 * (index + kind + 1)
        slow = max(since + ops[o + 1] + rests[r + 2], rests[r + 3])
        return int(slow - max(since + ops[o + 2] + rests[r + 2], rests[r + 3]))

    @jit
    def bound(s: int, jobs: Any, kinds: Any, rests: Any) -> int:
        """Lower bound of the job's end, whatever the others do; exact once all is decided."""
        mode = jobs[s + MODE]
        if mode == ENDED:
            return FOREVER
        if mode == LEAVING:
            return int(jobs[s + AT])
        first = kinds[3 * jobs[s + KIND]] + jobs[s + KIND]
        r = 4 * (first + jobs[s + OP] + (0 if mode == WAITS else 1))
        step = max(jobs[s + AT] - jobs[s + ORIGIN] + rests[r], rests[r + 1])
        return int(jobs[s + ORIGIN] + step + (jobs[s + LEFT] - 1) * rests[4 * first + 1])

    @jit
    def admits(
        s: int, low: int, high: int, members: Any, near: Any, jobs: Any, kinds: Any, ops: Any, rests: Any, rule: Any
    ) -> bool:
        """Whether the operation that the job starts now uses INA. ``rule``: capacity, by tree, filters, looks ahead."""
        capacity, by_tree, filters, looks_ahead = rule
        now = jobs[s + AT]
        if capacity == 0 or jobs[s + HAS_TREE] == 0 or jobs[s + BLOCKED] > now:
            return False
        index = kinds[3 * jobs[s + KIND]] + jobs[s + OP]
        mine = 0
        if filters or looks_ahead:
            mine = gain(jobs[s + KIND], index, now - jobs[s + ORIGIN], ops, rests)
            if filters and mine == 0 and high - low > 1:  # a single job delays no other
                return False
        end = now + ops[3 * index + 2]
        mine_rate = mine * jobs[s + WEIGHT] / ops[3 * index + 2]
        if by_tree:
            low, high = jobs[s + NEAR], jobs[s + NEAR_END]
        taken = 0
        for m in range(low, high):
            other = WIDTH * (near[m] if by_tree else members[m])
            if other != s and jobs[other + MODE] == INA:
                taken += 1
        if looks_ahead and taken < capacity:
            for m in range(low, high):
                other = WIDTH * (near[m] if by_tree else members[m])
                if other == s or jobs[other + MODE] >= LEAVING:
                    continue
                kind, theirs = jobs[other + KIND], jobs[other + OP]
                began, begins = jobs[other + ORIGIN], jobs[other + AT]
                if jobs[other + MODE] != WAITS:  # the operation after the one in flight
                    theirs += 1
                    if theirs < kinds[3 * kind + 1]:
                        begins = max(begins, began + ops[3 * (kinds[3 * kind] + theirs)])
                    elif jobs[other + LEFT] == 1:
                        continue
                    else:
                        began = max(begins, began + kinds[3 * kind + 2])
                        theirs = 0
                        begins = began + ops[3 * kinds[3 * kind]]
                if begins >= end or jobs[other + BLOCKED] > begins:
                    continue
                index = kinds[3 * kind] + theirs
                took = begins + ops[3 * index + 2] - now
                if gain(kind, index, begins - began, ops, rests) * jobs[other + WEIGHT] / took > mine_rate:
                    taken += 1
        if taken >= capacity:
            jobs[s + REFUSED] += 1
            return False
        return True

    @jit
    def advance(
        low: int, high: int, until: int, members: Any, near: Any, jobs: Any, kinds: Any, ops: Any, rests: Any, rule: Any
    ) -> int:
        """Advance a group to ``until``, inclusive; returns how many of its jobs ended."""
        ended = 0
        while True:
            s, first = -1, 2 * until + 2
            for m in range(low, high):
                other = WIDTH * members[m]
                due = 2 * jobs[other + AT] + (1 if jobs[other + MODE] == WAITS else 0)
                if due < first and jobs[other + MODE] != ENDED:
                    s, first = other, due
            if s < 0:
                return ended
            if jobs[s + MODE] == WAITS:
                begin(s, admits(s, low, high, members, near, jobs, kinds, ops, rests, rule), jobs, kinds, ops)
            elif jobs[s + MODE] == LEAVING:
                jobs[s + MODE] = ENDED
                ended += 1
            else:
                jobs[s + OP] += 1
                follow(s, jobs[s + AT], jobs, kinds, ops)

    @jit
    def run(
        limit: int, groups: Any, members: Any, near: Any, bounds: Any, jobs: Any, kinds: Any, ops: Any, rests: Any,
        rule: Any,
    ) -> int:  # fmt: skip
        """Run all groups to ``limit``, or to the first earlier time at which a job ends; returns that time.

        Groups are independent, so each advances alone; none passes the time before which no job can end. ``bounds`` is
        scratch space, one entry per group.
        """
        count = len(groups) - 1
        for g in range(count):
            bounds[g] = FOREVER
            for m in range(groups[g], groups[g + 1]):
                bounds[g] = min(bounds[g], bound(WIDTH * members[m], jobs, kinds, rests))
        while True:
            g, soonest = -1, limit
            for each in range(count):
                if bounds[each] < soonest:
                    g, soonest = each, bounds[each]
            if g < 0:
                break
            low, high = groups[g], groups[g + 1]
            if advance(low, high, soonest, members, near, jobs, kinds, ops, rests, rule):
                limit = soonest
                break
            bounds[g] = FOREVER
            for m in range(low, high):
                bounds[g] = min(bounds[g], bound(WIDTH * members[m], jobs, kinds, rests))
        for g in range(count):
            advance(groups[g], groups[g + 1], limit, members, near, jobs, kinds, ops, rests, rule)
        return limit

    return forward, run
