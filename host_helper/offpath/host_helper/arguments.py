"""A launch's tensors as the kernel's arguments: numpy arrays, tensors of torch or cupy, or `LaneTensor`s.

Arguments are views of the lane's memory without a copy, with one exception: numpy cannot see a GPU's memory, so such a
kernel gets copies.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np

from offpath.bindings.ports import DEVICE_CPU, Lane
from offpath.bindings.wire import host
from offpath.bindings.wire.header import DTYPE_CODES, DTYPES, Tensor, unpack_tensors
from offpath.host_helper.dtypes import NO_NUMPY_TYPE, numpy_dtype
from offpath.host_helper.kernels import Kernel, call_kernel
from offpath.host_helper.sequences import SequenceContext
from offpath.host_helper.tensors import LaneTensor

_KEPT: Final = 64


class Arguments:
    """Makes the arguments of one lane's launches. Callers repeat their shapes, so the views are cached."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._views: dict[tuple[int, bytes, int], tuple[Any, ...]] = {}
        self._is_on_host = lane.device[0] == DEVICE_CPU

    def of(self, kernel: Kernel, launch: host.Launch) -> Sequence[Any]:
        """One argument per tensor of the launch; a payload without descriptors is one vector of uint8.

        Raises: HeaderError: a descriptor breaks a rule. TypeError: the kernel's library has no such dtype.
        """
        key = (launch.kernel_id, launch.tensors, launch.payload_bytes)
        views = self._views.get(key)
        if views is None:
            described = unpack_tensors(launch.tensors, launch.payload_bytes)
            if not described:
                described = (Tensor(DTYPE_CODES["uint8"], (launch.payload_bytes,), 0, launch.payload_bytes),)
            if kernel.tensors == "numpy" and not self._is_on_host:
                return [self._copied(tensor) for tensor in described]
            make = _MAKERS[kernel.tensors]
            views = tuple(make(self._tensor(tensor)) for tensor in described)
            if len(self._views) >= _KEPT:
                self._views.clear()
            self._views[key] = views
        return views

    def _tensor(self, t: Tensor) -> LaneTensor:
        lane = self._lane
        return LaneTensor(
            lane.pointer + t.offset, DTYPES[t.dtype][0], t.dims, lane, device=lane.device, stream=lane.stream
        )

    def _copied(self, t: Tensor) -> Any:
        return np.ndarray(t.dims, numpy_dtype(t.dtype), bytearray(self._lane.read(t.offset, t.nbytes)))


def on_stream(kernel: Kernel, stream: int) -> AbstractContextManager[Any]:
    """Makes ``stream`` the current one of the kernel's library, if it has such a notion. 0: nothing."""
    if stream and kernel.tensors == "torch":
        cuda = importlib.import_module("torch.cuda")
        current: AbstractContextManager[Any] = cuda.stream(cuda.ExternalStream(stream))
        return current
    if stream and kernel.tensors == "cupy":
        external: AbstractContextManager[Any] = importlib.import_module("cupy").cuda.ExternalStream(stream)
        return external
    return nullcontext()


def call_on_stream(
    kernel: Kernel, arguments: Sequence[Any], stream: int, sequence: SequenceContext | None = None
) -> Any:
    """`call_kernel` with ``stream`` as the current one of the kernel's library."""
    with on_stream(kernel, stream):
        return call_kernel(kernel, arguments, sequence)


def _numpy(tensor: LaneTensor) -> Any:
    if tensor.dtype not in NO_NUMPY_TYPE:
        return np.from_dlpack(tensor)
    dtype = numpy_dtype(DTYPE_CODES[tensor.dtype])
    return np.from_dlpack(tensor.as_bytes()).view(dtype).reshape(tensor.shape)


def _torch(tensor: LaneTensor) -> Any:
    torch = importlib.import_module("torch")
    if tensor.dtype not in NO_NUMPY_TYPE:
        return torch.from_dlpack(tensor)
    flat = torch.from_dlpack(tensor.as_bytes())  # any release of torch has these dtypes, but not for DLPack
    return flat.view(getattr(torch, tensor.dtype, torch.uint8)).reshape(tensor.shape)


def _cupy(tensor: LaneTensor) -> Any:
    cupy = importlib.import_module("cupy")
    if tensor.dtype not in NO_NUMPY_TYPE:
        return cupy.from_dlpack(tensor)
    if tensor.dtype == "int4x2":
        return cupy.from_dlpack(tensor.as_bytes()).reshape(tensor.shape)
    raise TypeError(f"cupy has no dtype {tensor.dtype}; use tensors='torch' or 'pointer'")


def _pointer(tensor: LaneTensor) -> Any:
    return tensor


_MAKERS: Final[dict[str, Callable[[LaneTensor], Any]]] = {
    "numpy": _numpy, "torch": _torch, "cupy": _cupy, "pointer": _pointer,
}  # fmt: skip
