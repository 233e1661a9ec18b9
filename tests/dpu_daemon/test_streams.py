"""Streams by real processes: several answers to one request, each once, in order, and none after its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from offpath.bindings.errors import NegotiationRefused
from offpath.bindings.ports import NEXT_NUMBER_MASK
from offpath.bindings.wire import admin
from offpath.bindings.wire.codes import Reason, Status
from offpath.cli.admin_client import AdminClient
from offpath.host_helper import AsyncRequester, Options, Requester, RequestFailed, RequestTimeout
from offpath.host_helper.errors import SlotsHeld

from ..support.cluster import TIMEOUT, Cluster, pids_of
from ..support.clusters import Make, seconds
from ..support.processes import until

Array = NDArray[Any]
SMALL, LARGE = 4, 40_000
SIZES = pytest.mark.parametrize("size", [SMALL, LARGE], ids=["in the message", "in the lane"])
ROOM = {"payload_bytes": 1 << 20, "result_bytes": 1 << 20}


def wish(answers: int, size: int = SMALL, pause_s: float = 0.0, fails_at: int = 0) -> list[Array]:
    """The arguments of the kernel `count`."""
    return [np.array([answers, size, pause_s, fails_at])]


def started(make_cluster: Make, *, reloads: bool = False, **tables: Any) -> Cluster:
    cluster = make_cluster({"ada": {}, "bob": {}}, leasing={"keep_warm_ms": 60_000}, **tables)
    cluster.start_helper({"OFFPATH_TEST_STREAMS": str(cluster.folder / "streams")}, reloads=reloads)
    return cluster


def ends(cluster: Cluster) -> list[str]:
    """How the generators ended, in order."""
    path = Path(cluster.folder / "streams")
    return path.read_text().splitlines() if path.exists() else []


def numbers(answers: Iterator[Any], size: int = SMALL) -> list[int]:
    """The answers' numbers; each has the bytes that belong to it."""
    taken = []
    for answer in answers:
        (value,) = set(answer.array.tolist())
        assert len(answer.array) == size
        taken.append(int(value))
    return taken


@SIZES
def test_a_stream_gives_each_answer_once_and_in_order(make_cluster: Make, size: int) -> None:
    cluster = started(make_cluster)
    with cluster.connect("ada", **ROOM) as requester:
        for answers in (0, 1, 2, 30):
            assert numbers(requester.stream("count", wish(answers, size), timeout=TIMEOUT), size) == [
                *range(1, answers + 1)
            ]
        assert requester.submit("echo", seconds(5), timeout=TIMEOUT).array == 5
    assert ends(cluster) == ["done 0", "done 1", "done 2", "done 30"]


def test_a_stream_may_have_more_answers_than_a_doorbell_can_number(make_cluster: Make) -> None:
    cluster = started(make_cluster)
    with cluster.connect("ada") as requester:
        taken = numbers(requester.stream("count", wish(NEXT_NUMBER_MASK + 10), timeout=TIMEOUT))
        assert taken == [*range(1, NEXT_NUMBER_MASK + 11)]


def test_a_value_that_cannot_be_sent_ends_its_stream_and_closes_the_kernel(make_cluster: Make) -> None:
    cluster = started(make_cluster)
    with cluster.connect("ada") as requester:
        stream = requester.stream("count", wish(5, -1), timeout=TIMEOUT)
        with pytest.raises(RequestFailed) as failed:
            next(stream)
        assert (failed.value.status, failed.value.reason) == (Status.FAILED, Reason.KERNEL_RAISED)
        assert numbers(requester.stream("count", wish(2), timeout=TIMEOUT)) == [1, 2]
    assert ends(cluster)[0] == "closed 1"


def test_streams_and_requests_of_one_session_run_beside_each_other(make_cluster: Make) -> None:
    cluster = started(make_cluster)
    with cluster.connect("ada", slots=8, **ROOM) as requester:
        streams = [requester.stream("count", wish(10, size), timeout=TIMEOUT) for size in (SMALL, LARGE, 7)]
        for number in range(1, 11):
            for stream, size in zip(streams, (SMALL, LARGE, 7), strict=True):
                array = next(stream).array
                assert (len(array), set(array.tolist())) == (size, {number})
            assert requester.submit("echo", seconds(number), timeout=TIMEOUT).array == number
        assert [next(stream, None) for stream in streams] == [None] * 3


