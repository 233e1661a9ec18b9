"""Rounds of federated jobs, over arrays: a part of `collab_kernel`. `forward` does what `CollabSimulation` does between
two jobs that come or go, or two counts of the supply.
"""

from __future__ import annotations

from typing import Any

from offpath.sched.sim import collab_columns as k
from offpath.sched.sim.collab_check_ins import assign, is_away, next_event, taker_of, touch
from offpath.sched.sim.collab_orders import choose, weigh
from offpath.sched.sim.collab_records import NEVER
from offpath.sched.sim.collab_tiers import learn, may_gain


def forward(
    state: Any, times: Any, device: Any, ends: Any, day: int, hour_end_ns: int, arrival_ns: int, end_ns: int,
    candidates: Any, atoms: Any, speeds: Any, places: Any, counts: Any, devices: Any, jobs: Any, leases: Any,
    heap: Any, touched: Any, draws: Any, groups: Any, lattice: Any, keys: Any, samples: Any, logs: Any,
    bins: Any, cuts: Any,
) -> int:  # fmt: skip
    """Take check-ins from the state's position on, end rounds and begin the next ones. Returns why it stopped: `EVENT`
    at ``end_ns``, `SUPPLY`, `ARRIVAL` or `ROUND`.

    ``draws``: below what a number was drawn that nobody needs; Python makes up for them, in this order. ``places``: of
    `speeds` among all speeds. ``lattice``: atoms. ``keys``: of jobs. ``logs``: of the responses in `samples`.
    ``bins``: by job and speed the number of samples. ``cuts``: by job, see `is_learnt`.
    """
    if state[k.ASKED] != k.NOBODY:
        begin(state[k.ASKED], state[k.NEXT_NS], state, candidates, jobs, touched)
        state[k.ASKED] = k.NOBODY
    next_ns, who = next_event(jobs, arrival_ns)
    i, left = state[k.POSITION], state[k.LEFT]
    while True:
        if i == len(times) or times[i] >= next_ns:
            if next_ns >= end_ns:
                code = k.EVENT
                break
            if who < 0:
                code = k.ARRIVAL
                break
            finish(who, next_ns, state, candidates, jobs, leases, touched, places, samples, logs, bins, cuts)
            if not is_repeated(who, state, jobs, draws, samples, logs, cuts):
                code = k.ROUND
                break
            begin(who, next_ns, state, candidates, jobs, touched)
            next_ns, who = next_event(jobs, arrival_ns)
            continue
        now, d = times[i], device[i]
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
        atom = atoms[kind]
        if candidates[atom, 0] == k.UNKNOWN:
            if state[k.IS_STALE]:
                weigh(state, jobs, groups, lattice, keys)
            choose(atom, state, candidates, jobs, groups, lattice, keys)
        taker = taker_of(kind, atom, candidates, speeds, jobs)
        i += 1
        if taker < 0:
            continue
        assign(taker, d, now, ends[i - 1], day, state, devices, jobs, leases, heap, touched)
        if jobs[taker, k.J_ENOUGH_NS] < next_ns or (jobs[taker, k.J_ENOUGH_NS] == next_ns and taker < who):
            next_ns, who = jobs[taker, k.J_ENOUGH_NS], taker
        if jobs[taker, k.J_REMAINING] == 0:
            jobs[taker, k.J_FILLED_NS] = now
            tell(state, candidates, jobs, touched)
    state[k.POSITION], state[k.LEFT], state[k.NEXT_NS], state[k.JOB] = i, left, next_ns, who
    return code


def tell(state: Any, candidates: Any, jobs: Any, touched: Any) -> None:
    """The policy learns what remains of each request; all candidates are unknown then."""
    for each in range(state[k.TOUCHED]):
        job = touched[each]
        jobs[job, k.J_TOLD] = jobs[job, k.J_REMAINING]
        jobs[job, k.J_IS_TOUCHED] = 0
    state[k.TOUCHED] = 0
    state[k.IS_STALE] = 1
    candidates[:, 0] = k.UNKNOWN


