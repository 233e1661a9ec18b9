"""A tenant that floods harms itself only (threat A4): its neighbour keeps its throughput."""

from __future__ import annotations

import contextlib
import os
import select
import statistics
import struct
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from math import comb
from typing import Any

import pytest

from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.header import DTYPE_CODES, Tensor, pack_request, pack_tensors
from offpath.dpu_daemon.requests.sessions import CROSSED

from ..support.cluster import Cluster, free_port
from ..support.peers import RawSession
from ..support.processes import Process

PAIRS = 20
"""Blocks beside each other, always as many: to go on until it fits would prove nothing."""
BLOCK_S = 0.7
LEAST_KEPT = 0.9
RINGING = 64
"""Sessions that a tenant may have by default."""
MAX_JOBS = 8
SESSIONS, SLOTS = 4, 32
"""128 requests in flight at most: 16 times what the tenant may have in the book."""


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
    rates = beside(ada, bob, "polite", "flood")
    bob.ask("polite")
    of_ada, of_bob = Counter(ada.ask("stop")), Counter(bob.ask("stop"))
    assert (ada.ended(), bob.ended()) == (0, 0)
    with capsys.disabled():
        print(f"\nada beside bob: {report(rates)}; bob: {dict(of_bob)}")
    assert set(of_ada) == {"sent", "completed"}, of_ada
    assert of_ada["sent"] == of_ada["completed"]
    assert set(of_bob) <= {"sent", "completed", "REJECTED TENANT_QUEUE_FULL", "refused sessions"}, of_bob
    assert of_bob["REJECTED TENANT_QUEUE_FULL"] > 100
    assert of_bob["refused sessions"] > 0
    assert_kept(rates)


def test_a_tenant_is_served_beside_64_sessions_that_ring_without_end(
    make_cluster: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    """Bob submits and cancels: no work for the GPU, so that no quota of his counts it, only the loop's time does. What
    ada completes per second is told, not judged: bob's own process takes cores from her and the daemon, which no pacing
    of the loop can give back. How many of his doorbells the daemon takes before one of hers is counted in
    `test_pacing_steps`, for cancels and credits."""
    with before_other_work():
        cluster = make_cluster(
            {"ada": {}, "bob": {}},
            lease=[{"tenant": "ada", "profile": "7g.40gb", "start": 0}],
            operation={"metrics_listen": f"127.0.0.1:{(port := free_port())}"},
        )
        cluster.start_helper()
        ada = tenant(cluster, "ada", sessions=1, slots=8, polite=8, kernel="sleep:0.002")
        bob = cluster.start(
            "bob", "bells_main.py", cluster.address, "bob", str(cluster.folder / "bob.token"), str(RINGING)
        )
        assert bob.hear() == "ready"
    os.setpriority(os.PRIO_PROCESS, bob.pid, 19)  # he may have what the cores can spare: the daemon's loop is judged
    rates = beside(ada, bob, "quiet", "cancels")
    rung, of_ada = bob.ask("stop"), Counter(ada.ask("stop"))
    paused_s = {
        name: scrape(port, f'offpath_tenant_paused_seconds_total{{tenant="{name}"}}') for name in ("ada", "bob")
    }
    assert (ada.ended(), bob.ended()) == (0, 0)
    with capsys.disabled():
        print(f"\nada beside bob: {report(rates)}; bob rang {rung} times, paused {paused_s}")
    assert set(of_ada) == {"sent", "completed"}, of_ada
    assert of_ada["sent"] == of_ada["completed"]
    assert rung > 10_000
    assert paused_s["bob"] > max(0.05, paused_s["ada"])


def beside(ada: Process, bob: Process, calm: str, flood: str) -> dict[str, list[float]]:
    """`PAIRS` blocks of each, neighbours in time: what ada completes per second while bob does this."""
    rates: dict[str, list[float]] = {calm: [], flood: []}
    for pair in range(PAIRS):
        for mode in (calm, flood) if pair % 2 else (flood, calm):
            bob.ask(mode)
            time.sleep(0.1)
            before, started = ada.ask("count"), time.monotonic()
            time.sleep(BLOCK_S)
            after, took = ada.ask("count"), time.monotonic() - started
            rates[mode].append((after["completed"] - before["completed"]) / took)
    bob.ask(calm)
    return rates


def report(rates: dict[str, list[float]]) -> str:
    (calm, before), (flood, beside_it) = rates.items()
    ratios = sorted(got / due for due, got in zip(before, beside_it, strict=True))
    return (
        f"{statistics.median(before):.0f}/s {calm}, {statistics.median(beside_it):.0f}/s {flood}; ratio median "
        f"{statistics.median(ratios):.3f} (min {ratios[0]:.3f}, max {ratios[-1]:.3f}, n = {len(ratios)})"
    )


def assert_kept(rates: dict[str, list[float]]) -> None:
    """The sign test: were nine tenths kept in half of all blocks, so few would keep them once in a hundred runs."""
    before, beside_it = rates.values()
    kept = sum(got >= LEAST_KEPT * due for due, got in zip(before, beside_it, strict=True))
    assert at_most_by_chance(kept, PAIRS) > 0.01, f"{kept} of {PAIRS} pairs keep {LEAST_KEPT}: {report(rates)}"


def at_most_by_chance(heads: int, throws: int) -> float:
    """How often a fair coin shows so few heads.

    >>> round(at_most_by_chance(1, 4), 4)
    0.3125
    """
    return sum(comb(throws, few) for few in range(heads + 1)) / 2**throws


def test_the_sign_test_rejects_four_of_twenty_and_no_more() -> None:
    assert at_most_by_chance(12, 12) == 1.0
    assert at_most_by_chance(0, 2) == 0.25
    assert at_most_by_chance(4, PAIRS) < 0.01 < at_most_by_chance(5, PAIRS)


@contextlib.contextmanager
def before_other_work() -> Iterator[None]:
    """What is started here goes before what else this machine does, if we may say so: the flood is to be felt by the
    daemon's loop, not by who else runs here."""
    at = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, -12)
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, at)


def scrape(port: int, series: str) -> float:
    """A number of the daemon's; 0 where it has none yet."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{series} ")), 0.0)


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


def tenant(cluster: Cluster, name: str, *, sessions: int, slots: int, polite: int, kernel: str = "sleep") -> Process:
    token_file = str(cluster.folder / f"{name}.token")
    numbers = [str(number) for number in (sessions, slots, polite)]
    process = cluster.start(name, "steady_main.py", cluster.address, name, token_file, *numbers, kernel)
    assert process.hear() == "ready"
    return process
