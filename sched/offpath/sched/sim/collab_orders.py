"""The orders of the built-in policies, over arrays: a part of `collab_kernel`. `plan` is algorithm 1, as in `irs`."""

from __future__ import annotations

from typing import Any

from offpath.sched.sim import collab_columns as k


def weigh(state: Any, jobs: Any, groups: Any, lattice: Any, keys: Any) -> None:
    """What jobs are sorted by."""
    state[k.IS_STALE] = 0
    order = state[k.ORDER]
    groups[k.G_QUEUE] = 0
    for job in range(len(jobs)):
        if jobs[job, k.J_TOLD] > 0:
            groups[k.G_QUEUE, jobs[job, k.J_BIT]] += 1
    for job in range(len(jobs)):
        if order == k.BY_ARRIVAL:
            keys[job] = 0.0
        elif order == k.BY_RANK:
            keys[job] = float(jobs[job, k.J_RANK])
        elif order == k.BY_SCARCITY:
            bit = jobs[job, k.J_BIT]
            whole = float(jobs[job, k.J_DEMAND] + jobs[job, k.J_LATER])
            keys[job] = whole * max(1, groups[k.G_SIZE, bit]) / max(1, groups[k.G_QUEUE, bit])
        else:
            keys[job] = float(jobs[job, k.J_TOLD] + jobs[job, k.J_LATER])
    if order == k.BY_OWNER:
        plan(groups, lattice)


def choose(atom: int, state: Any, candidates: Any, jobs: Any, groups: Any, lattice: Any, keys: Any) -> None:
    """The atom's candidates, up to the first one that takes any device."""
    at, last, is_owned = 0, k.NOBODY, state[k.ORDER] == k.BY_OWNER
    while True:
        best = k.NOBODY
        for job in range(len(jobs)):
            if jobs[job, k.J_TOLD] <= 0 or not lattice[k.A_ABLE + jobs[job, k.J_BIT], atom]:
                continue
            if last != k.NOBODY and not precedes(last, job, atom, is_owned, jobs, groups, lattice, keys):
                continue
            if best == k.NOBODY or precedes(job, best, atom, is_owned, jobs, groups, lattice, keys):
                best = job
        candidates[atom, at] = best
        if best == k.NOBODY:
            return
        at += 1
        if not jobs[best, k.J_HAS_TIER]:
            candidates[atom, at] = k.NOBODY
            return
        last = best


def precedes(a: int, b: int, atom: int, is_owned: bool, jobs: Any, groups: Any, lattice: Any, keys: Any) -> bool:
    """Job ``a`` comes before job ``b``. The owner of the atom comes first, then the scarcest group."""
    if is_owned and jobs[a, k.J_BIT] != jobs[b, k.J_BIT]:
        first, second = groups[k.G_PLACE, jobs[a, k.J_BIT]], groups[k.G_PLACE, jobs[b, k.J_BIT]]
        owner = lattice[k.A_OWNER, atom]
        return bool(first == owner or (second != owner and first < second))
    if keys[a] != keys[b]:
        return bool(keys[a] < keys[b])
    return bool(jobs[a, k.J_TIE] < jobs[b, k.J_TIE])


def plan(groups: Any, lattice: Any) -> None:
    """Algorithm 1, see `irs`: orders groups, and gives each atom an owner."""
    count = 0
    for bit in range(lattice.shape[0] - k.A_ABLE):
        if not groups[k.G_QUEUE, bit]:
            continue
        at = count
        while at > 0 and groups[k.G_SIZE, groups[k.G_BIT, at - 1]] > groups[k.G_SIZE, bit]:
            groups[k.G_BIT, at] = groups[k.G_BIT, at - 1]
            at -= 1
        groups[k.G_BIT, at] = bit
        count += 1
    for place in range(count):
        groups[k.G_PLACE, groups[k.G_BIT, place]] = place
        groups[k.G_SHARE, place] = 0
    for atom in range(lattice.shape[1]):
        lattice[k.A_OWNER, atom] = count
        for place in range(count):
            if lattice[k.A_ABLE + groups[k.G_BIT, place], atom]:
                lattice[k.A_OWNER, atom] = place
                groups[k.G_SHARE, place] += lattice[k.A_SUPPLY, atom]
                break
    for place in range(count - 1, -1, -1):
        if groups[k.G_SHARE, place]:
            take_turn(place, groups, lattice)


def take_turn(place: int, groups: Any, lattice: Any) -> None:
    """Lines 12 to 21: a group takes intersections from scarcer ones."""
    able = k.A_ABLE + groups[k.G_BIT, place]
    groups[k.G_INSIDE] = 0
    groups[k.G_IS_TAKEN] = 0
    for atom in range(lattice.shape[1]):
        if lattice[able, atom]:
            groups[k.G_INSIDE, lattice[k.A_OWNER, atom]] += lattice[k.A_SUPPLY, atom]
    share, size = groups[k.G_SHARE, place], groups[k.G_SIZE, groups[k.G_BIT, place]]
    queue = groups[k.G_QUEUE, groups[k.G_BIT, place]]
    for giver in range(place - 1, -1, -1):
        both, bit = groups[k.G_INSIDE, giver], groups[k.G_BIT, giver]
        if not both or groups[k.G_SIZE, bit] == size:
            continue
        if queue * groups[k.G_SHARE, giver] <= groups[k.G_QUEUE, bit] * share:
            break
        groups[k.G_IS_TAKEN, giver] = 1
        groups[k.G_SHARE, giver] -= both
        share += both
        queue += groups[k.G_QUEUE, bit]
    groups[k.G_SHARE, place] = share
    for atom in range(lattice.shape[1]):
        if lattice[able, atom] and groups[k.G_IS_TAKEN, lattice[k.A_OWNER, atom]]:
            lattice[k.A_OWNER, atom] = place
