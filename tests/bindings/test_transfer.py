"""Copies in segments: where they are cut, and that each copy ends once."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.bindings.errors import DeviceError
from offpath.bindings.transfer import Copy, SegmentedRoute, cut


class Bytes(NamedTuple):
    at: int
    nbytes: int

    def within(self, offset: int, nbytes: int) -> Bytes:
        return Bytes(self.at + offset, nbytes)


class Piece(NamedTuple):
    copy: Copy
    where: Bytes


class Route(SegmentedRoute[Piece, Bytes]):
    """A device with room for ``room`` segments, which refuses those that begin at ``refused``."""

    def __init__(self, remote: list[Bytes], room: int = 2, refused: int = -1) -> None:
        self.released = 0
        super().__init__(remote, self._count_release)
        self._room = room
        self._refused_at = refused

    def _count_release(self) -> None:
        self.released += 1

    def _submit(self, serial: int, segment: Piece) -> bool:
        if segment.where.at == self._refused_at:
            raise DeviceError("refused")
        return len(self._in_flight) < self._room

    def _refused(self, copy: Copy, fault: DeviceError) -> list[Copy]:
        return self.give_up(str(fault))

    def land(self) -> list[Copy]:
        """The oldest segment in flight has ended."""
        ended = self._landed(self._in_flight.pop(min(self._in_flight)).copy)
        ended += self._advance()
        self._release_if_done()
        return ended


def pieces(copy: Copy, count: int, begin: int = 0) -> list[Piece]:
    return [Piece(copy, Bytes(begin + at, 1)) for at in range(count)]


def ranges(lengths: list[int], begin: int) -> list[Bytes]:
    found, at = [], begin
    for nbytes in lengths:
        found.append(Bytes(at, nbytes))
        at += nbytes + 1_000  # they do not lie together
    return found


def addresses(these: list[Bytes]) -> list[int]:
    return [at for each in these for at in range(each.at, each.at + each.nbytes)]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.data(), st.integers(1, 50))
def test_each_byte_goes_where_it_belongs_in_pieces_that_the_device_takes(
    lengths: list[int], data: st.DataObject, most: int
) -> None:
    total, others = sum(lengths), deque[int]()
    while sum(others) < total:
        others.append(data.draw(st.integers(1, total - sum(others))))
    sources, targets = ranges(lengths, 0), ranges(list(others), 1_000_000)
    found = cut(sources, targets, most)
    assert all(0 < source.nbytes == target.nbytes <= most for source, target in found)
    assert addresses([source for source, _ in found]) == addresses(sources)
    assert addresses([target for _, target in found]) == addresses(targets)


def test_what_fits_is_not_cut() -> None:
    assert cut([Bytes(1, 8)], [Bytes(5, 8)], 8) == [(Bytes(1, 8), Bytes(5, 8))]


@pytest.mark.parametrize(
    ("offset", "nbytes", "expected"),
    [
        (0, 4, [Bytes(10, 4)]),
        (3, 1, [Bytes(13, 1)]),
        (4, 6, [Bytes(20, 6)]),
        (2, 5, [Bytes(12, 2), Bytes(20, 3)]),
        (0, 10, [Bytes(10, 4), Bytes(20, 6)]),
    ],
)
def test_a_memory_of_several_ranges_is_one_range(offset: int, nbytes: int, expected: list[Bytes]) -> None:
    route = Route([Bytes(10, 4), Bytes(20, 6)])
    assert route.nbytes == 10
    assert route.ranges(offset, nbytes) == expected


def test_a_copy_ends_with_its_last_segment_and_what_exceeds_the_room_waits() -> None:
    route, first, second = Route([Bytes(0, 9)]), Copy(1, 3), Copy(2, 2)
    assert route.start(pieces(first, 3)) == []
    assert route.start(pieces(second, 2)) == []
    assert [route.land() for _ in range(5)] == [[], [], [first], [], [second]]
    assert (first.error, second.error, route.is_busy, route.released) == (None, None, False, 0)


def test_a_closed_route_is_given_back_once_when_its_copies_have_ended() -> None:
    route, copy = Route([Bytes(0, 9)]), Copy(1, 2)
    route.start(pieces(copy, 2))
    route.close()
    assert (route.land(), route.released) == ([], 0)
    assert (route.land(), route.released) == ([copy], 1)
    route.close()
    assert route.give_up("closed") == []
    assert route.released == 1


def test_a_route_that_is_given_up_ends_each_copy_once_and_is_given_back() -> None:
    route, first, second = Route([Bytes(0, 9)], refused=107), Copy(1, 3), Copy(2, 9)
    route.start(pieces(first, 1))
    assert route.start(pieces(second, 9, begin=100)) == []
    ended = [copy for _ in range(8) for copy in (route.land() if route.is_busy else [])]
    assert ended == [first, second]
    assert (first.error, second.error, route.failure, route.released) == (None, "refused", "refused", 1)
