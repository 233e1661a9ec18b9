"""The network information base: the cluster as the engine reports it, the jobs on it, and the rates that these get.

It answers a batch with a placement policy (NetPack §3.2, steps 2 to 4). Rates are estimates: nothing is measured, and
no switch is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from offpath.sched.ina.statistical.network import Network
from offpath.sched.placement.batch_port import BatchPlacement, JobDecision, JobRequest, Reservation
from offpath.sched.placement.gpu_cluster import PLAIN, GpuCluster, JobPlacement
from offpath.sched.placement.models import Model
from offpath.sched.workload.records import Batch, Decision, Node, Placed, Share, Spec, Work

_WHOLE: Final = "one-switch"
"""Rack of nodes whose switch is not known."""
_BITS: Final = 8e-9
"""Gbit of a byte."""


@dataclass(frozen=True, slots=True)
class Links:
    """The network's capacities. ``link_gbps``: of each node. ``oversubscription``: a rack's node links over its uplink.
    ``pat_gbps``: peak aggregation throughput of each leaf switch; 0: it does not aggregate."""

    link_gbps: float = 100.0
    oversubscription: float = 1.0
    pat_gbps: float = 0.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a job gets of the network. ``rate_gbps``: of each of its workers. ``bottleneck``: the link that limits it,
    for people. ``comm_s``: time of an iteration's traffic."""

    rate_gbps: float
    bottleneck: str
    comm_s: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """Where a job would go now. ``others``: for each running job whose rate would change, before and after in
    Gbit/s."""

    placed: Placed | None
    estimate: Estimate | None
    reasons: tuple[str, ...]
    others: Mapping[str, tuple[float, float]]