def test_an_async_requester_streams_too(make_cluster: Make) -> None:
    cluster = started(make_cluster)

    async def work() -> None:
        token = str(cluster.folder / "ada.token")
        async with await AsyncRequester.open(cluster.address, tenant="ada", token_file=token, **ROOM) as requester:

            async def one(size: int) -> list[int]:
                answers = requester.stream("count", wish(12, size), timeout=TIMEOUT)
                return [int(answer.array[-1]) async for answer in answers]

            assert await asyncio.gather(one(SMALL), one(LARGE), one(1)) == [[*range(1, 13)]] * 3
            async with contextlib.aclosing(requester.stream("count", wish(1 << 30))) as answers:
                assert int((await anext(answers)).array[0]) == 1
            assert (await requester.submit("echo", seconds(3), timeout=TIMEOUT)).array == 3
            for pause_s in (0.2, 0.0):
                endless = requester.stream("count", wish(1 << 30, pause_s=pause_s), timeout=0.5)
                with pytest.raises(RequestTimeout):
                    [answer async for answer in endless]
            assert (await requester.submit("echo", seconds(4), timeout=TIMEOUT)).array == 4

    asyncio.run(work())
    until(lambda: len(ends(cluster)) == 6)
    assert [end.split()[0] for end in ends(cluster)].count("closed") == 3


def test_leaving_the_loop_cancels_the_request_and_closes_the_generator(make_cluster: Make) -> None:
    cluster = started(make_cluster)
    with cluster.connect("ada", slots=1) as requester:
        for answer in requester.stream("count", wish(1 << 30)):
            if answer.array[0] == 5:
                break
        assert requester.submit("echo", seconds(5), timeout=TIMEOUT).array == 5, "its one slot is free"
    until(lambda: ends(cluster))
    assert ends(cluster)[0].startswith("closed")


def test_the_timeout_counts_to_the_end_also_where_there_is_always_an_answer(make_cluster: Make) -> None:
    cluster = started(make_cluster)
    with cluster.connect("ada") as requester:
        with pytest.raises(RequestTimeout, match=r"no answer within 0\.5 s"):
            list(requester.stream("count", wish(1 << 30), timeout=0.5))
        assert requester.submit("echo", seconds(1), timeout=TIMEOUT).array == 1
    until(lambda: ends(cluster))


@SIZES
def test_a_kernel_waits_for_its_requester(make_cluster: Make, size: int) -> None:
    """It computes one answer ahead at most."""
    cluster = started(make_cluster)
    with cluster.connect("ada", **ROOM) as requester:
        stream = requester.stream("count", wish(100, size), timeout=TIMEOUT)
        assert [int(next(stream).array[0]) for _ in range(3)] == [1, 2, 3]
        requester.submit("echo", seconds(1), timeout=TIMEOUT)
        time.sleep(0.2)
        stream.close()
        until(lambda: ends(cluster))
    how, number = ends(cluster)[0].split()
    assert (how, int(number) <= 5) == ("closed", True)


def test_a_generator_that_raises_ends_its_stream_after_the_answers_before(make_cluster: Make) -> None:
    cluster = started(make_cluster)
    with cluster.connect("ada") as requester:
        stream = requester.stream("count", wish(9, fails_at=4), timeout=TIMEOUT)
        assert [int(next(stream).array[0]) for _ in range(3)] == [1, 2, 3]
        with pytest.raises(RequestFailed, match="answer 4") as failed:
            next(stream)
        with pytest.raises(StopIteration):
            next(stream)
        assert (failed.value.status, failed.value.reason) == (Status.FAILED, Reason.KERNEL_RAISED)


