"""One process, and one thread at a time, may use a requester. Others get an error, and its session is unharmed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from offpath.host_helper import Requester
from offpath.host_helper.aio import AsyncRequester
from offpath.host_helper.errors import RequesterShared

from ..support.cluster import TIMEOUT, Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster({"ada": {}}, leasing={"keep_warm_ms": 60_000})
    try:
        made.start_helper()
        yield made
        made.close()
    finally:
        made.kill()


@pytest.fixture
def ada(cluster: Cluster) -> Iterator[Requester]:
    with cluster.connect("ada", slots=4) as requester:
        yield requester


def echo(requester: Requester, value: int) -> int:
    return int(requester.submit("echo", [np.array([value])], timeout=TIMEOUT).array[0])


@pytest.fixture(scope="module")
def forked(cluster: Cluster) -> dict[str, Any]:
    """What a process says that forks while it has a requester. It is no fork of this one, which has threads."""
    process = cluster.start("forks", "fork_main.py", cluster.address, str(cluster.folder / "ada.token"))
    said: dict[str, Any] = process.hear()
    process.finish(is_notified=True)
    return said


@pytest.mark.parametrize(
    "call", ["submit", "begin", "stream", "poll", "result", "cancel", "signature", "is_emulated", "return_credit"]
)
def test_a_forked_process_is_told_and_its_parents_request_goes_on(forked: dict[str, Any], call: str) -> None:
    said, slept, echoed = forked["came"][call]
    assert said.startswith(f"RequesterShared: process {forked['pid']} opened this session")
    assert said.endswith("open one per process")
    assert (slept, echoed) == (0.05, 1)


def test_a_forked_process_that_closes_a_requester_ends_no_session(forked: dict[str, Any]) -> None:
    assert forked["came"]["close"] == ["None", 0.05, 1]
    assert forked["came"]["a stream's close"] == ["None", 2]


def test_threads_of_one_requester_are_told_and_no_answer_is_lost_or_anothers(ada: Requester) -> None:
    def submit(value: int) -> int | str:
        try:
            return echo(ada, value)
        except RequesterShared as shared:
            return str(shared)

    with ThreadPoolExecutor(8) as threads:
        got = list(threads.map(submit, range(400)))
    told = [each for each in got if isinstance(each, str)]
    assert set(told) <= {"another thread is using this requester: open one per thread"}
    assert [each for each in got if isinstance(each, int)] == [n for n, each in enumerate(got) if isinstance(each, int)]
    assert echo(ada, 9) == 9


def test_a_thread_that_finds_another_using_it_is_told_at_once(ada: Requester) -> None:
    with ThreadPoolExecutor(1) as thread:
        with ada.owner, pytest.raises(RequesterShared, match="another thread is using this requester"):
            thread.submit(echo, ada, 10).result(TIMEOUT)
        assert thread.submit(echo, ada, 10).result(TIMEOUT) == 10


def test_a_thread_that_waits_for_an_answer_is_using_it(ada: Requester) -> None:
    """Of two threads that wait, one is told, and the other's answer is its own."""
    pending = [ada.begin("sleep", [np.array([0.05])]) for _ in range(2)]
    both, told = threading.Barrier(2), list[str]()

    def wait(n: int) -> float | None:
        both.wait(TIMEOUT)
        try:
            return float(pending[n].result(TIMEOUT).array[0])
        except RequesterShared as shared:
            told.append(str(shared))
            return None

    with ThreadPoolExecutor(2) as threads:
        got = list(threads.map(wait, range(2)))
    assert len(told) + got.count(0.05) == 2
    assert [each.result(TIMEOUT).array[0] for n, each in enumerate(pending) if got[n] is None] == [0.05] * len(told)


def test_threads_may_use_a_requester_one_after_the_other(ada: Requester) -> None:
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        for n in range(10):
            assert (one if n % 2 else other).submit(echo, ada, n).result(TIMEOUT) == n


async def test_an_asynchronous_requester_is_its_process_and_its_loops(cluster: Cluster) -> None:
    opened = await AsyncRequester.open(
        cluster.address, tenant="ada", token_file=str(cluster.folder / "ada.token"), slots=2
    )

    async def ask() -> int:
        return int((await opened.submit("echo", [np.array([3])], timeout=TIMEOUT)).array[0])

    async with opened:
        loops = ThreadPoolExecutor(1)
        with pytest.raises(RequesterShared, match="of another event loop"):
            loops.submit(asyncio.run, ask()).result(TIMEOUT)
        assert await ask() == 3
