"""`oldest-gpu-first`: opens new leases on the GPU that is expected to stay in use longest.

Job lengths are heavy-tailed: a job that has run long will run long. A new instance goes to the GPU with the oldest
running job (in steps of a factor of four from one minute on), among equals to the fullest, then to the first. Young
GPUs thus run empty, fragments fill up, and whole GPUs stay free for jobs that need them. `offpath simulate conspirator`
compares it with Algorithm 1. A decision is logarithmic in the number of GPUs.

A tenant's own room always comes first. With ``prefetch`` a job may also take a free lane of a lease whose share is in
use, so that it is copied while others compute, as in `greedy-first-fit`.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import replace
from typing import ClassVar, Final

from offpath.sched.gpu.firstfit import FirstFit
from offpath.sched.gpu.indexed import ALL_ROOMS, DEMAND, LANES, NO_LEASE, STARTS, IndexedPolicy
from offpath.sched.gpu.policy import Demand, LeasePlan, Opening, Placement, PolicyState, Refusal, share_in
from offpath.sched.gpu.rooms import Rooms, Warm

_FIRST_NS: Final = 60 * 10**9
_FACTOR: Final = 4
_STEPS: Final = 10
"""From one minute to half a year."""
_LOOKED_AT: Final = 16
"""Leases that a prefetch chooses among."""


class OldestGpuFirst(IndexedPolicy):
    """Implements `offpath.sched.gpu.policy.Policy`."""

    name: ClassVar[str] = "oldest-gpu-first"

    def __init__(self, *, prefetch: bool = True) -> None:
        super().__init__()
        self._prefetch = prefetch
        self._started: dict[int, OrderedDict[tuple[int, int], int]] = {}
        """By slot: (lease, lane) of running jobs and the times they were placed, in that order."""
        self._files: dict[tuple[int, int], FirstFit] = {}
        """Instances that can be created on each GPU, by (steps of its oldest job short of the last step, percent
        free)."""
        self._order: list[tuple[int, int]] = []
        self._filed: dict[int, tuple[int, int]] = {}
        self._due: list[tuple[int, int]] = []
        """(when, slot): time at which the GPU's oldest job may reach the next step."""
        self._due_of: dict[int, int] = {}
        self._now_ns = 0

    # -- ages -----------------------------------------------------------------------------------------------------
    def refiled(self, slot: int, before: int, level: int, bits: int) -> None:
        """See `IndexedPolicy.refiled`."""
        self._file(slot, (_STEPS - self._look_at_age(slot), level), bits)

    def _file(self, slot: int, where: tuple[int, int], bits: int) -> None:
        was = self._filed.get(slot)
        if was is not None and was != where:
            self._files[was].put(slot, 0)
        file = self._files.get(where)
        if file is None:
            file = self._files[where] = FirstFit()
            self._order = sorted(self._files)
        file.put(slot, bits)
        self._filed[slot] = where

    def _look_at_age(self, slot: int) -> int:
        """Return the step of the GPU's oldest job, and note when it reaches the next one."""
        started = self._started.get(slot)
        oldest_ns = next(iter(started.values())) if started else None
        step = self._step(oldest_ns)
        if oldest_ns is not None and step < _STEPS:
            when = oldest_ns + _FIRST_NS * _FACTOR**step
            if when < self._due_of.get(slot, when + 1):
                self._due_of[slot] = when
                heapq.heappush(self._due, (when, slot))
        return step

    def _step(self, oldest_ns: int | None) -> int:
        if oldest_ns is None:
            return 0
        age, step, limit = self._now_ns - oldest_ns, 0, _FIRST_NS
        while age >= limit and step < _STEPS:
            step, limit = step + 1, limit * _FACTOR
        return step

    def _is_young(self, slot: int) -> bool:
        """True if the GPU is in the file of GPUs without a job that has run for a minute. Its age is looked at again no
        later than its oldest job's next step, so a younger oldest job changes nothing."""
        return self._filed[slot][0] == _STEPS

    def _refile(self, slot: int) -> None:
        """The GPU's oldest job changed, but not its instances: usually it stays in its file."""
        gpu = self.by_slot.get(slot)
        if gpu is not None:
            where = _STEPS - self._look_at_age(slot), gpu.level
            if self._filed.get(slot) != where:
                self._file(slot, where, self.free[slot])

    def _advance(self, now_ns: int) -> None:
        self._now_ns = max(self._now_ns, now_ns)
        while self._due and self._due[0][0] <= self._now_ns:
            when, slot = heapq.heappop(self._due)
            if self._due_of.get(slot) == when:
                del self._due_of[slot]
                self._refile(slot)

    def gpu_removed(self, gpu: str) -> None:
        """See `Policy.gpu_removed`."""
        gone = self.gpus.get(gpu)
        super().gpu_removed(gpu)
        if gone is not None:
            self._started.pop(gone.slot, None)
            self._filed.pop(gone.slot, None)
            self._due_of.pop(gone.slot, None)

    # -- routing --------------------------------------------------------------------------------------------------
    def place(self, demand: Demand, now_ns: int) -> Placement | Refusal:
        """The tenant's first lease with room."""
        self._advance(now_ns)
        rooms = self.rooms.get(demand.tenant)
        if rooms is None:
            return NO_LEASE
        own = self.first_in(rooms, self.room_mask(demand), demand)
        if own is not None:
            share = demand.share_on(own.view.model) if demand.models else demand.share
            return self._taken(own, self.take(own, share))
        if rooms.first(ALL_ROOMS) is None:  # no lane is free: what a busy tenant's next job meets
            return LANES if self.has_open_lease(demand.tenant) else NO_LEASE
        if self._prefetch:
            own = self._least_loaded(rooms, demand)
            if own is not None:
                return self._taken(own, replace(self.take(own, share_in(demand, own.view)), is_prefetch=True))
        return DEMAND

    def _least_loaded(self, rooms: Rooms, demand: Demand) -> Warm | None:
        """The least loaded of the first leases with a free lane that could hold the job alone."""
        best: Warm | None = None
        position = rooms.first(ALL_ROOMS)
        for _ in range(_LOOKED_AT):
            if position is None:
                break
            warm = self.at[position]
            is_less = best is None or warm.placed_share * best.view.alpha < best.placed_share * warm.view.alpha
            if is_less and self.suits(demand, warm):
                best = warm
            position = rooms.first(ALL_ROOMS, position + 1)
        return best

    def seat(self, demand: Demand, lease: int, lane: int, now_ns: int) -> Placement | None:
        """See `IndexedPolicy.seat`."""
        self._advance(now_ns)
        placement = super().seat(demand, lease, lane, now_ns)
        return self._taken(self.leases[lease], placement) if placement is not None else None

    def _taken(self, warm: Warm, placement: Placement) -> Placement:
        slot = warm.position // STARTS
        started = self._started.get(slot)
        if started is None:
            started = self._started[slot] = OrderedDict()
        started[placement.lease, placement.lane] = self._now_ns
        if len(started) == 1:
            due_ns = self._due_of.get(slot, 0)
            if not self._is_young(slot) or not 0 < due_ns <= self._now_ns + _FIRST_NS:
                self._refile(slot)
        return placement

    def lane_taken(self, lease: int, lane: int, share: int, now_ns: int) -> None:
        """See `Policy.lane_taken`."""
        self._advance(now_ns)
        super().lane_taken(lease, lane, share, now_ns)
        self._taken(self.leases[lease], Placement(lease, lane, False))

    def release(self, placement: Placement, share: int, now_ns: int) -> None:
        """See `Policy.release`."""
        self._advance(now_ns)
        warm = self.leases.get(placement.lease)
        if warm is not None:
            self._gone(warm, placement.lane)
        super().release(placement, share, now_ns)

    def _gone(self, warm: Warm, lane: int) -> None:
        slot, key = warm.position // STARTS, (warm.view.lease, lane)
        started = self._started.get(slot)
        if started is None or key not in started:
            return
        was_oldest = next(iter(started)) == key
        del started[key]
        if not started:
            del self._started[slot]
        if was_oldest and not self._is_young(slot):
            self._refile(slot)

    def lease_lost(self, lease: int) -> None:
        """See `Policy.lease_lost`."""
        warm = self.leases[lease]
        for lane in range(warm.view.lanes):
            self._gone(warm, lane)
        super().lease_lost(lease)

    # -- leasing --------------------------------------------------------------------------------------------------
    def plan(self, demand: Demand, now_ns: int, opening: Opening) -> LeasePlan | Refusal:
        """The smallest instance that holds the demand (or is ``profile``), on the GPU that will stay in use longest; if
        other leases are assumed free or slices are reserved, on the first GPU."""
        self._advance(now_ns)
        self.lease_bytes = opening.lease_bytes
        mask = self.mask(demand, opening.profile)
        if opening.is_supposed:
            return self.first_cut(mask, opening) or self.refusal(mask)
        for where in self._order:
            slot = self._files[where].first(mask)
            if slot is not None:
                return self.cut(self.by_slot[slot], mask) or self.refusal(mask)
        return self.refusal(mask)

    # -- state ----------------------------------------------------------------------------------------------------
    def state(self) -> PolicyState:
        """See `Policy.state`."""
        state = super().state()
        lanes: dict[int, list[tuple[int, int]]] = {}
        for started in self._started.values():
            for (lease, lane), at_ns in started.items():
                lanes.setdefault(lease, []).append((lane, at_ns))
        leases = tuple(replace(held, started=tuple(sorted(lanes.get(held.view.lease, ())))) for held in state.leases)
        return replace(state, leases=leases)

    def restore(self, state: PolicyState) -> None:
        """See `Policy.restore`."""
        super().restore(state)
        running = [
            (at_ns, held.view.lease, lane) for held in state.leases for lane, at_ns in held.started
        ]  # ties need no order: only the oldest time counts
        for at_ns, lease, lane in sorted(running):
            slot = self.leases[lease].position // STARTS
            self._started.setdefault(slot, OrderedDict())[lease, lane] = at_ns
            self._now_ns = max(self._now_ns, at_ns)
        for slot in self._started:
            self._refile(slot)
