"""MIG's placement rules, exhausted: every set of instances that can exist on one GPU, and every next one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from offpath.bindings.mig import gpu_model
from offpath.sched.errors import IllegalPlacement
from offpath.sched.gpu.geometry import GpuGeometry, GpuSpec, Profile

from ..gpus import a30, a100, is_legal

Cut = frozenset[tuple[str, int]]
MODELS = pytest.mark.parametrize(("make", "sets"), [(a100, 2_319), (a30, 84)], ids=["A100", "A30"])
"""Counted by hand, x and y marking the one 1g+me and the one 2g+me. A100: slices 0-3 hold (6 + 4x)² + 2 sets, 4-7 hold
(6 + 4x)(3 + x) + 1, and there is 7g: (38 + 48x)(19 + 18x) + 1. A30: (5 + 4x + y)² + 1. With x² = y² = 0, x = y = 1."""


def candidates(spec: GpuSpec) -> list[tuple[Profile, int]]:
    """Also starts that no profile allows."""
    return [(profile, start) for profile in spec.profiles for start in range(-1, spec.memory_slices + 1)]


def legal_sets(spec: GpuSpec) -> set[Cut]:
    """By brute force: grow every legal set by everything, keep what the rules allow."""
    found: set[Cut] = {frozenset()}
    edge = list(found)
    while edge:
        cut = edge.pop()
        for profile, start in candidates(spec):
            larger = cut | {(profile.name, start)}
            if larger not in found and is_legal(spec, sorted(larger)):
                found.add(larger)
                edge.append(larger)
    return found


def holding(spec: GpuSpec, cut: Cut) -> GpuGeometry:
    """In some order: a subset of a legal set is legal, so each step is allowed."""
    geometry = GpuGeometry(spec)
    for lease, (name, start) in enumerate(sorted(cut)):
        profile = spec.profile(name)
        assert profile is not None
        geometry.take(lease, profile, start)
    return geometry


@MODELS
def test_what_is_allowed_next_is_what_mig_allows_from_every_legal_state(make: Callable[[], GpuSpec], sets: int) -> None:
    spec = make()
    states = legal_sets(spec)
    assert len(states) == sets
    for cut in states:
        geometry = holding(spec, cut)
        for profile, start in candidates(spec):
            is_new = (profile.name, start) not in cut
            legal = is_new and is_legal(spec, [*sorted(cut), (profile.name, start)])
            assert geometry.allows(profile, start) == legal, f"{profile.name} at {start} beside {sorted(cut)}"


@MODELS
def test_the_first_start_is_the_lowest_legal_one_in_every_state(make: Callable[[], GpuSpec], sets: int) -> None:
    spec = make()
    for cut in legal_sets(spec):
        geometry = holding(spec, cut)
        for profile in spec.profiles:
            legal = [
                start
                for start in range(spec.memory_slices)
                if (profile.name, start) not in cut and is_legal(spec, [*sorted(cut), (profile.name, start)])
            ]
            assert geometry.first_start(profile) == (min(legal) if legal else None)


@MODELS
def test_assuming_leases_gone_is_the_same_as_giving_them_back(make: Callable[[], GpuSpec], sets: int) -> None:
    spec = make()
    for cut in sorted(map(sorted, legal_sets(spec)))[::7]:
        geometry = holding(spec, frozenset(cut))
        for gone in ({0}, {0, 1}, set(range(len(cut)))):
            fewer = holding(spec, frozenset(cut))
            for lease in gone:
                fewer.give_back(lease)
            for profile in spec.profiles:
                assert geometry.first_start(profile, frozenset(gone)) == fewer.first_start(profile)


def test_a_reserved_slice_is_avoided_but_may_be_anybody_elses() -> None:
    spec = a100("gpu-7")
    geometry = GpuGeometry(spec)
    reserved = frozenset({("gpu-7", 0), ("gpu-7", 5), ("gpu-8", 2)})
    found = {profile.name: geometry.first_start(profile, reserved=reserved) for profile in spec.profiles}
    assert found == {
        "1g.5gb": 1, "1g.5gb+me": 1, "1g.10gb": 2, "2g.10gb": 2, "3g.20gb": None, "4g.20gb": None, "7g.40gb": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("cut", "why"),
    [
        ((("7g.40gb", 0), ("1g.5gb", 0)), "overlap"),
        ((("4g.20gb", 0), ("4g.20gb", 4)), "4g starts at 0 only"),
        ((("3g.20gb", 0), ("3g.20gb", 4), ("1g.5gb", 6)), "3g takes four memory slices"),
        ((("2g.10gb", 1),), "2g starts at even slices"),
        ((("1g.5gb+me", 0), ("1g.5gb+me", 1)), "one media engine"),
        ((("4g.20gb", 0), ("1g.10gb", 4), ("1g.10gb", 6), ("1g.5gb", 6)), "slice 6 is taken"),
    ],
)
def test_what_mig_forbids_raises(cut: tuple[tuple[str, int], ...], why: str) -> None:
    geometry = holding(a100(), frozenset(cut[:-1]))
    name, start = cut[-1]
    profile = geometry.spec.profile(name)
    assert profile is not None
    with pytest.raises(IllegalPlacement):
        geometry.take(len(cut), profile, start)


def test_a_lease_takes_its_slices_once_and_gives_them_back_as_often_as_it_likes() -> None:
    geometry = GpuGeometry(a100())
    small = geometry.spec.profiles[0]
    geometry.take(1, small, 0)
    with pytest.raises(IllegalPlacement):
        geometry.take(1, small, 1)
    geometry.give_back(1)
    geometry.give_back(1)
    assert not geometry.held
    assert geometry.allows(small, 0)


def test_fractions_are_those_of_table_3() -> None:
    """Conspirator, Table 3: ⌊100 · compute slices / total⌋."""
    spec = a100()
    assert {p.name: spec.alpha(p) for p in spec.profiles if "+" not in p.name and p.name != "1g.10gb"} == {
        "1g.5gb": 14,
        "2g.10gb": 28,
        "3g.20gb": 42,
        "4g.20gb": 57,
        "7g.40gb": 100,
    }
    assert [a30().alpha(p) for p in a30().profiles] == [25, 25, 50, 50, 100]


@pytest.mark.parametrize(("spec", "model"), [(a100(), "A100-40GB"), (a30(), "A30-24GB")])
def test_the_gpu_ports_table_says_the_same_as_the_tests(spec: GpuSpec, model: str) -> None:
    table = gpu_model(model)
    assert (table.compute_slices, table.memory_slices) == (spec.compute_slices, spec.memory_slices)
    assert [
        Profile(p.name, p.compute_slices, p.memory_slices, p.memory_bytes, p.starts, p.max_instances)
        for p in table.profiles
    ] == list(spec.profiles)
