"""A streaming kernel's values, one by one, and how its generator ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpath.bindings.errors import DeviceGone
from offpath.bindings.wire import host
from offpath.host_helper.kernels import Kernel
from offpath.host_helper.launched import LaunchedJob
from offpath.host_helper.profiling import MOST_VALUES, _results
from offpath.host_helper.streaming import END, Values
from offpath.host_helper.worker import Worker


def kernel(function: Any, pre: Any = None, post: Any = None) -> Kernel:
    return Kernel("k", function, 1, pre, post, "numpy", streams=True)


def counting(limit: int, notes: list[str]) -> Iterator[int]:
    notes.append("begun")
    try:
        yield from range(limit)
    except GeneratorExit:
        notes.append("closed")
        raise
    notes.append("done")


def test_the_kernel_runs_up_to_each_value_when_that_is_wanted() -> None:
    notes: list[str] = []
    values = Values(kernel(counting), (2, notes), 0)
    assert notes == []
    assert [values.next() for _ in range(4)] == [0, 1, END, END]
    assert notes == ["begun", "done"]
    values.close()
    assert notes == ["begun", "done"], "it has ended already"


def test_a_value_may_be_none_and_is_not_the_end() -> None:
    def nothing() -> Iterator[None]:
        yield None

    values = Values(kernel(nothing), (), 0)
    assert [values.next(), values.next()] == [None, END]


def test_closing_raises_generator_exit_where_the_kernel_is() -> None:
    notes: list[str] = []
    values = Values(kernel(counting), (9, notes), 0)
    values.next()
    values.close()
    values.close()
    assert notes == ["begun", "closed"]
    assert values.next() is END


def test_pre_runs_once_and_post_for_each_value() -> None:
    calls: list[int] = []

    def pre(limit: int, notes: list[str]) -> tuple[int, list[str]]:
        calls.append(limit)
        return limit + 1, notes

    values = Values(kernel(counting, pre, lambda value: value * 10), (1, []), 0)
    assert [values.next() for _ in range(3)] == [0, 10, END]
    assert calls == [1]


def test_what_the_kernel_raises_passes_and_ends_it() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise RuntimeError("second")

    values = Values(kernel(broken), (), 0)
    assert values.next() == 1
    with pytest.raises(RuntimeError, match="second"):
        values.next()
    assert values.next() is END


def test_a_closed_stream_has_no_work_left_on_the_device() -> None:
    notes: list[str] = []
    worker = Worker.__new__(Worker)
    worker._lane = SimpleNamespace(synchronize=lambda: notes.append("synchronized"))  # type: ignore[assignment]
    job: Any = SimpleNamespace(values=Values(kernel(counting), (9, notes), 0))
    job.values.next()
    assert worker._close(job).status == host.RESULT_STOPPED
    assert notes == ["begun", "closed", "synchronized"]
    worker._close(job)
    assert notes == ["begun", "closed", "synchronized"], "it was closed before"


def test_a_profile_takes_the_first_values_of_an_endless_stream() -> None:
    notes: list[str] = []

    def endless(size: int) -> Iterator[Any]:
        try:
            while True:
                yield np.zeros(size)
        finally:
            notes.append("closed")

    assert len(list(_results(kernel(endless), (3,), 0, {}))) == MOST_VALUES
    assert notes == ["closed"]
    assert len(list(_results(kernel(counting), (5, []), 0, {}))) == 5


def test_a_device_that_fails_while_a_worker_computes_ahead_ends_it_after_its_report() -> None:
    def failing() -> Any:
        raise DeviceGone("cuStreamSynchronize", 5)

    worker, sent = Worker.__new__(Worker), list[bytes]()
    connection: Any = SimpleNamespace(send=sent.append)
    for name, value in {
        "_lane": SimpleNamespace(synchronize=lambda: None), "_kernels": {}, "_is_device_lost": False,
        "_is_under_mps": False, "_process": os.getpid(), "_raised": SimpleNamespace(note=lambda *note, **at: None),
        "_sequences": SimpleNamespace(left=lambda launch: None),
    }.items():  # fmt: skip
        setattr(worker, name, value)
    worker._job = job = LaunchedJob(host.Launch(7, 3, 1, 14, 0, 0, 0, b""), 1)
    job.values, job.number = SimpleNamespace(next=failing, close=lambda: None), 1  # type: ignore[assignment]
    worker._report(connection, b"the first answer")
    assert sent == [b"the first answer"], "its requester takes it"
    end = worker._proceed(host.pack_proceed(7, 3, 1, False))
    with pytest.raises(DeviceGone):
        worker._report(connection, end)
    assert host.parse_result(sent[1]).status == host.RESULT_KERNEL_RAISED
