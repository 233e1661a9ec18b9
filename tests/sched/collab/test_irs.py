"""Algorithm 1: each atom has one owner, who may use it; the scarcest first, and the longer queue for its share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.collab.irs import JOB, Group, Plan, Reading, _Shares, plan

SUPPLY = st.dictionaries(st.integers(0, 63), st.integers(0, 1000), max_size=30)
GROUPS = st.dictionaries(st.integers(0, 5), st.integers(1, 50 * JOB), min_size=1).map(
    lambda found: [Group(bit, queue) for bit, queue in sorted(found.items())]
)
READINGS = st.builds(Reading, st.booleans(), st.booleans())


def by_hand(groups: list[Group], supply: dict[int, int], reading: Reading) -> Plan:
    """The same by sets, as the paper writes it."""
    able = {group.bit: {atom for atom in supply if atom >> group.bit & 1} for group in groups}

    def size(atoms: set[int]) -> int:
        return sum(supply[atom] for atom in atoms)

    scarce = sorted(groups, key=lambda group: (size(able[group.bit]), group.bit))
    free, share = set(supply), {}
    for group in scarce:
        share[group.bit] = free & able[group.bit]
        free -= share[group.bit]
    queues = {group.bit: group.queue for group in groups}
    for taker in reversed(scarce):
        if size(share[taker.bit]) == 0:
            continue
        for giver in reversed(scarce):
            both = able[taker.bit] & share[giver.bit]
            if giver is taker or size(able[giver.bit]) >= size(able[taker.bit]) or size(both) == 0:
                continue
            if queues[taker.bit] * size(share[giver.bit]) > queues[giver.bit] * size(share[taker.bit]):
                share[taker.bit] |= both
                share[giver.bit] -= both
                queues[taker.bit] += queues[giver.bit] if reading.accumulates else 0
            elif reading.breaks:
                break
    owner = {atom: bit for bit, atoms in share.items() for atom in atoms}
    return Plan(owner, tuple(group.bit for group in scarce))


@given(GROUPS, SUPPLY, READINGS)
def test_it_is_the_papers_algorithm(groups: list[Group], supply: dict[int, int], reading: Reading) -> None:
    assert plan(groups, supply, reading) == by_hand(groups, supply, reading)


@given(GROUPS, SUPPLY, READINGS)
def test_each_atom_that_somebody_can_use_has_one_owner_who_can_use_it(
    groups: list[Group], supply: dict[int, int], reading: Reading
) -> None:
    made = plan(groups, supply, reading)
    bits = {group.bit for group in groups}
    assert set(made.owner) == {atom for atom in supply if any(atom >> bit & 1 for bit in bits)}
    assert all(bit in bits and atom >> bit & 1 for atom, bit in made.owner.items())


def test_scarce_devices_go_to_those_who_need_them() -> None:
    """Figure 3: two Emoji jobs can run on few devices, the Keyboard job on all."""
    groups = [Group(0, 2 * JOB), Group(1, JOB)]
    assert plan(groups, {0b11: 10, 0b10: 20}).owner == {0b11: 0, 0b10: 1}


def test_a_long_queue_takes_the_intersection() -> None:
    groups = [Group(0, JOB), Group(1, 9 * JOB)]
    assert plan(groups, {0b11: 10, 0b10: 20}).owner == {0b11: 1, 0b10: 1}


def test_a_group_without_supply_divides_nothing_by_zero() -> None:
    assert plan([Group(0, JOB), Group(1, JOB)], {0b10: 0, 0b01: 0}).owner == {0b10: 1, 0b01: 0}
    assert plan([Group(3, JOB)], {}) == Plan({}, (3,))


def test_the_codes_bug_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The public program does not ask whether the sets intersect: devices go to jobs that they cannot run."""
    move = _Shares._move

    def all_of_it(self: _Shares, giver: int, taker: int) -> None:
        self._members[taker] |= self._owner == giver
        move(self, giver, taker)

    monkeypatch.setattr(_Shares, "_move", all_of_it)
    with pytest.raises(AssertionError):
        test_each_atom_that_somebody_can_use_has_one_owner_who_can_use_it()
