"""Requirements, atoms and their supply over a day."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.collab import supply as supplies
from offpath.sched.collab.requirements import Catalogue, Properties, Requirement
from offpath.sched.collab.supply import HOUR_NS, Supply

KINDS = [Properties.of({"mem": n}, {"os": (n, 1)}, {"wifi"} if n % 2 else ()) for n in range(6)]
REQUIREMENTS = [Requirement(Properties.of({"mem": n})) for n in range(3)] + [
    Requirement(Properties.of(versions={"os": (3,)})), Requirement(Properties.of(labels={"wifi"})),
]  # fmt: skip


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 5)), max_size=40))
def test_an_atom_is_what_the_device_meets_whatever_was_opened_and_closed(
    acts: list[tuple[bool, int, int]],
) -> None:
    catalogue, bits, uses = Catalogue(), dict[int, int](), [0] * len(REQUIREMENTS)
    for is_open, number, kind in acts:
        if is_open:
            bits[number] = catalogue.open(REQUIREMENTS[number])
            uses[number] += 1
        elif uses[number]:
            uses[number] -= 1
            assert catalogue.close(REQUIREMENTS[number]) == (uses[number] == 0)
        device = KINDS[kind]
        met = [each for each, count in enumerate(uses) if count and REQUIREMENTS[each].is_met_by(device)]
        assert catalogue.atom(device) == sum(1 << bits[each] for each in met)


@pytest.mark.parametrize(
    ("device", "least", "is_met"),
    [((14,), (14, 0), True), ((14, 0), (14,), True), ((13, 9), (14,), False), ((14, 2, 1), (14, 2), True)],
)
def test_versions_are_compared_by_their_numbers(device: tuple[int, ...], least: tuple[int, ...], is_met: bool) -> None:
    requirement = Requirement(Properties.of(versions={"os": least}))
    assert requirement.is_met_by(Properties.of(versions={"os": device})) is is_met
    assert not requirement.is_met_by(Properties.of({"os": 99}))


@given(st.integers(0, 10**9))
def test_counts_are_those_of_24_full_hours_and_the_present_one(seed: int) -> None:
    random, supply, seen, now = Random(seed), Supply(), list[tuple[int, int]](), 0
    for _ in range(120):
        now += random.choice((1, HOUR_NS // 7, HOUR_NS, 20 * HOUR_NS if random.random() < 0.1 else 0))
        kind = random.randrange(len(KINDS))
        supply.seen(KINDS[kind], now, lambda device: 0)
        seen.append((now // HOUR_NS, kind))
        expected = [kind for hour, kind in seen if hour >= now // HOUR_NS - 24]
        counts = supply.by_atom(lambda device: 1 << KINDS.index(device))
        assert counts == {1 << kind: expected.count(kind) for kind in set(expected)}


def test_a_plan_takes_new_counts_when_they_have_doubled_and_each_hour() -> None:
    supply, due = Supply(), list[int]()
    for n in range(1, 40):
        if supply.seen(KINDS[0], HOUR_NS if n > 30 else 0, lambda device: 1):
            supply.by_atom(lambda device: 1)
            due.append(n)
    assert due == [1, 2, 4, 8, 16, 31]


def test_kinds_beyond_the_limit_count_for_one_that_is_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supplies, "MOST_KINDS", 2)
    supply = Supply()
    for kind in KINDS:
        supply.seen(kind, 0, lambda device: KINDS.index(device) % 3)
    assert supply.by_atom(lambda device: KINDS.index(device) % 3) == {0: 2, 1: 2}
