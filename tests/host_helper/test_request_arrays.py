"""What a caller may pass as a request's arrays, and what is refused before anything is sent."""

from __future__ import annotations

import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from offpath.host_helper import Requester
from offpath.host_helper.aio import AsyncRequester
from offpath.host_helper.request_arrays import as_arrays

from ..support.cluster import TIMEOUT, Cluster

A, B = np.arange(6.0).reshape(2, 3), np.full((2, 3), 7.0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster({"ada": {}}, leasing={"keep_warm_ms": 60_000})
    try:
        made.start_helper()
        yield made
        made.close()
    finally:
        made.kill()


@pytest.fixture(scope="module")
def ada(cluster: Cluster) -> Iterator[Requester]:
    with cluster.connect("ada", slots=2) as requester:
        yield requester


RIGHT: list[Any] = [
    lambda: [A, B], lambda: (A, B), lambda: (each for each in (A, B)), lambda: iter([A, B]),
    lambda: map(np.copy, [A, B]), lambda: {"a": A, "b": B}.values(),
    lambda: [A[:, ::1], B.T.copy().T], lambda: [np.asfortranarray(A), B],
]  # fmt: skip


@pytest.mark.parametrize("arrays", RIGHT)
def test_any_iterable_of_arrays_is_walked_once(ada: Requester, arrays: Any) -> None:
    for _ in range(2):
        got = ada.submit("echo", arrays(), timeout=TIMEOUT).arrays
        assert [each.tolist() for each in got] == [A.tolist(), B.tolist()]
    assert ada.begin("echo", arrays()).result(TIMEOUT).arrays[1].tolist() == B.tolist()
    assert [each.tolist() for each in ada.submit("echo", [A, B], timeout=TIMEOUT).arrays] == [A.tolist(), B.tolist()]


def test_numbers_of_numpy_are_arrays_without_dimensions(ada: Requester) -> None:
    assert ada.submit("echo", [np.float32(1.5)], timeout=TIMEOUT).array == 1.5


WRONG: list[tuple[Any, str]] = [
    (A, "not one ndarray of shape (2, 3): pass [array]"),
    (A[:1], "not one ndarray of shape (1, 3): pass [array]"),
    (np.float64(1.0), "not one float64 of shape (): pass [array]"),
    (np.ma.masked_array(A, A > 2), "of shape (2, 3): pass [array]"),
    (b"text", "not one bytes: pass [array]"),
    ("text", "not one str: pass [array]"),
    (3, "a list of arrays is wanted, not int: pass [array]"),
    (None, "a list of arrays is wanted, not NoneType"),
    ([A, A.tolist()], "array 1 is list, not an array of numpy: pass numpy.asarray(value)"),
    ([[1.0, 2.0]], "array 0 is list"),
    ([1.0], "array 0 is float"),
    (["text"], "array 0 is str"),
    ({"a": A}, "array 0 is str"),
    ([array.array("d", [1.0])], "array 0 is array"),
    ([memoryview(b"1")], "array 0 is memoryview"),
    ([np.ma.masked_array(A, A > 2)], "array 0 is masked, and a mask does not travel: pass array.filled(value)"),
    ([np.array([b"a", None])], "array 0: element 1 of an array of objects is NoneType; use bytes or str"),
    ([A, np.array([1], object)], "array 1: element 0 of an array of objects is int"),
    ([np.array(["2026"], "M8[s]")], "dtype datetime64[s] is not supported"),
]


@pytest.mark.parametrize(("arrays", "said"), WRONG)
def test_what_is_no_list_of_arrays_is_refused_and_the_session_is_as_before(
    ada: Requester, arrays: Any, said: str
) -> None:
    for call in (ada.submit, ada.begin, lambda *all_: next(ada.stream(*all_))):
        with pytest.raises(TypeError) as refused:
            call("echo", arrays)  # type: ignore[operator]
        assert said in str(refused.value)
    for _ in range(3):  # more than its slots
        assert [each.tolist() for each in ada.submit("echo", [A, B], timeout=TIMEOUT).arrays] == [
            A.tolist(),
            B.tolist(),
        ]


async def test_the_asynchronous_requester_takes_and_refuses_the_same(cluster: Cluster) -> None:
    opened = await AsyncRequester.open(
        cluster.address, tenant="ada", token_file=str(cluster.folder / "ada.token"), slots=2
    )
    async with opened as requester:
        got = (await requester.submit("echo", (each for each in (A, B)), timeout=TIMEOUT)).arrays
        assert [each.tolist() for each in got] == [A.tolist(), B.tolist()]
        for arrays, said in WRONG:
            with pytest.raises(TypeError) as refused:
                await requester.submit("echo", arrays)
            assert said in str(refused.value)
        assert (await requester.submit("echo", [A], timeout=TIMEOUT)).array.tolist() == A.tolist()


def test_an_iterator_that_raises_sends_nothing() -> None:
    def arrays() -> Iterator[Any]:
        yield A
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        as_arrays(arrays())
