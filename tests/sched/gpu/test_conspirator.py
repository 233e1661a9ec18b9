"""Algorithm 1: the transcription says what the paper says; the indexed policy says the same, decision by decision."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.gpu.conspirator import ConspiratorPaper
from offpath.sched.gpu.firstfit import FirstFit
from offpath.sched.gpu.paper import FRACTIONS, TABLE_3, Transcription, paper_gpu
from offpath.sched.gpu.policy import Demand

from ...sizes import sized
from .floor import Floor

INSTANCES = sized(quick=60, fast=100, slow=400, full=10_000)
A100 = "A100-40GB"


def test_table_3() -> None:
    assert TABLE_3 == (14, 14, 14, 14, 14, 14, 14, 28, 28, 28, 42, 42, 57, 100)


@pytest.mark.parametrize(
    ("story", "places"),
    [
        ([("a", 10), ("a", 4)], [("g0", 0), ("g0", 0)]),  # 4 is what 14 has left
        ([("a", 10), ("a", 5)], [("g0", 0), ("g0", 1)]),  # 5 is not
        ([("a", 10), ("b", 4)], [("g0", 0), ("g0", 1)]),  # another tenant's room is not room
        ([("a", 29), ("b", 29), ("c", 29)], [("g0", 10), ("g0", 11), ("g1", 10)]),  # 42 each: 84, the third is on g1
        ([("a", 60), ("b", 60), ("c", 1)], [("g0", 13), ("g1", 13), None]),
        ([("a", 57), ("b", 42), ("c", 1)], [("g0", 12), ("g0", 10), ("g1", 0)]),  # 1 % is left on g0, 14 is not
        ([("a", 100), ("a", 50), ("a", 50)], [("g0", 13), ("g1", 12), None]),  # 50 takes 57, and 43 is left
        ([("a", 50), ("a", 50), ("a", 7)], [("g0", 12), ("g1", 12), ("g0", 0)]),  # free on g0 comes before g0's 57
    ],
)
def test_algorithm_1_by_hand(story: list[tuple[str, int]], places: list[tuple[str, int] | None]) -> None:
    plain = Transcription([("g0", A100), ("g1", A100)])
    floor = Floor(ConspiratorPaper(), [paper_gpu("g0"), paper_gpu("g1")])
    assert [plain.assign(job, tenant, share) for job, (tenant, share) in enumerate(story)] == places
    assert [floor.assign(Demand(job, tenant, share, 0)) for job, (tenant, share) in enumerate(story)] == places


def test_an_unoccupied_fraction_of_an_earlier_gpu_comes_before_the_tenants_own_room() -> None:
    """The printed loops end at the first fraction that will do, whichever branch it is in."""
    floor = Floor(ConspiratorPaper(), [paper_gpu("g0"), paper_gpu("g1")])
    assert floor.assign(Demand(1, "bob", 100, 0)) == ("g0", 13)
    assert floor.assign(Demand(2, "ada", 5, 0)) == ("g1", 0)
    floor.end(1)
    assert floor.assign(Demand(3, "ada", 5, 0)) == ("g0", 0)


def compare(seed: int) -> tuple[int, int]:
    """One random instance: models, tenants, demands, sixty arrivals with ends in between."""
    random = Random(f"conspirator {seed}")
    models = [random.choice(list(FRACTIONS)) for _ in range(random.randint(1, 6))]
    gpus = [(f"g{j}", model) for j, model in enumerate(models)]
    tenants = [f"t{t}" for t in range(random.randint(1, 5))]
    shares = random.sample(range(1, 101), random.randint(1, 6))
    plain = Transcription(gpus)
    floor = Floor(ConspiratorPaper(), [paper_gpu(*gpu) for gpu in gpus])
    live: list[int] = []
    placed = 0
    for job in range(60):
        if live and random.random() < 0.4:
            ended = live.pop(random.randrange(len(live)))
            plain.end(ended)
            floor.end(ended)
        tenant, share = random.choice(tenants), random.choice(shares)
        model = random.choice(models) if random.random() < 0.2 else ""
        expected = plain.assign(job, tenant, share, [model] if model else ())
        assert floor.assign(Demand(job, tenant, share, 0, ((model, share),) if model else ())) == expected, (seed, job)
        if expected is not None:
            live.append(job)
            placed += 1
    return placed, 60 - placed


@pytest.mark.parametrize("part", range(10))
def test_the_indexed_policy_equals_the_transcription_decision_by_decision(part: int) -> None:
    seeds = range(part * INSTANCES // 10, (part + 1) * INSTANCES // 10)
    placed, refused = map(sum, zip(*map(compare, seeds), strict=True))
    assert placed + refused == 60 * len(seeds)
    assert min(placed, refused) > len(seeds), "both kinds of decision are common"


SLOT = st.one_of(st.integers(0, 5), st.integers(508, 516), st.integers(1_020, 2_050))


@given(st.lists(st.tuples(SLOT, st.integers(0, 15)), max_size=60), st.integers(0, 15), st.one_of(st.just(0), SLOT))
def test_first_fit_finds_what_a_scan_finds(puts: list[tuple[int, int]], mask: int, start: int) -> None:
    index, plain = FirstFit(), dict[int, int]()
    for slot, bits in puts:
        index.put(slot, bits)
        plain[slot] = bits
        found = index.first(mask, start)
        assert found == next((s for s in sorted(plain) if s >= start and plain[s] & mask), None)
    assert {slot: index[slot] for slot in plain} == plain


def test_first_fit_keeps_nothing_of_slots_that_are_empty() -> None:
    index = FirstFit()
    for slot in (1 << 20, 3, 77):
        index.put(slot, 5)
    for slot in (3, 77, 1 << 20):
        index.put(slot, 0)
    assert index._bits == {}
    assert index._words == {1: {}, 4: {}}
    assert set(index._tops.values()) == {0}
