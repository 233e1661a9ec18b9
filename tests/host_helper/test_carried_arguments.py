"""A launch's strings, absent inputs and parameters as a kernel's arguments, without a node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from offpath.bindings.errors import HeaderError, OptionRefused
from offpath.bindings.loopback.gpu import EmulatedGpu
from offpath.bindings.ports import DEVICE_CUDA, Lane
from offpath.bindings.wire import host
from offpath.bindings.wire.fields import MAX_BATCH
from offpath.bindings.wire.header import ABSENT, FLAG_PARAMETERS, STRINGS, Tensor, pack_tensors, unpack_tensors
from offpath.host_helper.arguments import Arguments
from offpath.host_helper.demands import Batching
from offpath.host_helper.kernels import TENSORS, Kernel
from offpath.host_helper.profiling import sample_of
from offpath.host_helper.results import store
from offpath.host_helper.strings import elements

WORDS = [b"a", b"", b"\xff\0"]


@pytest.fixture
def lane() -> Iterator[Lane]:
    gpu = EmulatedGpu("GPU-0", "A100-40GB", slice_bytes=1 << 20)
    memory = gpu.open_instance(gpu.create_instance("1g.5gb", 0))
    yield memory.reserve(0, 1, 64 << 10, 64 << 10)
    memory.close()
    gpu.close()


def kernel(tensors: str = "numpy", **more: Any) -> Kernel:
    return Kernel(f"k-{tensors}", len, 1, None, None, tensors, parameters=True, **more)


def packed(*strings: bytes) -> bytes:
    return b"".join(len(each).to_bytes(4, "little") + each for each in strings)


def launched(
    lane: Lane, described: Sequence[tuple[int, tuple[int, ...], bytes]], flags: int = 0, rows: bytes = b""
) -> host.Launch:
    tensors, at = [], 0
    for code, dims, content in described:
        if content:
            lane.write(at, content)
        tensors.append(Tensor(code, dims, at if code != ABSENT else 0, len(content)))
        at += (len(content) + 63) // 64 * 64
    return host.Launch(1, 1, 1, 14, flags, 0, at, pack_tensors(tensors), rows=rows)


UINT8 = (1, (3,), b"\1\2\3")
MIXED = [(STRINGS, (3,), packed(*WORDS)), UINT8, (ABSENT, (), b""), (STRINGS, (0, 2), b""), UINT8]


@pytest.mark.parametrize("library", TENSORS)
def test_each_library_gets_strings_as_objects_in_their_places(lane: Lane, library: str) -> None:
    if library == "cupy" or (library == "torch" and find_spec("torch") is None):
        pytest.skip(f"{library} is not installed")
    arguments = Arguments(lane)
    for _ in range(2):  # the second time by the recipe that is kept
        words, numbers, absent, none, last = arguments.of(kernel(library), launched(lane, MIXED))
        assert (words.dtype, words.tolist()) == (np.dtype(object), WORDS)
        assert absent is None
        assert none.shape == (0, 2)
        assert tuple(numbers.shape) == tuple(last.shape) == (3,)
    del numbers, last
    assert not arguments.kept(kernel(library))


def test_a_numpy_kernel_on_a_device_gets_the_same(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(lane), "device", property(lambda self: (DEVICE_CUDA, 0)))
    words, numbers, *_ = Arguments(lane).of(kernel(), launched(lane, MIXED))
    assert words.tolist() == WORDS
    assert numbers.tolist() == [1, 2, 3]


TOLD = packed(b'{"a":1}')


def test_parameters_are_no_argument_and_the_last_tensor(lane: Lane) -> None:
    arguments, launch = Arguments(lane), launched(lane, [UINT8, (STRINGS, (1,), TOLD)], FLAG_PARAMETERS)
    (numbers,) = arguments.of(kernel(), launch)
    assert numbers.tolist() == [1, 2, 3]
    assert arguments.parameters(kernel(), launch) == {"a": 1}
    assert arguments.of(kernel(), launched(lane, [(STRINGS, (1,), TOLD)], FLAG_PARAMETERS)) == []
    assert arguments.parameters(kernel(), launched(lane, [UINT8])) == {}


def test_a_kernel_that_batches_has_parameters_by_row(lane: Lane) -> None:
    arguments, batching = Arguments(lane), kernel(batching=Batching(8, 0, ()))
    rows = [(1, (3, 1), b"\1\2\3"), (STRINGS, (2,), TOLD + packed(b'{"b":2}'))]
    launch = launched(lane, rows, FLAG_PARAMETERS, host.pack_rows([2, 1]))
    assert arguments.parameters(batching, launch) == [{"a": 1}, {"a": 1}, {"b": 2}]
    alone = launched(lane, [(1, (3, 1), b"\1\2\3"), (STRINGS, (1,), TOLD)], FLAG_PARAMETERS)
    assert arguments.parameters(batching, alone) == [{"a": 1}] * 3
    assert arguments.parameters(batching, launched(lane, [(1, (2, 1), b"\1\2")])) == [{}, {}]


def test_rows_that_have_no_bytes_make_no_list_without_end(lane: Lane) -> None:
    arguments, batching = Arguments(lane), kernel(batching=Batching(8, 0, ()))
    assert arguments.parameters(batching, launched(lane, [(1, (MAX_BATCH, 0), b"")])) == [{}] * MAX_BATCH
    for rows in (MAX_BATCH + 1, (1 << 32) - 1):
        with pytest.raises(HeaderError, match=f"parameters: {rows} rows; .* has at most {MAX_BATCH}"):
            arguments.parameters(batching, launched(lane, [(1, (rows, 0), b"")]))
        assert arguments.parameters(kernel(), launched(lane, [(1, (rows, 0), b"")])) == {}
    together = host.pack_rows([MAX_BATCH, 1])
    with pytest.raises(HeaderError, match=f"{MAX_BATCH + 1} rows"):
        arguments.parameters(batching, launched(lane, [UINT8, (STRINGS, (2,), TOLD + TOLD)], FLAG_PARAMETERS, together))


@pytest.mark.parametrize(
    ("last", "rows", "said"),
    [
        ((STRINGS, (2,), TOLD + TOLD), b"", "parameters: a tensor of dims (2,) for 1 requests"),
        ((STRINGS, (1,), TOLD), host.pack_rows([2, 1]), "parameters: a tensor of dims (1,) for 2 requests"),
        ((1, (1,), b"\1"), b"", "parameters: a tensor of dims (1,) for 1 requests"),
        ((STRINGS, (1,), TOLD[:-1]), b"", "strings: string 0 of 1 ends beyond"),
        ((STRINGS, (1,), packed(b"[]")), b"", "parameters: no object"),
    ],
)
def test_what_is_no_tensor_of_parameters_fails_the_kernels_that_ask(
    lane: Lane, last: Any, rows: bytes, said: str
) -> None:
    with pytest.raises(HeaderError) as refused:
        Arguments(lane).parameters(kernel(), launched(lane, [UINT8, last], FLAG_PARAMETERS, rows))
    assert said in str(refused.value)


@pytest.mark.parametrize("count", [2, 1000])
def test_a_result_has_strings_beside_numbers(lane: Lane, count: int) -> None:
    texts = np.array([f"w{n}" for n in range(count)])
    stored = store(lane, (texts, np.ones(2), np.array([b"x", "y"], object)))
    content = stored.inline if stored.is_inline else lane.read(lane.landing_bytes, stored.nbytes)
    assert stored.is_inline == (count == 2)
    words, ones, last = unpack_tensors(stored.tensors, stored.nbytes)
    assert elements(content[words.offset : words.offset + words.nbytes], words.dims) == [*map(str.encode, texts)]
    assert (ones.dims, ones.offset % 64) == ((2,), 0)
    assert elements(content[last.offset : last.offset + last.nbytes], last.dims) == [b"x", b"y"]


def test_many_tensors_leave_less_room_for_a_result_in_its_message(lane: Lane) -> None:
    for count, is_inline in ((1, True), (21, True), (60, False), (80, False)):
        stored = store(lane, [np.zeros(1)] * (count - 1) + [np.zeros(8, np.uint8)])
        assert stored.is_inline == is_inline, count
        assert len(unpack_tensors(stored.tensors, stored.nbytes)) == count
        host.pack_result(1, 1, 0, 0, 0, stored.nbytes, stored.is_inline, stored.tensors, stored.inline)


@pytest.mark.parametrize("odd", [np.array([b"a", None]), [b"a", 1, None], {"a": 1}, None])
def test_a_result_of_other_objects_is_refused_by_the_place_of_the_first(lane: Lane, odd: Any) -> None:
    with pytest.raises(TypeError, match="of an array of objects is"):
        store(lane, (odd, np.ones(1)))


def test_the_sample_of_a_measurement_may_have_strings() -> None:
    sample = sample_of([np.ones(1, np.uint8), np.array(["a", "bc"])], 100)
    first, second = unpack_tensors(sample.tensors, len(sample.payload))
    assert (first.dims, second.dtype, second.dims, second.offset) == ((1,), STRINGS, (2,), 64)
    assert sample.payload[64:] == packed(b"a", b"bc")
    with pytest.raises(OptionRefused, match="element 0 of an array of objects is int"):
        sample_of([np.array([1], object)], 100)
