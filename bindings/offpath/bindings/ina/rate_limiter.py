"""One emulated link per rank: a token bucket in each direction, shared by INA and plain traffic, and byte counters.

Only time is emulated. INA's bytes really pass the rank's socket, at the link's rate. Another library carries the plain
all-reduce: the link receives the number of bytes that a ring would move, and makes the rank wait that long.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Final

from offpath.bindings.ina.frames import CHUNK_BYTES

_RATE = struct.Struct("<Q")
_DEPTH_S: Final = 0.01
"""Depth of a bucket, in time: a late wake-up on a busy machine costs no bandwidth."""
_SLICE_S: Final = 0.02
"""A wait re-reads the rate this often, because it may change meanwhile."""
KINDS: Final = ("plain", "ina")


class Direction(IntEnum):
    """From the rank's view."""

    OUT = 0
    IN = 1


def plain_bytes(nbytes: int, ranks: int) -> int:
    """Bytes that a ring all-reduce of ``nbytes`` moves over each rank's link in each direction: 2(n-1)/n times as
    many."""
    return 2 * (ranks - 1) * nbytes // ranks


def write_rate(path: str, bytes_per_s: int) -> None:
    """Set the rate of all links with this file, from the next chunk on; 0: no limit. Raises: OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(fd, _RATE.pack(bytes_per_s), 0)
    finally:
        os.close(fd)


class RateLimiter:
    """Not thread-safe. ``rate_bytes_per_s`` applies to each direction; 0: no limit.

    ``path``: a file whose first eight bytes are the rate, written by `write_rate`, also from another process. It is
    created if missing. Raises: OSError: it cannot be created or mapped.
    """

    def __init__(
        self, rate_bytes_per_s: int = 0, path: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.sent = dict.fromkeys(KINDS, 0)
        """Bytes of messages by kind."""
        self.received = dict.fromkeys(KINDS, 0)
        self._clock = clock
        self._rate = rate_bytes_per_s
        self._page: mmap.mmap | None = None
        if path is not None:
            with contextlib.suppress(FileExistsError):
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                os.pwrite(fd, _RATE.pack(rate_bytes_per_s), 0)
                os.close(fd)
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._page = mmap.mmap(fd, _RATE.size, access=mmap.ACCESS_READ)
            except ValueError as empty:  # longer than the file
                raise OSError(f"{path} holds no rate: {empty}") from None
            finally:
                os.close(fd)
        self._tokens = [0.0, 0.0]
        self._filled_at = [clock(), clock()]

    @property
    def rate(self) -> int:
        """Current bytes per second in each direction; 0: no limit."""
        return _RATE.unpack_from(self._page)[0] if self._page is not None else self._rate

    @rate.setter
    def rate(self, bytes_per_s: int) -> None:
        if self._page is not None:
            raise ValueError("the file sets the rate: use write_rate")
        self._fill(Direction.OUT)
        self._fill(Direction.IN)
        self._rate = bytes_per_s

    def begin(self) -> None:
        """A transfer begins: unused capacity of the idle link is lost."""
        for direction in Direction:
            self._fill(direction)
            self._tokens[direction] = min(self._tokens[direction], 0.0)

    def wait_s(self, direction: Direction) -> float:
        """Time until the next chunk may pass; 0.0: now."""
        rate = self.rate
        if not rate:
            return 0.0
        self._fill(direction)
        return max(0.0, -self._tokens[direction] / rate)

    def take(self, direction: Direction, nbytes: int, kind: str = "ina") -> None:
        """``nbytes`` pass, whatever the bucket holds; later bytes wait longer."""
        self._fill(direction)
        self._tokens[direction] -= nbytes
        count = self.sent if direction is Direction.OUT else self.received
        count[kind] += nbytes

    def stop(self, direction: Direction, kind: str = "ina") -> None:
        """Refund bytes that were charged but cannot have passed yet, because the sender stopped."""
        self._fill(direction)
        back = max(0.0, -self._tokens[direction])
        self._tokens[direction] += back
        count = self.sent if direction is Direction.OUT else self.received
        count[kind] -= min(count[kind], int(back))

    def owe(self, nbytes: int, began_s: float | None = None) -> None:
        """Take ``nbytes`` of plain traffic in each direction. ``began_s``: an earlier start on the limiter's clock;
        that time counts as waited."""
        self.begin()
        paid = self.rate * max(0.0, self._clock() - began_s) if began_s is not None else 0.0
        for direction in Direction:
            self.take(direction, nbytes, "plain")
            self._tokens[direction] += min(paid, float(nbytes))

    def owed_s(self) -> float:
        """Time until all that was taken has passed, in both directions."""
        return max(self.wait_s(direction) for direction in Direction)

    def charge(self, nbytes: int, began_s: float | None = None) -> None:
        """`owe`, then wait as long as the bytes take at the rate of each moment."""
        self.owe(nbytes, began_s)
        while left := self.owed_s():
            time.sleep(min(left, _SLICE_S))

    def _fill(self, direction: Direction) -> None:
        now, rate = self._clock(), self.rate
        depth = max(float(CHUNK_BYTES), rate * _DEPTH_S)
        held = self._tokens[direction]
        if rate and held < depth:
            held += rate * (now - self._filled_at[direction])
        self._tokens[direction] = min(held, depth) if rate else max(held, 0.0)
        self._filled_at[direction] = now

    def close(self) -> None:
        """Release the file. Idempotent."""
        if self._page is not None:
            self._rate = self.rate
            self._page.close()
            self._page = None
