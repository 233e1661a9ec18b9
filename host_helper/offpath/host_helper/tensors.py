"""A tensor from an address: how a lane's worker passes its memory to inference code without a copy.

The paper's one-line change is where the input tensor is created; `LaneTensor` is the object on that line. It supports
DLPack (``np.from_dlpack``, ``torch.from_dlpack``) and numpy's array interface, both over the same bytes.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

_KDL_CPU: Final = 1
_KDL_INT, _KDL_UINT, _KDL_FLOAT, _KDL_BOOL = 0, 1, 2, 6
# dtype -> (DLPack type code, bits, array-interface type string)
_TYPES: Final = {
    "uint8": (_KDL_UINT, 8, "|u1"),
    "int8": (_KDL_INT, 8, "|i1"),
    "uint16": (_KDL_UINT, 16, "<u2"),
    "int16": (_KDL_INT, 16, "<i2"),
    "uint32": (_KDL_UINT, 32, "<u4"),
    "int32": (_KDL_INT, 32, "<i4"),
    "uint64": (_KDL_UINT, 64, "<u8"),
    "int64": (_KDL_INT, 64, "<i8"),
    "float16": (_KDL_FLOAT, 16, "<f2"),
    "float32": (_KDL_FLOAT, 32, "<f4"),
    "float64": (_KDL_FLOAT, 64, "<f8"),
    "bool": (_KDL_BOOL, 8, "|b1"),
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

# A managed tensor must outlive its last consumer: it stays here from the capsule until the consumer's deleter call.
_alive: dict[int, tuple[_DLManagedTensor, Any]] = {}


def _drop(managed: Any) -> None:
    _alive.pop(ctypes.addressof(managed.contents), None)


_release = _Deleter(_drop)


class LaneTensor:
    """``shape`` elements of ``dtype`` at ``pointer``, C order. The memory is the lane's: valid until the kernel
    returns. Every array made from it keeps ``owner`` alive.
    """

    def __init__(self, pointer: int, dtype: str, shape: tuple[int, ...], owner: object = None) -> None:
        """Raises: ValueError: a dtype without a DLPack code here."""
        if dtype not in _TYPES:
            raise ValueError(f"no tensor type {dtype!r}; known: {', '.join(_TYPES)}")
        self.pointer = pointer
        self.dtype = dtype
        self.shape = shape
        self._owner = owner

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": _TYPES[self.dtype][2], "data": (self.pointer, False), "version": 3}

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_KDL_CPU, 0)

    def __dlpack__(self, **_: Any) -> Any:
        """A DLPack capsule (unversioned ``dltensor``, which numpy and torch both accept) over the same bytes."""
        code, bits, _name = _TYPES[self.dtype]
        managed = _DLManagedTensor()
        ndim = len(self.shape)
        shape = (ctypes.c_int64 * max(ndim, 1))(*self.shape)
        tensor = managed.tensor
        tensor.data, tensor.device_type, tensor.device_id = self.pointer, _KDL_CPU, 0
        tensor.ndim, tensor.code, tensor.bits, tensor.lanes = ndim, code, bits, 1
        tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        tensor.strides = None
        tensor.byte_offset = 0
        managed.deleter = _release
        address = ctypes.addressof(managed)
        _alive[address] = (managed, (shape, self._owner))
        capsule = _capsule_new(address, b"dltensor", None)
        return capsule
