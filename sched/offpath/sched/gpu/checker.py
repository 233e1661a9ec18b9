"""Checks an assignment against MinGPUCost's constraints and computes its cost, independently of solvers.

Implements MIG's rules and the paper's equations, without policies or solvers. Tests check every exact solution and
every simulator state with it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from offpath.sched.gpu.exact import LiveJob, Place
from offpath.sched.gpu.geometry import GpuSpec


@dataclass(frozen=True, slots=True)
class Tally:
    """Cost of an assignment: ``gpus`` in use (Σ Y), ``slices`` in percent of a GPU (Σ α y), ``migrated`` jobs (Σ δ),
    ``migration_cost`` (Σ m δ)."""

    gpus: int
    slices: int
    migrated: int
    migration_cost: int


def tally(gpus: Sequence[GpuSpec], jobs: Sequence[LiveJob], places: Mapping[int, Place]) -> Tally:
    """Cost of the assignment. Raises: KeyError: a job or a GPU is missing."""
    specs = {spec.gpu: spec for spec in gpus}
    used = {places[job.job] for job in jobs}
    slices = 0
    for gpu, name, _ in used:
        profile = specs[gpu].profile(name)
        assert profile is not None, name
        slices += specs[gpu].alpha(profile)
    moved = [job for job in jobs if job.place is not None and places[job.job] != job.place]
    return Tally(len({gpu for gpu, _, _ in used}), slices, len(moved), sum(job.migration_cost for job in moved))


def violations(gpus: Sequence[GpuSpec], jobs: Sequence[LiveJob], places: Mapping[int, Place]) -> list[str]:
    """One sentence per violated constraint; empty if the assignment is legal."""
    specs = {spec.gpu: spec for spec in gpus}
    by_place: dict[Place, list[LiveJob]] = defaultdict(list)
    broken = []
    for job in jobs:
        place = places.get(job.job)
        if place is None:
            broken.append(f"1a: job {job.job} has no place")
        elif place[0] not in specs or specs[place[0]].profile(place[1]) is None:
            broken.append(f"job {job.job} is on {place}, which does not exist")
        else:
            by_place[place].append(job)
    for place, on_it in by_place.items():
        broken += _of_fraction(specs[place[0]], place, on_it)
    for name, spec in specs.items():
        broken += _of_gpu(spec, [place for place in by_place if place[0] == name])
    return broken


def _of_fraction(spec: GpuSpec, place: Place, jobs: list[LiveJob]) -> list[str]:
    profile = spec.profile(place[1])
    assert profile is not None
    broken = []
    alpha = 100 * profile.compute_slices // spec.compute_slices
    if sum(job.share for job in jobs) > alpha:
        broken.append(f"1c: {[job.job for job in jobs]} need more than {alpha} % of {place}")
    if len({job.tenant for job in jobs}) > 1:
        broken.append(f"1h: {place} has several tenants: {sorted({job.tenant for job in jobs})}")
    if place[2] not in profile.starts:
        broken.append(f"{place} is not a legal start")
    for job in jobs:
        if job.model and job.model != spec.model:
            broken.append(f"job {job.job} requires {job.model}, {place[0]} is {spec.model}")
        if job.memory_bytes > profile.memory_bytes:
            broken.append(f"job {job.job} needs {job.memory_bytes} bytes, {place} has {profile.memory_bytes}")
        if job.share <= 0:
            broken.append(f"1b: job {job.job} has no demand")
    return broken


def _of_gpu(spec: GpuSpec, places: list[Place]) -> list[str]:
    taken: Counter[int] = Counter()
    compute = 0
    broken = []
    for _, name, start in places:
        profile = spec.profile(name)
        assert profile is not None
        taken.update(range(start, start + profile.memory_slices))
        compute += profile.compute_slices
    for name, count in Counter(name for _, name, _ in places).items():
        profile = spec.profile(name)
        if profile is not None and count > profile.max_instances:
            broken.append(f"{spec.gpu} has {count} instances of {name}")
    if compute > spec.compute_slices:
        broken.append(f"1d: {spec.gpu} has {compute} of {spec.compute_slices} compute slices in use")
    if any(count > 1 for count in taken.values()) or any(slice_ >= spec.memory_slices for slice_ in taken):
        broken.append(f"{spec.gpu}: instances overlap: {sorted(places)}")
    return broken
