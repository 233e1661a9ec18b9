"""The inner loops of `CollabSimulation` and `FastSimulation` over arrays, plain or compiled (see `kernels`).

Check-ins are taken one by one up to the first thing that Python has to deal with. Between two changes an atom has the
same candidates, in which the first one that takes the device's speed class gets it. `serve` has the candidates from
Python, which also ends rounds and asks for new ones. `forward` does all this itself; it knows the orders of the
built-in policies.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any, Final

import numpy as np

from offpath.sched.collab.tiers import LEAST_SAMPLES, MOST_SAMPLES, TAIL
from offpath.sched.sim import collab_columns
from offpath.sched.sim.collab_columns import (
    EVENT, FILLED, SUPPLY, ATOM, ASK, ARRIVAL, ROUND, POSITION, LEFT, COUNTED, FORCED, NEXT_NS, JOB, ATOM_OF, TOUCHED, IS_STALE, ASKED, DRAWS, ORDER, HAS_TIERS, IS_WATCHED, STATE, BY_ARRIVAL, BY_REMAINING, BY_RANK, BY_SCARCITY, BY_OWNER, NOBODY, OPEN, UNKNOWN, J_DEMAND, J_REMAINING, J_WORK, J_ANSWERS_AT, J_DEADLINE_NS, J_ENOUGH_NS, J_ROUND, J_SPEED, J_LEAST_SPEED, J_BELOW_SPEED, J_IS_TOUCHED, J_FIRST, J_HEAP, J_HEAP_SIZE, J_WIDTH, NO_ROUND, J_TOLD, J_LATER, J_RANK, J_BIT, J_TIE, J_LASTS_NS, J_LAST_ROUND, J_SUBMITTED_NS, J_FILLED_NS, J_ROUNDS, J_WANTED, J_ROUNDS_KNOWN, J_TIERS, J_HAS_TIER, J_SAMPLES, J_IS_LEARNT, J_DONE, J_IS_COMPLETE, J_ASSIGNED, J_WASTED, J_ABORTED, J_SCHEDULE_NS, J_RESPONSE_NS, J_LONG_WIDTH, G_SIZE, G_QUEUE, G_PLACE, G_BIT, G_SHARE, G_INSIDE, G_IS_TAKEN, G_HEIGHT, A_SUPPLY, A_OWNER, A_ABLE, S_SPEED, S_RESPONSE_NS, S_HEIGHT, C_BELOW, C_SPEED, EXACT, ERROR, RANKS, L_BEGAN_NS, L_ANSWER_NS, L_KIND, L_HEIGHT, D_KIND, D_UNIT_NS, D_NETWORK_NS, D_WORKED, D_FREE_NS, D_HELD_BY, D_HELD_ROUND, D_WIDTH
)
from offpath.sched.sim.collab_records import NEVER


def next_event(jobs: Any, arrival_ns: int) -> tuple[int, int]:
    """When the next round ends or job comes, and the number of the round's job, -1: a job comes."""
    next_ns, who = arrival_ns, -1
    for job in range(len(jobs)):
        end = min(jobs[job, J_ENOUGH_NS], jobs[job, J_DEADLINE_NS])
        if end < next_ns:
            next_ns, who = end, job
    return next_ns, who


def is_away(d: int, now: int, day: int, devices: Any, jobs: Any) -> bool:
    """The device has worked today, or works still."""
    if devices[d, D_WORKED] == day:
        return True
    return devices[d, D_FREE_NS] > now and devices[d, D_HELD_ROUND] == jobs[devices[d, D_HELD_BY], J_ROUND]


def taker_of(kind: int, atom: int, candidates: Any, speeds: Any, jobs: Any) -> int:
    """The job that gets a device, or `NOBODY`."""
    for place in range(candidates.shape[1]):
        taker = candidates[atom, place]
        if taker < 0:
            break
        if jobs[taker, J_LEAST_SPEED] <= speeds[jobs[taker, J_SPEED], kind] < jobs[taker, J_BELOW_SPEED]:
            return taker
    return NOBODY


