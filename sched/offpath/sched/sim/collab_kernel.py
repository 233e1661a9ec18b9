"""The inner loops of `CollabSimulation` over plain arrays, plain or compiled (see `build`).

Check-ins are taken one by one up to the first thing that Python has to deal with. Between two of these an atom has the
same candidates, in which the first one that takes the device's speed class gets it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

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


# Columns of jobs, by number of the job. Of ``leases`` and ``heap`` each job has the part from J_FIRST and J_HEAP on.
J_DEMAND: Final = 0
J_REMAINING: Final = 1
J_WORK: Final = 2
J_ANSWERS_AT: Final = 3
"""Answers that end the round."""
J_DEADLINE_NS: Final = 4
J_ENOUGH_NS: Final = 5
"""When so many have answered; `NEVER`: too few will."""
J_ROUND: Final = 6
"""The one that runs, counted from 0 over the job's requests; `NO_ROUND`."""
J_SPEED: Final = 7
"""Row of the speeds."""
J_LEAST_SPEED: Final = 8
J_BELOW_SPEED: Final = 9
J_IS_TOUCHED: Final = 10
J_FIRST: Final = 11
J_HEAP: Final = 12
J_HEAP_SIZE: Final = 13
J_WIDTH: Final = 14
NO_ROUND: Final = -2

# Rows of leases; a job's are in the order in which they began.
L_BEGAN_NS: Final = 0
L_ANSWER_NS: Final = 1
L_DEVICE: Final = 2
L_HEIGHT: Final = 3

# Columns of devices.
D_KIND: Final = 0
D_UNIT_NS: Final = 1
D_NETWORK_NS: Final = 2
D_WORKED: Final = 3
"""The last day on which it got a job."""
D_FREE_NS: Final = 4
D_HELD_BY: Final = 5
"""Number of a job."""
D_HELD_ROUND: Final = 6
D_WIDTH: Final = 7


def build(jit: Callable[[Any], Any]) -> tuple[Any, Any]:
    """``(serve, tally)``, each processed by ``jit``. Neither calls the other, so that numba finds them in its cache."""

    @jit
    def serve(
        state: Any, times: Any, device: Any, ends: Any, day: int, hour_end_ns: int, arrival_ns: int, is_steady: bool,
        candidates: Any, atoms: Any, speeds: Any, counts: Any, devices: Any, jobs: Any, leases: Any, heap: Any,
        touched: Any,
    ) -> int:  # fmt: skip
        """Take check-ins from the state's position on. Returns why it stopped."""
        next_ns, who = arrival_ns, -1
        for job in range(len(jobs)):
            end = min(jobs[job, J_ENOUGH_NS], jobs[job, J_DEADLINE_NS])
            if end < next_ns:
                next_ns, who = end, job
        i, left = state[POSITION], state[LEFT]
        code = EVENT
        while i < len(times):
            now = times[i]
            if now >= next_ns:
                break
            d = device[i]
            if devices[d, D_WORKED] == day or (
                devices[d, D_FREE_NS] > now and devices[d, D_HELD_ROUND] == jobs[devices[d, D_HELD_BY], J_ROUND]
            ):
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
                    if jobs[taker, J_LEAST_SPEED] <= speeds[jobs[taker, J_SPEED], kind] < jobs[taker, J_BELOW_SPEED]:
                        break
            i += 1
            if taker < 0:
                continue
            answer = now + jobs[taker, J_WORK] * devices[d, D_UNIT_NS] + devices[d, D_NETWORK_NS]
            if answer > ends[i - 1]:
                answer = NEVER
            devices[d, D_WORKED] = day
            devices[d, D_FREE_NS] = answer
            devices[d, D_HELD_BY] = taker
            devices[d, D_HELD_ROUND] = jobs[taker, J_ROUND]
            place = jobs[taker, J_FIRST] + jobs[taker, J_DEMAND] - jobs[taker, J_REMAINING]
            leases[L_BEGAN_NS, place] = now
            leases[L_ANSWER_NS, place] = answer
            leases[L_DEVICE, place] = d
            jobs[taker, J_REMAINING] -= 1
            if not jobs[taker, J_IS_TOUCHED]:
                jobs[taker, J_IS_TOUCHED] = 1
                touched[state[TOUCHED]] = taker
                state[TOUCHED] += 1
            if answer < NEVER:
                most, first, size = jobs[taker, J_ANSWERS_AT], jobs[taker, J_HEAP], jobs[taker, J_HEAP_SIZE]
                if size < most:  # from the bottom up
                    at = size
                    while at > 0 and heap[first + (at - 1) // 2] < answer:
                        heap[first + at] = heap[first + (at - 1) // 2]
                        at = (at - 1) // 2
                    heap[first + at] = answer
                    jobs[taker, J_HEAP_SIZE] = size = size + 1
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
                    jobs[taker, J_ENOUGH_NS] = heap[first]
                    if heap[first] < next_ns:
                        next_ns, who = heap[first], taker
            if jobs[taker, J_REMAINING] == 0:
                state[JOB] = taker
                code = FILLED
                break
        state[POSITION], state[LEFT] = i, left
        if code == EVENT:
            state[NEXT_NS], state[JOB] = next_ns, who
        return code

    @jit
    def tally(jobs: Any, leases: Any, job: int, now_ns: int, last_ns: int) -> tuple[int, int]:
        """Of a round that ends: answers up to ``last_ns``, and the time of its devices divided by the demand, ns."""
        done = served = 0
        first, demand = jobs[job, J_FIRST], jobs[job, J_DEMAND]
        for place in range(first, first + demand - jobs[job, J_REMAINING]):
            if leases[L_ANSWER_NS, place] <= last_ns:
                done += 1
            served += (min(leases[L_ANSWER_NS, place], now_ns) - leases[L_BEGAN_NS, place]) // demand
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