@pytest.mark.parametrize("room", [1_000, 1 << 20], ids=["the session's room", "the lane's room"])
def test_an_answer_that_does_not_fit_ends_the_stream(make_cluster: Make, room: int) -> None:
    cluster = started(make_cluster)
    with cluster.connect("ada", result_bytes=room) as requester:
        size = 200 if room == 1_000 else 10_000_000
        with pytest.raises(RequestFailed) as failed:
            next(requester.stream("count", wish(3, size), timeout=TIMEOUT))
        assert (failed.value.status, failed.value.reason) == (Status.FAILED, Reason.RESULT_TOO_LARGE)
        assert numbers(requester.stream("count", wish(3), timeout=TIMEOUT)) == [1, 2, 3], "the worker serves on"
    until(lambda: len(ends(cluster)) == 2)
    assert ends(cluster)[0] in ("closed 1", "closed 2"), "it computes one ahead"


def test_each_kernel_is_called_as_it_answers(make_cluster: Make) -> None:
    cluster = started(make_cluster)
    with cluster.connect("ada") as requester:
        for call in (
            lambda: requester.submit("count", wish(1), timeout=TIMEOUT),
            lambda: next(requester.stream("echo", seconds(1), timeout=TIMEOUT)),
        ):
            with pytest.raises(RequestFailed) as failed:
                call()
            assert (failed.value.status, failed.value.reason) == (Status.FAILED, Reason.STREAM_MISMATCH)


def test_a_deadline_ends_a_stream_and_its_last_answer_waits_for_the_one_in_the_slot(make_cluster: Make) -> None:
    cluster = started(make_cluster)
    with cluster.connect("ada") as requester:
        stream = requester.stream("count", wish(1 << 30), options=Options(budget_ms=1000))
        assert int(next(stream).array[0]) == 1
        until(lambda: ends(cluster))
        assert int(next(stream).array[0]) == 2, "it was in the slot"
        with pytest.raises(RequestFailed) as failed:
            next(stream)
        assert (failed.value.status, failed.value.reason) == (Status.EXPIRED, Reason.DEADLINE_PASSED)
    until(lambda: ends(cluster))
    assert ends(cluster)[0].startswith("closed")


def test_a_stream_that_nobody_takes_ends_by_the_limit_on_its_kernel(make_cluster: Make) -> None:
    cluster = started(make_cluster, limits={"kernel_ms": 300})
    with cluster.connect("ada") as requester:
        stream = requester.stream("count", wish(1 << 30), timeout=TIMEOUT)
        assert int(next(stream).array[0]) == 1
        until(lambda: ends(cluster))
        assert int(next(stream).array[0]) == 2, "it was in the slot"
        with pytest.raises(RequestFailed) as failed:
            next(stream)
        assert (failed.value.status, failed.value.reason) == (Status.FAILED, Reason.KERNEL_OVERRAN)
        until(lambda: ends(cluster))
        assert ends(cluster)[0].startswith("closed"), "it was stopped where it waited, not killed"


def test_a_request_that_needs_the_slot_of_the_stream_around_it_is_refused(make_cluster: Make) -> None:
    cluster = started(make_cluster)
    with cluster.connect("ada", slots=1) as requester:
        stream = requester.stream("count", wish(3), timeout=TIMEOUT)
        assert int(next(stream).array[0]) == 1
        with pytest.raises(SlotsHeld, match="all 1 slots"):
            requester.submit("echo", seconds(5))
        assert numbers(stream) == [2, 3]
        assert requester.submit("echo", seconds(5), timeout=TIMEOUT).array == 5


def test_a_request_that_waits_for_the_slot_of_a_stream_has_its_own_timeout(make_cluster: Make) -> None:
    cluster = started(make_cluster)

    async def main() -> None:
        token = str(cluster.folder / "ada.token")
        async with await AsyncRequester.open(cluster.address, tenant="ada", token_file=token, slots=1) as requester:
            stream = requester.stream("count", wish(3), timeout=TIMEOUT)
            assert int((await anext(stream)).array[0]) == 1
            with pytest.raises(RequestTimeout):
                await requester.submit("echo", seconds(5), timeout=0.2)
            assert [int(each.array[0]) async for each in stream] == [2, 3]

    asyncio.run(main())


def test_the_next_answer_of_a_closed_requester_is_a_typed_error(make_cluster: Make) -> None:
    cluster = started(make_cluster)
    with cluster.connect("ada") as requester:
        stream = requester.stream("count", wish(3), timeout=TIMEOUT)
        assert int(next(stream).array[0]) == 1
        until(lambda: requester.poll(0.1))
    with pytest.raises(RequestFailed, match="closed here"):
        next(stream)