def begin(job: int, now: int, state: Any, candidates: Any, jobs: Any, touched: Any) -> None:
    """The job asks for the devices of its next round. Its tier and rank are known."""
    jobs[job, k.J_REMAINING] = jobs[job, k.J_DEMAND]
    later = jobs[job, k.J_ROUNDS_KNOWN] - jobs[job, k.J_ROUNDS] - 1
    jobs[job, k.J_LATER] = max(0, later) * jobs[job, k.J_DEMAND]
    jobs[job, k.J_SUBMITTED_NS] = now
    jobs[job, k.J_FILLED_NS] = -1
    jobs[job, k.J_DEADLINE_NS] = now + jobs[job, k.J_LASTS_NS]
    jobs[job, k.J_LAST_ROUND] += 1
    jobs[job, k.J_ROUND] = jobs[job, k.J_LAST_ROUND]
    touch(job, state, jobs, touched)
    tell(state, candidates, jobs, touched)


def finish(
    job: int, now: int, state: Any, candidates: Any, jobs: Any, leases: Any, touched: Any, places: Any, samples: Any,
    logs: Any, bins: Any, cuts: Any,
) -> None:  # fmt: skip
    """The round is complete, or its deadline has come."""
    is_complete = jobs[job, k.J_ENOUGH_NS] < jobs[job, k.J_DEADLINE_NS]
    first = jobs[job, k.J_FIRST]
    assigned = jobs[job, k.J_DEMAND] - jobs[job, k.J_REMAINING]
    last, done = now if is_complete else now - 1, 0
    for place in range(first, first + assigned):
        done += leases[k.L_ANSWER_NS, place] <= last
    if state[k.HAS_TIERS] and jobs[job, k.J_TIERS] and not jobs[job, k.J_HAS_TIER]:
        learn(job, first, assigned, now, jobs, leases, places, samples, logs, bins, cuts)
    jobs[job, k.J_DONE] = done
    jobs[job, k.J_IS_COMPLETE] = is_complete
    jobs[job, k.J_ASSIGNED] += assigned
    jobs[job, k.J_WASTED] += assigned - done if is_complete else assigned
    if is_complete:
        filled = jobs[job, k.J_FILLED_NS] if jobs[job, k.J_FILLED_NS] >= 0 else now
        jobs[job, k.J_ROUNDS] += 1
        jobs[job, k.J_SCHEDULE_NS] += filled - jobs[job, k.J_SUBMITTED_NS]
        jobs[job, k.J_RESPONSE_NS] += now - filled
    else:
        jobs[job, k.J_ABORTED] += 1
    jobs[job, k.J_REMAINING] = jobs[job, k.J_HEAP_SIZE] = 0
    jobs[job, k.J_DEADLINE_NS] = jobs[job, k.J_ENOUGH_NS] = NEVER
    jobs[job, k.J_ROUND] = k.NO_ROUND
    touch(job, state, jobs, touched)
    tell(state, candidates, jobs, touched)


def is_repeated(job: int, state: Any, jobs: Any, draws: Any, samples: Any, logs: Any, cuts: Any) -> bool:
    """The job's next round needs nothing of Python: draws that do not matter are noted. False: nothing has changed."""
    if state[k.IS_WATCHED] or state[k.ORDER] == k.BY_RANK or jobs[job, k.J_ROUNDS] == jobs[job, k.J_WANTED]:
        return False
    count = state[k.DRAWS]
    if count + 2 > len(draws):
        return False
    draws[count] = k.RANKS
    count += 1
    if state[k.HAS_TIERS] and jobs[job, k.J_TIERS] and jobs[job, k.J_ROUNDS] and jobs[job, k.J_IS_LEARNT]:
        if may_gain(job, jobs, samples, logs, cuts):
            return False
        draws[count] = jobs[job, k.J_TIERS]
        count += 1
    state[k.DRAWS] = count
    jobs[job, k.J_LEAST_SPEED] = -NEVER
    jobs[job, k.J_BELOW_SPEED] = NEVER
    jobs[job, k.J_HAS_TIER] = 0
    return True
