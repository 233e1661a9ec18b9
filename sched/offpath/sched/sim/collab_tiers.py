"""Tiers of simulated requests, over arrays: a part of `collab_kernel`. Jobs learn as by `tiers.Profile`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from offpath.sched.collab.tiers import LEAST_SAMPLES, MOST_SAMPLES, TAIL
from offpath.sched.sim import collab_columns as k


def learn(
    job: int, first: int, assigned: int, now: int, jobs: Any, leases: Any, places: Any, samples: Any, logs: Any,
    bins: Any, cuts: Any,
) -> None:  # fmt: skip
    """From the answers that came, in their order. The last `MOST_SAMPLES` are kept."""
    answers = leases[k.L_ANSWER_NS, first : first + assigned]
    for each in np.argsort(answers, kind="mergesort"):
        if answers[each] > now:
            break
        at = jobs[job, k.J_SAMPLES] % MOST_SAMPLES
        if jobs[job, k.J_SAMPLES] >= MOST_SAMPLES:
            bins[job, samples[job, k.S_SPEED, at]] -= 1
        speed = places[jobs[job, k.J_SPEED], leases[k.L_KIND, first + each]]
        bins[job, speed] += 1
        logs[job, at] = math.log(answers[each] - leases[k.L_BEGAN_NS, first + each])
        samples[job, k.S_SPEED, at] = speed
        samples[job, k.S_RESPONSE_NS, at] = answers[each] - leases[k.L_BEGAN_NS, first + each]
        jobs[job, k.J_SAMPLES] += 1
    count = min(jobs[job, k.J_SAMPLES], MOST_SAMPLES)
    jobs[job, k.J_IS_LEARNT] = is_learnt(count, jobs[job, k.J_TIERS], bins[job], cuts[job])


def is_learnt(count: int, tiers: int, found: Any, cuts: Any) -> bool:
    """Each tier has enough samples, see `Profile.tiers`. ``found``: the number of samples by speed. ``cuts``: gets by
    tier the number of samples below it, and its least speed's place."""
    if count < LEAST_SAMPLES * tiers:
        return False
    speed = slower = 0
    for tier in range(1, tiers):
        bound = round(count / tiers * tier)
        while slower + found[speed] <= bound:
            slower += found[speed]
            speed += 1
        cuts[k.C_BELOW, tier] = slower
        cuts[k.C_SPEED, tier] = speed
    cuts[k.C_BELOW, tiers] = count
    return bool(np.diff(cuts[k.C_BELOW, : tiers + 1]).min() >= LEAST_SAMPLES)


def by_speed(count: int, some: Any, found: Any, ordered_ns: Any) -> None:
    """Fill ``ordered_ns`` with ``count`` responses ever learnt, the slowest device's first, the oldest first of equal
    ones. ``some``: of `samples`, the job's; ``found``: as of `is_learnt`."""
    ends = np.cumsum(found)
    for each in range(min(count, MOST_SAMPLES)):
        at = (count - 1 - each) % MOST_SAMPLES
        speed = some[k.S_SPEED, at]
        ends[speed] -= 1
        ordered_ns[ends[speed]] = some[k.S_RESPONSE_NS, at]


def may_gain(job: int, jobs: Any, samples: Any, logs: Any, cuts: Any) -> bool:
    """A tier may be worth it (`tiers.is_worth`). False: none is, by more than the error of the speed-ups here."""
    response_ns, schedule_ns = jobs[job, k.J_RESPONSE_NS], jobs[job, k.J_SCHEDULE_NS]
    if response_ns >= k.EXACT or schedule_ns >= k.EXACT:
        return True
    tiers, ratio = jobs[job, k.J_TIERS], math.inf
    if schedule_ns > 0:
        ratio = response_ns / schedule_ns
        if tiers >= ratio + 1 + k.ERROR * ratio:
            return False  # whatever the speed-up
    count = min(jobs[job, k.J_SAMPLES], MOST_SAMPLES)
    least = least_speedup(count, tiers, samples[job], logs[job], cuts[job])
    return bool(least * (1 - k.ERROR) < 1 - (tiers - 1) / ratio)


def least_speedup(count: int, tiers: int, some: Any, logs: Any, cuts: Any) -> float:
    """The least g of all tiers, nearly: sums are in another order than in `tiers`. ``logs``: of responses, any unit."""
    sums, squares, of = np.zeros(tiers), np.zeros(tiers), np.zeros(count, np.int64)
    for each in range(count):
        tier = 0
        while tier + 1 < tiers and cuts[k.C_SPEED, tier + 1] <= some[k.S_SPEED, each]:
            tier += 1
        of[each] = tier
        sums[tier] += logs[each]
    mean, square = sums.sum() / count, 0.0
    for tier in range(tiers):
        sums[tier] /= cuts[k.C_BELOW, tier + 1] - cuts[k.C_BELOW, tier]
    for each in range(count):
        squares[of[each]] += (logs[each] - sums[of[each]]) ** 2
        square += (logs[each] - mean) ** 2
    least, whole = math.inf, mean + TAIL * math.sqrt(square / count)
    for tier in range(tiers):
        size = cuts[k.C_BELOW, tier + 1] - cuts[k.C_BELOW, tier]
        least = min(least, math.exp(sums[tier] + TAIL * math.sqrt(squares[tier] / size) - whole))
    return least
