"""The wire's dtypes, from the requester's arrays to the kernel's arguments and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from offpath.bindings.loopback.gpu import EmulatedGpu
from offpath.bindings.ports import Lane
from offpath.bindings.wire import host
from offpath.bindings.wire.header import DTYPE_CODES, DTYPES, STRINGS, Tensor, pack_tensors, unpack_tensors
from offpath.host_helper.arguments import Arguments
from offpath.host_helper.dtypes import INT4X2, numpy_dtype, wire_code
from offpath.host_helper.kernels import TENSORS, Kernel
from offpath.host_helper.results import store
from offpath.host_helper.tensors import LaneTensor

from ..support.optional import TORCH

NUMBERS = {code: each for code, each in DTYPES.items() if code != STRINGS}
"""What numpy keeps in an array's own memory; of strings see test_strings."""
ARRAYS = [
    np.arange(256, dtype=np.uint8).astype(numpy_dtype(code)) if name != "int4x2" else np.arange(256, dtype=np.uint8)
    for code, (name, _) in NUMBERS.items()
]


@pytest.fixture
def lane() -> Iterator[Lane]:
    gpu = EmulatedGpu("GPU-0", "A100-40GB", slice_bytes=1 << 20)
    memory = gpu.open_instance(gpu.create_instance("1g.5gb", 0))
    yield memory.reserve(0, 1, 64 << 10, 64 << 10)
    memory.close()
    gpu.close()


def kernel(tensors: str) -> Kernel:
    return Kernel("k", len, 1, None, None, tensors)


def launch(tensors: bytes, payload_bytes: int, kernel_id: int = 1) -> host.Launch:
    return host.Launch(1, 1, kernel_id, 14, 0, 0, payload_bytes, tensors)


def put(lane: Lane, array: np.ndarray[Any, Any], code: int) -> host.Launch:
    raw = array.tobytes()
    lane.write(0, raw)
    return launch(pack_tensors([Tensor(code, array.shape, 0, len(raw))]), len(raw))


def test_every_wire_code_is_one_dtype_of_numpys_with_the_wires_size() -> None:
    for code, (_, nbytes) in NUMBERS.items():
        dtype = numpy_dtype(code)
        assert (dtype.itemsize, wire_code(dtype)) == (nbytes, code)
    assert len({numpy_dtype(code) for code in NUMBERS}) == len(NUMBERS)
    assert numpy_dtype(DTYPE_CODES["bfloat16"]) == np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    "dtype", ["U4", "O", "M8[s]", "clongdouble", ">i4", [("a", "u1")], [("int4x2", "i1")], "V1", ml_dtypes.int4]
)
def test_no_other_dtype_has_a_code(dtype: Any) -> None:
    assert wire_code(np.dtype(dtype)) is None


@pytest.mark.parametrize("code", NUMBERS)
def test_a_kernel_gets_the_lanes_memory_itself_in_its_dtype(lane: Lane, code: int) -> None:
    array = ARRAYS[code - 1].reshape(16, 16).view(numpy_dtype(code))
    order = put(lane, array, code)
    (seen,) = Arguments(lane).of(kernel("numpy"), order)
    assert (seen.dtype, seen.shape, seen.tobytes()) == (numpy_dtype(code), (16, 16), array.tobytes())
    lane.write(0, bytes(array.nbytes))
    assert not np.any(seen.view(np.uint8))
    (pointer,) = Arguments(lane).of(kernel("pointer"), order)
    assert (pointer.pointer, pointer.dtype, pointer.device) == (lane.pointer, NUMBERS[code][0], (1, 0))


