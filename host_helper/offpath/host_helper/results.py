"""A kernel's result on its way back: described, then inside the message or in the lane's result half.

A result may be numpy arrays, also of strings, tensors of torch on CPU or GPU, or whatever has CUDA's array interface.
What is in the GPU's memory goes into the lane by a copy on the device and never through the host, unless it travels in
the message.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from offpath.bindings.ports import Lane
from offpath.bindings.wire import host
from offpath.bindings.wire.header import DTYPE_CODES, DTYPES, STRINGS, Tensor, pack_tensors
from offpath.host_helper.dtypes import wire_code
from offpath.host_helper.slots import flat_bytes
from offpath.host_helper.strings import KINDS, serialised
from offpath.host_helper.tensors import LaneTensor

_ALIGN: Final = 64


class Stored(NamedTuple):
    """A result as its message reports it: status, packed descriptors, what travels inside, length, and whether all of
    it does."""

    status: int
    tensors: bytes
    inline: bytes
    nbytes: int
    is_inline: bool


class _Array(NamedTuple):
    """One array of a result: bytes on the host, or an address on the lane's device. ``source`` keeps it alive."""

    code: int
    shape: tuple[int, ...]
    nbytes: int
    content: memoryview | bytes
    pointer: int
    source: Any


NOTHING: Final = Stored(host.RESULT_OK, b"", b"", 0, True)


def store(lane: Lane, result: Any) -> Stored:
    """Bring ``result`` to where the daemon takes it. Up to 3 KiB go into the message, larger results into the lane's
    result half.

    Raises: TypeError: the wire has no code for a dtype, or an array on the device is not contiguous. HeaderError: more
    than 80 arrays or six dims. ValueError: a string cannot be sent. DeviceError: the device failed.
    """
    if result is None:
        return NOTHING
    if type(result) is np.ndarray and result.nbytes <= host.INLINE_RESULT_BYTES and result.dtype.isnative:
        packed = _describe_one(result.dtype, result.shape)
        if packed:
            return Stored(host.RESULT_OK, packed, result.tobytes(), result.nbytes, True)
    arrays = [_array(a) for a in (result if isinstance(result, (tuple, list)) else (result,))]
    described, at = [], 0
    for array in arrays:
        described.append(Tensor(array.code, array.shape, at, array.nbytes))
        at += (array.nbytes + _ALIGN - 1) // _ALIGN * _ALIGN
    nbytes = described[-1].offset + described[-1].nbytes if described else 0
    packed = pack_tensors(described)
    if nbytes <= host.inline_room(packed):
        return Stored(host.RESULT_OK, packed, _inline(lane, arrays, described, nbytes), nbytes, True)
    if nbytes > lane.result_bytes:
        text = f"a result of {nbytes} bytes does not fit the lane's {lane.result_bytes}".encode()
        return Stored(host.RESULT_TOO_LARGE, b"", text, len(text), True)
    for array, tensor in zip(arrays, described, strict=True):
        _put(lane, lane.landing_bytes + tensor.offset, array)
    lane.publish(nbytes)
    return Stored(host.RESULT_OK, packed, b"", nbytes, False)


def _inline(lane: Lane, arrays: list[_Array], described: list[Tensor], nbytes: int) -> bytes:
    """The arrays as one string of bytes."""
    inline = bytearray(nbytes)
    for array, tensor in zip(arrays, described, strict=True):
        content = lane.fetch(array.pointer, array.nbytes) if array.pointer else array.content
        inline[tensor.offset : tensor.offset + tensor.nbytes] = content
    return bytes(inline)


def _put(lane: Lane, at: int, array: _Array) -> None:
    if array.pointer:
        lane.gather(at, array.pointer, array.nbytes)
    elif array.nbytes:
        lane.write(at, array.content)


@lru_cache(maxsize=256)
def _describe_one(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The packed descriptor of a result that is one array; empty: of strings, whose length it does not show. Cached by
    the dtype itself, because numpy takes 3 µs to compute its name. Raises: TypeError: the wire has no code for the
    dtype."""
    if dtype.kind in KINDS:
        return b""
    code = _code(wire_code(dtype), dtype)
    return pack_tensors([Tensor(code, shape, 0, DTYPES[code][1] * math.prod(shape))])


def _array(value: Any) -> _Array:
    if type(value) is not np.ndarray:
        if type(value).__module__.partition(".")[0] == "torch":
            return _of_torch(value)
        if isinstance(value, LaneTensor):
            return _Array(DTYPE_CODES[value.dtype], value.shape, value.nbytes, b"", value.pointer, value)
        interface = getattr(value, "__cuda_array_interface__", None)
        if interface is not None:
            return _of_interface(value, interface)
    return _of_numpy(value)


def _of_numpy(value: Any) -> _Array:
    """In C order, native byte order. (`np.ascontiguousarray` would give a scalar a dimension.)"""
    array = np.asarray(value, order="C")
    if array.dtype.kind in KINDS:
        strings = serialised(array)
        return _Array(STRINGS, strings.shape, strings.nbytes, b"".join(strings.pieces), 0, None)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    code = _code(wire_code(array.dtype), array.dtype)
    return _Array(code, array.shape, array.nbytes, flat_bytes(array) if array.nbytes else b"", 0, array)


def _of_torch(value: Any) -> _Array:
    """A tensor's bytes where they are. Detached, conjugated and contiguous, as the requester expects them."""
    tensor = value.detach().resolve_conj().resolve_neg().contiguous()
    code = _code(DTYPE_CODES.get(str(tensor.dtype).removeprefix("torch.")), tensor.dtype)
    shape = tuple(tensor.shape)
    nbytes = tensor.numel() * tensor.element_size()
    if tensor.is_cuda:
        return _Array(code, shape, nbytes, b"", tensor.data_ptr(), tensor)
    if tensor.device.type != "cpu":
        raise TypeError(f"a kernel may not return a tensor on device {tensor.device}")
    content = _torch_bytes(tensor) if nbytes else b""
    return _Array(code, shape, nbytes, content, 0, tensor)


def _torch_bytes(tensor: Any) -> memoryview:
    import torch

    flat = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    array: np.ndarray[Any, Any] = flat.reshape(-1).view(torch.uint8).numpy()
    return array.data


def _of_interface(value: Any, interface: dict[str, Any]) -> _Array:
    """An array of cupy or numba."""
    dtype = np.dtype(interface["typestr"])
    code = _code(wire_code(dtype), dtype)
    shape = tuple(interface["shape"])
    nbytes = DTYPES[code][1] * math.prod(shape)
    strides = interface.get("strides")
    if strides is not None and nbytes and tuple(strides) != _c_strides(shape, DTYPES[code][1]):
        raise TypeError("a kernel may only return contiguous arrays of the device; copy it first")
    return _Array(code, shape, nbytes, b"", interface["data"][0], value)


def _c_strides(shape: tuple[int, ...], element: int) -> tuple[int, ...]:
    return tuple(element * math.prod(shape[n + 1 :]) for n in range(len(shape)))


def _code(code: int | None, dtype: Any) -> int:
    if code is None:
        raise TypeError(f"a kernel may not return dtype {dtype}")
    return code
