"""`CollabSimulation` for the built-in policies: rounds begin and end, and jobs are ordered, in compiled code too.

Decisions are those of `CollabSimulation`, in which Python does this and asks the policy. Python is left with jobs that
come and go, with the supply, and with requests whose tier or rank matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from offpath.sched.collab.baselines import By, Ordered
from offpath.sched.collab.irs import PAPER
from offpath.sched.collab.port import CollabPolicy, Draw
from offpath.sched.collab.records import DAY_NS, MOST_TIERS, RoundEnd, RoundEnded
from offpath.sched.collab.requirements import MOST_REQUIREMENTS
from offpath.sched.collab.scarce import Scarcest
from offpath.sched.collab.supply import HOUR_NS
from offpath.sched.collab.tiers import MOST_SAMPLES, is_worth, log_tail
from offpath.sched.collab.venn import Venn
from offpath.sched.ina.engine import can_compile
from offpath.sched.sim import collab_columns as k
from offpath.sched.sim.collab import CollabSimulation, speeds_of
from offpath.sched.sim.collab_records import NEVER, CollabJob, CollabRun, Day, Devices, JobOutcome

_NS: Final = 10**9
_DRAWS: Final = 4_096
_BY: Final = {By.ARRIVAL: k.BY_ARRIVAL, By.REMAINING: k.BY_REMAINING, By.RANK: k.BY_RANK}


def order_of(policy: CollabPolicy) -> int | None:
    """How the kernel calls the policy's order of jobs. None: it does not know it."""
    if type(policy) is Ordered:
        return _BY[policy.by]
    if type(policy) is Scarcest:
        return k.BY_SCARCITY
    if type(policy) is Venn and policy.epsilon == 0 and policy.irs.reading == PAPER:
        return k.BY_OWNER
    return None


def simulation(
    policy: CollabPolicy,
    draw: Draw,
    devices: Devices,
    days: Callable[[int], Day],
    ended: Callable[[RoundEnded], None] | None = None,
) -> CollabSimulation:
    """The fastest one that there is for the policy."""
    is_fast = can_compile() and order_of(policy) is not None
    return (FastSimulation if is_fast else CollabSimulation)(policy, draw, devices, days, ended)


