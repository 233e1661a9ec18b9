"""One emulated link per rank: a token bucket in each direction, shared by INA and plain traffic, and byte counters.

The emulation is of time only. INA's bytes really pass the rank's socket, at the link's rate; for the plain all-reduce,
which another library carries, the link is told how many bytes a ring would move, and makes the rank wait as long.
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
"""A bucket holds the tokens of so long: what a busy machine is late by costs no bandwidth."""
_SLICE_S: Final = 0.02
"""A wait looks at the rate this often, for it may be changed meanwhile."""
KINDS: Final = ("plain", "ina")


class Direction(IntEnum):
    """As the rank sees it."""

    OUT = 0
    IN = 1


def plain_bytes(nbytes: int, ranks: int) -> int:
    """What a ring all-reduce of ``nbytes`` moves over each rank's link in each direction: 2(n-1)/n times as many."""
    return 2 * (ranks - 1) * nbytes // ranks


def write_rate(path: str, bytes_per_s: int) -> None:
    """Set the rate of all links that have this file, from the next chunk on; 0: no limit. Raises: OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(fd, _RATE.pack(bytes_per_s), 0)
    finally:
        os.close(fd)


class RateLimiter:
    """Used by one thread. ``rate_bytes_per_s`` holds for each direction; 0: no limit.

    ``path``: a file whose first eight bytes are the rate, written by `write_rate`, also from another process; it is
    made if it is not there. Raises: OSError: it cannot be made or mapped.
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
        """Bytes a second in each direction, now; 0: no limit."""
        return _RATE.unpack_from(self._page)[0] if self._page is not None else self._rate

    @rate.setter
    def rate(self, bytes_per_s: int) -> None:
        if self._page is not None:
            raise ValueError("the rate is the file's: use write_rate")
        self._fill(Direction.OUT)
        self._fill(Direction.IN)
        self._rate = bytes_per_s

    def begin(self) -> None:
        """A transfer begins: what an idle link could have carried is gone."""
        for direction in Direction:
            self._fill(direction)
            self._tokens[direction] = min(self._tokens[direction], 0.0)

    def wait_s(self, direction: Direction) -> float:
        """Until the next chunk may go; 0.0: now."""
        rate = self.rate
        if not rate:
            return 0.0
        self._fill(direction)
        return max(0.0, -self._tokens[direction] / rate)

    def take(self, direction: Direction, nbytes: int, kind: str = "ina") -> None:
        """So many bytes go, whatever the bucket holds; what follows waits the longer."""
        self._fill(direction)
        self._tokens[direction] -= nbytes
        count = self.sent if direction is Direction.OUT else self.received
        count[kind] += nbytes

    def stop(self, direction: Direction, kind: str = "ina") -> None:
        """What was taken and could not have passed yet does not go: its sender heard that it need not."""
        self._fill(direction)
        back = max(0.0, -self._tokens[direction])
        self._tokens[direction] += back
        count = self.sent if direction is Direction.OUT else self.received
        count[kind] -= min(count[kind], int(back))

    def owe(self, nbytes: int, began_s: float | None = None) -> None:
        """``nbytes`` of plain traffic in each direction. ``began_s``: when it began (the clock's time), if earlier
        than now: that time has been paid."""
        self.begin()
        paid = self.rate * max(0.0, self._clock() - began_s) if began_s is not None else 0.0
        for direction in Direction:
            self.take(direction, nbytes, "plain")
            self._tokens[direction] += min(paid, float(nbytes))

    def owed_s(self) -> float:
        """Until all that was taken has passed, in both directions."""
        return max(self.wait_s(direction) for direction in Direction)

    def charge(self, nbytes: int, began_s: float | None = None) -> None:
        """`owe`, and wait until it is paid: as long as the bytes take at the rate of each moment."""
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
        """Give the file back. Repeating it is harmless."""
        if self._page is not None:
            self._rate = self.rate
            self._page.close()
            self._page = None
