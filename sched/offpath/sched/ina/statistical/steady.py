"""The steady state of a cluster: what every running job gets of links and switch memory, and what is left.

A job that is added or removed changes the rates of those jobs only that share a used-up link or ToR with it, directly
or through others; only these are computed anew (`kernel.refill`). After many changes everything is computed once from
scratch, so that rounding errors do not add up.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from copy import copy
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offpath.sched.errors import SchedError
from offpath.sched.ina.engine import can_compile
from offpath.sched.ina.statistical import columns as k
from offpath.sched.ina.statistical import kernel
from offpath.sched.ina.statistical.model import Spread, leaves
from offpath.sched.ina.statistical.network import Network

_REFRESH: Final = 4_096
"""Changes between two computations from scratch."""


class SpreadInvalid(SchedError):
    """A job's servers are not in the network, or it is added twice or removed without having been added."""


@cache
def kernels(compiled: bool) -> tuple[Any, Any, Any, Any]:
    """The functions of `kernel`, compiled or plain."""
    if not compiled:
        return kernel.build(lambda function: function)
    import numba

    try:
        return kernel.build(numba.njit(cache=True))  # cached beside the source or in the user's cache
    except RuntimeError:  # neither is writable
        return kernel.build(numba.njit)


class SteadyState:
    """Rates of all jobs that span servers, and the state of every link.

    Memory: about 0.4 KB for a server and 1 KB for a job.
    """

    def __init__(self, network: Network, *, compiled: bool | None = None) -> None:
        """``compiled``: use numba; None: if installed."""
        self.network = network
        self.filled = 0
        """Number of jobs computed by the last change."""
        self._compiled = can_compile() if compiled is None else compiled
        self._link, self._unlink, self._refill, self._remove = kernels(self._compiled)
        servers, racks = network.servers, len(network.racks)
        count = servers + 2 * racks
        most = 2.0 * servers * network.fastest_gbps  # no uplink and no PAT is ever used beyond it
        self._racks, self._first_tor = racks, servers + racks
        self._r = np.zeros((count, k.R_WIDTH), np.int64)
        self._r[:, k.R_HEAD] = -1
        self._rf = np.zeros((count, k.RF_WIDTH))
        capacities = (*network.link_gbps, *network.uplink_gbps, *network.pat_gbps)
        self._rf[:, k.RF_CAPACITY] = np.minimum(capacities, most)
        self._rf[:, k.RF_LEVEL] = k.INFINITE
        self._rf[self._first_tor :, k.RF_BIAS] = k.BIAS_GBPS * (self._rf[self._first_tor :, k.RF_CAPACITY] > 0)
        self._e = np.zeros((256, k.E_WIDTH), np.int64)
        self._ef = np.zeros((256, k.EF_WIDTH))
        self._entries = 0
        self._j = np.zeros((64, k.J_WIDTH), np.int64)
        self._jf = np.zeros((64, k.JF_WIDTH))
        self._filled = np.zeros(64, np.int64)
        self._touched = np.zeros(count, np.int64)
        self._heap = np.zeros(count, np.int64)
        self._keys = np.zeros(count)
        self._place = np.zeros(count, np.int64)
        self._slots: dict[Hashable, int] = {}
        self._spreads: dict[Hashable, Spread] = {}
        self._free = list(range(63, -1, -1))
        self._changes = 0

    def copied(self) -> SteadyState:
        """A state that changes independently of this one."""
        other = copy(self)
        for name in ("_r", "_rf", "_e", "_ef", "_j", "_jf", "_filled", "_touched", "_heap", "_keys", "_place"):
            setattr(other, name, getattr(self, name).copy())
        other._slots, other._spreads, other._free = dict(self._slots), dict(self._spreads), list(self._free)
        return other

    def __contains__(self, job: Hashable) -> bool:
        return job in self._slots

    @property
    def is_compiled(self) -> bool:
        """True if the kernels are compiled."""
        return self._compiled

    @property
    def jobs(self) -> dict[Hashable, Spread]:
        """All jobs, with their servers; do not change it."""
        return self._spreads

    def add(self, job: Hashable, spread: Spread, gbit: float = 1.0) -> None:
        """Add a job that moves ``gbit`` Gbit (d of Table 2) per iteration. Raises: SpreadInvalid."""
        if job in self._slots:
            raise SpreadInvalid(f"job {job!r} is in the network already")
        self._checked(spread)
        slot = self._entered(spread, gbit)
        self._slots[job], self._spreads[job] = slot, spread
        self._fill([slot])

    def remove(self, job: Hashable) -> None:
        """Remove a job. Raises: SpreadInvalid: it is not there."""
        slot = self._slots.pop(job, None)
        if slot is None:
            raise SpreadInvalid(f"job {job!r} is not in the network")
        del self._spreads[job]
        self.filled = self._remove(slot, self._filled, self._e, self._ef, self._r, self._rf, self._j, self._jf)
        self._free.append(slot)
        if self.filled:
            self._run(self.filled, keeps=True)
        self._count_change()

    def change(self, spreads: Mapping[Hashable, Spread]) -> None:
        """Give jobs other servers, PSs or aggregation; everything is computed anew, once.

        Raises: SpreadInvalid: a job is not there, or its servers are not; then nothing changes.
        """
        for job, spread in spreads.items():
            if job not in self._slots:
                raise SpreadInvalid(f"job {job!r} is not in the network")
            self._checked(spread)
        for job, spread in spreads.items():
            slot = self._slots[job]
            self._unlink(slot, self._e, self._r, self._j)
            self._j[slot, k.J_STATE] = k.IS_UNUSED
            self._free.append(slot)
            gbit = float(self._jf[slot, k.JF_BITS])
            del self._slots[job]
            self._slots[job], self._spreads[job] = self._entered(spread, gbit), spread
        self.refresh()

    def added_cost(self, spread: Spread, gbit: float) -> float:
        """By how much the sum of d/v over all jobs, in s, would grow with a job there; nothing changes."""
        slot = self._entered(spread, gbit)
        self._filled[0] = slot
        cost = self._run(1, keeps=False)
        self._unlink(slot, self._e, self._r, self._j)
        self._j[slot, k.J_STATE] = k.IS_UNUSED
        self._free.append(slot)
        if self._j[slot, k.J_START] + self._j[slot, k.J_COUNT] == self._entries:
            self._entries = int(self._j[slot, k.J_START])
        return cost

    def refresh(self) -> None:
        """Compute everything from scratch."""
        self._rf[:, [k.RF_LOAD, k.RF_FLOWS]] = 0.0
        self._rf[:, k.RF_LEVEL] = k.INFINITE
        self._ef[:, [k.EF_LOAD, k.EF_FLOWS]] = 0.0
        self._r[:, k.R_BOTTLENECKS] = 0
        self._changes = 0
        slots = sorted(self._slots.values())
        self._j[slots, k.J_BOTTLENECK] = -1
        self._jf[slots, k.JF_RATE] = 0.0
        if slots:
            self._fill(slots)

    def set_link(self, server: int, gbps: float) -> None:
        """Change the capacity of an access link, 0 for a lost server; everything is computed anew."""
        self._rf[server, k.RF_CAPACITY] = gbps
        self.refresh()

    # -- what it found --------------------------------------------------------------------------------------------
    def rate_gbps(self, job: Hashable) -> float:
        """v of Table 2."""
        return float(self._jf[self._slots[job], k.JF_RATE])

    def rates_gbps(self, jobs: Iterable[Hashable]) -> NDArray[np.float64]:
        """v of several jobs, in their order."""
        slots = self._slots
        found: NDArray[np.float64] = self._jf[[slots[job] for job in jobs], k.JF_RATE]
        return found

    def data_gbit(self, job: Hashable) -> float:
        """What the job moves per iteration: d of Table 2."""
        return float(self._jf[self._slots[job], k.JF_BITS])

    def bottleneck(self, job: Hashable) -> tuple[str, int]:
        """The used-up link on which the job's rate is the largest: ``("server", s)`` or ``("uplink", r)``."""
        res = int(self._j[self._slots[job], k.J_BOTTLENECK])
        servers = self.network.servers
        return ("server", res) if res < servers else ("uplink", res - servers)

    @property
    def residual_gbps(self) -> NDArray[np.float64]:
        """Left on each access link, shape [S]."""
        part = self._rf[: self.network.servers]
        left: NDArray[np.float64] = np.maximum(part[:, k.RF_CAPACITY] - part[:, k.RF_LOAD], 0.0)
        return left

    @property
    def flows(self) -> NDArray[np.float64]:
        """Flows on each access link, shape [S], whole numbers."""
        found: NDArray[np.float64] = self._rf[: self.network.servers, k.RF_FLOWS].copy()
        return found

    @property
    def flows_view(self) -> NDArray[np.float64]:
        """`flows` without a copy: it changes with the state."""
        found: NDArray[np.float64] = self._rf[: self.network.servers, k.RF_FLOWS]
        return found

    def total_cost(self) -> float:
        """The sum of d/v over all jobs, in s; infinite if one has rate 0."""
        slots = list(self._slots.values())
        rates = self._jf[slots, k.JF_RATE]
        if np.any(rates <= 0):
            return float("inf")
        return float((self._jf[slots, k.JF_BITS] / rates).sum())

    @property
    def uplink_residual_gbps(self) -> NDArray[np.float64]:
        """Left on each uplink, shape [R]."""
        part = self._rf[self.network.servers : self._first_tor]
        left: NDArray[np.float64] = np.maximum(part[:, k.RF_CAPACITY] - part[:, k.RF_LOAD], 0.0)
        return left

    @property
    def uplink_flows(self) -> NDArray[np.float64]:
        """Flows on each uplink, shape [R]: FC of §5.2."""
        found: NDArray[np.float64] = self._rf[self.network.servers : self._first_tor, k.RF_FLOWS].copy()
        return found

    @property
    def pat_left_gbps(self) -> NDArray[np.float64]:
        """PAT left at each ToR, shape [R]."""
        part = self._rf[self._first_tor :]
        left: NDArray[np.float64] = np.maximum(part[:, k.RF_CAPACITY] - part[:, k.RF_LOAD], 0.0)
        return left

    @property
    def aggregated_up_to_gbps(self) -> NDArray[np.float64]:
        """The rate up to which each ToR aggregates a job, shape [R]; infinite while it has PAT left."""
        levels = self._rf[self._first_tor :, k.RF_LEVEL]
        return np.where(levels >= k.INFINITE, np.inf, levels)

    # -- inside ---------------------------------------------------------------------------------------------------
    def _checked(self, spread: Spread) -> None:
        count = self.network.servers
        if not spread.workers or not all(0 <= server < count for server in (*spread.workers, spread.ps)):
            raise SpreadInvalid(f"servers of the job are not in a network of {count}")
        if len(set(spread.workers)) != len(spread.workers):
            raise SpreadInvalid("a server is named twice")

    def _fill(self, slots: list[int]) -> None:
        self._filled[: len(slots)] = slots
        self._run(len(slots), keeps=True)
        self._count_change()

    def _count_change(self) -> None:
        self._changes += 1
        if self._changes >= _REFRESH:
            self.refresh()

    def _run(self, count: int, *, keeps: bool) -> float:
        self.filled, cost = self._refill(
            count, len(self._slots) + (not keeps), self._racks, keeps, self._filled, self._touched, self._heap,
            self._keys, self._place, self._e, self._ef, self._r, self._rf, self._j, self._jf,
        )  # fmt: skip
        return float(cost)

    def _entered(self, spread: Spread, gbit: float) -> int:
        """Give a job a slot and entries, without a rate; returns the slot."""
        if not self._free:
            self._grow()
        rack_of, servers = self.network.rack_of, self.network.servers
        root = rack_of[spread.ps]
        below = leaves(self.network, spread)
        beside = spread.ps in spread.workers
        local = len(spread.workers) - sum(below.values())
        entering = [1 if spread.has_ina else n for n in below.values()]
        last = (1 if spread.has_ina else local + sum(entering)) + beside
        kinds = [(s, k.WORKER, 1, 1) for s in spread.workers]
        ps = spread.workers.index(spread.ps) if beside else len(kinds)
        kinds[ps : ps + 1] = [(spread.ps, k.PS_AND_WORKER if beside else k.PS, 0, last)]
        first_leaf = len(kinds)
        kinds += [(servers + rack, k.LEAF, n, n_in) for (rack, n), n_in in zip(below.items(), entering, strict=True)]
        if below:
            kinds.append((servers + root, k.ROOT, 0, sum(entering)))
        first_tor = len(kinds)
        if spread.has_ina:
            kinds += [(self._first_tor + rack, k.TOR, 0, 1) for rack in (root, *below)]
        self._make_room(len(kinds))
        slot, start = self._free.pop(), self._entries
        end = self._entries = start + len(kinds)
        entered = np.array(kinds, np.int64)
        self._e[start:end, k.E_JOB] = slot
        self._e[start:end, [k.E_RES, k.E_KIND, k.E_N]] = entered[:, :3]
        self._ef[start:end] = 0.0
        self._ef[start:end, k.EF_FIRST] = entered[:, 3]
        self._j[slot] = (
            start, len(kinds), k.IS_UNUSED, -1, -1, local, self._first_tor + root, ps, first_leaf, first_tor, 0,
        )  # fmt: skip
        self._jf[slot] = (0.0, 0.0, gbit)
        self._link(slot, self._e, self._r, self._j)
        return slot

    def _grow(self) -> None:
        count = len(self._j)
        self._j = np.concatenate([self._j, np.zeros_like(self._j)])
        self._jf = np.concatenate([self._jf, np.zeros_like(self._jf)])
        self._filled = np.zeros(2 * count, np.int64)
        self._free = list(range(2 * count - 1, count - 1, -1))

    def _make_room(self, count: int) -> None:
        """Close the gaps that removed jobs left, and grow, if the entries do not fit."""
        if self._entries + count <= len(self._e):
            return
        slots = sorted(self._slots.values(), key=lambda slot: int(self._j[slot, k.J_START]))
        used = int(self._j[slots, k.J_COUNT].sum()) if slots else 0
        size = len(self._e)
        while size < 2 * (used + count):
            size *= 2
        e, ef = np.zeros((size, k.E_WIDTH), np.int64), np.zeros((size, k.EF_WIDTH))
        at = 0
        for slot in slots:
            start, number = (int(each) for each in self._j[slot, [k.J_START, k.J_COUNT]])
            e[at : at + number], ef[at : at + number] = (
                self._e[start : start + number],
                self._ef[start : start + number],
            )
            self._j[slot, k.J_START] = at
            at += number
        self._e, self._ef, self._entries = e, ef, at
        self._r[:, k.R_HEAD] = -1
        for slot in slots:
            self._link(slot, self._e, self._r, self._j)