class FastSimulation(CollabSimulation):
    """The policy is one that `order_of` knows. It is asked nothing."""

    _width = k.J_LONG_WIDTH

    def _begin(self, jobs: Sequence[CollabJob]) -> None:
        super()._begin(jobs)
        order, state = order_of(self._policy), self._state
        assert order is not None
        state[[k.ORDER, k.HAS_TIERS, k.IS_WATCHED]] = order, self._policy.has_tiers, self._ended is not None
        state[[k.ASKED, k.IS_STALE]] = k.NOBODY, 1
        self._known_speeds, places = np.unique(self._speeds, return_inverse=True)
        self._places = places.reshape(self._speeds.shape).astype(np.int64)
        count = len(jobs)
        kept = MOST_SAMPLES if self._policy.has_tiers else 0
        self._samples = np.zeros((count, k.S_HEIGHT, kept), np.int64)
        self._logs = np.zeros((count, kept))
        self._bins = np.zeros((count, len(self._known_speeds)), np.int64)
        self._cuts = np.zeros((count, k.C_HEIGHT, MOST_TIERS + 1), np.int64)
        self._ordered_ns = np.zeros(MOST_SAMPLES, np.int64)
        self._draws = np.zeros(_DRAWS, np.int64)
        self._groups = np.zeros((k.G_HEIGHT, MOST_REQUIREMENTS + 1), np.int64)
        self._lattice = np.zeros((k.A_ABLE, 0), np.int64)
        self._keys = np.zeros(count)
        ties = sorted(range(count), key=lambda number: (jobs[number].at_ns, jobs[number].spec.name))
        for tie, number in enumerate(ties):
            job, row = jobs[number], self._of[number]
            tiers = job.spec.tiers if job.spec.tiers >= 2 and job.spec.speed else 0
            row[[k.J_TIE, k.J_LASTS_NS, k.J_WANTED]] = tie, job.deadline_ns, job.rounds
            row[[k.J_ROUNDS_KNOWN, k.J_TIERS, k.J_LAST_ROUND]] = job.spec.rounds, tiers, -1

    def run(self, jobs: Sequence[CollabJob], most_days: int) -> CollabRun:
        """See `CollabSimulation`."""
        found = super().run(jobs, most_days)
        self._draw_due()
        for number, name in enumerate(self._order):
            self._account(found.jobs[name], number)
        return found

    def _account(self, outcome: JobOutcome, number: int) -> None:
        row = self._of[number]
        outcome.completed, outcome.aborted = int(row[k.J_ROUNDS]), int(row[k.J_ABORTED])
        outcome.assigned, outcome.wasted = int(row[k.J_ASSIGNED]), int(row[k.J_WASTED])
        outcome.schedule_ns, outcome.response_ns = int(row[k.J_SCHEDULE_NS]), int(row[k.J_RESPONSE_NS])

    # -- time ------------------------------------------------------------------------------------------------------
    def _whole_day(self, number: int) -> None:
        day, state = self._days(number), self._state
        self._day, state[k.POSITION], state[k.COUNTED] = number, 0, -1
        while self._arrivals or self._jobs:
            code = self._advance(day)
            if code == k.EVENT:
                break
            if code == k.SUPPLY:
                self._count(day, int(state[k.POSITION]))
            else:
                self._happen(int(state[k.NEXT_NS]), int(state[k.JOB]))
        self._check_ins += int(state[k.POSITION])

    def _advance(self, day: Day) -> int:
        """Check-ins and rounds up to the next thing that Python has to do."""
        if self._supplied != self._catalogue.version:
            self._state[k.LEFT] = 1
        arrival_ns = self._arrivals[0][0] if self._arrivals else NEVER
        code: int = self._kernels["forward"](
            self._state, day.times_ns, day.device, day.ends_ns, self._day, (self._supply.hour + 1) * HOUR_NS,
            arrival_ns, (self._day + 1) * DAY_NS, self._candidates, self._atoms, self._speeds, self._places,
            self._counts, self._columns, self._of, self._leases, self._heap, self._touched, self._draws, self._groups,
            self._lattice, self._keys, self._samples, self._logs,
            self._bins, self._cuts,
        )  # fmt: skip
        return code

    def _happen(self, now_ns: int, number: int) -> None:
        """See `CollabSimulation`; the kernel has ended the round."""
        if number < 0:
            job = self._open(now_ns)
            number = self._numbers[job.spec.name]
            self._of[number, k.J_BIT] = job.bit
            self._ask_again(number)
            return
        name = self._order[number]
        if self._ended is not None:
            self._ended(self._round_ended(name, number, now_ns))
        if self._of[number, k.J_ROUNDS] < self._wanted[name].rounds:
            self._ask_again(number)
            return
        self._outcomes[name].ended_ns = now_ns
        self._catalogue.close(self._jobs.pop(name).spec.requirement)

    def _round_ended(self, name: str, number: int, now_ns: int) -> RoundEnded:
        row = self._of[number].tolist()
        end = RoundEnd.COMPLETE if row[k.J_IS_COMPLETE] else RoundEnd.ABORTED
        return RoundEnded(
            name, row[k.J_LAST_ROUND], end, row[k.J_DONE], row[k.J_DEMAND], row[k.J_SUBMITTED_NS], row[k.J_FILLED_NS],
            now_ns,
        )  # fmt: skip

    # -- requests --------------------------------------------------------------------------------------------------
    def _ask_again(self, number: int) -> None:
        """The job's next round; it begins in the kernel."""
        self._draw_due()
        row = self._of[number]
        row[k.J_RANK] = self._draw(k.RANKS)
        bounds, tier = self._tier(number)
        row[k.J_LEAST_SPEED], row[k.J_BELOW_SPEED] = speeds_of(bounds, tier)
        row[k.J_HAS_TIER] = tier is not None
        self._state[k.ASKED] = number

    def _draw_due(self) -> None:
        """The draws whose result nobody needs: those after them depend on their number."""
        for below in self._draws[: self._state[k.DRAWS]].tolist():
            self._draw(below)
        self._state[k.DRAWS] = 0

    def _tier(self, number: int) -> tuple[tuple[int, ...], int | None]:
        """As `rounds.tier_of`: the bounds of the tiers, and the one that the request is restricted to."""
        row = self._of[number]
        count, rounds = int(row[k.J_TIERS]), int(row[k.J_ROUNDS])
        if not (self._policy.has_tiers and count and rounds and row[k.J_IS_LEARNT]):
            return (), None
        tier = self._draw(count)
        response_s, schedule_s = (int(row[each]) / rounds / _NS for each in (k.J_RESPONSE_NS, k.J_SCHEDULE_NS))
        if not is_worth(count, self._speedup(number, tier), response_s, schedule_s):
            return (), None
        places = self._cuts[number, k.C_SPEED, 1:count]
        return tuple(self._known_speeds[places].tolist()), tier

    def _speedup(self, number: int, tier: int) -> float:
        """g of the tier."""
        learnt = int(self._of[number, k.J_SAMPLES])
        self._kernels["by_speed"](learnt, self._samples[number], self._bins[number], self._ordered_ns)
        logs = np.log(self._ordered_ns[: min(learnt, MOST_SAMPLES)] / _NS)
        begin, end = self._cuts[number, k.C_BELOW, tier : tier + 2].tolist()
        return math.exp(log_tail(logs[begin:end]) - log_tail(logs))

    # -- supply ----------------------------------------------------------------------------------------------------
    def _supplied_with(self, by_atom: Mapping[int, int]) -> None:
        bits = sorted(self._catalogue.requirements())
        width = bits[-1] + 1 if bits else 0
        self._lattice = np.zeros((k.A_ABLE + width, len(self._distinct)), np.int64)
        for place, atom in enumerate(self._distinct):
            self._lattice[k.A_SUPPLY, place] = by_atom.get(atom, 0)
            for bit in bits:
                self._lattice[k.A_ABLE + bit, place] = atom >> bit & 1
        sizes = self._lattice[k.A_ABLE :] @ self._lattice[k.A_SUPPLY]
        self._groups[k.G_SIZE, :width] = sizes
        self._state[k.IS_STALE] = 1
