"""The policies' tests are worth something only if they find bugs: each of these is planted, and must be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from offpath.sched.errors import SchedError
from offpath.sched.gpu import indexed
from offpath.sched.gpu.conspirator import ConspiratorPaper
from offpath.sched.gpu.firstfit import FirstFit
from offpath.sched.gpu.geometry import GpuGeometry, GpuSpec
from offpath.sched.gpu.indexed import IndexedPolicy
from offpath.sched.gpu.oldest_gpu_first import OldestGpuFirst
from offpath.sched.gpu.policy import Demand, LeasePlan, LeaseView, Opening, Placement, PolicyState, Refusal
from offpath.sched.gpu.rooms import Rooms, Warm

from .test_conspirator import compare
from .test_plugin import INSIDE, PluginStory
from .test_policies import STEPS, goes_on_the_same, keeps_the_rules

SEEDS = 60
Patch = Callable[[object, str, object], None]
Find = Callable[[int], None]
Plant = Callable[[Patch], None]
BUGS: dict[str, tuple[Plant, Find]] = {}


def rules(seed: int) -> None:
    keeps_the_rules((OldestGpuFirst, ConspiratorPaper)[seed % 2], f"bugs {seed}")


def resumed(seed: int) -> None:
    goes_on_the_same(OldestGpuFirst, f"bugs {seed}")


def advised(seed: int) -> None:
    story = PluginStory(INSIDE["best-fit"], f"bugs {seed}", fault=0.05)
    for _ in range(STEPS):
        story.step()
        story.check()


def planted(find: Find) -> Callable[[Plant], Plant]:
    """Registers a bug with the test that must see it."""

    def register(plant: Plant) -> Plant:
        BUGS[plant.__name__] = plant, find
        return plant

    return register


@planted(rules)
def takes_any_tenants_room(patch: Patch) -> None:
    def first_room(self: IndexedPolicy, demand: Demand) -> Warm | None:
        found = (self.first_in(rooms, self.room_mask(demand), demand) for rooms in self.rooms.values())
        return next((warm for warm in found if warm is not None), None)

    patch(IndexedPolicy, "first_room", first_room)


@planted(rules)
def forgets_the_share_that_is_placed(patch: Patch) -> None:
    def first(self: Rooms, mask: int, start: int = 0) -> int | None:
        found = (warm for warm in self._leases if warm.position >= start and warm.is_open and warm.free_lanes)
        return next((warm.position for warm in found if mask >> warm.view.alpha & 1), None)

    patch(Rooms, "first", first)


@planted(rules)
def gives_the_same_lane_twice(patch: Patch) -> None:
    def take(self: IndexedPolicy, warm: Warm, share: int) -> Placement:
        warm.placed_share += share
        return Placement(warm.view.lease, warm.free_lanes[-1], False)

    patch(IndexedPolicy, "take", take)


@planted(rules)
def places_on_a_lease_that_drains(patch: Patch) -> None:
    patch(IndexedPolicy, "lease_draining", lambda self, lease: None)
    patch(IndexedPolicy, "lease_lost", lambda self, lease: self.leases.pop(lease, None))


@planted(compare)
def keeps_a_lost_leases_slices(patch: Patch) -> None:
    patch(GpuGeometry, "give_back", lambda self, lease: self.held.pop(lease, None) if lease % 2 else None)


@planted(compare)
def looks_not_again_at_a_gpu_that_was_cut(patch: Patch) -> None:
    look = IndexedPolicy._look

    def once(self: IndexedPolicy, gpu: indexed.Gpu) -> None:
        if not gpu.geometry.held:
            look(self, gpu)

    patch(IndexedPolicy, "_look", once)


@planted(rules)
def cuts_the_lowest_start_whatever_is_there(patch: Patch) -> None:
    patch(GpuGeometry, "first_start", lambda self, profile, *more: profile.starts[0])
    patch(GpuGeometry, "take", lambda self, lease, profile, start: None)


@planted(rules)
def ignores_how_often_a_profile_may_be_cut(patch: Patch) -> None:
    def first_start(self: GpuGeometry, profile: Any, *more: Any) -> int | None:
        taken = sum(held.mask for held in self.held.values())
        slices = (1 << profile.memory_slices) - 1
        return next((start for start in profile.starts if not slices << start & taken), None)

    patch(GpuGeometry, "first_start", first_start)


@planted(compare)
def knows_no_fraction_of_28_percent(patch: Patch) -> None:
    patch(IndexedPolicy, "offered", lambda self, spec: [p for p in spec.profiles if spec.alpha(p) != 28])


@planted(compare)
def prefers_the_tenants_own_room_always(patch: Patch) -> None:
    def place(self: ConspiratorPaper, demand: Demand, now_ns: int) -> Placement | Refusal:
        own = self.first_room(demand)
        return self.take(own, demand.share) if own is not None else self.refused(demand)

    patch(ConspiratorPaper, "place", place)


@planted(compare)
def never_finds_the_third_gpu(patch: Patch) -> None:
    put = FirstFit.put

    def late(self: FirstFit, slot: int, bits: int) -> None:
        put(self, slot, bits if slot != 2 else 0)

    patch(FirstFit, "put", late)


@planted(compare)
def forgets_the_model_that_a_job_asks_for(patch: Patch) -> None:
    mask = IndexedPolicy.mask
    patch(IndexedPolicy, "mask", lambda self, demand, wanted: mask(self, replace(demand, models=()), wanted))


@planted(compare)
def is_one_percent_short(patch: Patch) -> None:
    patch(IndexedPolicy, "room_mask", lambda self, demand: indexed.ALL_ROOMS >> demand.share + 1 << demand.share + 1)


@planted(resumed)
def forgets_when_jobs_were_placed(patch: Patch) -> None:
    patch(OldestGpuFirst, "state", IndexedPolicy.state)


@planted(resumed)
def turns_the_free_lanes_around(patch: Patch) -> None:
    restore = IndexedPolicy.restore

    def turned(self: IndexedPolicy, state: PolicyState) -> None:
        leases = tuple(replace(held, free_lanes=tuple(sorted(held.free_lanes))) for held in state.leases)
        restore(self, replace(state, leases=leases))

    patch(IndexedPolicy, "restore", turned)


@planted(resumed)
def counts_gpus_anew(patch: Patch) -> None:
    restore = IndexedPolicy.restore

    def anew(self: IndexedPolicy, state: PolicyState) -> None:
        restore(self, replace(state, joined=len(state.gpus)))

    patch(IndexedPolicy, "restore", anew)


@planted(advised)
def believes_a_plug_in_about_lanes(patch: Patch) -> None:
    def seat(self: IndexedPolicy, demand: Demand, lease: int, lane: int, now_ns: int) -> Placement | None:
        return Placement(lease, lane, False)

    patch(OldestGpuFirst, "seat", seat)


@planted(advised)
def believes_a_plug_in_about_places(patch: Patch) -> None:
    def vetted(self: IndexedPolicy, plan: LeasePlan, mask: int, opening: Opening) -> LeasePlan | None:
        return plan

    patch(OldestGpuFirst, "vetted", vetted)


@planted(advised)
def tells_a_plug_in_nothing_of_leases(patch: Patch) -> None:
    from offpath.sched.gpu.plugin import PluginPolicy

    def lease_lost(self: PluginPolicy, lease: int) -> None:
        self._builtin.lease_lost(lease)

    def lease_planned(self: PluginPolicy, lease: LeaseView) -> None:
        self._builtin.lease_planned(replace(lease, tenant="a"))

    patch(PluginPolicy, "lease_lost", lease_lost)
    patch(PluginPolicy, "lease_planned", lease_planned)


def found_by(find: Find) -> int | None:
    """The first seed at which the test fails, by an assertion of its own or of the code's."""
    for seed in range(SEEDS):
        try:
            find(seed)
        except (AssertionError, SchedError, LookupError):
            return seed
    return None


@pytest.mark.not_fast("a compiled caller does not see a replaced method")
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, find = BUGS[name]
    plant(monkeypatch.setattr)
    assert found_by(find) is not None, f"{name}: not found by {SEEDS} seeds"


@pytest.mark.parametrize("find", [rules, compare, resumed, advised])
def test_without_a_planted_bug_the_same_seeds_find_nothing(find: Find) -> None:
    assert found_by(find) is None


def test_a_gpu_of_no_slices_is_no_gpu() -> None:
    """What guards the index's positions."""
    policy = ConspiratorPaper()
    with pytest.raises(SchedError, match="33 slices; 32 at most"):
        policy.gpu_added(GpuSpec("g", "odd", 7, 33, ()))
