"""A tensor from an address: how a lane's worker passes its memory to inference code without a copy.

The paper's one-line change is where the input tensor is created; `LaneTensor` is the object on that line. It supports
DLPack (``np.from_dlpack``, ``torch.from_dlpack``) and the array interfaces of numpy and CUDA, all over the same bytes.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Final

from offpath.bindings.ports import DEVICE_CPU, DEVICE_CUDA

_NO_TYPE_STRING: Final = ""
# dtype -> (DLPack type code, bits, lanes, array-interface type string)
_TYPES: Final = {
    "uint8": (1, 8, 1, "|u1"),
    "int8": (0, 8, 1, "|i1"),
    "uint16": (1, 16, 1, "<u2"),
    "int16": (0, 16, 1, "<i2"),
    "uint32": (1, 32, 1, "<u4"),
    "int32": (0, 32, 1, "<i4"),
    "uint64": (1, 64, 1, "<u8"),
    "int64": (0, 64, 1, "<i8"),
    "float16": (2, 16, 1, "<f2"),
    "float32": (2, 32, 1, "<f4"),
    "float64": (2, 64, 1, "<f8"),
    "bool": (6, 8, 1, "|b1"),
    "bfloat16": (4, 16, 1, _NO_TYPE_STRING),
    "float8_e4m3fn": (10, 8, 1, _NO_TYPE_STRING),
    "float8_e5m2": (12, 8, 1, _NO_TYPE_STRING),
    "int4x2": (0, 4, 2, _NO_TYPE_STRING),
    "complex64": (5, 64, 1, "<c8"),
    "complex128": (5, 128, 1, "<c16"),
}


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_DLManagedTensor))
_DLManagedTensor._fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))

_capsule_new = ctypes.pythonapi.PyCapsule_New
_capsule_new.restype = ctypes.py_object
_capsule_new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

# A managed tensor must outlive its last consumer: it stays here from the capsule until the consumer's deleter call. One
# that its consumer refuses stays for good: a capsule's destructor may run while an exception is raised, when no Python
# code may be called.
_alive: dict[int, tuple[_DLManagedTensor, Any]] = {}


def _drop(managed: Any) -> None:
    _alive.pop(ctypes.addressof(managed.contents), None)


_release = _Deleter(_drop)


class LaneTensor:
    """``shape`` elements of ``dtype`` at ``pointer``, C order. The memory is the lane's: valid until the kernel
    returns. Every array made from it keeps ``owner`` alive.

    ``device``: DLPack's device type and number of the memory. ``stream``: on a GPU, the handle of the CUDA stream that
    may still be copying the bytes, and whose work the caller waits for before it takes the kernel's result; 0 in host
    memory. Work on another stream than it and the default one must wait for it.
    """

    def __init__(
        self,
        pointer: int,
        dtype: str,
        shape: tuple[int, ...],
        owner: object = None,
        *,
        device: tuple[int, int] = (DEVICE_CPU, 0),
        stream: int = 0,
    ) -> None:
        """Raises: ValueError: a dtype without a DLPack code here."""
        if dtype not in _TYPES:
            raise ValueError(f"no tensor type {dtype!r}; known: {', '.join(_TYPES)}")
        self.pointer = pointer
        self.dtype = dtype
        self.shape = shape
        self.device = device
        self.stream = stream
        self._owner = owner
        self._exports: list[int] = []

    @property
    def is_lent(self) -> bool:
        """Whether a consumer of its DLPack capsules still has the memory."""
        return any(address in _alive and _alive[address][1][2] is self._exports for address in self._exports)

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        _code, bits, lanes, _name = _TYPES[self.dtype]
        return math.prod(self.shape) * bits * lanes // 8

    def as_bytes(self) -> LaneTensor:
        """The same memory as a vector of uint8, for a library without the dtype."""
        made = LaneTensor(self.pointer, "uint8", (self.nbytes,), self._owner, device=self.device, stream=self.stream)
        made._exports = self._exports
        return made

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """numpy's interface. Raises: AttributeError: the memory is not the host's, or numpy has no such dtype."""
        if self.device[0] != DEVICE_CPU:
            raise AttributeError("the tensor is in a GPU's memory, which numpy cannot read")
        return self._interface()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """CUDA's array interface, version 3. Raises: AttributeError: the memory is not a GPU's, or the interface has no
        such dtype."""
        if self.device[0] != DEVICE_CUDA:
            raise AttributeError("the tensor is in host memory")
        return {**self._interface(), "stream": self.stream or None}

    def _interface(self) -> dict[str, Any]:
        typestr = _TYPES[self.dtype][3]
        if typestr == _NO_TYPE_STRING:
            raise AttributeError(f"the array interface has no type string for {self.dtype}")
        return {"shape": self.shape, "typestr": typestr, "data": (self.pointer, False), "version": 3}

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, dl_device: tuple[int, int] | None = None, copy: bool | None = None, **_: Any) -> Any:
        """A DLPack capsule (unversioned ``dltensor``, which numpy, torch and cupy accept) over the same bytes. On a GPU
        they are ready on ``stream`` and on the default stream, one of which is the consumer's while a kernel is called.

        Raises: BufferError: a copy or another device was requested.
        """
        if copy or (dl_device is not None and tuple(dl_device) != self.device):
            raise BufferError("a lane's tensor is exported without a copy, on its own device")
        code, bits, lanes, _name = _TYPES[self.dtype]
        managed = _DLManagedTensor()
        ndim = len(self.shape)
        shape = (ctypes.c_int64 * max(ndim, 1))(*self.shape)
        tensor = managed.tensor
        tensor.data, (tensor.device_type, tensor.device_id) = self.pointer, self.device
        tensor.ndim, tensor.code, tensor.bits, tensor.lanes = ndim, code, bits, lanes
        tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        tensor.strides = None
        tensor.byte_offset = 0
        managed.deleter = _release
        address = ctypes.addressof(managed)
        _alive[address] = (managed, (shape, self._owner, self._exports))
        self._exports.append(address)
        capsule = _capsule_new(address, b"dltensor", None)
        return capsule
