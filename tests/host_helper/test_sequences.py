"""States of sequences in a worker: each has its own, from its start to its end."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from offpath.bindings.errors import DeviceError, OptionRefused
from offpath.bindings.loopback.gpu import EmulatedGpu
from offpath.bindings.wire import control, host
from offpath.bindings.wire.header import FLAG_SEQUENCE_END, FLAG_SEQUENCE_START
from offpath.bindings.wire.host import Launch
from offpath.host_helper import Helper, Options
from offpath.host_helper.demands import needs
from offpath.host_helper.kernels import KernelTable, call_kernel
from offpath.host_helper.sequences import SequenceContext, SequenceStates
from offpath.host_helper.streaming import END as END_OF_STREAM
from offpath.host_helper.streaming import Values
from offpath.host_helper.worker import Worker

START, END = FLAG_SEQUENCE_START, FLAG_SEQUENCE_END


def launch(number: int, flags: int = 0, sequence_id: int = 9) -> Launch:
    return Launch(1, 1, 1, 14, flags, 0, 0, b"", number, sequence_id)


def test_a_state_lasts_from_start_to_end() -> None:
    states = SequenceStates()
    first = states.enter(launch(1, START))
    assert (first.id, first.number, first.is_start, first.is_end, first.state) == (9, 1, True, False, {})
    first.state["sum"] = 1
    states.left(launch(1, START))
    last = states.enter(launch(1, END))
    assert (last.is_start, last.is_end, last.state) == (False, True, {"sum": 1})
    states.left(launch(1, END))
    assert len(states) == 0
    with pytest.raises(LookupError, match="no state in this worker"):
        states.enter(launch(1))


def test_two_sequences_with_one_id_have_two_states() -> None:
    states = SequenceStates()
    states.enter(launch(1, START)).state["sum"] = 1
    assert states.enter(launch(2, START)).state == {}
    assert states.enter(launch(1)).state == {"sum": 1}


def test_a_new_start_finds_no_state() -> None:
    states = SequenceStates()
    states.enter(launch(1, START)).state["sum"] = 1
    assert states.enter(launch(1, START)).state == {}


def test_a_new_start_on_a_device_that_fails_leaves_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = EmulatedGpu("gpu0", "A100-40GB", slice_bytes=1 << 16)
    order = control.OpenInstance(
        lease=1, generation=1, tenant="ada", gpu="gpu0", profile="1g.5gb", start=0, lanes=1, landing_bytes=4096,
        result_bytes=4096, scrub_first=False, token="t" * 43,
    )  # fmt: skip
    worker = Worker(order, 0, gpu, gpu.create_instance("1g.5gb", 0), Helper(), {}, pid=os.getpid())
    worker._sequences.enter(launch(1, START))

    def fails(nbytes: int) -> None:
        raise DeviceError("injected")

    monkeypatch.setattr(worker._lane, "acquire", fails)
    worker._run(host.pack_launch(2, 1, 1, 14, START, 0, 0, b"", 1, 9))
    assert len(worker._sequences) == 0


def test_a_new_start_whose_kernel_does_not_run_leaves_no_state() -> None:
    states = SequenceStates()
    states.enter(launch(1, START))
    states.begin(launch(1))
    assert len(states) == 1
    states.begin(launch(1, START))
    assert len(states) == 0


def test_an_ended_sequence_and_a_lane_that_changes_hands_leave_nothing() -> None:
    states = SequenceStates()
    for number in (1, 2, 3):
        states.enter(launch(number, START))
    states.ended(2)
    states.ended(7)
    assert len(states) == 2
    states.clear()
    assert len(states) == 0


def test_a_request_of_no_sequence_is_an_error() -> None:
    with pytest.raises(LookupError, match="sequences only"):
        SequenceStates().enter(launch(0))


def test_a_kernel_gets_its_sequence_and_declares_that_it_takes_them() -> None:
    table = KernelTable()

    @table.kernel("count", demand=14, sequences=True, inputs={"x": ("int64", [1])}, outputs={"y": ("int64", [1])})
    def count(x: int, *, sequence: SequenceContext) -> int:
        return x + sequence.id

    kernel = table.kernels["count"]
    assert call_kernel(kernel, (2,), {"sequence": SequenceContext(5, 1)}) == 7
    assert [(each.name, each.sequences) for each in needs([kernel], [])] == [("count", True)]
    assert kernel.signature is not None
    assert kernel.signature.sequences


def test_a_kernel_that_streams_gets_its_sequence_too() -> None:
    table = KernelTable()

    @table.kernel("tell", demand=14, sequences=True, streams=True)
    def tell(count: int, *, sequence: SequenceContext) -> Iterator[int]:
        for n in range(count):
            yield n + sequence.id

    values = Values(table.kernels["tell"], (2,), 0, {"sequence": SequenceContext(5, 1)})
    assert [values.next(), values.next(), values.next()] == [5, 6, END_OF_STREAM]


def test_requests_of_sequences_share_no_launch() -> None:
    with pytest.raises(ValueError, match="excludes max_batch"):
        KernelTable().kernel("count", sequences=True, max_batch=8)


@pytest.mark.parametrize(
    "given",
    [
        {"sequence_start": True}, {"sequence_end": True}, {"sequence_id": -1}, {"sequence_id": 1 << 64},
        {"sequence_id": "seven"},
    ],
)  # fmt: skip
def test_options_that_no_header_holds_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(OptionRefused, match="sequence_id"):
        Options(**given)  # type: ignore[arg-type]


def test_options_become_flags() -> None:
    assert Options(sequence_id=np.uint64(7), sequence_start=True, is_idempotent=True).flags == 1 | START  # type: ignore[arg-type]
    assert Options(sequence_id=7, sequence_end=True, with_checksum=True).flags == 2 | END
