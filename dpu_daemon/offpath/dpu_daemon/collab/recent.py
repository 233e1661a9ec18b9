"""Remembers each device's last message, in bounded memory: for limits of rate, and against replayed messages.

A fixed table of buckets of four places. A device's keyed hash names its bucket, so that no peer can choose devices that
meet in one. In a full bucket the device that has been silent longest is forgotten.

The limit of rate is the generic cell rate algorithm (ATM Forum TM 4.0): one time for each device, when its allowance is
full again.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

_WAYS: Final = 4


class Seen(IntEnum):
    """How a message compares with the device's last one."""

    NEW = 0
    AGAIN = 1
    """The last one once more."""
    OLDER = 2
    """One before the last: replayed."""
    TOO_SOON = 3
    """More than the limit of rate allows."""


@dataclass(slots=True)
class Rate:
    """One message every ``every_ms``, and up to ``burst`` at once."""

    every_ms: float
    burst: int

    def full_at(self, full_ms: float, now_ms: int) -> float:
        """When the allowance is full again, after a message now; ``full_ms``: before it."""
        return max(full_ms, now_ms) + self.every_ms

    def wait_ms(self, full_ms: float, now_ms: int) -> float:
        """How long a message must wait; 0 or below: not at all."""
        return full_ms - now_ms - self.every_ms * (self.burst - 1)

    def latest_ms(self, now_ms: int) -> float:
        """When an allowance that is used up now is full again: none is full later."""
        return now_ms + self.every_ms * self.burst


class Recent:
    """``most``: devices remembered, rounded up to a power of two."""

    def __init__(self, most: int, rate: Rate) -> None:
        buckets = 1 << max(0, (max(1, most) - 1).bit_length() - 2)
        self._mask = buckets - 1
        size = buckets * _WAYS
        self._devices = array("q", [-1]) * size
        self._sent_ms = array("q", [-1]) * size
        self._full_ms = array("d", [0.0]) * size
        self._rate = rate
        self.known = 0
        """Devices that are remembered."""
        self.forgotten = 0
        """Devices that were forgotten for others, in all."""

    def limit(self, rate: Rate, now_ms: int) -> None:
        """Another rate from here on. What a device has used up stays used up, but of the new rate at most: none waits
        longer than for one message of it."""
        self._rate = rate
        full_ms = np.frombuffer(self._full_ms)
        np.minimum(full_ms, rate.latest_ms(now_ms), out=full_ms)  # of a million devices: 1 ms, a loop takes 50

    def set_back(self, wall_ms: int) -> None:
        """The clock by which devices' times are judged now shows ``wall_ms``, after a later time. Messages from now on
        are newer than all before; those that were sent before now stay older."""
        sent_ms = np.frombuffer(self._sent_ms, np.int64)
        np.minimum(sent_ms, wall_ms - 1, out=sent_ms)

    def admit(self, device: int, sent_ms: int, now_ms: int) -> Seen:
        """How a message with that time compares with the device's last one. `NEW` and `AGAIN`: it counts."""
        place = self._find(device)
        if place < 0:
            place = self._place_for(device)
            last_ms, full_ms = -1, 0.0
        else:
            last_ms, full_ms = self._sent_ms[place], self._full_ms[place]
            if sent_ms < last_ms:
                return Seen.OLDER
            if self._rate.wait_ms(full_ms, now_ms) > 0:
                return Seen.TOO_SOON
        self._sent_ms[place], self._full_ms[place] = sent_ms, self._rate.full_at(full_ms, now_ms)
        return Seen.NEW if sent_ms > last_ms else Seen.AGAIN

    def wait_ms(self, device: int, now_ms: int) -> int:
        """How long the device must wait before its next message; 0: not at all."""
        place = self._find(device)
        return 0 if place < 0 else max(0, round(self._rate.wait_ms(self._full_ms[place], now_ms)))

    def _find(self, device: int) -> int:
        first = (device & self._mask) * _WAYS
        places = self._devices[first : first + _WAYS]  # for a new device a third of the time of a loop
        return first + places.index(device) if device in places else -1

    def _place_for(self, device: int) -> int:
        first = (device & self._mask) * _WAYS
        sent_ms, place = self._sent_ms, first
        for other in range(first + 1, first + _WAYS):  # of few places: min() with a key takes twice as long
            if sent_ms[other] < sent_ms[place]:
                place = other
        if self._devices[place] >= 0:
            self.forgotten += 1
        else:
            self.known += 1
        self._devices[place] = device
        return place
