"""A tenant that floods harms itself only (threat A4): its neighbour keeps its throughput."""

from __future__ import annotations

import select
import statistics
import struct
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.header import DTYPE_CODES, Tensor, pack_request, pack_tensors
from offpath.dpu_daemon.sessions import CROSSED

from ..support.cluster import Cluster
from ..support.peers import RawSession
from ..support.processes import Process

PAIRS, MOST_PAIRS = 6, 24
"""Blocks beside each other; where other work disturbs six of them, as many more as it takes, all counted."""
BLOCK_S = 0.7
LEAST_KEPT = 0.9
MAX_JOBS = 8
SESSIONS, SLOTS = 4, 32
"""128 requests in flight at most: 16 times what the tenant may have in the book."""


@pytest.mark.slow
@pytest.mark.load
def test_a_tenant_keeps_nine_tenths_of_its_throughput_beside_one_that_floods(
    make_cluster: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    """Both have half a GPU of their own and two lanes; a kernel takes 8 ms, so that lanes are what binds, not this
    machine's cores, on which the tenants run too. Blocks alternate: bob within his quota, bob with 16 times it in
    flight, submitting again as soon as he is refused."""
    assert SESSIONS * SLOTS == 16 * MAX_JOBS
    tenants: dict[str, dict[str, Any]] = {
        "ada": {},
        "bob": {"max_jobs": MAX_JOBS, "max_sessions": SESSIONS, "max_slots": SLOTS},
    }
    pins = [{"tenant": name, "profile": "3g.20gb", "start": start} for name, start in (("ada", 0), ("bob", 4))]
    for name in tenants:
        tenants[name] |= {"max_share": 42}
    cluster = make_cluster(tenants, lease=pins)
    cluster.start_helper()
    ada = tenant(cluster, "ada", sessions=1, slots=8, polite=8)
    bob = tenant(cluster, "bob", sessions=SESSIONS, slots=SLOTS, polite=MAX_JOBS // SESSIONS)
    time.sleep(0.5)
    rates: dict[str, list[float]] = {"polite": [], "flood": []}
    bobs: dict[str, list[float]] = {"polite": [], "flood": []}
    kept = 0.0
    while len(rates["flood"]) < PAIRS or (kept < LEAST_KEPT and len(rates["flood"]) < MOST_PAIRS):
        for mode in ("polite", "flood") if len(rates["flood"]) % 2 else ("flood", "polite"):
            bob.ask(mode)
            time.sleep(0.1)
            before, bob_before, started = ada.ask("count"), bob.ask("count"), time.monotonic()
            time.sleep(BLOCK_S)
            after, bob_after, took = ada.ask("count"), bob.ask("count"), time.monotonic() - started
            rates[mode].append((after["completed"] - before["completed"]) / took)
            bobs[mode].append((bob_after["completed"] - bob_before["completed"]) / took)
        ratios = [flood / polite for flood, polite in zip(rates["flood"], rates["polite"], strict=True)]
        kept = statistics.median(ratios)
    bob.ask("polite")
    of_ada, of_bob = Counter(ada.ask("stop")), Counter(bob.ask("stop"))
    assert (ada.ended(), bob.ended()) == (0, 0)
    with capsys.disabled():
        print(
            f"\nada beside bob: {statistics.median(rates['polite']):.0f}/s within his quota, "
            f"{statistics.median(rates['flood']):.0f}/s flooding; ratio median {kept:.3f} "
            f"(min {min(ratios):.3f}, max {max(ratios):.3f}, n = {len(ratios)}); bob: "
            f"{statistics.median(bobs['polite']):.0f}/s and {statistics.median(bobs['flood']):.0f}/s, {dict(of_bob)}"
        )
    assert set(of_ada) == {"sent", "completed"}, of_ada
    assert of_ada["sent"] == of_ada["completed"]
    assert set(of_bob) <= {"sent", "completed", "REJECTED TENANT_QUEUE_FULL", "refused sessions"}, of_bob
    assert of_bob["REJECTED TENANT_QUEUE_FULL"] > 100
    assert of_bob["refused sessions"] > 0
    assert kept >= LEAST_KEPT


@pytest.mark.slow
def test_a_requester_told_to_wait_is_not_read_once_it_has_proved_deaf(make_cluster: Callable[..., Cluster]) -> None:
    """What it rang before it could have heard is refused at once; what comes after waits as long as it was told."""
    cluster = make_cluster(
        {"ada": {"max_jobs": 1, "max_share": 14, "profile": "1g.5gb"}}, leasing={"keep_warm_ms": 5000}
    )
    cluster.start_helper()
    with RawSession(cluster, "ada", slots=8) as session:
        one = pack_tensors([Tensor(DTYPE_CODES["float64"], (1,), 0, 8)])

        def ring(slot: int, number: int) -> None:
            kernel = session.kernel_id("sleep")
            header = pack_request(request_id=number, kernel_id=kernel, payload_bytes=8, tensors=one)
            session.write(slot, header, struct.pack("<d", 0.8))
            session.ring(slot)

        ring(0, 1)
        assert session.rung() == 0, "how long a job takes is known from here on, so waits are long"
        ring(0, 2)
        for slot in range(1, 8):
            ring(slot, slot + 2)
        assert session.bell is not None
        at_once = [session.rung() for _ in range(CROSSED + 2)]
        assert at_once == list(range(1, CROSSED + 3))
        wait_ms = session.answer(1).retry_after_ms
        assert wait_ms >= 100
        assert not select.select([session.bell], [], [], wait_ms / 1e3 / 2)[0], "it is read no further"
        rest = [session.rung() for _ in range(7 - CROSSED - 2 + 1)]
        assert sorted(slot for slot in rest if slot is not None) == [0, *range(CROSSED + 3, 8)]
        assert session.answer(0).status is Status.COMPLETED
        refused = [session.answer(slot) for slot in range(1, CROSSED + 3)]
        assert {answer.reason for answer in refused} == {Reason.TENANT_QUEUE_FULL}


def tenant(cluster: Cluster, name: str, *, sessions: int, slots: int, polite: int) -> Process:
    token_file = str(cluster.folder / f"{name}.token")
    numbers = [str(number) for number in (sessions, slots, polite)]
    process = cluster.start(name, "steady_main.py", cluster.address, name, token_file, *numbers, "sleep")
    assert process.hear() == "ready"
    return process
