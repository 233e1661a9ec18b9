"""A session's memory as a service manager gives it back: two descriptors under one name, in any order."""

from __future__ import annotations

import os

import pytest

from offpath.bindings.errors import RegionError
from offpath.bindings.memory.region import Region, memfd_name
from offpath.bindings.memory.slots import SlotMemory

SLOTS, PAYLOAD, RESULT = 2, 1 << 20, 4096


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("is_reversed", [False, True])
def test_slots_and_answers_are_told_apart_by_what_they_are(is_reversed: bool) -> None:
    """systemd keeps the descriptors of one name in no order (measured with 252: reversed on arm64)."""
    first = SlotMemory(SLOTS, PAYLOAD, RESULT)
    first.slots.view[:5] = b"slots"
    first.answers.view[:7] = b"answers"
    slots, answers = os.dup(first.slots.fd), os.dup(first.answers.fd)
    second = SlotMemory(SLOTS, PAYLOAD, RESULT, (answers, slots) if is_reversed else (slots, answers))
    assert (bytes(second.slots.view[:5]), bytes(second.answers.view[:7])) == (b"slots", b"answers")
    second.close_memory()
    first.close_memory()


@pytest.mark.parametrize("names", [("offpath-slots", "offpath-slots"), ("offpath-slots", "other")])
def test_other_descriptors_are_refused_and_closed(names: tuple[str, str]) -> None:
    regions = [Region.create(name, PAYLOAD) for name in names]
    given = os.dup(regions[0].fd), os.dup(regions[1].fd)
    before = open_files()
    with pytest.raises(RegionError, match="not the slots and answers"):
        SlotMemory(SLOTS, PAYLOAD, RESULT, given)
    assert open_files() == before - 2
    for region in regions:
        region.close()


@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_descriptors_of_which_one_is_not_open_the_other_is_closed(is_first: bool) -> None:
    region = Region.create("offpath-slots", PAYLOAD)
    before = open_files()
    closed = os.dup(region.fd)
    given = os.dup(region.fd)
    os.close(closed)
    with pytest.raises(RegionError, match="No such file"):
        SlotMemory(SLOTS, PAYLOAD, RESULT, (closed, given) if is_first else (given, closed))
    assert open_files() == before
    region.close()


def test_a_file_that_is_no_memfd_has_no_name() -> None:
    with open("/dev/null", "rb") as file:
        assert memfd_name(file.fileno()) == ""
