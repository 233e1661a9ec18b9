"""Index that finds the first suitable slot: two-level bit sets, nearly the same cost for 10 slots as for 10⁵."""

from __future__ import annotations

from typing import Final

_SHIFT: Final = 9
_WIDTH: Final = 1 << _SHIFT
_REST: Final = _WIDTH - 1


class FirstFit:
    """Slots 0, 1, … with a set of bits each; finds the first that shares a bit with a mask.

    Each bit in use has a 512-slot word wherever a slot has the bit, and one number that marks which words exist. Search
    uses Python's integers: an update or a search takes a few operations per bit concerned, on numbers that grow by one
    bit per 512 slots. Memory is proportional to the slots with bits.
    """

    __slots__ = ("_bits", "_present", "_tops", "_words")

    def __init__(self) -> None:
        self._bits: dict[int, int] = {}
        self._present = 0
        self._tops: dict[int, int] = {}
        self._words: dict[int, dict[int, int]] = {}

    def __getitem__(self, slot: int) -> int:
        return self._bits.get(slot, 0)

    def put(self, slot: int, bits: int) -> None:
        """Set the bits of a slot."""
        changed = self._bits.get(slot, 0) ^ bits
        if not changed:
            return
        if bits:
            self._bits[slot] = bits
        else:
            del self._bits[slot]
        number, at = slot >> _SHIFT, 1 << (slot & _REST)
        while changed:
            bit = changed & -changed
            changed ^= bit
            words = self._words.get(bit)
            if words is None:
                words = self._words[bit] = {}
            before = words.get(number, 0)
            word = before ^ at
            if word:
                words[number] = word
                if before:
                    continue
            else:
                del words[number]
            self._tops[bit] = top = self._tops.get(bit, 0) ^ 1 << number
            if top:
                self._present |= bit
            else:
                self._present ^= bit

    def first(self, mask: int, start: int = 0) -> int | None:
        """The lowest slot from ``start`` on with a bit of ``mask``, or None."""
        best: int | None = None
        left = mask & self._present
        while left:
            bit = left & -left
            left ^= bit
            slot = self._first_with(bit, start)
            if slot is not None and (best is None or slot < best):
                best = slot
        return best

    def _first_with(self, bit: int, start: int) -> int | None:
        words, top = self._words[bit], self._tops[bit]
        if start:
            number = start >> _SHIFT
            word = words.get(number, 0) >> (start & _REST)
            if word:
                return start + (word & -word).bit_length() - 1
            top = top >> number + 1 << number + 1
            if not top:
                return None
        number = (top & -top).bit_length() - 1
        word = words[number]
        return (number << _SHIFT) + (word & -word).bit_length() - 1
