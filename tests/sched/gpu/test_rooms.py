"""A tenant's leases by room: what is found is what a scan finds, with few leases, with many, and between."""

from __future__ import annotations

import random

import pytest

from offpath.sched.gpu.policy import LeaseView
from offpath.sched.gpu.rooms import FEWEST_INDEXED, MOST_SCANNED, Rooms, Warm

ALL = (1 << 101) - 1


def lease(number: int, position: int, draw: random.Random) -> Warm:
    view = LeaseView(number, "ada", "gpu", "1g.5gb", position % 32, draw.choice([14, 28, 42, 57, 100]), 2, 1 << 20)
    return Warm(view, position, [0] * draw.randrange(3), draw.choice([0, 7, 14, 100]), draw.random() < 0.8)


def scanned(leases: list[Warm], mask: int, start: int) -> int | None:
    fitting = (w.position for w in leases if w.position >= start and w.room() >= 0 and mask >> w.room() & 1)
    return min(fitting, default=None)


@pytest.mark.parametrize("seed", range(20))
def test_the_first_lease_with_such_room_is_found_however_many_there_are(seed: int) -> None:
    draw = random.Random(seed)
    rooms, leases = Rooms(), list[Warm]()
    was_indexed = set()
    for number in range(400):
        grows = number % 200 < 100  # up to many leases, and down again
        if leases and draw.random() < (0.3 if grows else 0.7):
            gone = leases.pop(draw.randrange(len(leases)))
            rooms.remove(gone)
        else:
            position = draw.choice([p for p in range(200) if p not in {w.position for w in leases}])
            leases.append(lease(number, position, draw))
            rooms.add(leases[-1])
        if leases:
            changed = draw.choice(leases)
            changed.placed_share = draw.choice([0, 14, 28, 120])
            changed.is_open = draw.random() < 0.9
            changed.free_lanes = [0] * draw.randrange(3)
            rooms.changed(changed)
        was_indexed.add(rooms._index is not None)
        assert (rooms._index is not None) or len(leases) <= MOST_SCANNED
        assert (rooms._index is None) or len(leases) >= FEWEST_INDEXED
        for mask in (ALL, ALL >> 14 << 14, 1 << 28, 1):
            start = draw.choice([0, draw.randrange(200)])
            assert rooms.first(mask, start) == scanned(leases, mask, start)
    assert was_indexed == {True, False}


def test_a_lease_that_is_overbooked_has_room_zero() -> None:
    view = LeaseView(1, "ada", "gpu", "1g.5gb", 0, 14, 2, 1 << 20)
    rooms = Rooms()
    rooms.add(Warm(view, 3, [0], placed_share=28, is_open=True))
    assert rooms.first(ALL) == 3
    assert rooms.first(ALL >> 1 << 1) is None
