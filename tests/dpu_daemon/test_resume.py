"""A daemon that its service manager restarts after a kill keeps sessions, jobs and lanes; and a link that breaks."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpath.bindings.errors import NegotiationRefused, PeerGone
from offpath.bindings.wire import negotiating
from offpath.bindings.wire.codes import Reason, Status
from offpath.host_helper import AsyncRequester, Options, Requester, RequestFailed
from offpath.host_helper.pending import Pending
from offpath.host_helper.resume import Way

from ..support.cluster import TIMEOUT, Cluster, pids_of, said
from ..support.clusters import Make, path_array, seconds, until_read
from ..support.processes import until

DURABLE = {"resume_ttl_s": 20, "adopt_ms": 3000, "journal_mib": 4}


def lines(path: Path) -> int:
    return len(path.read_text().split()) if path.exists() else 0


def daemon_pid(cluster: Cluster) -> int:
    return pids_of(cluster.daemon)[0]


def kill_daemon(cluster: Cluster) -> None:
    """kill -9, and wait for the next life to be ready."""
    os.kill(daemon_pid(cluster), signal.SIGKILL)
    assert cluster.daemon.hear()["lineage"] == cluster.lineage


@pytest.fixture
def kept(make_cluster: Make) -> Callable[..., Cluster]:
    def make(**tables: Any) -> Cluster:
        durability = {**DURABLE, **tables.pop("durability", {})}
        return make_cluster({"ada": {}, "bob": {}}, keep={"starts": 0}, durability=durability, **tables)

    return make


def test_what_runs_while_the_daemon_is_killed_completes_once_and_is_answered(kept: Callable[..., Cluster]) -> None:
    cluster = kept()
    helper = cluster.start_helper()
    with cluster.connect("ada") as requester:
        first = said(requester.submit("where", seconds(0), timeout=TIMEOUT))
        running = requester.begin("where", seconds(0.8))
        queued = [requester.begin("echo", seconds(n)) for n in range(6)]
        until_read(cluster, requester)
        kill_daemon(cluster)
        assert [each.result(TIMEOUT).array.item() for each in queued] == [0, 1, 2, 3, 4, 5]
        after = said(running.result(TIMEOUT))
        assert after["lease"] == first["lease"], "the lease went on"
        assert said(requester.submit("where", seconds(0), timeout=TIMEOUT))["lease"] == first["lease"]
        assert helper.errors.count("joined as generation 1") == 2
    assert cluster.helper is not None
    assert cluster.helper.is_alive


def test_a_daemon_killed_again_and_again_loses_nothing(kept: Callable[..., Cluster]) -> None:
    cluster = kept()
    cluster.start_helper()
    with cluster.connect("ada", slots=8) as ada, cluster.connect("bob", slots=8) as bob:
        for round_ in range(4):
            pending = [each.begin("echo", seconds(n)) for n in range(8) for each in (ada, bob)]
            if round_ % 2:
                time.sleep(0.05)
            kill_daemon(cluster)
            for number, each in enumerate(pending):
                status, value = end_of(each)
                assert (status, value) in ((Status.COMPLETED, number // 2), (Status.RETRY_SAFE, -1.0))


def end_of(pending: Pending) -> tuple[Status, float]:
    try:
        return Status.COMPLETED, pending.result(TIMEOUT).array.item()
    except RequestFailed as failed:
        return failed.status, -1.0


def test_submit_retries_what_surely_did_not_start(kept: Callable[..., Cluster]) -> None:
    cluster = kept()
    cluster.start_helper()
    with cluster.connect("ada") as requester:
        requester.submit("echo", seconds(0), timeout=TIMEOUT)
        os.kill(daemon_pid(cluster), signal.SIGKILL)
        assert requester.submit("echo", seconds(7), timeout=TIMEOUT).array == 7


@pytest.mark.parametrize("size", [8, 100_000])
def test_an_async_requester_comes_back_too(kept: Callable[..., Cluster], size: int) -> None:
    cluster = kept()
    cluster.start_helper()

    async def work() -> None:
        options = {"payload_bytes": 1 << 20, "result_bytes": 1 << 20}
        token = str(cluster.folder / "ada.token")
        async with await AsyncRequester.open(cluster.address, tenant="ada", token_file=token, **options) as requester:
            arrays = [np.full(size, n, np.uint8) for n in range(40)]
            await requester.submit("echo", [arrays[0]])
            tasks = [asyncio.create_task(requester.submit("echo", [array], timeout=TIMEOUT)) for array in arrays]
            await asyncio.sleep(0.01)
            os.kill(daemon_pid(cluster), signal.SIGKILL)
            results = await asyncio.gather(*tasks)
            assert all(np.array_equal(one.array, array) for one, array in zip(results, arrays, strict=True))

    asyncio.run(work())


def test_a_worker_that_dies_with_the_daemon_leaves_the_outcome_unknown_and_no_second_launch(
    kept: Callable[..., Cluster],
) -> None:
    cluster = kept(durability={"adopt_ms": 1500})
    helper = cluster.start_helper()
    path = cluster.folder / "mark"
    with cluster.connect("ada") as requester:
        running = requester.begin("mark", path_array(path))
        until(lambda: lines(path))
        os.kill(daemon_pid(cluster), signal.SIGKILL)
        for pid in pids_of(helper):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(RequestFailed) as failed:
            running.result(TIMEOUT)
        assert (failed.value.status, failed.value.reason) == (Status.OUTCOME_UNKNOWN, Reason.WORKER_LOST)
        assert requester.submit("echo", seconds(1), timeout=TIMEOUT).array == 1
    assert lines(path) == 1


def test_a_helper_that_dies_with_the_daemon_is_lost_and_the_next_one_serves_what_waits(
    kept: Callable[..., Cluster],
) -> None:
    cluster = kept(durability={"adopt_ms": 1000})
    helper = cluster.start_helper()
    path = cluster.folder / "mark"
    with cluster.connect("ada") as requester:
        running = requester.begin("mark", path_array(path))
        until(lambda: lines(path))
        behind = [requester.begin("echo", seconds(n), options=Options(demand=100)) for n in range(3)]
        until_read(cluster, requester)
        helper.kill()
        os.kill(daemon_pid(cluster), signal.SIGKILL)
        assert cluster.daemon.hear()["lineage"] == cluster.lineage
        cluster.start_helper()
        with pytest.raises(RequestFailed) as failed:
            running.result(TIMEOUT)
        assert failed.value.status is Status.OUTCOME_UNKNOWN
        assert [each.result(TIMEOUT).array.item() for each in behind] == [0, 1, 2]


def test_a_cut_connection_to_a_living_daemon_is_taken_up_again(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}}, durability={"resume_ttl_s": 20})
    cluster.start_helper()
    with cluster.connect("ada") as requester:
        requester.submit("echo", seconds(0), timeout=TIMEOUT)
        running = requester.begin("where", seconds(0.3))
        until_read(cluster, requester)
        cut(requester)
        assert said(running.result(TIMEOUT))["tenant"] == "ada"
        assert requester.submit("echo", seconds(4), timeout=TIMEOUT).array == 4


def cut(requester: Requester) -> None:
    """Both connections break without a word."""
    requester._link.session._bell.shutdown(2)
    requester._link.negotiation._sock.shutdown(2)


def test_a_requester_that_dies_is_waited_for_only_as_long_as_the_daemon_says(make_cluster: Make) -> None:
    """Its job runs on; its quota comes back after the time."""
    cluster = make_cluster({"ada": {"max_sessions": 1}}, durability={"resume_ttl_s": 2})
    cluster.start_helper()
    requester = cluster.connect("ada")
    requester.submit("echo", seconds(0), timeout=TIMEOUT)
    requester.begin("sleep", seconds(0.1))
    until_read(cluster, requester)
    requester._link.session.close()
    requester._link.negotiation.abandon()
    with pytest.raises(NegotiationRefused, match="sessions"):
        cluster.connect("ada")
    with until(lambda: connected(cluster)) as other:
        assert other.submit("echo", seconds(1), timeout=TIMEOUT).array == 1


def connected(cluster: Cluster) -> Requester | None:
    try:
        return cluster.connect("ada")
    except NegotiationRefused:
        return None


def test_a_foreign_or_guessed_resume_is_refused(kept: Callable[..., Cluster]) -> None:
    cluster = kept()
    cluster.start_helper()
    with cluster.connect("ada") as requester:
        requester.submit("echo", seconds(0), timeout=TIMEOUT)
        welcome = requester.welcome
        right = {
            "session": welcome.session, "lineage": welcome.lineage, "token": welcome.resume_token, "unanswered": [],
        }  # fmt: skip
        for wrong in ({"session": 99}, {"lineage": "0" * 16}, {"token": "x" * 43}, {"tenant": "bob"}, {"taken": [1]}):
            tenant = wrong.pop("tenant", "ada")
            way = Way(cluster.address, tenant=tenant, token_file=str(cluster.folder / f"{tenant}.token"))
            with pytest.raises(NegotiationRefused, match="resume_unknown"):
                way.open(negotiating.Resume(**{**right, **wrong}))
        assert requester.submit("echo", seconds(2), timeout=TIMEOUT).array == 2, "the session was not touched"


def test_without_a_service_manager_a_killed_daemon_leaves_outcomes_unknown_soon(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}}, durability={"resume_ttl_s": 60})
    cluster.start_helper()
    with cluster.connect("ada") as requester:
        requester.submit("echo", seconds(0), timeout=TIMEOUT)
        pending = requester.begin("sleep", seconds(5))
        cluster.daemon.kill()
        with pytest.raises(RequestFailed) as failed:
            pending.result(TIMEOUT)
        assert failed.value.status is Status.OUTCOME_UNKNOWN
    cluster.kill()


def test_a_kernel_is_asked_for_only_when_the_connection_is_back(kept: Callable[..., Cluster]) -> None:
    """A requester that does not know the kernel yet learns it from the next welcome, not from the lost connection."""
    cluster = kept()
    cluster.start_helper()
    with cluster.connect("ada") as requester:
        requester.submit("echo", seconds(0), timeout=TIMEOUT)
        for _ in range(3):
            requester._link.negotiation.kernels.clear()
            cut(requester)
            assert requester.submit("echo", seconds(2), timeout=TIMEOUT).array == 2


def test_an_async_requester_asks_for_a_kernel_only_when_its_connection_is_back(kept: Callable[..., Cluster]) -> None:
    cluster = kept()
    cluster.start_helper()

    async def work() -> None:
        token = cluster.folder / "ada.token"
        async with await AsyncRequester.open(cluster.address, tenant="ada", token_file=token) as requester:
            await requester.submit("echo", seconds(0), timeout=TIMEOUT)
            for _ in range(3):
                requester._link.negotiation.kernels.clear()
                requester._link.session._bell.shutdown(2)
                requester._link.negotiation._sock.shutdown(2)
                assert (await requester.submit("echo", seconds(2), timeout=TIMEOUT)).array == 2

    asyncio.run(work())


def test_while_no_daemon_is_there_every_call_ends_in_a_typed_error(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}}, durability={"resume_ttl_s": 60})
    cluster.start_helper()
    with cluster.connect("ada") as requester:
        requester.submit("echo", seconds(0), timeout=TIMEOUT)
        cluster.daemon.kill()
        until(lambda: not requester.poll() and requester._return)
        assert not requester.is_durable()
        with pytest.raises(PeerGone, match="not resumed"):
            requester.submit("another", seconds(0), timeout=TIMEOUT)
        assert not requester.is_durable()
    cluster.kill()
