"""Sequences by real processes: one worker has the state, requests run in order, and nothing runs without its state."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

from offpath.bindings.wire.codes import Reason, Status
from offpath.host_helper import Options, Requester, RequestFailed

from ..support.cluster import TIMEOUT, Cluster, pids_of
from ..support.clusters import Make
from ..support.processes import until


def started(make_cluster: Make, **limits: Any) -> Cluster:
    cluster = make_cluster(
        {"ada": {"max_sequences": 40}}, leasing={"keep_warm_ms": 60_000, "lanes": 3}, limits=limits
    )  # fmt: skip
    cluster.start_helper()
    return cluster


def begin(requester: Requester, number: int, value: int, *, start: bool = False, end: bool = False) -> Any:
    options = Options(sequence_id=number, sequence_start=start, sequence_end=end)
    return requester.begin("accumulate", [np.array([value])], options=options)


def ask(requester: Requester, number: int, value: int, **how: bool) -> tuple[int, int, int, int]:
    """Sum, process, requests seen and flags."""
    total, where = begin(requester, number, value, **how).result(TIMEOUT).arrays
    assert where[2] == number & (1 << 62) - 1
    return int(total[0]), int(where[0]), int(where[1]), int(where[3])


def refused(requester: Requester, number: int, **how: bool) -> tuple[Status, Reason]:
    with pytest.raises(RequestFailed) as failed:
        ask(requester, number, 1, **how)
    return failed.value.status, failed.value.reason


def client(cluster: Cluster, number: int, faults: list[str]) -> None:
    """Three sequences at a time, each with several requests in flight."""
    with cluster.connect("ada", slots=16) as requester:
        for _ in range(3):
            waiting = [
                (step, begin(requester, sequence, step + (sequence & 7), start=step == 0, end=step == 4))
                for step in range(5)
                for sequence in (1, 2, (1 << 63) + number)
            ]
            got = [(step, pending.result(TIMEOUT).arrays) for step, pending in waiting]
            for at, sequence in enumerate((1, 2, (1 << 63) + number)):
                mine = got[at::3]
                sums = [int(total[0]) for _, (total, _) in mine]
                right = [sum(step + (sequence & 7) for step in range(upto + 1)) for upto in range(5)]
                if sums != right:
                    faults.append(f"{sequence}: {sums}")
                if len({int(where[0]) for _, (_, where) in mine}) != 1:
                    faults.append(f"{sequence}: several workers")
                if [int(where[1]) for _, (_, where) in mine] != [1, 2, 3, 4, 5]:
                    faults.append(f"{sequence}: the order")


def test_sequences_of_several_clients_keep_their_states_apart(make_cluster: Make) -> None:
    cluster = started(make_cluster)
    faults: list[str] = []
    clients = [threading.Thread(target=client, args=(cluster, number, faults)) for number in range(3)]
    for each in clients:
        each.start()
    for each in clients:
        each.join(TIMEOUT)
    assert faults == []


def test_a_kernel_learns_start_and_end_and_a_new_start_finds_no_state(make_cluster: Make) -> None:
    cluster = started(make_cluster)
    with cluster.connect("ada") as ada:
        assert ask(ada, 5, 1, start=True)[2:] == (1, 1)
        assert ask(ada, 5, 2)[0] == 3
        assert ask(ada, 5, 4, start=True)[0] == 4
        total, _, seen, flags = ask(ada, 5, 8, end=True)
        assert (total, seen, flags) == (12, 2, 2)
        assert refused(ada, 5) == (Status.REJECTED, Reason.SEQUENCE_UNKNOWN)
        assert ask(ada, 5, 16, start=True, end=True)[2:] == (1, 3)


def test_requests_that_fit_no_sequence_are_refused(make_cluster: Make) -> None:
    cluster = started(make_cluster)
    with cluster.connect("ada") as ada, cluster.connect("ada") as other:
        ask(ada, 5, 1, start=True)
        assert refused(other, 5) == (Status.REJECTED, Reason.SEQUENCE_UNKNOWN)
        with pytest.raises(RequestFailed) as failed:
            ada.submit("accumulate", [np.array([1])], timeout=TIMEOUT)
        assert failed.value.reason is Reason.BAD_SEQUENCE
        with pytest.raises(RequestFailed) as failed:
            ada.submit("echo", [np.array([1])], timeout=TIMEOUT, options=Options(sequence_id=1, sequence_start=True))
        assert failed.value.reason is Reason.BAD_SEQUENCE


def test_a_kernel_that_raises_does_not_end_its_sequence(make_cluster: Make) -> None:
    cluster = started(make_cluster)
    with cluster.connect("ada") as ada:
        ask(ada, 5, 1, start=True)
        assert refused_value(ada) is Reason.KERNEL_RAISED
        assert ask(ada, 5, 2)[0] == 3


def refused_value(requester: Requester) -> Reason:
    with pytest.raises(RequestFailed) as failed:
        ask(requester, 5, -1)
    return failed.value.reason


def test_the_end_of_a_worker_loses_its_sequences_with_a_typed_reason(make_cluster: Make) -> None:
    cluster = started(make_cluster)
    with cluster.connect("ada") as ada:
        _, process, *_ = ask(ada, 5, 1, start=True)
        os.kill(process, signal.SIGKILL)
        until = time.monotonic() + TIMEOUT
        while (found := refused_or_served(ada)) is None and time.monotonic() < until:
            pass
        assert found in (
            (Status.REJECTED, Reason.SEQUENCE_UNKNOWN), (Status.CANCELLED, Reason.SEQUENCE_LOST),
            (Status.OUTCOME_UNKNOWN, Reason.WORKER_LOST),
        )  # fmt: skip
        assert refused(ada, 5) == (Status.REJECTED, Reason.SEQUENCE_UNKNOWN)
        total, other, *_ = ask(ada, 5, 2, start=True)
        assert (total, other != process) == (2, True)


def refused_or_served(requester: Requester) -> tuple[Status, Reason] | None:
    try:
        ask(requester, 5, 1)
    except RequestFailed as failed:
        return failed.status, failed.reason
    return None


def test_an_idle_sequence_ends_and_its_worker_drops_the_state(make_cluster: Make) -> None:
    cluster = make_cluster(
        {"ada": {}}, leasing={"keep_warm_ms": 60_000, "lanes": 1, "max_lanes": 1}, limits={"sequence_idle_ms": 600}
    )
    cluster.start_helper()
    with cluster.connect("ada") as ada:
        ask(ada, 5, 1, start=True)
        assert ada.submit("states", [np.array([1])], timeout=TIMEOUT).array[0] == 1
        until(lambda: ada.submit("states", [np.array([1])], timeout=TIMEOUT).array[0] == 0)
        assert refused(ada, 5) == (Status.REJECTED, Reason.SEQUENCE_UNKNOWN)


def test_a_tenant_has_as_many_sequences_as_it_may(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {"max_sequences": 2}}, leasing={"keep_warm_ms": 60_000})
    cluster.start_helper()
    with cluster.connect("ada") as ada:
        ask(ada, 1, 1, start=True)
        ask(ada, 2, 1, start=True)
        assert refused(ada, 3, start=True) == (Status.REJECTED, Reason.TOO_MANY_SEQUENCES)
        ask(ada, 1, 1, end=True)
        ask(ada, 3, 1, start=True)


def test_a_restarted_daemon_goes_on_with_its_sequences(make_cluster: Make) -> None:
    durability = {"resume_ttl_s": 20, "adopt_ms": 2000, "journal_mib": 4}
    cluster = make_cluster({"ada": {}}, keep={"starts": 0}, durability=durability, leasing={"keep_warm_ms": 60_000})
    cluster.start_helper()
    with cluster.connect("ada") as ada:
        before = ask(ada, 5, 1, start=True)
        os.kill(pids_of(cluster.daemon)[0], signal.SIGKILL)
        assert cluster.daemon.hear()["lineage"] == cluster.lineage
        ada.submit("echo", [np.array([1])], timeout=TIMEOUT)  # the session is resumed
        after = ask(ada, 5, 2)
        assert (after[0], after[1]) == (3, before[1])
        assert ask(ada, 5, 4, end=True)[0] == 7
        assert refused(ada, 5) == (Status.REJECTED, Reason.SEQUENCE_UNKNOWN)