def test_a_dead_requester_whose_stream_has_ended_makes_room_for_the_next(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {"max_sessions": 1}}, durability={"resume_ttl_s": 60})
    cluster.start_helper({"OFFPATH_TEST_STREAMS": str(cluster.folder / "streams")})
    requester = cluster.connect("ada")
    stream = requester.stream("count", wish(1 << 30), options=Options(budget_ms=500))
    assert int(next(stream).array[0]) == 1
    until(lambda: ends(cluster))
    requester._link.session.close()
    requester._link.negotiation.abandon()
    requester._closed = True

    def connected() -> Requester | None:
        try:
            return cluster.connect("ada")
        except NegotiationRefused:
            return None

    with until(connected) as other:
        assert numbers(other.stream("count", wish(2), timeout=TIMEOUT)) == [1, 2]


def test_a_drain_lets_a_stream_go_on_to_its_end(make_cluster: Make) -> None:
    cluster = started(make_cluster)
    with cluster.connect("ada") as requester, AdminClient(str(cluster.run_folder)) as operator:
        stream = requester.stream("count", wish(20), timeout=TIMEOUT)
        assert int(next(stream).array[0]) == 1
        assert not operator.query(admin.DrainRequest(is_on=True), admin.Drained).is_drained
        with pytest.raises(RequestFailed) as failed:
            next(requester.stream("count", wish(1), timeout=TIMEOUT))
        assert (failed.value.status, failed.value.reason) == (Status.REJECTED, Reason.DRAINING)
        assert numbers(stream) == [*range(2, 21)]
        until(lambda: operator.query(admin.DrainRequest(is_on=True), admin.Drained).is_drained)


def test_a_drain_waits_for_the_end_of_a_stream_to_be_written(make_cluster: Make) -> None:
    cluster = started(make_cluster)
    with cluster.connect("ada") as requester, AdminClient(str(cluster.run_folder)) as operator:
        stream = requester.stream("count", wish(2), timeout=TIMEOUT)
        assert int(next(stream).array[0]) == 1
        until(lambda: operator.query(admin.StatisticsRequest(), admin.Statistics).counters["stream_answers"] == 2)
        operator.query(admin.CancelRequest(job=1), admin.Cancelled)
        drained = operator.query(admin.DrainRequest(is_on=True), admin.Drained)
        assert (drained.is_drained, drained.unanswered) == (False, 1), "the second answer is in the slot"
        assert int(next(stream).array[0]) == 2
        with pytest.raises(RequestFailed):
            next(stream)
        until(lambda: operator.query(admin.DrainRequest(is_on=True), admin.Drained).is_drained)


def test_a_reload_lets_a_stream_go_on_in_its_worker_and_replaces_that_afterwards(make_cluster: Make) -> None:
    cluster = started(make_cluster, reloads=True)
    assert cluster.helper is not None
    with cluster.connect("ada") as requester:
        stream = requester.stream("count", wish(20), timeout=TIMEOUT)
        assert int(next(stream).array[0]) == 1
        before = set(pids_of(cluster.helper))
        cluster.helper.signal(signal.SIGHUP)
        until(lambda: "reloaded its kernels, revision 1" in cluster.daemon.errors)
        assert numbers(stream) == [*range(2, 21)]
        assert numbers(requester.stream("count", wish(3), timeout=TIMEOUT)) == [1, 2, 3]
        until(lambda: cluster.helper is not None and before.isdisjoint(set(pids_of(cluster.helper))))
    assert ends(cluster) == ["done 20", "done 3"]
    assert "lost: " not in cluster.daemon.errors


def test_an_operator_sees_how_many_answers_were_written_and_may_cancel(make_cluster: Make) -> None:
    cluster = started(make_cluster)
    with cluster.connect("ada") as requester, AdminClient(str(cluster.run_folder)) as operator:
        stream = requester.stream("count", wish(1 << 30), timeout=TIMEOUT)
        for _ in range(3):
            next(stream)
        (job,) = operator.query(admin.JobsRequest(), admin.Jobs).jobs
        assert job.answers in (3, 4)
        operator.query(admin.CancelRequest(job=job.job), admin.Cancelled)
        with pytest.raises(RequestFailed) as failed:
            list(stream)
        assert (failed.value.status, failed.value.reason) == (Status.CANCELLED, Reason.CANCELLED_BY_OPERATOR)
        assert operator.query(admin.JobRequest(job=job.job), admin.Job).job.answers in (3, 4)
    assert cluster.statistics()["stream_answers"] in (3, 4)


