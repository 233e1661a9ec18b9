"""The inner loops of `CollabSimulation` over plain arrays, plain or compiled (see `build`).

Check-ins are taken one by one up to the first thing that Python has to deal with. Between two of these an atom has the
same candidates, in which the first one that takes the device's speed class gets it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

from offpath.sched.sim.collab_records import NEVER

EVENT: Final = 0
"""All check-ins before the next event are taken: a round ends, a job comes, or the day does."""
FILLED: Final = 1
"""The request of ``JOB`` has all its devices; the last one is that before ``POSITION``."""
SUPPLY: Final = 2
"""The supply is to be counted anew at the check-in."""
ATOM: Final = 3
"""The candidates of ``ATOM_OF`` are unknown."""
ASK: Final = 4
"""The policy is to be asked about this one device: it is not steady."""

POSITION: Final = 0
LEFT: Final = 1
"""Check-ins until the supply is to be counted anew; that one included."""
COUNTED: Final = 2
"""The check-in there is in the supply already."""
FORCED: Final = 3
"""The number of the job that gets the device at ``POSITION``, `NOBODY`, or `OPEN`: by candidates."""
NEXT_NS: Final = 4
JOB: Final = 5
ATOM_OF: Final = 6
TOUCHED: Final = 7
"""How many jobs got devices since the policy was told."""
STATE: Final = 8
"""Length of the state."""

NOBODY: Final = -1
OPEN: Final = -2
UNKNOWN: Final = -3
"""First of an atom's candidates: not asked yet."""


class JobColumns(NamedTuple):
    """By number of the job. A job has its part of the columns ``began`` to ``devices``, from ``first`` on, in the order
    of leases, and of ``heap``, from ``heap_first`` on, for the earliest answers, the latest of them at the top."""

    demand: Any
    remaining: Any
    work: Any
    answers_at: Any
    """Answers that end the round."""
    deadline_ns: Any
    enough_ns: Any
    round: Any
    """The one that runs, counted from 0 over the job's requests; -2: none."""
    speed: Any
    """Row of the speeds."""
    least_speed: Any
    below_speed: Any
    is_touched: Any
    touched: Any
    first: Any
    heap_first: Any
    heap_size: Any
    began: Any
    answers: Any
    devices: Any
    heap: Any


class DeviceColumns(NamedTuple):
    """By device. ``worked``: the last day on which it got a job. ``held_by``: the number of a job."""

    kind: Any
    unit_ns: Any
    network_ns: Any
    worked: Any
    free_ns: Any
    held_by: Any
    held_round: Any


def build(jit: Callable[[Any], Any]) -> tuple[Any, Any]:
    """``(serve, tally)``, each processed by ``jit``."""

    @jit
    def push(heap: Any, first: int, size: int, most: int, value: int) -> int:
        """Into a heap of the ``most`` smallest values, the largest on top; returns its size."""
        if size < most:
            at = size
            size += 1
            while at > 0:
                above = (at - 1) // 2
                if heap[first + above] >= value:
                    break
                heap[first + at] = heap[first + above]
                at = above
            heap[first + at] = value
            return size
        if value >= heap[first]:
            return size
        at = 0
        while True:
            below = 2 * at + 1
            if below >= size:
                break
            if below + 1 < size and heap[first + below + 1] > heap[first + below]:
                below += 1
            if heap[first + below] <= value:
                break
            heap[first + at] = heap[first + below]
            at = below
        heap[first + at] = value
        return size

    @jit
    def serve(
        state: Any, times: Any, device: Any, ends: Any, day: int, hour_end_ns: int, arrival_ns: int, is_steady: bool,
        candidates: Any, atoms: Any, speeds: Any, counts: Any, devices: Any, jobs: Any,
    ) -> int:  # fmt: skip
        """Take check-ins from the state's position on. Returns why it stopped."""
        next_ns, who = arrival_ns, -1
        for job in range(len(jobs.demand)):
            end = min(jobs.enough_ns[job], jobs.deadline_ns[job])
            if end < next_ns:
                next_ns, who = end, job
        i, left = state[POSITION], state[LEFT]
        code = EVENT
        while i < len(times):
            now = times[i]
            if now >= next_ns:
                break
            d = device[i]
            if devices.worked[d] == day or (
                devices.free_ns[d] > now and devices.held_round[d] == jobs.round[devices.held_by[d]]
            ):
                i += 1
                continue
            kind = devices.kind[d]
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
            else:
                atom = atoms[kind]
                if candidates[atom, 0] == UNKNOWN:
                    state[ATOM_OF] = atom
                    code = ATOM
                    break
                for place in range(candidates.shape[1]):
                    taker = candidates[atom, place]
                    if taker < 0:
                        break
                    if jobs.least_speed[taker] <= speeds[jobs.speed[taker], kind] < jobs.below_speed[taker]:
                        break
            i += 1
            if taker < 0:
                continue
            answer = now + jobs.work[taker] * devices.unit_ns[d] + devices.network_ns[d]
            if answer > ends[i - 1]:
                answer = NEVER
            devices.worked[d] = day
            devices.free_ns[d] = answer
            devices.held_by[d] = taker
            devices.held_round[d] = jobs.round[taker]
            place = jobs.first[taker] + jobs.demand[taker] - jobs.remaining[taker]
            jobs.began[place] = now
            jobs.answers[place] = answer
            jobs.devices[place] = d
            jobs.remaining[taker] -= 1
            if not jobs.is_touched[taker]:
                jobs.is_touched[taker] = 1
                jobs.touched[state[TOUCHED]] = taker
                state[TOUCHED] += 1
            if answer < NEVER:
                most = jobs.answers_at[taker]
                first = jobs.heap_first[taker]
                jobs.heap_size[taker] = push(jobs.heap, first, jobs.heap_size[taker], most, answer)
                if jobs.heap_size[taker] == most:
                    jobs.enough_ns[taker] = jobs.heap[first]
                    if jobs.heap[first] < next_ns:
                        next_ns, who = jobs.heap[first], taker
            if jobs.remaining[taker] == 0:
                state[JOB] = taker
                code = FILLED
                break
        state[POSITION], state[LEFT] = i, left
        if code == EVENT:
            state[NEXT_NS], state[JOB] = next_ns, who
        return code

    @jit
    def tally(jobs: Any, job: int, now_ns: int, last_ns: int) -> tuple[int, int]:
        """Of a round that ends: answers up to ``last_ns``, and the time of its devices divided by the demand, ns."""
        done = served = 0
        first, demand = jobs.first[job], jobs.demand[job]
        for place in range(first, first + demand - jobs.remaining[job]):
            if jobs.answers[place] <= last_ns:
                done += 1
            served += (min(jobs.answers[place], now_ns) - jobs.began[place]) // demand
        return done, served

    return serve, tally


@cache
def kernels(compiled: bool) -> tuple[Any, Any]:
    """The functions of `build`, compiled or plain."""
    if not compiled:
        return build(lambda function: function)
    import numba

    try:
        return build(numba.njit(cache=True))  # cached beside the source or in the user's cache
    except RuntimeError:  # neither is writable
        return build(numba.njit)
