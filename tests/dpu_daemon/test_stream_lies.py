"""Workers that break the rules of a stream: each costs its lane, and its requester gets a typed end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from offpath.bindings.wire import host
from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.header import DTYPE_CODES, TENSOR_BYTES, Tensor, pack_tensors
from offpath.host_helper import Requester, RequestFailed
from offpath.host_helper.slots import DEFAULT_OPTIONS

from ..support.cluster import MIB, TIMEOUT, Cluster
from ..support.fakehost import FakeHost, result
from ..support.processes import until
from .test_host_channel import launch_on

ONE = pack_tensors([Tensor(DTYPE_CODES["uint8"], (1,), 0, 1)])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    leasing = {"landing_bytes": 2 * MIB, "result_bytes": 2 * MIB, "keep_warm_ms": 100}
    made = Cluster({"ada": {"max_share": 14, "profile": "1g.5gb"}}, leasing=leasing)
    try:
        yield made
        made.close()
    finally:
        made.kill()


class Streamed:
    """A stream that was launched on a lane of the test's own; ``number``: of its last answer."""

    def __init__(self, cluster: Cluster) -> None:
        self.fake = FakeHost(cluster)
        self.fake.join()
        self.requester: Requester = cluster.connect("ada", slots=2, result_bytes=2 * MIB)
        self.requester._link.negotiation.update(1.0)
        self.pending = self.requester._begin("echo", [np.ones(1)], DEFAULT_OPTIONS, None, is_stream=True)
        _, lanes = self.fake.open_lanes()
        self.lane, self.launch = launch_on(self.fake, lanes)
        self.number = 0

    def answer(self, **changes: Any) -> None:
        """The next answer, whose byte is its number, but for the changes."""
        self.number += 1
        honest = {"status": host.RESULT_MORE, "number": self.number, "result_bytes": 1, "tensors": ONE}
        self.lane.send(result(self.launch, **{**honest, "inline": bytes((self.number,)), **changes}))

    def take(self) -> int:
        taken = self.pending.next_answer(None)
        assert taken is not None
        return int(taken.array[0])

    def end(self) -> tuple[Status, Reason]:
        with pytest.raises(RequestFailed) as failed:
            list(iter(lambda: self.pending.next_answer(None), None))
        return failed.value.status, failed.value.reason

    def proceed(self) -> host.Proceed:
        reply = self.fake.hear(self.lane)
        assert isinstance(reply, host.Proceed), reply
        return reply

    def close(self) -> None:
        self.requester.close()
        self.fake.close()


@pytest.fixture
def stream(cluster: Cluster) -> Iterator[Streamed]:
    made = Streamed(cluster)
    yield made
    made.close()
    until(lambda: cluster.daemon.is_alive)


def test_each_answer_gets_its_reply_once_it_was_taken(stream: Streamed) -> None:
    for number in (1, 2, 3):
        stream.answer()
        assert stream.take() == number
        assert stream.proceed() == host.Proceed(stream.launch.job, stream.launch.generation, number, False)
    stream.lane.send(result(stream.launch, number=3))
    assert stream.pending.next_answer(None) is None


@pytest.mark.parametrize(
    "lie",
    [
        {"number": 2},
        {"number": (1 << 32) - 1},
        {"job": 10**6},
        {"generation": 10**6},
        {"result_bytes": 2 * MIB + 1, "is_inline": False, "inline": b"", "tensors": b""},
        {"tensors": bytes(TENSOR_BYTES)},
        {"tensors": pack_tensors([Tensor(DTYPE_CODES["uint8"], (2,), 0, 2)])},
        {"started_ns": 5, "finished_ns": 4},
    ],
    ids=str,
)
def test_an_answer_that_makes_no_sense_costs_the_worker_its_lane(stream: Streamed, lie: dict[str, Any]) -> None:
    stream.answer(**lie)
    if lie.get("result_bytes"):  # what the session has no room for is not a lie
        assert stream.proceed().is_stop
        stream.lane.send(result(stream.launch, status=host.RESULT_STOPPED))
        assert stream.end() == (Status.FAILED, Reason.RESULT_TOO_LARGE)
    else:
        assert stream.fake.hear(stream.lane) is None
        assert stream.end() == (Status.OUTCOME_UNKNOWN, Reason.WORKER_LOST)


@pytest.mark.parametrize("second", ["answer", "end"])
def test_a_worker_that_does_not_wait_for_the_reply_loses_its_lane(stream: Streamed, second: str) -> None:
    stream.answer()
    if second == "answer":
        stream.answer()
    else:
        stream.lane.send(result(stream.launch, number=1))
    assert stream.fake.hear(stream.lane) is None
    assert stream.take() == 1, "it was there before"
    assert stream.end() == (Status.OUTCOME_UNKNOWN, Reason.WORKER_LOST)


@pytest.mark.parametrize(
    "lie", [{"number": 0}, {"number": 2}, {"number": 1, "result_bytes": 1, "inline": b"x"}], ids=str
)
def test_an_end_that_does_not_fit_its_answers_costs_the_worker_its_lane(stream: Streamed, lie: dict[str, Any]) -> None:
    stream.answer()
    assert stream.take() == 1
    assert not stream.proceed().is_stop
    stream.lane.send(result(stream.launch, **lie))
    assert stream.fake.hear(stream.lane) is None
    assert stream.end() == (Status.OUTCOME_UNKNOWN, Reason.WORKER_LOST)


def test_a_worker_that_says_it_was_stopped_and_was_not_fails_its_stream(stream: Streamed) -> None:
    stream.lane.send(result(stream.launch, status=host.RESULT_STOPPED))
    assert stream.end() == (Status.FAILED, Reason.DAEMON_RESTARTED)


def test_an_answer_after_the_end_is_answered_with_a_stop(stream: Streamed) -> None:
    stream.pending.cancel()
    assert stream.end() == (Status.CANCELLED, Reason.CANCELLED_BY_REQUESTER)
    stream.answer()
    assert stream.proceed().is_stop
    stream.lane.send(result(stream.launch, status=host.RESULT_STOPPED, number=1))


def test_an_answer_after_the_order_to_stop_costs_the_worker_its_lane(stream: Streamed) -> None:
    """The request has not ended yet, and waits for the end of its kernel."""
    stream.answer(result_bytes=2 * MIB + 1, is_inline=False, inline=b"", tensors=b"")
    assert stream.proceed().is_stop
    stream.number = 0
    stream.answer()
    assert stream.fake.hear(stream.lane) is None
    assert stream.end() == (Status.OUTCOME_UNKNOWN, Reason.WORKER_LOST)


def test_an_answer_of_a_stream_for_a_request_that_wants_one_costs_the_worker_its_lane(cluster: Cluster) -> None:
    with FakeHost(cluster) as fake, cluster.connect("ada", slots=1) as requester:
        fake.join()
        requester._link.negotiation.update(1.0)
        pending = requester.begin("echo", [np.ones(1)])
        _, lanes = fake.open_lanes()
        lane, launch = launch_on(fake, lanes)
        lane.send(result(launch, status=host.RESULT_MORE, number=1))
        assert fake.hear(lane) is None
        with pytest.raises(RequestFailed) as failed:
            pending.result(TIMEOUT)
        assert failed.value.status is Status.OUTCOME_UNKNOWN
