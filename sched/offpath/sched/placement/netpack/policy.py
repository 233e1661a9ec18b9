"""The policies `netpack-paper`, Algorithm 2 as the paper means it, and `netpack`, which goes beyond it.

`netpack` differs in five points:
- the plans compared come from several dynamic programs: the paper's, whose sum of server values favours scattered
  plans; one that charges for each server; and those within single racks and the fewest racks;
- the best of each are finalists, and the one that adds least to the refilled sum of d/v over all jobs wins: the
  objective of Table 3 instead of a proxy;
- of equally loaded servers, the one whose rack has most other free GPUs gives back what a plan has too many;
- when all jobs of a batch are placed, each is placed anew beside the others, if that lowers that sum;
- a job that waited long reserves servers (`reservation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from offpath.sched.ina.statistical.model import Spread
from offpath.sched.placement.batch_port import JobDecision, JobRequest, Reason, Reservation, Why
from offpath.sched.placement.gpu_cluster import GpuCluster, JobPlacement
from offpath.sched.placement.netpack import aggregation
from offpath.sched.placement.netpack.batching import BatchPolicy, Placed, Space, one_server
from offpath.sched.placement.netpack.plans import Plan, View, plans, view
from offpath.sched.placement.netpack.reservation import servers_for

PATIENCE: Final = 2_048
"""Batches that pass a job over before it may reserve servers. Fewer cost: servers that wait for one job idle, and in a
queue that is never short nearly every job would reserve some."""
FINALISTS: Final = 4
"""Plans of each dynamic program that are refilled."""
REFINEMENTS: Final = 3
"""Times that the jobs of a batch are placed anew at most, and `MOST_REFINED`: in batches of that many jobs at most."""
MOST_REFINED: Final = 16
RACKS: Final = 4
"""Racks tried, of those with the least and of those with the most free GPUs."""
FILLS: Final = 250_000
"""Rates computed to compare finalists in one batch, about a second's work; the batch's other jobs get the plan with the
best score."""

_CHARGE: Final = 2.0
"""Subtracted from the value of each server of a compact plan, in links of the fastest capacity."""
OWN: Final = (0, 2)
"""Flows of a PS on a worker's server: as the paper counts them, and as they are."""


class NetPackPaper(BatchPolicy):
    """Algorithm 2 with its errors corrected; see `plans`."""

    name = "netpack-paper"

    def place_one(self, here: Space, request: JobRequest) -> Placed | None:
        """See `BatchPolicy`."""
        single = one_server(here, request.gpus)
        if single is not None:
            return single
        seen = view(here.cluster)
        for region in here.regions:
            servers = region[here.allowed[region]]
            if int(seen.free[servers].sum()) >= request.gpus:
                plan = self.choose(here, seen, servers, region, request)
                if plan is not None:
                    return _spread(plan)
        return None

    def choose(
        self, here: Space, seen: View, servers: NDArray[np.int64], region: NDArray[np.int64], request: JobRequest
    ) -> Plan | None:
        """The plan with the best score."""
        return next(iter(plans(seen, servers, request.gpus, region)), None)

    def finish_batch(self, here: Space, valid: Sequence[JobRequest], found: dict[str, JobDecision]) -> None:
        """Step 4."""
        mine = [job for job, each in found.items() if each.placement is not None and each.placement.ps is not None]
        short = aggregation.disabled(here.cluster, mine)
        off = short if self.accepts(here.cluster, short) else set()
        for job in mine:
            decision = found[job]
            assert decision.placement is not None
            if job in off:
                reason = Reason(Why.INA_OFF, "PAT is used up by jobs with a higher aggregation efficiency")
            elif job in short:
                reason = Reason(Why.INA_ON, "its switches have no PAT for it, but the others gain nothing without it")
            else:
                reason = Reason(Why.INA_ON, "its switches have PAT for its aggregation efficiency")
            placement = replace(decision.placement, has_ina=job not in off)
            found[job] = JobDecision(job, placement, (*decision.reasons, reason))

    def accepts(self, cluster: GpuCluster, off: set[str]) -> bool:
        """Whether the jobs ``off`` lose aggregation."""
        return True


