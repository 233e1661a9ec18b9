"""A tensor from an address: the same bytes, no copy, alive as long as somebody looks at them."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.bindings.wire.header import DTYPES, STRINGS
from offpath.host_helper import tensors
from offpath.host_helper.dtypes import NO_NUMPY_TYPE
from offpath.host_helper.tensors import LaneTensor

NUMBERS = {code: each for code, each in DTYPES.items() if code != STRINGS}
"""Strings are no tensor of a device."""
NAMES = [name for name, _ in NUMBERS.values()]
OF_NUMPY = [name for name in NAMES if name not in NO_NUMPY_TYPE]


class Memory:
    """Bytes at an address."""

    def __init__(self, nbytes: int) -> None:
        self.buffer = (ctypes.c_uint8 * max(nbytes, 1))()
        self.pointer = ctypes.addressof(self.buffer)


def tensor(dtype: str, shape: tuple[int, ...]) -> tuple[Memory, LaneTensor]:
    memory = Memory(int(np.prod(shape)) * np.dtype(dtype).itemsize)
    return memory, LaneTensor(memory.pointer, dtype, shape, memory)


@pytest.fixture(autouse=True, scope="module")
def _only_what_these_tests_make() -> Iterator[None]:
    """The collector then looks at that alone, and not at all that the session has imported."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _nothing_stays_alive() -> Any:
    yield
    gc.collect()
    assert tensors._alive == {}


def test_every_dtype_of_the_wire_can_be_a_tensor_and_no_other() -> None:
    assert set(tensors._TYPES) == set(NAMES)
    with pytest.raises(ValueError, match="no tensor type 'float128'; known: uint8"):
        LaneTensor(0, "float128", (1,))


def test_the_bytes_of_a_tensor_are_those_of_the_wire() -> None:
    for name, element in NUMBERS.values():
        assert LaneTensor(0, name, (3, 5)).nbytes == 15 * element
        assert LaneTensor(0, name, (3, 5)).as_bytes().shape == (15 * element,)


@pytest.mark.parametrize("dtype", sorted(NO_NUMPY_TYPE))
def test_what_numpy_does_not_know_is_no_array_of_another_type(dtype: str) -> None:
    _, lane = tensor("uint8", (64,))
    other = LaneTensor(lane.pointer, dtype, (4,))
    with pytest.raises(AttributeError, match=f"no type string for {dtype}"):
        _ = other.__array_interface__
    with pytest.raises((BufferError, RuntimeError, TypeError)):
        np.from_dlpack(other)
    tensors._alive.clear()  # what a consumer refuses is not given back


def test_what_is_in_a_gpus_memory_is_never_read_by_the_host() -> None:
    on_gpu = LaneTensor(0x7000_0000_0000, "float32", (4,), device=(2, 0), stream=77)
    with pytest.raises((BufferError, RuntimeError)):
        np.from_dlpack(on_gpu)
    tensors._alive.clear()
    assert not hasattr(on_gpu, "__array_interface__")
    assert np.asarray(on_gpu).dtype == object  # numpy found nothing that it could read
    assert on_gpu.__cuda_array_interface__ == {
        "shape": (4,), "typestr": "<f4", "data": (0x7000_0000_0000, False), "version": 3, "stream": 77,
    }  # fmt: skip
    assert on_gpu.as_bytes().device == (2, 0)
    assert not hasattr(tensor("float32", (4,))[1], "__cuda_array_interface__")


def test_a_tensor_is_not_exported_as_a_copy_or_to_another_device() -> None:
    _, lane = tensor("uint8", (4,))
    for wish in ({"copy": True}, {"dl_device": (2, 0)}):
        with pytest.raises(BufferError, match="without a copy"):
            lane.__dlpack__(**wish)
    assert tensors._alive == {}


@pytest.mark.parametrize("make", [np.asarray, np.from_dlpack], ids=["array interface", "dlpack"])
@pytest.mark.parametrize("dtype", OF_NUMPY)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3), (0, 5), (1, 2, 3, 1, 2, 1)], ids=str)
def test_an_array_looks_at_the_memory_itself(make: Any, dtype: str, shape: tuple[int, ...]) -> None:
    memory, lane = tensor(dtype, shape)
    array = make(lane)
    assert (array.dtype, array.shape, array.flags.c_contiguous) == (np.dtype(dtype), shape, True)
    assert not array.flags.owndata
    if array.size:
        assert array.ctypes.data == memory.pointer
        ctypes.memset(memory.pointer, 1, array.nbytes)
        assert (array.reshape(-1).view(np.uint8) == 1).all()
        ctypes.memset(memory.pointer, 0, array.nbytes)
        assert not array.any()
    del array


@given(st.sampled_from(OF_NUMPY), st.lists(st.integers(0, 5), max_size=6), st.randoms(use_true_random=False))
def test_both_ways_agree_with_numpy_on_any_shape(dtype: str, dims: list[int], noise: Any) -> None:
    shape = tuple(dims)
    memory, lane = tensor(dtype, shape)
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    content = bytes(noise.getrandbits(1) for _ in range(nbytes))
    ctypes.memmove(memory.pointer, content, nbytes)
    expected = np.frombuffer(content or b"", dtype).reshape(shape)
    for array in (np.asarray(lane), np.from_dlpack(lane)):
        assert np.array_equal(array, expected, equal_nan=dtype.startswith(("float", "complex")))
    del array


@pytest.mark.parametrize("make", [np.asarray, np.from_dlpack], ids=["array interface", "dlpack"])
def test_the_owner_lives_as_long_as_an_array_of_it(make: Any) -> None:
    memory, lane = tensor("uint8", (4,))
    owner = weakref.ref(memory)
    array = make(lane)
    part = array[1:3]
    del memory, lane, array
    gc.collect()
    assert owner() is not None
    assert part.tolist() == [0, 0]
    del part
    gc.collect()
    assert owner() is None


def test_the_consumer_gives_a_dlpack_tensor_back_when_it_is_done() -> None:
    _, lane = tensor("float32", (2, 2))
    arrays = [np.from_dlpack(lane) for _ in range(3)]
    assert len(tensors._alive) == 3
    arrays.pop()
    assert len(tensors._alive) == 2
    arrays.clear()
    assert tensors._alive == {}


def test_a_tensor_is_on_the_cpu() -> None:
    assert tensor("uint8", (1,))[1].__dlpack_device__() == (1, 0)
