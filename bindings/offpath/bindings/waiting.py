"""A timer that is finer than an event loop's."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Final

_CLOCK_MONOTONIC: Final = 1
_NONBLOCK_CLOEXEC: Final = os.O_NONBLOCK | os.O_CLOEXEC
_TIMER_ABSTIME: Final = 1
_NS: Final = 1_000_000_000


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Timer(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.timerfd_settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Timer), ctypes.c_void_p)


class FineTimer:
    """A timerfd on the monotonic clock. An event loop's own timers have a resolution of 1 ms."""

    def __init__(self) -> None:
        """Raises: OSError: no descriptor is left."""
        self._fd: int = _libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._value = _Timer()
        self._at = ctypes.byref(self._value)

    def fileno(self) -> int:
        """Readable once the time has come."""
        return self._fd

    def arm(self, when_ns: int) -> None:
        """Become readable at ``when_ns`` of the monotonic clock, which must not be 0; replaces an earlier time."""
        value = self._value.value
        value.seconds, value.nanoseconds = divmod(when_ns, _NS)
        if _libc.timerfd_settime(self._fd, _TIMER_ABSTIME, self._at, None) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def clear(self) -> None:
        """Stop being readable."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