class Information:
    """``models``: by name, data and compute time of an iteration. Not for several threads at once."""

    def __init__(self, links: Links, policy: BatchPlacement, models: Mapping[str, Model]) -> None:
        self._links, self._policy, self._models = links, policy, models
        self._nodes: tuple[Node, ...] = ()
        self._cluster: GpuCluster | None = None
        self._names: list[str] = []
        self._racks: list[str] = []
        self._server_of: dict[str, int] = {}
        self._reserved: tuple[str, tuple[str, ...]] | None = None
        """A job and the nodes that are reserved for it."""

    # -- decisions ------------------------------------------------------------------------------------------------
    def decide(self, batch: Batch) -> list[Decision]:
        """The policy's decision for each queued job, in an order in which they fit. Raises: whatever a policy of a
        plug-in raises."""
        cluster = self._current(batch.nodes, batch.active, batch.free)
        requests = [
            self._request(work.spec, work.identity, place, work.passed_over) for place, work in enumerate(batch.queued)
        ]
        found = self._policy.place_batch(cluster, requests, self._reservation())
        kept = found.reservation
        self._reserved = (kept.job, tuple([self._names[at] for at in kept.servers])) if kept is not None else None
        after = cluster.copied()
        decisions = [Decision(each.job, None, self._texts(each)) for each in found.jobs if each.placement is None]
        data_gbit = {request.job: request.data_gbit for request in requests}
        placed = [(each, each.placement) for each in found.started if each.placement is not None]
        for each, placement in placed:
            after.start(each.job, placement, data_gbit[each.job])
        for each, placement in placed:
            decisions.append(Decision(each.job, self._placed(after, each.job, placement, self._texts(each))))
        return decisions

    def propose(self, batch: Batch, spec: Spec) -> Proposal:
        """Where the policy would put a job now, if no other waited. Changes nothing."""
        cluster = self._current(batch.nodes, batch.active, batch.free).copied()
        request = self._request(spec, spec.name, 0, 0)
        (found,) = self._policy.place_batch(cluster, [request], None).jobs
        if found.placement is None:
            return Proposal(None, None, self._texts(found), {})
        before = {job: cluster.steady.rate_gbps(job) for job in cluster.running if job in cluster.steady}
        cluster.start(spec.name, found.placement, request.data_gbit)
        after = {job: cluster.steady.rate_gbps(job) for job in before}
        changed = {job: (before[job], after[job]) for job in before if abs(before[job] - after[job]) > 1e-6}
        placed = self._placed(cluster, spec.name, found.placement, self._texts(found))
        return Proposal(placed, self._estimate(cluster, spec.name, request.data_gbit), self._texts(found), changed)

    def estimates(self, nodes: tuple[Node, ...], active: Sequence[Work]) -> dict[str, Estimate]:
        """By identity, of the jobs that use the network."""
        if not nodes:
            return {}
        cluster = self._current(nodes, active, None)
        found = {}
        for work in active:
            if work.identity in cluster.steady:
                estimate = self._estimate(cluster, work.identity, self._data_gbit(work.spec))
                if estimate is not None:
                    found[work.identity] = estimate
        return found

    # -- the cluster ----------------------------------------------------------------------------------------------
    def _current(
        self, nodes: tuple[Node, ...], active: Sequence[Work], free: Mapping[str, Sequence[int]] | None
    ) -> GpuCluster:
        """The cluster with the active jobs. Only what changed since the last call is changed."""
        shape = [(node.name, node.gpus, node.switch) for node in nodes]
        if self._cluster is None or shape != [(node.name, node.gpus, node.switch) for node in self._nodes]:
            self._build(nodes)
        self._nodes = nodes
        cluster = self._cluster
        assert cluster is not None
        wanted = {work.identity: work for work in active}
        for job in [job for job in cluster.running if job not in wanted]:
            cluster.finish(job)
        for server in list(cluster.lost):
            cluster.regain(server)
        for identity, work in wanted.items():
            if identity not in cluster.running:
                self._enter(cluster, work)
        for node in nodes:
            if not node.is_ready:
                cluster.lose(self._server_of[node.name])
        if free is not None:  # the engine's view counts: it has jobs of which no place is known
            for name, server in self._server_of.items():
                cluster.free[server] = len(free.get(name, ()))
        return cluster

    def _build(self, nodes: Sequence[Node]) -> None:
        racks: dict[str, list[Node]] = {}
        for node in nodes:
            racks.setdefault(node.switch or _WHOLE, []).append(node)
        self._racks = sorted(racks)
        ordered = [node for rack in self._racks for node in sorted(racks[rack], key=lambda node: node.name)]
        self._names = [node.name for node in ordered]
        self._server_of = {name: server for server, name in enumerate(self._names)}
        links = self._links
        sizes = tuple(len(racks[rack]) for rack in self._racks)
        network = Network(
            sizes, (links.link_gbps,) * len(ordered),
            tuple(size * links.link_gbps / links.oversubscription for size in sizes), (links.pat_gbps,) * len(sizes),
        )  # fmt: skip
        compiled = None if len(ordered) > PLAIN else False
        self._cluster = GpuCluster(network, [node.gpus for node in ordered], compiled=compiled)

    def _enter(self, cluster: GpuCluster, work: Work) -> None:
        """Add a running job. One that does not fit, since the engine changed a node meanwhile, has no estimate."""
        placement = self._placement(work)
        if placement is None:
            return
        fits = all(count <= cluster.free[server] for server, count in placement.workers)
        if fits and placement.ps not in cluster.lost:
            cluster.start(work.identity, placement, self._data_gbit(work.spec))

    def _placement(self, work: Work) -> JobPlacement | None:
        if work.placed is None or not all(share.node in self._server_of for share in work.placed.shares):
            return None
        workers = [(self._server_of[share.node], share.count) for share in work.placed.shares if share.count]
        if not workers or (len(workers) > 1 and not work.placed.server):
            return None
        ps = self._server_of[work.placed.server] if work.placed.server else None
        return JobPlacement(tuple(sorted(workers)), ps, work.placed.uses_ina)

    def _reservation(self) -> Reservation | None:
        if self._reserved is None:
            return None
        job, names = self._reserved
        return Reservation(job, tuple([self._server_of[name] for name in names if name in self._server_of]))

    # -- forms ----------------------------------------------------------------------------------------------------
    def _request(self, spec: Spec, identity: str, place: int, passed_over: int) -> JobRequest:
        """``place``: in the queue, which stands for the time of arrival: clocks may be set back."""
        model = self._models.get(spec.model)
        compute_s = model.compute_s if model is not None else 0.0
        return JobRequest(
            identity, spec.gpus, self._data_gbit(spec), compute_s, spec.value, float(place), passed_over=passed_over
        )

    def _data_gbit(self, spec: Spec) -> float:
        model = self._models.get(spec.model)
        return spec.data_bytes * _BITS or (model.data_gbit if model is not None else 0.0)

    def _placed(self, cluster: GpuCluster, job: str, placement: JobPlacement, reasons: tuple[str, ...]) -> Placed:
        shares = [Share(self._names[server], count) for server, count in placement.workers]
        server = self._names[placement.ps] if placement.ps is not None else ""
        if server and all(share.node != server for share in shares):
            shares.append(Share(server, 0))
        rate = cluster.steady.rate_gbps(job) if job in cluster.steady else 0.0
        return Placed(tuple(shares), server, placement.has_ina, rate * 1e9, reasons)

    def _estimate(self, cluster: GpuCluster, job: str, data_gbit: float) -> Estimate | None:
        if job not in cluster.steady:
            return None
        rate = cluster.steady.rate_gbps(job)
        kind, at = cluster.steady.bottleneck(job)
        where = f"the link of {self._names[at]}" if kind == "server" else f"the uplink of {self._racks[at]}"
        return Estimate(rate, where, data_gbit / rate if rate > 0 else float("inf"))

    def _texts(self, decision: JobDecision) -> tuple[str, ...]:
        return tuple([reason.describe(self._names)[:400] for reason in decision.reasons][:16])