class NetPack(NetPackPaper):
    """See the module."""

    name = "netpack"

    def __init__(self, patience: int = PATIENCE, finalists: int = FINALISTS, fills: int = FILLS) -> None:
        """``patience``: batches, 0 or more. ``finalists``: plans refilled of each dynamic program, 1 or more.
        ``fills``: rates computed per batch, see `FILLS`; 0: plans are compared by score alone."""
        self.patience, self.finalists, self.fills = patience, finalists, fills

    def choose(
        self, here: Space, seen: View, servers: NDArray[np.int64], region: NDArray[np.int64], request: JobRequest
    ) -> Plan | None:
        """The finalist that adds least to the sum of d/v; of equal ones the first: compact plans come first."""
        best: Plan | None = None
        least = np.inf
        data_gbit = request.data_gbit or 1.0
        tried: set[tuple[tuple[tuple[int, int], ...], int]] = set()
        if here.filled >= self.fills:
            return next(iter(plans(seen, servers, request.gpus, region, _CHARGE * seen.fastest_gbps, OWN)), None)
        for plan in self._finalists(seen, servers, region, request.gpus):
            if (plan.workers, plan.ps) in tried:
                continue
            tried.add((plan.workers, plan.ps))
            spread = Spread(tuple(server for server, _ in plan.workers), plan.ps)
            cost = here.cluster.steady.added_cost(spread, data_gbit)
            here.filled += here.cluster.steady.filled
            if cost < least * (1 - 1e-9):
                best, least = plan, cost
        return best

    def _finalists(self, seen: View, servers: NDArray[np.int64], region: NDArray[np.int64], gpus: int) -> list[Plan]:
        charge = _CHARGE * seen.fastest_gbps
        found: list[Plan] = []
        for group in _rack_groups(seen, servers, gpus):
            found += plans(seen, group, gpus, region, charge, OWN, 2, keeps_racks=True)
        found.sort(key=lambda plan: -plan.score)
        found = found[: self.finalists]
        for each in (charge, 0.0):
            found += plans(seen, servers, gpus, region, each, OWN, self.finalists, keeps_racks=True)
        return found

    def finish_batch(self, here: Space, valid: Sequence[JobRequest], found: dict[str, JobDecision]) -> None:
        """Place the batch's jobs that span servers anew, one by one: the first were placed without the others. A new
        place stays if it lowers the sum of d/v."""
        by_name = {request.job: request for request in valid}
        mine = [job for job, each in found.items() if each.placement is not None and each.placement.ps is not None]
        for _ in range(REFINEMENTS if 1 < len(mine) <= MOST_REFINED else 0):
            moved = sum(self._moves(here, by_name[job], found) for job in mine)
            if not moved:
                break
        super().finish_batch(here, valid, found)

    def _moves(self, here: Space, request: JobRequest, found: dict[str, JobDecision]) -> bool:
        cluster = here.cluster
        before, old = cluster.steady.total_cost(), cluster.running[request.job]
        cluster.finish(request.job)
        placed = self.place_one(here, request)
        if placed is not None:
            cluster.start(request.job, placed[0], request.data_gbit)
            if cluster.steady.total_cost() < before * (1 - 1e-9):
                found[request.job] = JobDecision(request.job, *placed)
                return True
            cluster.finish(request.job)
        cluster.start(request.job, old, request.data_gbit)
        return False

    def accepts(self, cluster: GpuCluster, off: set[str]) -> bool:
        """Only if that lowers the sum of d/v."""
        if not off:
            return True
        before = cluster.steady.total_cost()
        cluster.switch_off_ina(off)
        return cluster.steady.total_cost() < before

    def reserve(
        self, here: Space, valid: Sequence[JobRequest], reservation: Reservation | None, found: dict[str, JobDecision]
    ) -> Reservation | None:
        """Place jobs that waited long, the oldest first, until one has no room: that one reserves servers."""
        by_name = {request.job: request for request in valid}
        if reservation is not None and reservation.job not in by_name:
            reservation = None
        late = sorted((r for r in valid if r.passed_over >= self.patience), key=lambda r: r.arrival_s)
        if reservation is not None:
            late = [by_name[reservation.job], *(r for r in late if r.job != reservation.job)]
        for request in late:
            placed = self.place_one(here, request)
            if placed is not None:
                here.cluster.start(request.job, placed[0], request.data_gbit)
                found[request.job] = JobDecision(request.job, *placed)
                continue
            kept = reservation.servers if reservation is not None and reservation.job == request.job else ()
            if not kept or any(not here.cluster.is_linked[server] for server in kept):
                kept = servers_for(here.cluster, request.gpus, kept)
            if not kept:
                continue
            here.allowed[list(kept)] = False
            text = f"{len(kept)} servers reserved; the job starts at the latest when the jobs on them have ended"
            found[request.job] = JobDecision(request.job, None, (Reason(Why.HAS_RESERVATION, text),))
            return Reservation(request.job, kept)
        return None


def _rack_groups(seen: View, servers: NDArray[np.int64], gpus: int) -> list[NDArray[np.int64]]:
    """Servers of single racks that have room, `RACKS` with the least and `RACKS` with the most free GPUs; if none has,
    those of the fewest racks."""
    racks = seen.rack_of[servers]
    free = np.bincount(racks, weights=seen.free[servers], minlength=len(seen.uplinks_gbps))
    order = np.argsort(free, kind="stable")
    fitting = order[free[order] >= gpus]
    if len(fitting):
        some = dict.fromkeys([*fitting[:RACKS].tolist(), *fitting[-RACKS:].tolist()])
        return [servers[racks == rack] for rack in some]
    most = order[::-1]
    count = int(np.searchsorted(np.cumsum(free[most]), gpus)) + 1
    return [servers[np.isin(racks, most[:count])]]


def _spread(plan: Plan) -> Placed:
    servers = len(plan.workers)
    gpus = sum(count for _, count in plan.workers)
    beside = any(server == plan.ps for server, _ in plan.workers)
    if servers == 1:
        server = plan.workers[0][0]
        return JobPlacement(plan.workers), (Reason(Why.ONE_SERVER, "has room", server),)
    reasons = (
        Reason(Why.SPREAD, f"{gpus} GPUs on {servers} servers, score {plan.score:.6g}"),
        Reason(Why.PS, f"{'with' if beside else 'without'} workers", plan.ps),
    )
    return JobPlacement(plan.workers, plan.ps, True), reasons
