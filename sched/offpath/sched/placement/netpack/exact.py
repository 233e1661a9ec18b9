"""The optimum of the corrected Table 3 on small clusters, by branch and bound over all placements.

Corrected: (1) and (2) belong to each other's text; a job with no traffic has no term d/v, instead of a v of 0; every
ToR may aggregate a job; v = a + b; and the rates are not free but the max-min shares, which are the outcome of water
filling (`statistical.steady`). A mixed integer program cannot state that last condition linearly, so the search goes
through all worker sets, PS locations and choices of aggregation, and fills each.

Only *sets* of workers' servers matter to the network, so GPU counts are a feasibility test. Servers that are equal so
far are interchangeable, and racks too; of such placements one is searched. A branch is cut where a lower bound of the
sum of d/v reaches the best found: on any link, sum of d/v >= (sum of sqrt(d f))^2 / C for the jobs with f flows on it
(Cauchy-Schwarz), and no job is faster than alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from offpath.sched.errors import SchedError
from offpath.sched.ina.statistical.model import Spread, flows
from offpath.sched.ina.statistical.network import Network
from offpath.sched.ina.statistical.steady import SteadyState
from offpath.sched.placement.batch_port import JobRequest
from offpath.sched.placement.gpu_cluster import GpuCluster

MOST_SERVERS: Final = 6
MOST_JOBS: Final = 4
_CLOSE: Final = 1e-9
Link = tuple[str, int]


class SearchTooLarge(SchedError):
    """More servers or jobs than the search is meant for, or jobs that span servers run already."""


@dataclass(frozen=True, slots=True)
class Option:
    """A place for one job. ``spread``: None: one server, no traffic. ``alone_s``: its d/v on an idle network."""

    servers: tuple[int, ...]
    spread: Spread | None
    alone_s: float
    flows: tuple[tuple[Link, int], ...]


def optimum(cluster: GpuCluster, batch: Sequence[JobRequest], at_most: float = math.inf) -> tuple[float, int]:
    """The least sum of d/v over all placements of the whole batch, in s, and how many placements were filled.

    ``at_most``: the sum of a known placement; the search begins there. Infinite: the batch does not fit.
    Raises: SearchTooLarge.
    """
    network = cluster.network
    if network.servers > MOST_SERVERS or len(batch) > MOST_JOBS or cluster.steady.jobs:
        raise SearchTooLarge(
            f"{network.servers} servers and {len(batch)} jobs; at most {MOST_SERVERS} and {MOST_JOBS}, idle"
        )
    search = _Search(cluster, sorted(batch, key=lambda r: -r.data_gbit * (r.gpus > cluster.most_gpus)))
    search.best = at_most * (1 + _CLOSE) if math.isfinite(at_most) else math.inf
    search.descend(0)
    return min(search.best, at_most), search.filled


def fits(free: Sequence[int], needs: Sequence[tuple[int, tuple[int, ...]]]) -> bool:
    """Whether each job (GPUs, servers) can get its GPUs with at least one on each of its servers.

    By the cut condition of the transport problem: no set of jobs needs more than its servers have.
    """
    left = list(free)
    for _, servers in needs:
        for server in servers:
            left[server] -= 1
    if min(left) < 0 or any(gpus < len(servers) for gpus, servers in needs):
        return False
    for size in range(1, len(needs) + 1):
        for some in itertools.combinations(needs, size):
            union = set().union(*(servers for _, servers in some))
            if sum(gpus - len(servers) for gpus, servers in some) > sum(left[server] for server in union):
                return False
    return True


class _Search:
    def __init__(self, cluster: GpuCluster, batch: Sequence[JobRequest]) -> None:
        self.best = math.inf
        self.filled = 0
        self._network = cluster.network
        self._free = cluster.free.tolist()
        self._batch = batch
        self._steady = SteadyState(cluster.network, compiled=cluster.steady.is_compiled)
        self._options = [self._options_of(request) for request in batch]
        least = [min((each.alone_s for each in some), default=math.inf) for some in self._options]
        self._least_after = [sum(least[n:]) for n in range(len(batch) + 1)]
        self._capacity = {("server", s): gbps for s, gbps in enumerate(self._network.link_gbps)} | {
            ("uplink", r): gbps for r, gbps in enumerate(self._network.uplink_gbps)
        }
        self._placed: list[Option] = []
        self._alone_s = 0.0
        self._on: dict[Link, list[float]] = {link: [0.0, 0.0] for link in self._capacity}
        """By link, over placed jobs with flows on it: the sum of sqrt(d f), and of their time alone."""

    def descend(self, depth: int) -> None:
        """Try all options of the next job."""
        if depth == len(self._batch):
            self.filled += 1
            self.best = min(self.best, self._steady.total_cost())
            return
        request = self._batch[depth]
        needs = [(job.gpus, option.servers) for job, option in zip(self._batch, self._placed, strict=False)]
        for option in self._options[depth]:
            if self._alone_s + option.alone_s + self._least_after[depth + 1] >= self.best * (1 - _CLOSE):
                break  # the options are sorted
            if not self._is_first(option) or not fits(self._free, [*needs, (request.gpus, option.servers)]):
                continue
            self._enter(request, option, 1)
            if self._bound() + self._least_after[depth + 1] < self.best * (1 - _CLOSE):
                if option.spread is not None:
                    self._steady.add(depth, option.spread, request.data_gbit)
                self.descend(depth + 1)
                if option.spread is not None:
                    self._steady.remove(depth)
            self._enter(request, option, -1)

    def _enter(self, request: JobRequest, option: Option, sign: int) -> None:
        if sign > 0:
            self._placed.append(option)
        else:
            self._placed.pop()
        self._alone_s += sign * option.alone_s
        for link, count in option.flows:
            self._on[link][0] += sign * math.sqrt(request.data_gbit * count)
            self._on[link][1] += sign * option.alone_s

    def _bound(self) -> float:
        bound = self._alone_s
        for link, (roots, alone_s) in self._on.items():
            if roots > 0:
                shared = roots**2 / self._capacity[link] if self._capacity[link] > 0 else math.inf
                bound = max(bound, self._alone_s - alone_s + shared)
        return bound

    def _options_of(self, request: JobRequest) -> list[Option]:
        servers = [server for server, free in enumerate(self._free) if free > 0]
        found = []
        for size in range(1, min(request.gpus, len(servers)) + 1):
            for some in itertools.combinations(servers, size):
                if sum(self._free[server] for server in some) < request.gpus:
                    continue
                if size == 1:
                    found.append(Option(some, None, 0.0, ()))
                    continue
                for ps, has_ina in itertools.product(range(self._network.servers), (True, False)):
                    found.append(self._spanning(request, Spread(some, ps, has_ina)))
        return sorted((each for each in found if math.isfinite(each.alone_s)), key=lambda each: each.alone_s)

    def _spanning(self, request: JobRequest, spread: Spread) -> Option:
        self._steady.add("alone", spread, request.data_gbit)
        alone_s = self._steady.total_cost()
        self._steady.remove("alone")
        network = self._network
        is_open = {rack: spread.has_ina and pat > 0 for rack, pat in enumerate(network.pat_gbps)}
        return Option(spread.workers, spread, alone_s, tuple(flows(network, spread, is_open).items()))

    def _is_first(self, option: Option) -> bool:
        """Whether the option is the representative of those that differ by equal servers and racks."""
        racks: list[tuple[object, list[tuple[bool, bool]]]] = []
        for rack in range(len(self._network.racks)):
            inside = [server for server, at in enumerate(self._network.rack_of) if at == rack]
            marks = [_mark(option, server) for server in inside]
            before = [self._before(server) for server in inside]
            for n, server in enumerate(before):
                twin = next((m for m in range(n - 1, -1, -1) if before[m] == server), None)
                if twin is not None and marks[twin] < marks[n]:
                    return False
            racks.append(((before, _rack(self._network, rack)), marks))
        for n, (own, marks) in enumerate(racks):
            other = next((m for m in range(n - 1, -1, -1) if racks[m][0] == own), None)
            if other is not None and racks[other][1] < marks:
                return False
        return True

    def _before(self, server: int) -> tuple[object, ...]:
        """What tells the server from others of its rack: capacity, free GPUs, and the placed jobs on it."""
        marks = tuple([_mark(option, server) for option in self._placed])
        return (self._network.link_gbps[server], self._free[server], marks)


def _mark(option: Option, server: int) -> tuple[bool, bool]:
    return server in option.servers, option.spread is not None and option.spread.ps == server


def _rack(network: Network, rack: int) -> tuple[float, float]:
    return network.uplink_gbps[rack], network.pat_gbps[rack]
