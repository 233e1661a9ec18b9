"""Batch policies as a whole: GPUs conserved, decisions deterministic, reasons, bad input, regions, and reservations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.errors import SchedError
from offpath.sched.ina.statistical.checker import violations
from offpath.sched.ina.statistical.network import Network, regular
from offpath.sched.placement.batch_port import JobDecision, JobRequest, Reservation, Why
from offpath.sched.placement.batch_registry import BATCH_PLACEMENTS, GROUP, make
from offpath.sched.placement.gpu_cluster import GpuCluster, GpusHeld, JobPlacement
from offpath.sched.placement.models import MODELS, UnknownModel, model_named
from offpath.sched.placement.netpack.batching import Space
from offpath.sched.placement.netpack.policy import NetPack, NetPackPaper
from offpath.sched.placement.netpack.reservation import waiting_bound_s

from .netpack_worlds import faults, in_use, requests, small_cluster

POLICIES = sorted(BATCH_PLACEMENTS)


@pytest.mark.parametrize("name", POLICIES)
@given(seed=st.integers(0, 10**6))
def test_gpus_are_conserved_and_every_decision_has_a_reason(name: str, seed: int) -> None:
    random = Random(seed)
    cluster = in_use(random)
    batch = requests(random, random.randint(1, 8), 12)
    decision = make(name).place_batch(cluster, batch)
    assert faults(cluster, batch, decision) == []
    steady = cluster.steady
    rates = {job: steady.rate_gbps(job) for job in steady.jobs}
    assert violations(cluster.network, steady.jobs, rates) == []
    for job in list(cluster.running):
        cluster.finish(job)
    assert cluster.free.tolist() == cluster.gpus.tolist()
    assert steady.flows.round().tolist() == [0] * len(cluster.free)


@pytest.mark.parametrize("name", POLICIES)
def test_decisions_are_deterministic_and_leave_the_cluster_alone(name: str) -> None:
    for seed in range(12):
        random = Random(seed)
        cluster = in_use(random)
        batch = requests(random, 6, 12)
        free, running = cluster.free.tolist(), dict(cluster.running)
        first = make(name).place_batch(cluster, batch)
        assert make(name).place_batch(cluster, batch) == first
        assert (cluster.free.tolist(), cluster.running) == (free, running)


@pytest.mark.parametrize("name", POLICIES)
def test_a_job_gets_one_server_if_one_has_room(name: str) -> None:
    cluster = small_cluster()
    decision = make(name).place_batch(cluster, [JobRequest("one", 3, 4.0)])
    (placed,) = decision.started
    assert placed.placement is not None
    assert len(placed.placement.workers) == 1
    assert placed.placement.ps is None


@pytest.mark.parametrize("name", ["netpack", "netpack-paper"])
def test_a_job_that_spans_servers_says_where_and_why(name: str) -> None:
    (placed,) = make(name).place_batch(small_cluster(), [JobRequest("wide", 8, 4.0)]).started
    assert [reason.why for reason in placed.reasons] == [Why.SPREAD, Why.PS, Why.INA_ON]
    assert placed.placement is not None
    assert placed.placement.gpus == 8


BAD = {
    "no GPU": JobRequest("x", 0, 1.0),
    "fewer": JobRequest("x", -4, 1.0),
    "above the cluster": JobRequest("x", 33, 1.0),
    "half a GPU": JobRequest("x", 1.5, 1.0),  # type: ignore[arg-type]
    "true": JobRequest("x", True, 1.0),
    "NaN data": JobRequest("x", 2, math.nan),
    "endless data": JobRequest("x", 2, math.inf),
    "negative data": JobRequest("x", 2, -1.0),
    "NaN value": JobRequest("x", 2, 1.0, value=math.nan),
    "no value": JobRequest("x", 2, 1.0, value=0.0),
    "NaN time": JobRequest("x", 2, 1.0, compute_s=math.nan),
    "endless arrival": JobRequest("x", 2, 1.0, arrival_s=math.inf),
    "a name twice": JobRequest("good", 2, 1.0),
    "a running job": JobRequest("running", 2, 1.0),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", ["netpack", "netpack-paper", "gpu-balance", "fragments"])
def test_bad_input_is_refused_with_a_reason_and_others_are_placed(name: str, bad: str) -> None:
    cluster = small_cluster()
    cluster.start("running", JobPlacement(((0, 1),)))
    good = JobRequest("good", 6, 4.0)
    alone = make(name).place_batch(cluster, [good])
    both = make(name).place_batch(cluster, [good, BAD[bad]])
    assert both.jobs[0] == alone.jobs[0]
    assert both.jobs[1].is_refused
    assert both.jobs[1].placement is None
    assert both.jobs[1].reasons[0].text


def test_an_unknown_model_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(UnknownModel, match="vgg16"):
        model_named("vgg17")
    assert model_named("vgg16").data_gbit == pytest.approx(4.4274, abs=1e-3)


def test_an_unknown_policy_is_an_error() -> None:
    with pytest.raises(SchedError, match="netpack-paper"):
        make("best")


def test_the_policies_are_entry_points() -> None:
    points = {point.name: point for point in entry_points(group=GROUP)}
    assert points["netpack"].load() is NetPack
    assert points["netpack-paper"].load() is NetPackPaper


@pytest.mark.parametrize("name", POLICIES)
def test_no_job_spans_a_rack_without_an_uplink(name: str) -> None:
    network = Network((2, 2, 2), (100.0,) * 6, (800.0, 0.0, 800.0), (1_000.0,) * 3)
    cluster = GpuCluster(network, 4)
    batch = [JobRequest("a", 8, 4.0), JobRequest("b", 8, 4.0), JobRequest("c", 8, 4.0), JobRequest("d", 20, 4.0)]
    decision = make(name).place_batch(cluster, batch)
    assert decision.jobs[3].is_refused, "16 GPUs are connected"
    assert faults(cluster, batch, decision) == []
    assert len(decision.started) == 3
    for each in decision.started:
        assert each.placement is not None
        servers = {server for server, _ in each.placement.workers} | {each.placement.ps}
        assert servers <= {2, 3} or not servers & {2, 3}
    assert cluster.steady.total_cost() < math.inf


@pytest.mark.parametrize("name", POLICIES)
def test_a_lost_server_gets_nothing(name: str) -> None:
    cluster = small_cluster(racks=1, servers=4)
    cluster.start("victim", JobPlacement(((0, 2), (1, 2)), 0, True))
    assert cluster.lose(0) == ("victim",)
    cluster.finish("victim")
    batch = [JobRequest("a", 12, 4.0), JobRequest("b", 13, 4.0)]
    decision = make(name).place_batch(cluster, batch)
    assert decision.jobs[1].is_refused
    assert faults(cluster, batch, decision) == []
    assert decision.jobs[0].placement is not None
    assert cluster.free.tolist() == [0] * 4
    cluster.regain(0)
    assert cluster.free.tolist() == [4, 0, 0, 0]


def test_a_server_lost_between_decision_and_start_stops_its_job_only() -> None:
    cluster = small_cluster(racks=1, servers=4)
    batch = [JobRequest("a", 8, 4.0), JobRequest("b", 8, 4.0)]
    decision = make("netpack").place_batch(cluster, batch)
    first, second = decision.started
    assert first.placement is not None
    assert second.placement is not None
    cluster.lose(first.placement.workers[0][0])
    with pytest.raises(GpusHeld):
        cluster.start("a", first.placement, 4.0)
    cluster.start("b", second.placement, 4.0)
    assert set(cluster.running) == {"b"}


@pytest.mark.parametrize(
    "placement",
    [
        JobPlacement(()), JobPlacement(((0, 5),)), JobPlacement(((0, 0),)), JobPlacement(((9, 1),)),
        JobPlacement(((0, 1), (0, 1)), 0), JobPlacement(((0, 1), (1, 1))), JobPlacement(((0, 1), (1, 1)), 99),
    ],
)  # fmt: skip
def test_an_impossible_placement_is_refused_and_changes_nothing(placement: JobPlacement) -> None:
    cluster = small_cluster()
    with pytest.raises(GpusHeld):
        cluster.start("x", placement)
    assert cluster.free.tolist() == cluster.gpus.tolist()
    assert not cluster.running


def test_a_cluster_has_as_many_counts_as_servers_and_finishes_what_runs() -> None:
    with pytest.raises(GpusHeld):
        GpuCluster(regular(1, 2), [1, 2, 3])
    with pytest.raises(GpusHeld):
        GpuCluster(regular(1, 2), [1, -2])
    cluster = small_cluster()
    with pytest.raises(GpusHeld):
        cluster.finish("x")
    with pytest.raises(GpusHeld):
        cluster.lose(99)
    with pytest.raises(GpusHeld):
        cluster.regain(0)


# -- aggregation --------------------------------------------------------------------------------------------------
def test_when_pat_runs_out_jobs_with_fewer_flows_lose_aggregation() -> None:
    cluster = small_cluster(racks=1, servers=8, pat=20.0)
    batch = [JobRequest("wide", 16, 4.0, value=2.0), JobRequest("narrow", 8, 4.0)]
    wide, narrow = NetPackPaper().place_batch(cluster, batch).jobs
    assert wide.placement is not None
    assert narrow.placement is not None
    assert (wide.placement.has_ina, narrow.placement.has_ina) == (True, False)
    assert wide.reasons[-1].why is Why.INA_ON
    assert narrow.reasons[-1].why is Why.INA_OFF


def test_the_jobs_that_lose_aggregation_are_computed_together_and_only_running_ones() -> None:
    cluster = small_cluster(racks=1, servers=8, pat=20.0)
    for job, at in (("a", 0), ("b", 3)):
        cluster.start(job, JobPlacement(((at, 1), (at + 1, 1)), at + 2, True), 4.0)
    cluster.start("one", JobPlacement(((6, 1),)))
    for bad in (["a", "c"], ["a", "one"]):
        with pytest.raises(GpusHeld):
            cluster.switch_off_ina(bad)
        assert cluster.running["a"].has_ina
    cluster.switch_off_ina(["a"])
    assert [cluster.running[job].has_ina for job in ("a", "b")] == [False, True]
    assert cluster.steady.rate_gbps("a") == pytest.approx(50.0)
    assert cluster.steady.rate_gbps("b") == pytest.approx(60.0), "20 aggregated, then two flows on the PS's link"


def test_the_work_of_a_batch_is_bounded_and_its_last_jobs_get_the_plan_with_the_best_score() -> None:
    batch = [JobRequest(f"job-{n}", 6, 4.0) for n in range(40)]
    filled = []

    class Counting(NetPack):
        def finish_batch(self, here: Space, valid: Sequence[JobRequest], found: dict[str, JobDecision]) -> None:
            filled.append(here.filled)
            super().finish_batch(here, valid, found)

    for fills in (0, 30, 10**9):
        cluster = small_cluster(racks=4, servers=16, pat=20.0)
        decision = Counting(fills=fills).place_batch(cluster, batch)
        assert faults(cluster, batch, decision) == []
        assert len(decision.started) == 40
    assert filled[0] == 0
    most = filled[2]
    assert 30 <= filled[1] < most
    assert filled[1] <= 30 + 12 * 40, "one job's finalists at most beyond it"


# -- reservations -------------------------------------------------------------------------------------------------
PERIOD_S = 10.0
RUN_S = 100.0


def stream(policy: NetPack | NetPackPaper, batches: int) -> float | None:
    """16 servers of 4 GPUs; a 64-GPU job arrives in a cluster that 4-GPU jobs of 100 s keep full. Its waiting time."""
    cluster = small_cluster(racks=2, servers=8)
    ends: dict[str, float] = {}
    waiting: list[JobRequest] = []
    reservation: Reservation | None = None
    for n in range(batches):
        now_s = n * PERIOD_S
        for job in [job for job, end_s in ends.items() if end_s <= now_s]:
            cluster.finish(job)
            del ends[job]
        waiting += [JobRequest(f"small-{n}-{k}", 4, 4.0, arrival_s=now_s) for k in range(2)]
        if n == 12:
            waiting.append(JobRequest("large", 64, 4.0, arrival_s=now_s))
        decision = policy.place_batch(cluster, waiting, reservation)
        reservation = decision.reservation
        for each in decision.started:
            assert each.placement is not None
            cluster.start(each.job, each.placement, 4.0)
            ends[each.job] = now_s + RUN_S
            if each.job == "large":
                return now_s - 12 * PERIOD_S
        started = {each.job for each in decision.started}
        waiting = [replace(each, passed_over=each.passed_over + 1) for each in waiting if each.job not in started]
    return None


def test_the_papers_ageing_never_starts_a_large_job_and_a_reservation_does_within_its_bound() -> None:
    assert stream(NetPackPaper(), 600) is None
    for patience in (0, 5, 30):
        waited_s = stream(NetPack(patience=patience), 600)
        assert waited_s is not None
        assert waited_s <= waiting_bound_s(patience, 0, RUN_S, PERIOD_S, PERIOD_S)


def test_reserved_servers_take_no_other_job_and_others_run_beside_them() -> None:
    cluster = small_cluster(racks=2, servers=4)
    cluster.start("running", JobPlacement(((0, 4),)))
    policy = NetPack(patience=1)
    large = JobRequest("large", 32, 4.0, passed_over=1)
    first = policy.place_batch(cluster, [large, JobRequest("small", 4, 4.0)])
    assert first.reservation is not None
    assert first.jobs[0].reasons[0].why is Why.HAS_RESERVATION
    assert first.jobs[1].reasons[0].why is Why.RESERVED_FOR_OTHERS
    half = replace(large, gpus=16)
    second = policy.place_batch(cluster, [half, JobRequest("small", 12, 4.0)], None)
    assert [each.job for each in second.started] == ["large", "small"]


def test_a_reservation_ends_with_its_job_and_moves_when_a_server_is_lost() -> None:
    cluster = small_cluster(racks=1, servers=4)
    for server in range(4):
        cluster.start(f"job-{server}", JobPlacement(((server, 4),)))
    policy = NetPack(patience=1)
    large = JobRequest("large", 8, 4.0, passed_over=1)
    reservation = policy.place_batch(cluster, [large]).reservation
    assert reservation == Reservation("large", (0, 1))
    assert policy.place_batch(cluster, [JobRequest("other", 4, 4.0)], reservation).reservation is None
    cluster.lose(0)
    moved = policy.place_batch(cluster, [large], reservation).reservation
    assert moved == Reservation("large", (1, 2))


def test_every_model_has_data_and_time() -> None:
    for model in MODELS.values():
        assert model.data_gbit > 0.5
        assert 0.005 < model.compute_s < 0.5


# -- additions of `netpack` ---------------------------------------------------------------------------------------
def test_what_a_plan_has_too_many_is_given_back_where_a_later_job_needs_no_second_rack() -> None:
    """Two racks of two servers of 4 GPUs: 9 GPUs take three servers. The third, alone in its rack, gives 3 back, so 7
    more fit into that rack; the paper's rule takes them from the first server."""
    batch = [JobRequest("first", 9, 4.0), JobRequest("second", 7, 4.0, arrival_s=1.0)]
    second = NetPack().place_batch(small_cluster(2, 2), batch).jobs[1].placement
    assert second is not None
    assert len({server // 2 for server, _ in second.workers}) == 1
    other = NetPackPaper().place_batch(small_cluster(2, 2), batch).jobs[1].placement
    assert other is not None
    assert len({server // 2 for server, _ in other.workers}) == 2


def test_a_batch_is_placed_anew_if_that_lowers_the_sum_of_d_over_v(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over random batches: never worse, and better in some."""

    def cost(seed: int) -> float:
        random = Random(seed)
        cluster = small_cluster(2, 3, oversubscription=4.0)
        batch = [JobRequest(f"job-{n}", random.randint(5, 8), random.choice([1.0, 4.0])) for n in range(3)]
        decision = NetPack().place_batch(cluster, batch)
        assert faults(cluster, batch, decision) == []
        return cluster.steady.total_cost()

    anew = [cost(seed) for seed in range(25)]
    monkeypatch.setattr("offpath.sched.placement.netpack.policy.REFINEMENTS", 0)
    once = [cost(seed) for seed in range(25)]
    assert all(new <= old * (1 + 1e-6) for new, old in zip(anew, once, strict=True))
    assert any(new < old * 0.95 for new, old in zip(anew, once, strict=True))