@pytest.mark.parametrize("nbytes", ["inline", "in the lane"])
@pytest.mark.parametrize("code", NUMBERS)
def test_a_result_of_every_dtype_comes_back_bit_for_bit(lane: Lane, code: int, nbytes: str) -> None:
    repeated = np.tile(ARRAYS[code - 1].view(numpy_dtype(code)), 1 if nbytes == "inline" else 15)
    array = repeated[:32] if nbytes == "inline" else repeated
    stored = store(lane, (array, array[:1]))
    assert (stored.status, stored.is_inline) == (host.RESULT_OK, nbytes == "inline")
    first, second = unpack_tensors(stored.tensors, stored.nbytes)
    body = stored.inline if stored.is_inline else lane.read(lane.landing_bytes, stored.nbytes)
    assert (first.dtype, second.dtype, first.dims, second.dims) == (code, code, array.shape, (1,))
    assert body[: first.nbytes] == array.tobytes()
    assert body[second.offset :] == array[:1].tobytes()


def test_pointers_of_the_lane_are_results_too(lane: Lane) -> None:
    lane.write(0, bytes(range(200)) * 25)
    for shape, dtype in [((50,), "bfloat16"), ((2000,), "int4x2"), ((500,), "complex64"), ((), "uint8")]:
        stored = store(lane, LaneTensor(lane.pointer, dtype, shape))
        body = stored.inline if stored.is_inline else lane.read(lane.landing_bytes, stored.nbytes)
        assert body == lane.read(0, stored.nbytes)
        assert unpack_tensors(stored.tensors, stored.nbytes)[0] == Tensor(DTYPE_CODES[dtype], shape, 0, stored.nbytes)


def test_a_result_may_be_a_view_of_the_payload(lane: Lane) -> None:
    array = np.arange(6000, dtype=np.int16)
    (seen,) = Arguments(lane).of(kernel("numpy"), put(lane, array, DTYPE_CODES["int16"]))
    stored = store(lane, seen[::-1])
    assert lane.read(lane.landing_bytes, stored.nbytes) == array[::-1].tobytes()


def test_int4_travels_packed() -> None:
    packed = np.array([0x21, 0xF8], np.uint8).view(INT4X2)
    assert packed.dtype == INT4X2
    assert wire_code(packed.reshape(2, 1).dtype) == DTYPE_CODES["int4x2"]
    low, high = packed.view(np.uint8).astype(np.int8) << 4 >> 4, packed.view(np.int8) >> 4
    assert (low.tolist(), high.tolist()) == ([1, -8], [2, -1])


def test_arguments_are_made_anew_for_each_launch_as_their_kernel_wants_them(lane: Lane) -> None:
    """The same bytes of two kernels, one of which wants pointers."""
    arguments = Arguments(lane)
    order = put(lane, np.arange(8, dtype=np.uint8), DTYPE_CODES["uint8"])
    seen = [
        arguments.of(kernel(tensors), order._replace(kernel_id=n)) for n, tensors in enumerate(("numpy", "pointer"))
    ]
    assert [type(each[0]) for each in seen] == [np.ndarray, LaneTensor]
    (again,) = arguments.of(kernel("numpy"), order._replace(kernel_id=0))
    assert again is not seen[0][0]
    assert np.shares_memory(again, seen[0][0])


