"""Inner loops of NetPack's placement over plain arrays, plain or compiled (see `build`).

Servers of one class (same free GPUs w, same flows f) differ only in value, and a plan of at most g GPUs holds at most
g // w of them: the dynamic program therefore sees only the g // w most valuable of each class, without loss. It goes
through the servers by flows. For each f it keeps the best set with at most the flows before f, and the best with at
least one server of f: V[f, g] is exact, and costs two steps for an item and g instead of one for every f.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np

NONE: Final = -1e300
"""The value of no plan."""
_KEPT: Final = 0
_ADDED: Final = 1
_BEGUN: Final = 2


def build(jit: Callable[[Any], Any]) -> tuple[Any, Any, Any, Any, Any]:
    """``(knapsack, items, table, best_ps, one_server)``, each processed by ``jit``."""

    @jit
    def knapsack(values: Any, weights: Any, room: int) -> Any:
        """By item: whether it is in the most valuable set of weight ``room`` or less."""
        count = len(values)
        width = room // 8 + 1
        best = np.zeros(room + 1)
        bits = np.zeros((count, width), np.uint8)
        for n in range(count):
            weight, value = weights[n], values[n]
            for at in range(room, weight - 1, -1):
                if best[at - weight] + value > best[at]:
                    best[at] = best[at - weight] + value
                    bits[n, at >> 3] |= 1 << (at & 7)
        taken = np.zeros(count, np.uint8)
        at = room
        for n in range(count - 1, -1, -1):
            if bits[n, at >> 3] >> (at & 7) & 1:
                taken[n] = 1
                at -= weights[n]
        return taken

    @jit
    def items(
        servers: Any, free: Any, left: Any, flows: Any, fastest: float, charge: float, most: int, gpus: int
    ) -> tuple[Any, Any]:
        """The servers that the dynamic program needs, by flows, then GPUs, then value, and their values.

        Value of a server (§5.2): bw - (C - bw) / (flows + 1) - ``charge``. ``most``: GPUs of the largest plan;
        ``gpus``: of the largest server. Bandwidths are rounded to 1e-6 Gbit/s, so that equal servers stay equal.
        """
        top = 0
        for s in servers:
            if free[s] > 0:
                top = max(top, int(flows[s] + 0.5))
        classes = (top + 1) * (gpus + 1)
        start = np.zeros(classes + 1, np.int64)
        for s in servers:
            if free[s] > 0:
                start[int(flows[s] + 0.5) * (gpus + 1) + free[s] + 1] += 1
        for n in range(classes):
            start[n + 1] = min(start[n + 1], most // max(1, n % (gpus + 1))) + start[n]
        kept = np.zeros(classes, np.int64)
        found = np.zeros(start[classes], np.int64)
        values = np.zeros(start[classes])
        for s in servers:
            if free[s] <= 0:
                continue
            each = int(flows[s] + 0.5)
            n = each * (gpus + 1) + free[s]
            low, room = start[n], start[n + 1] - start[n]
            if room == 0:
                continue
            bandwidth = np.floor(left[s] * 1e6 + 0.5) / 1e6
            value = bandwidth - (fastest - bandwidth) / (each + 1) - charge
            at = kept[n]
            if at == room:
                if value <= values[low + at - 1]:
                    continue
                at -= 1
            else:
                kept[n] += 1
            while at > 0 and values[low + at - 1] < value:
                found[low + at], values[low + at] = found[low + at - 1], values[low + at - 1]
                at -= 1
            found[low + at], values[low + at] = s, value
        return found, values

    @jit
    def table(found: Any, values: Any, free: Any, flows: Any, wanted: int, most: int) -> tuple[Any, Any, Any]:
        """The dynamic program over `items`: V[f, g] for all f, and g from ``wanted`` to ``most``.

        Returns per plan: its flows f and GPUs g, its value, and its servers, -1 beyond them.
        """
        count = len(found)
        ends = np.zeros(count + 1, np.int64)  # by group of equal flows, from 1: its last item
        groups = 0
        for n in range(count):
            if n == 0 or int(flows[found[n]] + 0.5) != int(flows[found[n - 1]] + 0.5):
                groups += 1
            ends[groups] = n
        below = np.full(most + 1, NONE)  # the best of the groups before
        below[0] = 0.0
        origin = np.zeros((groups + 1, most + 1), np.int64)  # the group of its last server, 0 for the empty set
        here = np.full(most + 1, NONE)  # the best with a server of this group
        step = np.zeros((count, most + 1), np.uint8)
        plans = np.zeros((groups * (most - wanted + 1), 2), np.int64)
        worth = np.zeros(len(plans))
        chosen = np.zeros((len(plans), min(count, most)), np.int64) - 1
        made = 0
        for group in range(1, groups + 1):
            first = ends[group - 1] + 1 if group > 1 else 0
            here[:] = NONE
            for n in range(first, ends[group] + 1):
                weight, value = free[found[n]], values[n]
                for g in range(most, weight - 1, -1):
                    worth_here, how = here[g], _KEPT
                    if here[g - weight] > NONE and here[g - weight] + value > worth_here:
                        worth_here, how = here[g - weight] + value, _ADDED
                    if below[g - weight] > NONE and below[g - weight] + value > worth_here:
                        worth_here, how = below[g - weight] + value, _BEGUN
                    here[g] = worth_here
                    step[n, g] = how
            for g in range(wanted, most + 1):
                if here[g] == NONE:
                    continue
                plans[made, 0], plans[made, 1] = int(flows[found[first]] + 0.5), g
                worth[made] = here[g]
                size, left, at, within = 0, g, ends[group], group
                while left > 0:
                    how = step[at, left]
                    if how != _KEPT:
                        chosen[made, size] = found[at]
                        size += 1
                        left -= free[found[at]]
                    at -= 1
                    if how == _BEGUN:
                        within = origin[within - 1, left]
                        at = ends[within]
                made += 1
            for g in range(most + 1):
                origin[group, g] = origin[group - 1, g]
                if here[g] > below[g]:
                    below[g] = here[g]
                    origin[group, g] = group
        return plans[:made], worth[:made], chosen[:made]

    @jit
    def shares(
        chosen: Any, plan: int, at: int, rack_of: Any, racks: Any, uplinks: Any, up_flows: Any, is_open: Any
    ) -> float:
        """The worst share that a job with these workers, and its PS in rack ``at``, gets of an uplink; §5.2, "In
        Oversubscribed Networks". ``racks``: scratch of zeros, shape [R]."""
        worst, crossing, size = -NONE, 0, 0
        while size < chosen.shape[1] and chosen[plan, size] >= 0:
            racks[rack_of[chosen[plan, size]]] += 1
            size += 1
        for n in range(size):
            rack = rack_of[chosen[plan, n]]
            if racks[rack] > 0 and rack != at:
                entering = 1 if is_open[rack] else racks[rack]
                crossing += entering
                worst = min(worst, uplinks[rack] / (up_flows[rack] + entering))
            racks[rack] = 0
        if crossing > 0:
            worst = min(worst, uplinks[at] / (up_flows[at] + crossing))
        return worst

    @jit
    def best_ps(
        plans: Any, worth: Any, chosen: Any, servers: Any, rack_of: Any, left: Any, flows: Any, fastest: float,
        uplinks: Any, up_flows: Any, is_open: Any, own: int,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Step 3: the PS of each plan by equation 1, and the plan's score with it.

        V + bw - (C - bw) / (flows + e + 1) + min(C / (f_max + 1), worst share of an uplink), with e = ``own`` on a
        worker's server (0 in the paper) and 1 elsewhere. Servers outside all plans count once per rack and number of
        flows: the one with most bandwidth.
        """
        total, racks = len(left), len(uplinks)
        mark = np.zeros(total, np.int64)
        union = np.zeros(total, np.int64)
        inside, top = 0, 0
        for p in range(len(plans)):
            for n in range(chosen.shape[1]):
                s = chosen[p, n]
                if s < 0:
                    break
                if mark[s] == 0:
                    mark[s] = -1
                    union[inside] = s
                    inside += 1
        for s in servers:
            top = max(top, int(flows[s] + 0.5))
        best = np.full((racks, top + 1), NONE)
        who = np.zeros((racks, top + 1), np.int64) - 1
        for s in servers:
            if mark[s] == 0:
                each = int(flows[s] + 0.5)
                bandwidth = np.floor(left[s] * 1e6 + 0.5) / 1e6
                if bandwidth > best[rack_of[s], each]:
                    best[rack_of[s], each] = bandwidth
                    who[rack_of[s], each] = s
        scratch = np.zeros(racks, np.int64)
        share = np.zeros(racks)
        scores = np.full(len(plans), NONE)
        ps = np.zeros(len(plans), np.int64) - 1
        for p in range(len(plans)):
            for rack in range(racks):
                share[rack] = shares(chosen, p, rack, rack_of, scratch, uplinks, up_flows, is_open)
            for n in range(chosen.shape[1]):
                if chosen[p, n] < 0:
                    break
                mark[chosen[p, n]] = p + 1
            for n in range(inside):
                s = union[n]
                beside = own if mark[s] == p + 1 else 1
                each = int(flows[s] + 0.5)
                bandwidth = np.floor(left[s] * 1e6 + 0.5) / 1e6
                hottest = max(plans[p, 0], each + beside)
                score = worth[p] + bandwidth - (fastest - bandwidth) / (each + beside + 1)
                score += min(fastest / (hottest + 1), share[rack_of[s]])
                if score > scores[p]:
                    scores[p], ps[p] = score, s
            for rack in range(racks):
                for each in range(top + 1):
                    if who[rack, each] < 0:
                        continue
                    hottest = max(plans[p, 0], each + 1)
                    score = worth[p] + best[rack, each] - (fastest - best[rack, each]) / (each + 2)
                    score += min(fastest / (hottest + 1), share[rack])
                    if score > scores[p]:
                        scores[p], ps[p] = score, who[rack, each]
        return scores, ps

    @jit
    def one_server(free: Any, flows: Any, allowed: Any, gpus: int) -> int:
        """The server that ``gpus`` fill best; of equal ones that with the most flows, which is worth least to jobs that
        span servers; then the first. -1: none has room."""
        best = -1
        for s in range(len(free)):
            if free[s] < gpus or not allowed[s]:
                continue
            if best < 0 or free[s] < free[best] or (free[s] == free[best] and flows[s] > flows[best] + 0.5):
                best = s
        return best

    return knapsack, items, table, best_ps, one_server


@cache
def kernels(compiled: bool) -> tuple[Any, Any, Any, Any, Any]:
    """The functions of `build`, compiled or plain."""
    if not compiled:
        return build(lambda function: function)
    import numba

    try:
        return build(numba.njit(cache=True))  # cached beside the source or in the user's cache
    except RuntimeError:  # neither is writable
        return build(numba.njit)
