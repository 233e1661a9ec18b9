"""Workers and helpers that die, leases that change hands, memory that is late: what a request becomes then."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from offpath.bindings.wire.codes import Reason, Status
from offpath.host_helper import Options, RequestFailed

from ..support.cluster import TIMEOUT, Cluster, pids_of, said
from ..support.clusters import NARROW, Make, first_pid, path_array, seconds
from ..support.processes import until


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster({"ada": NARROW, "bob": NARROW})
    try:
        made.start_helper()
        yield made
        made.close()
    finally:
        made.kill()


@pytest.mark.parametrize("is_idempotent", [False, True], ids=["normal", "idempotent"])
def test_a_worker_killed_while_it_runs_leaves_the_outcome_unknown_unless_it_may_run_twice(
    cluster: Cluster, is_idempotent: bool
) -> None:
    path = cluster.folder / f"killed-{is_idempotent}"
    with cluster.connect("ada") as requester, cluster.connect("bob") as other:
        pending = requester.begin("mark", path_array(path), options=Options(is_idempotent=is_idempotent))
        behind = requester.begin("echo", seconds(5))
        victim = first_pid(path)
        os.kill(victim, signal.SIGKILL)
        if is_idempotent:
            assert pending.result(TIMEOUT).array.item() == 2
        else:
            with pytest.raises(RequestFailed) as failed:
                pending.result(TIMEOUT)
            assert (failed.value.status, failed.value.reason) == (Status.OUTCOME_UNKNOWN, Reason.WORKER_LOST)
        assert behind.result(TIMEOUT).array == 5, "the one behind it had not started"
        after = said(requester.submit("where", seconds(0), timeout=TIMEOUT))
        assert (after["pid"] != victim, after["residue"]) == (True, [0, 0])
        assert other.submit("echo", seconds(6), timeout=TIMEOUT).array == 6
    assert cluster.helper is not None
    assert cluster.helper.is_alive


@pytest.mark.parametrize(("is_idempotent", "launches"), [(False, 1), (True, 3)], ids=["normal", "idempotent"])
def test_a_kernel_that_kills_its_worker_is_launched_once_or_if_it_may_run_twice_three_times(
    cluster: Cluster, is_idempotent: bool, launches: int
) -> None:
    path = cluster.folder / f"cursed-{is_idempotent}"
    with cluster.connect("bob") as requester:
        with pytest.raises(RequestFailed) as failed:
            requester.submit("cursed", path_array(path), timeout=TIMEOUT, options=Options(is_idempotent=is_idempotent))
        assert (failed.value.status, failed.value.reason) == (Status.OUTCOME_UNKNOWN, Reason.WORKER_LOST)
        assert requester.submit("echo", seconds(1), timeout=TIMEOUT).array == 1
    assert path.read_text() == "launched\n" * launches


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended"])
def test_queued_requests_complete_after_the_helper_comes_back(make_cluster: Make, how: signal.Signals) -> None:
    cluster = make_cluster({"ada": NARROW})
    helper = cluster.start_helper()
    path = cluster.folder / "running"
    with cluster.connect("ada") as requester:
        running = requester.begin("mark", path_array(path))
        first_pid(path)
        queued = [requester.begin("echo", seconds(n)) for n in range(6)]
        time.sleep(0.05)
        workers = pids_of(helper)
        helper.signal(how)
        assert helper.ended() == (-9 if how is signal.SIGKILL else 0)
        with pytest.raises(RequestFailed) as failed:
            running.result(TIMEOUT)
        assert failed.value.status is Status.OUTCOME_UNKNOWN
        assert failed.value.reason in (Reason.HELPER_LOST, Reason.WORKER_LOST)
        until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers))
        late = requester.begin("echo", seconds(9))
        time.sleep(0.1)
        assert not any(each.done for each in queued)
        helper.kill()
        cluster.start_helper()
        assert [each.result(TIMEOUT).array.item() for each in (*queued, late)] == [0, 1, 2, 3, 4, 5, 9]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended"])
def test_what_ran_and_may_run_twice_runs_again_with_the_next_helper(make_cluster: Make, how: signal.Signals) -> None:
    cluster = make_cluster({"ada": NARROW})
    helper = cluster.start_helper()
    path = cluster.folder / "running"
    with cluster.connect("ada") as requester:
        running = requester.begin("mark", path_array(path), options=Options(is_idempotent=True))
        first_pid(path)
        helper.signal(how)
        assert helper.ended() == (-9 if how is signal.SIGKILL else 0)
        helper.kill()
        cluster.start_helper()
        assert running.result(TIMEOUT).array.item() == 2


def test_a_daemon_that_ends_leaves_the_outcome_of_what_ran_unknown(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}})
    cluster.start_helper()
    with cluster.connect("ada") as requester:
        requester.submit("echo", seconds(0), timeout=TIMEOUT)
        pending = requester.begin("sleep", seconds(5))
        counted = cluster.statistics()
        with pytest.raises(RequestFailed) as failed:
            pending.result(TIMEOUT)
        assert failed.value.status is Status.OUTCOME_UNKNOWN
        assert (counted["requests"], counted["ended_completed"]) == (2, 1)


def test_two_tenants_at_once_never_share_an_instance(cluster: Cluster) -> None:
    with cluster.connect("ada", slots=40) as ada, cluster.connect("bob", slots=40) as bob:
        pending = [requester.begin("where", seconds(0.005)) for _ in range(40) for requester in (ada, bob)]
        runs = [said(each.result(TIMEOUT)) for each in pending]
    assert_isolated(runs)
    assert {run["tenant"] for run in runs} == {"ada", "bob"}


SLICES = {"1g.5gb": 1, "2g.10gb": 2, "3g.20gb": 4, "4g.20gb": 4, "7g.40gb": 8}


def assert_isolated(runs: list[dict[str, Any]]) -> None:
    """No lease ran two tenants, no two tenants ran at once on the same memory, and nobody found anything."""
    owners: dict[tuple[int, int], set[str]] = {}
    for run in runs:
        owners.setdefault((run["lease"], run["generation"]), set()).add(run["tenant"])
        assert run["residue"] == [0, 0]
    assert all(len(tenants) == 1 for tenants in owners.values())
    for one, two in itertools.combinations(runs, 2):
        if one["tenant"] != two["tenant"] and one["gpu"] == two["gpu"]:
            first, second = sorted((one, two), key=lambda run: run["start"])
            are_apart = first["start"] + SLICES[first["profile"]] <= second["start"]
            assert are_apart or one["to"] < two["from"] or two["to"] < one["from"], (one, two)


def leases_of(tenant: str, runs: list[dict[str, Any]]) -> set[int]:
    """Those under which its kernels ran."""
    return {run["lease"] for run in runs if run["tenant"] == tenant}


def test_three_tenants_that_each_want_the_whole_gpu_take_turns_and_find_it_clean(make_cluster: Make) -> None:
    leasing = {"grow_after_ms": 5, "reclaim_after_ms": 20, "min_hold_ms": 30, "keep_warm_ms": 50}
    names = ("ada", "bob", "cyd")
    cluster = make_cluster({name: {} for name in names}, leasing=leasing)
    cluster.start_helper(slice_bytes=4 << 20)
    runs: list[dict[str, Any]] = []
    faults: list[BaseException] = []
    over = threading.Event()

    def work(tenant: str) -> None:
        try:
            with cluster.connect(tenant, slots=3) as requester:
                while not over.is_set():
                    junk = [np.full(3000, 0xA5A5, np.uint16)]
                    spoil = requester.begin("echo", junk, options=Options(demand=100))
                    pending = requester.begin("where", seconds(0.002), options=Options(demand=100))
                    assert np.array_equal(spoil.result(TIMEOUT).array, junk[0])
                    runs.append(said(pending.result(TIMEOUT)))
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    try:
        until(lambda: faults or all(len(leases_of(name, runs)) >= 3 for name in names))
    finally:
        over.set()
        for thread in threads:
            thread.join(TIMEOUT)
    assert faults == []
    counted = cluster.statistics()
    assert counted["leases_opened"] >= 9, "the GPU should have changed hands"
    assert counted["scrubbed_bytes"] > 0
    assert_isolated(runs)


@pytest.mark.parametrize("break_acquire", [False, True], ids=["with acquire", "without acquire"])
def test_bytes_that_become_visible_late_are_right_only_because_of_acquire(
    make_cluster: Make, break_acquire: bool
) -> None:
    """A GPU below WRITES_ORDERING_OWNER: a launch without `acquire` computes on what was there before."""
    cluster = make_cluster({"ada": {}})
    cluster.start_helper(delayed_visibility=True, break_acquire=break_acquire)
    with cluster.connect("ada", slots=1) as requester:
        for n in (1, 2, 3):
            small, large = np.full(100, n, np.uint8), np.full(100_000, n, np.uint8)
            right = [np.array_equal(requester.submit("echo", [a], timeout=TIMEOUT).array, a) for a in (small, large)]
            assert right == [not break_acquire] * 2


def test_a_helper_that_ends_in_the_midst_of_copies_leaves_only_zeros(make_cluster: Make) -> None:
    """It scrubs what it held, and a payload of 32 MiB is nearly always on its way there: it is let go only when nothing
    can land any more."""
    room = 32 << 20
    cluster = make_cluster({"ada": {}}, leasing={"landing_bytes": room})
    payload = [np.ones(room // 8 - 1024)]
    with cluster.connect("ada", slots=2, payload_bytes=room) as requester:
        for pause in range(8):
            cluster.start_helper()
            requester.submit("sum", [np.ones(1)], timeout=TIMEOUT)  # the lease is open
            flying = [requester.begin("sum", payload) for _ in range(2)]
            time.sleep(pause / 1000)
            assert cluster.helper is not None
            cluster.helper.finish()  # judges its exit code and that it complained of nothing
            for each in flying:
                each.cancel()
                with contextlib.suppress(RequestFailed):
                    each.result(TIMEOUT)