class DeviceLane:
    """A lane of which only the port's calls can reach the memory, as on a GPU."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self.reads: list[tuple[int, int]] = []
        self.device, self.stream = (2, 0), 0
        self.pointer = 0x7000_0000_0000
        self.landing_bytes, self.result_bytes = lane.landing_bytes, lane.result_bytes

    def read(self, at: int, nbytes: int) -> bytes:
        self.reads.append((at, nbytes))
        return self._lane.read(at, nbytes)

    def write(self, at: int, content: bytes | memoryview) -> None:
        self._lane.write(at, content)

    def gather(self, at: int, pointer: int, nbytes: int) -> None:
        self._lane.gather(at, pointer - self.pointer + self._lane.pointer, nbytes)

    def fetch(self, pointer: int, nbytes: int) -> bytes:
        return self._lane.fetch(pointer - self.pointer + self._lane.pointer, nbytes)

    def publish(self, nbytes: int) -> None:
        pass


@pytest.mark.parametrize("code", NUMBERS)
def test_numpy_kernels_on_a_device_get_copies_that_they_may_write(lane: Lane, code: int) -> None:
    on_gpu: Any = DeviceLane(lane)
    array = ARRAYS[code - 1].view(numpy_dtype(code))
    order = put(on_gpu, array, code)
    arguments = Arguments(on_gpu)
    (seen,) = arguments.of(kernel("numpy"), order)
    assert (seen.dtype, seen.tobytes()) == (array.dtype, array.tobytes())
    assert on_gpu.reads == [(0, array.nbytes)]
    seen.view(np.uint8)[...] = 7
    assert lane.read(0, array.nbytes) == array.tobytes()
    on_gpu.write(0, bytes(array.nbytes))
    assert not np.any(arguments.of(kernel("numpy"), order)[0].view(np.uint8))  # copied anew at each launch


class Foreign:
    """What cupy and numba show of an array."""

    def __init__(self, pointer: int, shape: tuple[int, ...], typestr: str, strides: Any = None) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": typestr, "data": (pointer, False), "version": 3, "strides": strides,
        }  # fmt: skip


def test_arrays_of_the_device_go_into_the_lane_on_the_device(lane: Lane) -> None:
    on_gpu: Any = DeviceLane(lane)
    values = np.arange(4000, dtype=np.float32)
    on_gpu.write(0, values.tobytes())
    for shape, strides in [((4000,), None), ((40, 100), (400, 4)), ((1, 4000), (16000, 4))]:
        stored = store(on_gpu, Foreign(on_gpu.pointer, shape, "<f4", strides))
        assert (on_gpu.reads, stored.is_inline) == ([], False)
        assert lane.read(lane.landing_bytes, stored.nbytes) == values.tobytes()
    small = store(on_gpu, [Foreign(on_gpu.pointer + 8, (3,), "<f4"), np.ones(2)])
    assert np.frombuffer(small.inline, np.float32, 3).tolist() == [2, 3, 4]
    assert np.frombuffer(small.inline, np.float64, 2, 64).tolist() == [1, 1]
    with pytest.raises(TypeError, match="only return contiguous arrays"):
        store(on_gpu, Foreign(on_gpu.pointer, (100, 40), "<f4", (4, 400)))
    with pytest.raises(TypeError, match="may not return dtype"):
        store(on_gpu, Foreign(on_gpu.pointer, (4,), "<f16"))


def test_torch_gets_and_gives_every_dtype_that_it_has(lane: Lane) -> None:
    torch = pytest.importorskip("torch", reason=TORCH)
    assert "torch" in TENSORS
    for code, (name, _) in NUMBERS.items():
        array = ARRAYS[code - 1].view(numpy_dtype(code))
        (seen,) = Arguments(lane).of(kernel("torch"), put(lane, array, code))
        assert str(seen.dtype) == f"torch.{name if name != 'int4x2' else 'uint8'}"
        assert seen.data_ptr() == lane.pointer
        stored = store(lane, seen.clone().reshape(2, -1).T)
        body = stored.inline if stored.is_inline else lane.read(lane.landing_bytes, stored.nbytes)
        turned = seen.reshape(2, -1).T.contiguous()
        assert body == array.reshape(2, -1).T.tobytes()
        assert unpack_tensors(stored.tensors, stored.nbytes)[0].dims == tuple(turned.shape)
    conjugate = torch.tensor([1 + 2j]).conj()
    assert np.frombuffer(store(lane, conjugate).inline, np.complex64).tolist() == [1 - 2j]
    assert np.frombuffer(store(lane, torch.tensor(5.0, requires_grad=True)).inline, np.float32).tolist() == [5]
    with pytest.raises(TypeError, match="on device meta"):
        store(lane, torch.zeros(3, device="meta"))