def touch(job: int, state: Any, jobs: Any, touched: Any) -> None:
    """What remains of its request has changed."""
    if not jobs[job, J_IS_TOUCHED]:
        jobs[job, J_IS_TOUCHED] = 1
        touched[state[TOUCHED]] = job
        state[TOUCHED] += 1


def assign(
    taker: int, d: int, now: int, end_ns: int, day: int, state: Any, devices: Any, jobs: Any, leases: Any, heap: Any,
    touched: Any,
) -> None:  # fmt: skip
    """The job gets the device, whose session lasts until ``end_ns``."""
    answer = now + jobs[taker, J_WORK] * devices[d, D_UNIT_NS] + devices[d, D_NETWORK_NS]
    if answer > end_ns:
        answer = NEVER
    devices[d, D_WORKED] = day
    devices[d, D_FREE_NS] = answer
    devices[d, D_HELD_BY] = taker
    devices[d, D_HELD_ROUND] = jobs[taker, J_ROUND]
    place = jobs[taker, J_FIRST] + jobs[taker, J_DEMAND] - jobs[taker, J_REMAINING]
    leases[L_BEGAN_NS, place] = now
    leases[L_ANSWER_NS, place] = answer
    leases[L_KIND, place] = devices[d, D_KIND]
    jobs[taker, J_REMAINING] -= 1
    touch(taker, state, jobs, touched)
    if answer < NEVER:
        expect(taker, answer, jobs, heap)


