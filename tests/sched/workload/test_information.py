"""The network information base: batches answered by the real policies, estimates, and what a proposal costs others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offpath.sched.placement.batch_port import BatchDecision, BatchPlacement, JobDecision, Reason, Reservation, Why
from offpath.sched.placement.batch_registry import BATCH_PLACEMENTS, make
from offpath.sched.placement.models import MODELS
from offpath.sched.workload.information import Information, Links
from offpath.sched.workload.records import Batch, Decision, Node, Placed, Share, Spec, Work, WorkState
from offpath.sched.workload.workload import Workload

NODES = tuple(Node(f"n{number}", 4, f"rack{number // 2}") for number in range(4))
LINKS = Links(link_gbps=100.0, oversubscription=2.0, pat_gbps=1_000.0)


def base(policy: str = "netpack", links: Links = LINKS) -> Information:
    return Information(links, make(policy), MODELS)


def work(name: str, gpus: int, *shares: Share, server: str = "", ina: bool = True) -> Work:
    placed = Placed(shares, server, ina) if shares else None
    state = WorkState.RUNNING if shares else WorkState.QUEUED
    return Work(Spec(name, gpus, "vgg16", argv=("x",)), name, 0, state=state, placed=placed)


def batch(queued: tuple[Work, ...], active: tuple[Work, ...] = (), nodes: tuple[Node, ...] = NODES) -> Batch:
    taken = {node.name: 0 for node in nodes}
    for each in active:
        assert each.placed is not None
        for share in each.placed.shares:
            taken[share.node] += share.count
    free = {node.name: tuple(range(node.gpus - taken[node.name])) for node in nodes if node.is_ready}
    return Batch(1, queued, active, nodes, free)


@pytest.mark.parametrize("policy", sorted(BATCH_PLACEMENTS))
def test_every_policys_decisions_can_be_carried_out(policy: str) -> None:
    workload = Workload(MODELS)
    workload.see_nodes(NODES)
    for number, gpus in enumerate((3, 6, 1, 9, 4), start=1):
        workload.submit(Spec(f"job-{number}", gpus, "resnet50", argv=("x",)), f"job-{number}", number)
    now = workload.batch()
    assert now is not None
    decisions = base(policy).decide(now)
    assert sorted(each.identity for each in decisions) == sorted(each.identity for each in now.queued)
    workload.decide(decisions)
    for each in workload.works.values():
        placed = each.state is WorkState.STARTING
        assert placed or each.reasons, "a job that waits has a reason"
        assert not any("now, not" in reason for reason in each.reasons), each.reasons
    assert workload.active


def test_a_job_that_spans_nodes_has_a_server_a_rate_and_a_bottleneck() -> None:
    (decision,) = base().decide(batch((work("wide", 6),)))
    assert decision.placed is not None
    assert decision.placed.server in {share.node for share in decision.placed.shares}
    assert 0 < decision.placed.rate_bps <= 100e9
    running = work("wide", 6, *decision.placed.shares, server=decision.placed.server)
    estimate = base().estimates(NODES, (running,))["wide"]
    assert estimate.rate_gbps == pytest.approx(decision.placed.rate_bps / 1e9)
    assert estimate.comm_s == pytest.approx(MODELS["vgg16"].data_gbit / estimate.rate_gbps)
    assert "link of" in estimate.bottleneck


def test_a_proposal_tells_what_the_others_lose_and_changes_nothing() -> None:
    one = work("one", 6, Share("n0", 3), Share("n1", 3), server="n0")
    two = work("two", 6, Share("n2", 3), Share("n3", 3), server="n2")
    info = base(links=replace(LINKS, pat_gbps=0.0))
    before = info.estimates(NODES, (one, two))
    found = info.propose(batch((), (one, two)), Spec("new", 4, "vgg16", argv=("x",)))
    assert found.placed is not None
    assert set(found.others) <= {"one", "two"}
    assert found.others, "its only places are on all four nodes' links"
    for job, (was, will) in found.others.items():
        assert was == pytest.approx(before[job].rate_gbps)
        assert will < was
    assert info.estimates(NODES, (one, two)) == before


def test_a_node_that_is_drained_takes_nothing_and_comes_back() -> None:
    info = base()
    drained = (replace(NODES[0], is_ready=False), *NODES[1:])
    for _ in range(2):
        (decision,) = info.decide(batch((work("all", 16),), nodes=drained))
        assert decision.placed is None
        assert decision.reasons
        (decision,) = info.decide(batch((work("all", 16),)))
        assert decision.placed is not None
        (decision,) = info.decide(batch((work("most", 12),), nodes=drained))
        assert decision.placed is not None
        assert "n0" not in {share.node for share in decision.placed.shares}


def test_a_node_that_disappears_leaves_the_others_to_the_rest() -> None:
    info = base()
    on_all = work("old", 8, *[Share(node.name, 2) for node in NODES], server="n0")
    assert info.estimates(NODES, (on_all,))["old"].rate_gbps > 0
    assert info.estimates(NODES[1:], (on_all,)) == {}
    (decision,) = info.decide(batch((work("new", 6),), nodes=NODES[1:]))
    assert decision.placed is not None


class Reserving:
    """A policy that reserves the first two servers, and shows what it is given."""

    name = "reserving"

    def __init__(self) -> None:
        self.given: list[Reservation | None] = []

    def place_batch(self, cluster: object, queue: object, reservation: Reservation | None = None) -> BatchDecision:
        self.given.append(reservation)
        reasons = (Reason(Why.HAS_RESERVATION, "waits"),)
        return BatchDecision((JobDecision("late", None, reasons),), Reservation("late", (0, 1)))


def test_a_reservation_names_the_same_nodes_after_a_change_of_the_cluster() -> None:
    policy = Reserving()
    typed: BatchPlacement = policy
    info = Information(LINKS, typed, MODELS)
    assert info.decide(batch((work("late", 8),))) == [Decision("late", None, ("has-reservation: waits",))]
    more = (Node("a0", 4, "another"), *NODES)
    info.decide(batch((work("late", 8),), nodes=more))
    info.decide(batch((work("late", 8),)))
    assert policy.given == [None, Reservation("late", (1, 2)), Reservation("late", (0,))]