def test_a_requester_that_goes_leaves_nothing_of_its_stream(make_cluster: Make) -> None:
    cluster = started(make_cluster)
    with cluster.connect("ada") as requester:
        stream = requester.stream("count", wish(1 << 30))
        next(stream)
    until(lambda: ends(cluster))
    with cluster.connect("ada") as requester:
        assert numbers(requester.stream("count", wish(3), timeout=TIMEOUT)) == [1, 2, 3]
    stream.close()


def test_a_lost_worker_ends_a_stream_that_is_not_run_again(make_cluster: Make) -> None:
    cluster = started(make_cluster)
    assert cluster.helper is not None
    with cluster.connect("ada") as requester:
        stream = requester.stream("count", wish(1 << 30, pause_s=0.05), options=Options(is_idempotent=True))
        assert int(next(stream).array[0]) == 1
        for pid in pids_of(cluster.helper):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(RequestFailed) as failed:
            list(stream)
        assert (failed.value.status, failed.value.reason) == (Status.OUTCOME_UNKNOWN, Reason.WORKER_LOST)


def cut(requester: Requester) -> None:
    """Both connections break, and no side sends a goodbye."""
    requester._link.session._bell.shutdown(2)
    requester._link.negotiation._sock.shutdown(2)


@SIZES
def test_a_cut_connection_costs_a_stream_no_answer(make_cluster: Make, size: int) -> None:
    cluster = started(make_cluster, durability={"resume_ttl_s": 20})
    with cluster.connect("ada", **ROOM) as requester:
        taken = []
        for answer in requester.stream("count", wish(40, size, 0.002), timeout=TIMEOUT):
            taken.append(int(answer.array[-1]))
            if len(taken) % 7 == 0:
                cut(requester)
        assert taken == [*range(1, 41)]


@pytest.fixture
def kept(make_cluster: Make) -> Callable[..., Cluster]:
    def make(resume_ttl_s: int = 20) -> Cluster:
        durability = {"resume_ttl_s": resume_ttl_s, "adopt_ms": 3000, "journal_mib": 4}
        return started(make_cluster, keep={"starts": 0}, durability=durability)

    return make


@SIZES
@pytest.mark.parametrize("pause_s", [0.0, 0.01])
def test_a_stream_goes_on_after_each_kill_of_the_daemon(
    kept: Callable[..., Cluster], size: int, pause_s: float
) -> None:
    cluster = kept()
    with cluster.connect("ada", **ROOM) as requester:
        taken = []
        for answer in requester.stream("count", wish(40, size, pause_s), timeout=TIMEOUT):
            taken.append(int(answer.array[-1]))
            if len(taken) % 10 == 5:
                os.kill(pids_of(cluster.daemon)[0], signal.SIGKILL)
                assert cluster.daemon.hear()["lineage"] == cluster.lineage
        assert taken == [*range(1, 41)]
        assert requester.submit("echo", seconds(1), timeout=TIMEOUT).array == 1
    assert ends(cluster) == ["done 40"], "one launch"


def test_a_stream_of_a_requester_that_died_with_the_daemon_is_closed(kept: Callable[..., Cluster]) -> None:
    """Not sooner than the requester may come back."""
    cluster = kept(resume_ttl_s=1)
    requester = cluster.connect("ada")
    stream = requester.stream("count", wish(1 << 30))
    next(stream)
    began_s = time.monotonic()
    os.kill(pids_of(cluster.daemon)[0], signal.SIGKILL)
    requester._link.session.close()
    requester._link.negotiation.abandon()
    requester._closed = True
    assert cluster.daemon.hear()["lineage"] == cluster.lineage
    until(lambda: ends(cluster))
    assert time.monotonic() - began_s >= 1.0
    with cluster.connect("bob") as other:
        assert numbers(other.stream("count", wish(3), timeout=TIMEOUT)) == [1, 2, 3]