def expect(job: int, answer: int, jobs: Any, heap: Any) -> None:
    """Keep the answer if it is among the first ones that end the round. The latest of these is on top."""
    most, first, size = jobs[job, J_ANSWERS_AT], jobs[job, J_HEAP], jobs[job, J_HEAP_SIZE]
    if size < most:  # from the bottom up
        at = size
        while at > 0 and heap[first + (at - 1) // 2] < answer:
            heap[first + at] = heap[first + (at - 1) // 2]
            at = (at - 1) // 2
        heap[first + at] = answer
        size += 1
        jobs[job, J_HEAP_SIZE] = size
    elif answer < heap[first]:  # instead of the latest, from the top down
        at = 0
        while 2 * at + 1 < size:
            below = 2 * at + 1
            if below + 1 < size and heap[first + below + 1] > heap[first + below]:
                below += 1
            if heap[first + below] <= answer:
                break
            heap[first + at] = heap[first + below]
            at = below
        heap[first + at] = answer
    if size == most:
        jobs[job, J_ENOUGH_NS] = heap[first]


def serve(
    state: Any, times: Any, device: Any, ends: Any, day: int, hour_end_ns: int, arrival_ns: int, is_steady: bool,
    candidates: Any, atoms: Any, speeds: Any, counts: Any, devices: Any, jobs: Any, leases: Any, heap: Any,
    touched: Any,
) -> int:  # fmt: skip
    """Take check-ins from the state's position on. Returns why it stopped."""
    next_ns, who = next_event(jobs, arrival_ns)
    i, left = state[POSITION], state[LEFT]
    code = EVENT
    while i < len(times):
        now, d = times[i], device[i]
        if now >= next_ns:
            break
        if is_away(d, now, day, devices, jobs):
            i += 1
            continue
        kind = devices[d, D_KIND]
        if i != state[COUNTED]:
            if left <= 1 or now >= hour_end_ns:
                code = SUPPLY
                break
            counts[kind] += 1
            left -= 1
            state[COUNTED] = i
        taker = NOBODY
        if state[FORCED] != OPEN:
            taker = state[FORCED]
            state[FORCED] = OPEN
        elif not is_steady:
            code = ASK
            break
        elif candidates[atoms[kind], 0] == UNKNOWN:
            state[ATOM_OF] = atoms[kind]
            code = ATOM
            break
        else:
            taker = taker_of(kind, atoms[kind], candidates, speeds, jobs)
        i += 1
        if taker < 0:
            continue
        assign(taker, d, now, ends[i - 1], day, state, devices, jobs, leases, heap, touched)
        if jobs[taker, J_ENOUGH_NS] < next_ns or (jobs[taker, J_ENOUGH_NS] == next_ns and taker < who):
            next_ns, who = jobs[taker, J_ENOUGH_NS], taker
        if jobs[taker, J_REMAINING] == 0:
            state[JOB] = taker
            code = FILLED
            break
    state[POSITION], state[LEFT] = i, left
    if code == EVENT:
        state[NEXT_NS], state[JOB] = next_ns, who
    return code


def tally(jobs: Any, leases: Any, job: int, now_ns: int, last_ns: int) -> tuple[int, int]:
    """Of a round that ends: answers up to ``last_ns``, and the time of its devices divided by the demand, ns."""
    done = served = 0
    first, demand = jobs[job, J_FIRST], jobs[job, J_DEMAND]
    for place in range(first, first + demand - jobs[job, J_REMAINING]):
        if leases[L_ANSWER_NS, place] <= last_ns:
            done += 1
        served += (min(leases[L_ANSWER_NS, place], now_ns) - leases[L_BEGAN_NS, place]) // demand
    return done, served


def forward(
    state: Any, times: Any, device: Any, ends: Any, day: int, hour_end_ns: int, arrival_ns: int, end_ns: int,
    candidates: Any, atoms: Any, speeds: Any, places: Any, counts: Any, devices: Any, jobs: Any, leases: Any,
    heap: Any, touched: Any, draws: Any, groups: Any, lattice: Any, keys: Any, samples: Any, logs: Any,
    bins: Any, cuts: Any,
) -> int:  # fmt: skip
    """Take check-ins from the state's position on, end rounds and begin the next ones. Returns why it stopped: `EVENT`
    at ``end_ns``, `SUPPLY`, `ARRIVAL` or `ROUND`.

    ``draws``: below what a number was drawn that nobody needs; Python makes up for them, in this order. ``places``: of
    `speeds` among all speeds. ``lattice``: atoms. ``keys``: of jobs. ``logs``: of the samples' responses. ```bins``: by job and speed the number of samples. ``cuts``: by job, see `is_learnt`.
    """
    if state[ASKED] != NOBODY:
        begin(state[ASKED], state[NEXT_NS], state, candidates, jobs, touched)
        state[ASKED] = NOBODY
    next_ns, who = next_event(jobs, arrival_ns)
    i, left = state[POSITION], state[LEFT]
    while True:
        if i == len(times) or times[i] >= next_ns:
            if next_ns >= end_ns:
                code = EVENT
                break
            if who < 0:
                code = ARRIVAL
                break
            finish(who, next_ns, state, candidates, jobs, leases, touched, places, samples, logs, bins, cuts)
            if not is_repeated(who, state, jobs, draws, samples, logs, cuts):
                code = ROUND
                break
            begin(who, next_ns, state, candidates, jobs, touched)
            next_ns, who = next_event(jobs, arrival_ns)
            continue
        now, d = times[i], device[i]
        if is_away(d, now, day, devices, jobs):
            i += 1
            continue
        kind = devices[d, D_KIND]
        if i != state[COUNTED]:
            if left <= 1 or now >= hour_end_ns:
                code = SUPPLY
                break
            counts[kind] += 1
            left -= 1
            state[COUNTED] = i
        atom = atoms[kind]
        if candidates[atom, 0] == UNKNOWN:
            if state[IS_STALE]:
                weigh(state, jobs, groups, lattice, keys)
            choose(atom, state, candidates, jobs, groups, lattice, keys)
        taker = taker_of(kind, atom, candidates, speeds, jobs)
        i += 1
        if taker < 0:
            continue
        assign(taker, d, now, ends[i - 1], day, state, devices, jobs, leases, heap, touched)
        if jobs[taker, J_ENOUGH_NS] < next_ns or (jobs[taker, J_ENOUGH_NS] == next_ns and taker < who):
            next_ns, who = jobs[taker, J_ENOUGH_NS], taker
        if jobs[taker, J_REMAINING] == 0:
            jobs[taker, J_FILLED_NS] = now
            tell(state, candidates, jobs, touched)
    state[POSITION], state[LEFT], state[NEXT_NS], state[JOB] = i, left, next_ns, who
    return code


def tell(state: Any, candidates: Any, jobs: Any, touched: Any) -> None:
    """The policy learns what remains of each request; all candidates are unknown then."""
    for each in range(state[TOUCHED]):
        job = touched[each]
        jobs[job, J_TOLD] = jobs[job, J_REMAINING]
        jobs[job, J_IS_TOUCHED] = 0
    state[TOUCHED] = 0
    state[IS_STALE] = 1
    candidates[:, 0] = UNKNOWN


def begin(job: int, now: int, state: Any, candidates: Any, jobs: Any, touched: Any) -> None:
    """The job asks for the devices of its next round. Its tier and rank are known."""
    jobs[job, J_REMAINING] = jobs[job, J_DEMAND]
    later = jobs[job, J_ROUNDS_KNOWN] - jobs[job, J_ROUNDS] - 1
    jobs[job, J_LATER] = max(0, later) * jobs[job, J_DEMAND]
    jobs[job, J_SUBMITTED_NS] = now
    jobs[job, J_FILLED_NS] = -1
    jobs[job, J_DEADLINE_NS] = now + jobs[job, J_LASTS_NS]
    jobs[job, J_LAST_ROUND] += 1
    jobs[job, J_ROUND] = jobs[job, J_LAST_ROUND]
    touch(job, state, jobs, touched)
    tell(state, candidates, jobs, touched)


def finish(
    job: int, now: int, state: Any, candidates: Any, jobs: Any, leases: Any, touched: Any, places: Any, samples: Any,
    logs: Any, bins: Any, cuts: Any,
) -> None:  # fmt: skip
    """The round is complete, or its deadline has come."""
    is_complete = jobs[job, J_ENOUGH_NS] < jobs[job, J_DEADLINE_NS]
    first = jobs[job, J_FIRST]
    assigned = jobs[job, J_DEMAND] - jobs[job, J_REMAINING]
    last, done = now if is_complete else now - 1, 0
    for place in range(first, first + assigned):
        done += leases[L_ANSWER_NS, place] <= last
    if state[HAS_TIERS] and jobs[job, J_TIERS] and not jobs[job, J_HAS_TIER]:
        learn(job, first, assigned, now, jobs, leases, places, samples, logs, bins, cuts)
    jobs[job, J_DONE] = done
    jobs[job, J_IS_COMPLETE] = is_complete
    jobs[job, J_ASSIGNED] += assigned
    jobs[job, J_WASTED] += assigned - done if is_complete else assigned
    if is_complete:
        filled = jobs[job, J_FILLED_NS] if jobs[job, J_FILLED_NS] >= 0 else now
        jobs[job, J_ROUNDS] += 1
        jobs[job, J_SCHEDULE_NS] += filled - jobs[job, J_SUBMITTED_NS]
        jobs[job, J_RESPONSE_NS] += now - filled
    else:
        jobs[job, J_ABORTED] += 1
    jobs[job, J_REMAINING] = jobs[job, J_HEAP_SIZE] = 0
    jobs[job, J_DEADLINE_NS] = jobs[job, J_ENOUGH_NS] = NEVER
    jobs[job, J_ROUND] = NO_ROUND
    touch(job, state, jobs, touched)
    tell(state, candidates, jobs, touched)


def learn(
    job: int, first: int, assigned: int, now: int, jobs: Any, leases: Any, places: Any, samples: Any, logs: Any,
    bins: Any, cuts: Any,
) -> None:  # fmt: skip
    """From the answers that came, in their order. The last `MOST_SAMPLES` are kept."""
    answers = leases[L_ANSWER_NS, first : first + assigned]
    for each in np.argsort(answers, kind="mergesort"):
        if answers[each] > now:
            break
        at = jobs[job, J_SAMPLES] % MOST_SAMPLES
        if jobs[job, J_SAMPLES] >= MOST_SAMPLES:
            bins[job, samples[job, S_SPEED, at]] -= 1
        speed = places[jobs[job, J_SPEED], leases[L_KIND, first + each]]
        bins[job, speed] += 1
        logs[job, at] = math.log(answers[each] - leases[L_BEGAN_NS, first + each])
        samples[job, S_SPEED, at] = speed
        samples[job, S_RESPONSE_NS, at] = answers[each] - leases[L_BEGAN_NS, first + each]
        jobs[job, J_SAMPLES] += 1
    jobs[job, J_IS_LEARNT] = is_learnt(min(jobs[job, J_SAMPLES], MOST_SAMPLES), jobs[job, J_TIERS], bins[job], cuts[job])


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
        cuts[C_BELOW, tier] = slower
        cuts[C_SPEED, tier] = speed
    cuts[C_BELOW, tiers] = count
    for tier in range(tiers):
        if cuts[C_BELOW, tier + 1] - cuts[C_BELOW, tier] < LEAST_SAMPLES:
            return False
    return True


def by_speed(count: int, some: Any, found: Any, ordered_ns: Any) -> None:
    """Fill ``ordered_ns`` with ``count`` responses ever learnt, the slowest device's first, the oldest first of equal
    ones. ``some``: of `samples`, the job's; ``found``: as of `is_learnt`."""
    ends = np.cumsum(found)
    for each in range(min(count, MOST_SAMPLES)):
        at = (count - 1 - each) % MOST_SAMPLES
        speed = some[S_SPEED, at]
        ends[speed] -= 1
        ordered_ns[ends[speed]] = some[S_RESPONSE_NS, at]


def is_repeated(job: int, state: Any, jobs: Any, draws: Any, samples: Any, logs: Any, cuts: Any) -> bool:
    """The job's next round needs nothing of Python: draws that do not matter are noted. False: nothing has changed."""
    if state[IS_WATCHED] or state[ORDER] == BY_RANK or jobs[job, J_ROUNDS] == jobs[job, J_WANTED]:
        return False
    count = state[DRAWS]
    if count + 2 > len(draws):
        return False
    draws[count] = RANKS
    count += 1
    if state[HAS_TIERS] and jobs[job, J_TIERS] and jobs[job, J_ROUNDS] and jobs[job, J_IS_LEARNT]:
        if may_gain(job, jobs, samples, logs, cuts):
            return False
        draws[count] = jobs[job, J_TIERS]
        count += 1
    state[DRAWS] = count
    jobs[job, J_LEAST_SPEED] = -NEVER
    jobs[job, J_BELOW_SPEED] = NEVER
    jobs[job, J_HAS_TIER] = 0
    return True


def may_gain(job: int, jobs: Any, samples: Any, logs: Any, cuts: Any) -> bool:
    """A tier may be worth it (`tiers.is_worth`). False: none is, by more than the error of the speed-ups here."""
    response_ns, schedule_ns = jobs[job, J_RESPONSE_NS], jobs[job, J_SCHEDULE_NS]
    if response_ns >= EXACT or schedule_ns >= EXACT:
        return True
    tiers, ratio = jobs[job, J_TIERS], math.inf
    if schedule_ns > 0:
        ratio = response_ns / schedule_ns
        if tiers >= ratio + 1 + ERROR * ratio:
            return False  # whatever the speed-up
    count = min(jobs[job, J_SAMPLES], MOST_SAMPLES)
    least = least_speedup(count, tiers, samples[job], logs[job], cuts[job])
    return least * (1 - ERROR) < 1 - (tiers - 1) / ratio


def least_speedup(count: int, tiers: int, some: Any, logs: Any, cuts: Any) -> float:
    """The least g of all tiers, nearly: sums are in another order than in `tiers`. ``logs``: of responses in any unit."""
    sums, squares, of = np.zeros(tiers), np.zeros(tiers), np.zeros(count, np.int64)
    for each in range(count):
        tier = 0
        while tier + 1 < tiers and cuts[C_SPEED, tier + 1] <= some[S_SPEED, each]:
            tier += 1
        of[each] = tier
        sums[tier] += logs[each]
    mean, square = sums.sum() / count, 0.0
    for tier in range(tiers):
        sums[tier] /= cuts[C_BELOW, tier + 1] - cuts[C_BELOW, tier]
    for each in range(count):
        squares[of[each]] += (logs[each] - sums[of[each]]) ** 2
        square += (logs[each] - mean) ** 2
    least, whole = math.inf, mean + TAIL * math.sqrt(square / count)
    for tier in range(tiers):
        size = cuts[C_BELOW, tier + 1] - cuts[C_BELOW, tier]
        least = min(least, math.exp(sums[tier] + TAIL * math.sqrt(squares[tier] / size) - whole))
    return least


def weigh(state: Any, jobs: Any, groups: Any, lattice: Any, keys: Any) -> None:
    """What jobs are sorted by."""
    state[IS_STALE] = 0
    order = state[ORDER]
    groups[G_QUEUE] = 0
    for job in range(len(jobs)):
        if jobs[job, J_TOLD] > 0:
            groups[G_QUEUE, jobs[job, J_BIT]] += 1
    for job in range(len(jobs)):
        if order == BY_ARRIVAL:
            keys[job] = 0.0
        elif order == BY_RANK:
            keys[job] = float(jobs[job, J_RANK])
        elif order == BY_SCARCITY:
            bit = jobs[job, J_BIT]
            whole = float(jobs[job, J_DEMAND] + jobs[job, J_LATER])
            keys[job] = whole * max(1, groups[G_SIZE, bit]) / max(1, groups[G_QUEUE, bit])
        else:
            keys[job] = float(jobs[job, J_TOLD] + jobs[job, J_LATER])
    if order == BY_OWNER:
        plan(groups, lattice)


def choose(atom: int, state: Any, candidates: Any, jobs: Any, groups: Any, lattice: Any, keys: Any) -> None:
    """The atom's candidates, up to the first one that takes any device."""
    at, last, is_owned = 0, NOBODY, state[ORDER] == BY_OWNER
    while True:
        best = NOBODY
        for job in range(len(jobs)):
            if jobs[job, J_TOLD] <= 0 or not lattice[A_ABLE + jobs[job, J_BIT], atom]:
                continue
            if last != NOBODY and not precedes(last, job, atom, is_owned, jobs, groups, lattice, keys):
                continue
            if best == NOBODY or precedes(job, best, atom, is_owned, jobs, groups, lattice, keys):
                best = job
        candidates[atom, at] = best
        if best == NOBODY:
            return
        at += 1
        if not jobs[best, J_HAS_TIER]:
            candidates[atom, at] = NOBODY
            return
        last = best


def precedes(a: int, b: int, atom: int, is_owned: bool, jobs: Any, groups: Any, lattice: Any, keys: Any) -> bool:
    """Job ``a`` comes before job ``b``. The owner of the atom comes first, then the scarcest group."""
    if is_owned and jobs[a, J_BIT] != jobs[b, J_BIT]:
        first, second = groups[G_PLACE, jobs[a, J_BIT]], groups[G_PLACE, jobs[b, J_BIT]]
        owner = lattice[A_OWNER, atom]
        return first == owner or (second != owner and first < second)
    if keys[a] != keys[b]:
        return keys[a] < keys[b]
    return jobs[a, J_TIE] < jobs[b, J_TIE]


def plan(groups: Any, lattice: Any) -> None:
    """Algorithm 1, see `irs`: orders groups, and gives each atom an owner."""
    count = 0
    for bit in range(lattice.shape[0] - A_ABLE):
        if not groups[G_QUEUE, bit]:
            continue
        at = count
        while at > 0 and groups[G_SIZE, groups[G_BIT, at - 1]] > groups[G_SIZE, bit]:
            groups[G_BIT, at] = groups[G_BIT, at - 1]
            at -= 1
        groups[G_BIT, at] = bit
        count += 1
    for place in range(count):
        groups[G_PLACE, groups[G_BIT, place]] = place
        groups[G_SHARE, place] = 0
    for atom in range(lattice.shape[1]):
        lattice[A_OWNER, atom] = count
        for place in range(count):
            if lattice[A_ABLE + groups[G_BIT, place], atom]:
                lattice[A_OWNER, atom] = place
                groups[G_SHARE, place] += lattice[A_SUPPLY, atom]
                break
    for place in range(count - 1, -1, -1):
        if groups[G_SHARE, place]:
            take_turn(place, groups, lattice)


def take_turn(place: int, groups: Any, lattice: Any) -> None:
    """Lines 12 to 21: a group takes intersections from scarcer ones."""
    able = A_ABLE + groups[G_BIT, place]
    groups[G_INSIDE] = 0
    groups[G_IS_TAKEN] = 0
    for atom in range(lattice.shape[1]):
        if lattice[able, atom]:
            groups[G_INSIDE, lattice[A_OWNER, atom]] += lattice[A_SUPPLY, atom]
    share, size = groups[G_SHARE, place], groups[G_SIZE, groups[G_BIT, place]]
    queue = groups[G_QUEUE, groups[G_BIT, place]]
    for giver in range(place - 1, -1, -1):
        both, bit = groups[G_INSIDE, giver], groups[G_BIT, giver]
        if not both or groups[G_SIZE, bit] == size:
            continue
        if queue * groups[G_SHARE, giver] <= groups[G_QUEUE, bit] * share:
            break
        groups[G_IS_TAKEN, giver] = 1
        groups[G_SHARE, giver] -= both
        share += both
        queue += groups[G_QUEUE, bit]
    groups[G_SHARE, place] = share
    for atom in range(lattice.shape[1]):
        if lattice[able, atom] and groups[G_IS_TAKEN, lattice[A_OWNER, atom]]:
            lattice[A_OWNER, atom] = place


_LINKED: Final = (
    next_event, is_away, taker_of, touch, expect, assign, serve, tally, tell, begin, is_learnt, by_speed, learn, finish, least_speedup, may_gain,
    is_repeated, precedes, take_turn, plan, weigh, choose, forward,
)  # fmt: skip
"""Each after those that it calls."""


def build(jit: Callable[[Any], Any]) -> dict[str, Any]:
    """The functions of this module by name, each processed by ``jit``. They call one another as globals: numba finds
    functions in its cache again if what they call is global, not if it is a closure's. The cache follows changes of
    this file only; that is why the columns are in the functions' names."""
    columns = {name: value for name, value in vars(collab_columns).items() if isinstance(value, int)}
    stamp = zlib.crc32(repr(sorted(columns.items())).encode())
    found: dict[str, Any] = dict(globals())
    for function in _LINKED:
        linked = FunctionType(function.__code__, found, function.__name__)
        linked.__qualname__ = f"{function.__name__}_{stamp}"
        found[function.__name__] = jit(linked)
    return found


@cache
def kernels(compiled: bool) -> dict[str, Any]:
    """The functions of `build`, compiled or plain."""
    if not compiled:
        return build(lambda function: function)
    import numba

    try:
        return build(numba.njit(cache=True))  # cached beside the source or in the user's cache
    except RuntimeError:  # neither is writable
        return build(numba.njit)
