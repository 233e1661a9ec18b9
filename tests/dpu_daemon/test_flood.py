"""A tenant that floods harms itself only (threat A4): its neighbour keeps its throughput."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from ..support.cluster import Cluster
from ..support.processes import Process

PAIRS = 6
BLOCK_S = 0.7
MAX_JOBS = 8
SESSIONS, SLOTS = 4, 32
"""128 requests in flight at most: 16 times what the tenant may have in the book."""


@pytest.mark.slow
@pytest.mark.load
def test_a_tenant_keeps_nine_tenths_of_its_throughput_beside_one_that_floods(
    make_cluster: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    """Both have half a GPU of their own and two lanes; a kernel takes 4 ms, so that lanes are what binds. Blocks
    alternate: bob within his quota, bob with 16 times it in flight, submitting again as soon as he is refused."""
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
    for pair in range(PAIRS):
        for mode in ("polite", "flood") if pair % 2 else ("flood", "polite"):
            bob.ask(mode)
            time.sleep(0.1)
            before, bob_before, started = ada.ask("count"), bob.ask("count"), time.monotonic()
            time.sleep(BLOCK_S)
            after, bob_after, took = ada.ask("count"), bob.ask("count"), time.monotonic() - started
            rates[mode].append((after["completed"] - before["completed"]) / took)
            bobs[mode].append((bob_after["completed"] - bob_before["completed"]) / took)
    bob.ask("polite")
    of_ada, of_bob = Counter(ada.ask("stop")), Counter(bob.ask("stop"))
    assert (ada.ended(), bob.ended()) == (0, 0)
    ratios = [flood / polite for flood, polite in zip(rates["flood"], rates["polite"], strict=True)]
    kept = statistics.median(ratios)
    with capsys.disabled():
        print(
            f"\nada beside bob: {statistics.median(rates['polite']):.0f}/s within his quota, "
            f"{statistics.median(rates['flood']):.0f}/s flooding; ratio median {kept:.3f} "
            f"(min {min(ratios):.3f}, max {max(ratios):.3f}, n = {PAIRS}); bob: "
            f"{statistics.median(bobs['polite']):.0f}/s and {statistics.median(bobs['flood']):.0f}/s, {dict(of_bob)}"
        )
    assert set(of_ada) == {"sent", "completed"}, of_ada
    assert of_ada["sent"] == of_ada["completed"]
    assert set(of_bob) <= {"sent", "completed", "REJECTED TENANT_QUEUE_FULL", "refused sessions"}, of_bob
    assert of_bob["REJECTED TENANT_QUEUE_FULL"] > 100
    assert of_bob["refused sessions"] > 0
    assert kept >= 0.9


def tenant(cluster: Cluster, name: str, *, sessions: int, slots: int, polite: int) -> Process:
    token_file = str(cluster.folder / f"{name}.token")
    numbers = [str(number) for number in (sessions, slots, polite)]
    process = cluster.start(name, "steady_main.py", cluster.address, name, token_file, *numbers, "sleep")
    assert process.hear() == "ready"
    return process
