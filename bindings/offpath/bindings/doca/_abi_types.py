"""ctypes equivalents of the C types in DOCA's interface, and the record that declares one function.

Every object is an opaque pointer. ``union doca_data`` (a pointer or a u64) is passed by value as one integer register,
on x86-64 as on AArch64, so it is a u64 here. An enum is an int.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER
from typing import Any, Final, Literal, NamedTuple

STATUS: Final = ctypes.c_int
"""doca_error_t."""
ENUM: Final = ctypes.c_int
INT: Final = ctypes.c_int
HANDLE: Final = ctypes.c_void_p
ADDRESS: Final = ctypes.c_void_p
TEXT: Final = ctypes.c_char_p
DATA: Final = ctypes.c_uint64
"""union doca_data, by value."""
U8: Final = ctypes.c_uint8
U16: Final = ctypes.c_uint16
U32: Final = ctypes.c_uint32
U64: Final = ctypes.c_uint64
SIZE: Final = ctypes.c_size_t

OUT_HANDLE: Final = POINTER(HANDLE)
HANDLES: Final = POINTER(HANDLE)
"""A list that DOCA owns."""
OUT_HANDLES: Final = POINTER(HANDLES)
OUT_ADDRESS: Final = POINTER(ADDRESS)
OUT_ENUM: Final = POINTER(ENUM)
OUT_INT: Final = POINTER(INT)
OUT_U8: Final = POINTER(U8)
OUT_U16: Final = POINTER(U16)
OUT_U32: Final = POINTER(U32)
OUT_U64: Final = POINTER(U64)
OUT_SIZE: Final = POINTER(SIZE)

STABLE: Final = "stable"
EXPERIMENTAL: Final = "experimental"


class Function(NamedTuple):
    """A function as DOCA 3.0 declares it. ``since``: the first release with this prototype, of those compared (2.5,
    2.7, 3.0)."""

    name: str
    restype: Any
    argtypes: tuple[Any, ...]
    stability: Literal["stable", "experimental"]
    since: Literal["2.5", "2.7", "3.0"]

    @property
    def is_checked(self) -> bool:
        """It returns doca_error_t."""
        return self.restype is STATUS
