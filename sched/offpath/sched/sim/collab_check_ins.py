"""Check-ins of devices, over arrays: a part of `collab_kernel`.

They are taken one by one up to the first thing that somebody else has to deal with. Between two changes an atom has the
same candidates, in which the first one that takes the device's speed class gets it.
"""

from __future__ import annotations

from typing import Any

from offpath.sched.sim import collab_columns as k
from offpath.sched.sim.collab_records import NEVER


def next_event(jobs: Any, arrival_ns: int) -> tuple[int, int]:
    """When the next round ends or job comes, and the number of the round's job, -1: a job comes."""
    next_ns, who = arrival_ns, -1
    for job in range(len(jobs)):
        end = min(jobs[job, k.J_ENOUGH_NS], jobs[job, k.J_DEADLINE_NS])
        if end < next_ns:
            next_ns, who = end, job
    return next_ns, who


def is_away(d: int, now: int, day: int, devices: Any, jobs: Any) -> bool:
    """The device has worked today, or works still."""
    if devices[d, k.D_WORKED] == day:
        return True
    is_held = devices[d, k.D_HELD_ROUND] == jobs[devices[d, k.D_HELD_BY], k.J_ROUND]
    return bool(is_held and devices[d, k.D_FREE_NS] > now)


def taker_of(kind: int, atom: int, candidates: Any, speeds: Any, jobs: Any) -> int:
    """The job that gets a device, or `NOBODY`."""
    for place in range(candidates.shape[1]):
        taker = candidates[atom, place]
        if taker < 0:
            break
        if jobs[taker, k.J_LEAST_SPEED] <= speeds[jobs[taker, k.J_SPEED], kind] < jobs[taker, k.J_BELOW_SPEED]:
            return int(taker)
    return k.NOBODY


def touch(job: int, state: Any, jobs: Any, touched: Any) -> None:
    """What remains of its request has changed."""
    if not jobs[job, k.J_IS_TOUCHED]:
        jobs[job, k.J_IS_TOUCHED] = 1
        touched[state[k.TOUCHED]] = job
        state[k.TOUCHED] += 1


def assign(
    taker: int, d: int, now: int, end_ns: int, day: int, state: Any, devices: Any, jobs: Any, leases: Any, heap: Any,
    touched: Any,
) -> None:  # fmt: skip
    """The job gets the device, whose session lasts until ``end_ns``."""
    answer = now + jobs[taker, k.J_WORK] * devices[d, k.D_UNIT_NS] + devices[d, k.D_NETWORK_NS]
    if answer > end_ns:
        answer = NEVER
    devices[d, k.D_WORKED] = day
    devices[d, k.D_FREE_NS] = answer
    devices[d, k.D_HELD_BY] = taker
    devices[d, k.D_HELD_ROUND] = jobs[taker, k.J_ROUND]
    place = jobs[taker, k.J_FIRST] + jobs[taker, k.J_DEMAND] - jobs[taker, k.J_REMAINING]
    leases[k.L_BEGAN_NS, place] = now
    leases[k.L_ANSWER_NS, place] = answer
    leases[k.L_KIND, place] = devices[d, k.D_KIND]
    jobs[taker, k.J_REMAINING] -= 1
    touch(taker, state, jobs, touched)
    if answer < NEVER:
        expect(taker, answer, jobs, heap)


def expect(job: int, answer: int, jobs: Any, heap: Any) -> None:
    """Keep the answer if it is among the first ones that end the round. The latest of these is on top."""
    most, first, size = jobs[job, k.J_ANSWERS_AT], jobs[job, k.J_HEAP], jobs[job, k.J_HEAP_SIZE]
    if size < most:  # from the bottom up
        at = size
        while at > 0 and heap[first + (at - 1) // 2] < answer:
            heap[first + at] = heap[first + (at - 1) // 2]
            at = (at - 1) // 2
        heap[first + at] = answer
        size += 1
        jobs[job, k.J_HEAP_SIZE] = size
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
        jobs[job, k.J_ENOUGH_NS] = heap[first]


def serve(
    state: Any, times: Any, device: Any, ends: Any, day: int, hour_end_ns: int, arrival_ns: int, is_steady: bool,
    candidates: Any, atoms: Any, speeds: Any, counts: Any, devices: Any, jobs: Any, leases: Any, heap: Any,
    touched: Any,
) -> int:  # fmt: skip
    """Take check-ins from the state's position on. Returns why it stopped."""
    next_ns, who = next_event(jobs, arrival_ns)
    i, left = state[k.POSITION], state[k.LEFT]
    code = k.EVENT
    while i < len(times):
        now, d = times[i], device[i]
        if now >= next_ns:
            break
        if is_away(d, now, day, devices, jobs):
            i += 1
            continue
        kind = devices[d, k.D_KIND]
        if i != state[k.COUNTED]:
            if left <= 1 or now >= hour_end_ns:
                code = k.SUPPLY
                break
            counts[kind] += 1
            left -= 1
            state[k.COUNTED] = i
        taker = k.NOBODY
        if state[k.FORCED] != k.OPEN:
            taker = state[k.FORCED]
            state[k.FORCED] = k.OPEN
        elif not is_steady:
            code = k.ASK
            break
        elif candidates[atoms[kind], 0] == k.UNKNOWN:
            state[k.ATOM_OF] = atoms[kind]
            code = k.ATOM
            break
        else:
            taker = taker_of(kind, atoms[kind], candidates, speeds, jobs)
        i += 1
        if taker < 0:
            continue
        assign(taker, d, now, ends[i - 1], day, state, devices, jobs, leases, heap, touched)
        if jobs[taker, k.J_ENOUGH_NS] < next_ns or (jobs[taker, k.J_ENOUGH_NS] == next_ns and taker < who):
            next_ns, who = jobs[taker, k.J_ENOUGH_NS], taker
        if jobs[taker, k.J_REMAINING] == 0:
            state[k.JOB] = taker
            code = k.FILLED
            break
    state[k.POSITION], state[k.LEFT] = i, left
    if code == k.EVENT:
        state[k.NEXT_NS], state[k.JOB] = next_ns, who
    return code


def tally(jobs: Any, leases: Any, job: int, now_ns: int, last_ns: int) -> tuple[int, int]:
    """Of a round that ends: answers up to ``last_ns``, and the time of its devices divided by the demand, ns."""
    done = served = 0
    first, demand = jobs[job, k.J_FIRST], jobs[job, k.J_DEMAND]
    for place in range(first, first + demand - jobs[job, k.J_REMAINING]):
        if leases[k.L_ANSWER_NS, place] <= last_ns:
            done += 1
        served += (min(leases[k.L_ANSWER_NS, place], now_ns) - leases[k.L_BEGAN_NS, place]) // demand
    return done, served
