"""Batches by real processes: requests share launches, and each gets its own rows back."""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from offpath.bindings.wire.codes import Reason, Status
from offpath.host_helper import Options, Requester, RequestFailed

from ..support.cluster import TIMEOUT, Cluster
from ..support.clusters import Make

Array = NDArray[Any]
BATCHES = {"demand": 14, "max_batch": 16, "max_queue_delay_us": 20_000}


def started(make_cluster: Make, *kernels: str, **batches: Any) -> Cluster:
    """A cluster whose helper batches these kernels."""
    cluster = make_cluster({"ada": {}, "bob": {}}, leasing={"keep_warm_ms": 60_000})
    needs = {name: {**BATCHES, **batches} for name in kernels}
    cluster.start_helper({"OFFPATH_TEST_TALLY": str(cluster.folder / "tally")}, needs=needs)
    return cluster


def launches(cluster: Cluster) -> list[int]:
    """The rows of each launch of `double`."""
    return [int(line) for line in Path(cluster.folder / "tally").read_text().split()]


class Caller(threading.Thread):
    """Calls `double` with rows of its own, several requests at a time, and compares."""

    def __init__(self, cluster: Cluster, tenant: str, number: int, width: int) -> None:
        super().__init__(daemon=True)
        self.cluster, self.tenant, self.random, self.width = cluster, tenant, np.random.default_rng(number), width
        self.served = 0
        self.faults: list[str] = []
        self.shared: list[tuple[int, int, int]] = []
        """Of each request: the number and the rows of its batch, and its own rows."""

    def arguments(self) -> tuple[Array, Array]:
        rows = int(self.random.integers(1, 4))
        return self.random.random((rows, self.width), np.float32), self.random.random(rows)

    def run(self) -> None:
        with self.cluster.connect(self.tenant, slots=4) as requester:
            for _ in range(10):
                sent = [self.arguments() for _ in range(4)]
                waiting = [requester.begin("double", arguments) for arguments in sent]
                for (array, more), pending in zip(sent, waiting, strict=True):
                    result = pending.result(TIMEOUT)
                    twice, total = result.arrays
                    self.shared.append((result.batch, result.batch_rows, len(array)))
                    is_right = np.array_equal(twice, 2 * array)
                    is_right &= np.allclose(total, array.sum(axis=1, dtype=np.float64) + more)
                    self.faults += [] if is_right else [f"{array.shape}: {twice.shape}, {total.shape}"]
                    self.served += 1


@pytest.mark.parametrize("width", [3, 4_096], ids=["in the message", "in the lane"])
def test_requests_of_several_threads_share_launches_and_each_gets_its_rows(make_cluster: Make, width: int) -> None:
    cluster = started(make_cluster, "double")
    callers = [Caller(cluster, tenant, number, width) for number, tenant in enumerate(("ada", "ada", "ada", "bob"))]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(TIMEOUT)
    assert [(caller.served, caller.faults) for caller in callers] == [(40, [])] * 4
    rows = launches(cluster)
    assert len(rows) < 100, "of 160 requests"
    assert max(rows) <= 16
    every = [each for caller in callers for each in caller.shared]
    by_batch: dict[tuple[int, int], int] = defaultdict(int)
    for batch, batch_rows, own in every:
        by_batch[batch, batch_rows] += own if batch else 0
    alone = [own for batch, _, own in every if not batch]
    assert by_batch.pop((0, 0), 0) == 0
    assert all(batch and counted == batch_rows for (batch, batch_rows), counted in by_batch.items())
    assert sorted([*by_batch.values(), *alone]) == sorted(rows)


def test_a_batch_of_more_copies_than_one_message_holds_reaches_a_worker_that_copies(make_cluster: Make) -> None:
    cluster = make_cluster(
        {"ada": {"max_slots": 256}}, leasing={"keep_warm_ms": 60_000}, datapath={"copy_engine": "cuda"}
    )
    needs = {"double": {"demand": 14, "max_batch": 1_024, "max_queue_delay_us": 300_000}}
    cluster.start_helper({"OFFPATH_TEST_TALLY": str(cluster.folder / "tally")}, needs=needs)
    with cluster.connect("ada", slots=160, payload_bytes=4_096, result_bytes=4_096) as ada:
        sent = [(np.full((1, 2, n % 2), n, np.float32), np.array([n], np.float64)) for n in range(150)]
        waiting = [ada.begin("double", arguments) for arguments in sent]
        for (array, more), pending in zip(sent, waiting, strict=True):
            twice, total = pending.result(TIMEOUT).arrays
            assert np.array_equal(twice, 2 * array)
            assert total[0] == array.sum() + more[0]
    assert max(launches(cluster)) > 60, "each request has two copies of 40 bytes, or one"


def begin(requester: Requester, kernel: str, *rows: int, **options: Any) -> list[Any]:
    return [requester.begin(kernel, [np.full((n, 2), n, np.uint8)], options=Options(**options)) for n in rows]


def test_a_result_without_a_row_for_each_row_fails_all_members_with_a_reason(make_cluster: Make) -> None:
    cluster = started(make_cluster, "describe")
    with cluster.connect("ada", slots=4) as ada:
        for pending in begin(ada, "describe", 1, 2, 3):
            with pytest.raises(RequestFailed, match="ran on 6 rows of several requests") as failed:
                pending.result(TIMEOUT)
            assert (failed.value.status, failed.value.reason) == (Status.FAILED, Reason.RESULT_NOT_SPLIT)


def test_rows_that_do_not_fit_their_session_fail_there_only(make_cluster: Make) -> None:
    cluster = started(make_cluster, "echo")
    with cluster.connect("ada", slots=4) as ada, cluster.connect("ada", slots=4, result_bytes=16) as small:
        fitting = begin(ada, "echo", 3, 1)
        (too_large,) = begin(small, "echo", 9)
        with pytest.raises(RequestFailed, match="the result has 1") as failed:
            too_large.result(TIMEOUT)
        assert (failed.value.status, failed.value.reason) == (Status.FAILED, Reason.RESULT_TOO_LARGE)
        for n, pending in zip((3, 1), fitting, strict=True):
            assert np.array_equal(pending.result(TIMEOUT).arrays[0], np.full((n, 2), n))


def test_a_kernel_s_exception_reaches_every_member(make_cluster: Make) -> None:
    cluster = started(make_cluster, "fail")
    with cluster.connect("ada", slots=4) as ada:
        for pending in [ada.begin("fail", [np.frombuffer(b"no", np.uint8)]) for _ in range(3)]:
            with pytest.raises(RequestFailed, match="nonono"):
                pending.result(TIMEOUT)


def test_a_cancelled_member_leaves_the_others_their_rows(make_cluster: Make) -> None:
    cluster = started(make_cluster, "echo", max_queue_delay_us=200_000)
    with cluster.connect("ada", slots=4) as ada:
        first, second, third = begin(ada, "echo", 1, 2, 3)
        second.cancel()
        with pytest.raises(RequestFailed) as failed:
            second.result(TIMEOUT)
        assert failed.value.status is Status.CANCELLED
        assert first.result(TIMEOUT).arrays[0].tolist() == [[1, 1]]
        assert third.result(TIMEOUT).arrays[0].tolist() == [[3, 3]] * 3
