"""MIG geometry: fractions α and the placement rules of one GPU.

An instance occupies the memory slices [start, start + memory_slices). A set of instances is legal iff those ranges are
disjoint, compute slices sum to at most the GPU's, and no profile exceeds its count (NVIDIA MIG User Guide). The table
of profiles comes as records from the GPU port.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from offpath.sched.errors import IllegalPlacement

Slice = tuple[str, int]
"""A memory slice: GPU and index."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One MIG profile: the slices it takes, its memory in bytes, and its legal starts. ``rated_bytes``: the memory of a
    real instance, where an emulated one has less; 0: as ``memory_bytes``."""

    name: str
    compute_slices: int
    memory_slices: int
    memory_bytes: int
    starts: tuple[int, ...]
    max_instances: int
    rated_bytes: int = 0

    @property
    def job_bytes(self) -> int:
        """The memory that jobs' demands are compared with. Lanes are reserved from ``memory_bytes``."""
        return self.rated_bytes or self.memory_bytes


WHOLE: Final = "whole"
"""The name by which helpers offer the profile of a GPU that is not divided."""


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU as reported by its helper, whose name is ``helper``. ``links``: number of NVLinks to others of its GPUs,
    by name."""

    gpu: str
    model: str
    compute_slices: int
    memory_slices: int
    profiles: tuple[Profile, ...]
    helper: str = ""
    links: tuple[tuple[str, int], ...] = ()

    @property
    def whole(self) -> Profile | None:
        """The only profile of a GPU that is not divided; None: it is in MIG mode, where an instance may be as large."""
        if len(self.profiles) != 1:
            return None
        (only,) = self.profiles
        is_all = (only.compute_slices, only.memory_slices) == (self.compute_slices, self.memory_slices)
        return only if only.name == WHOLE and is_all and only.starts == (0,) else None

    def profile(self, name: str) -> Profile | None:
        """The profile of that name, or None."""
        return next((p for p in self.profiles if p.name == name), None)

    def alpha(self, profile: Profile) -> int:
        """Fraction α in percent, ⌊100 · slices / total⌋ (Conspirator Table 3: 14, 28, 42, 57, 100)."""
        return 100 * profile.compute_slices // self.compute_slices


@dataclass(frozen=True, slots=True)
class Held:
    """An instance on the GPU."""

    profile: Profile
    start: int
    mask: int = field(init=False)
    """Its memory slices, one bit each."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mask", (1 << self.profile.memory_slices) - 1 << self.start)

    @property
    def slices(self) -> range:
        """Memory slices it occupies."""
        return range(self.start, self.start + self.profile.memory_slices)


class GpuGeometry:
    """The instances that one GPU holds, by lease id."""

    def __init__(self, spec: GpuSpec) -> None:
        self.spec = spec
        self.held: dict[int, Held] = {}

    def allows(self, profile: Profile, start: int, assume_free: frozenset[int] = frozenset()) -> bool:
        """True if the instance may be created, assuming that the leases in ``assume_free`` are gone."""
        if start not in profile.starts:
            return False
        others = [held for lease, held in self.held.items() if lease not in assume_free]
        if sum(h.profile.compute_slices for h in others) + profile.compute_slices > self.spec.compute_slices:
            return False
        if sum(h.profile.name == profile.name for h in others) >= profile.max_instances:
            return False
        end = start + profile.memory_slices
        return all(end <= h.start or h.start + h.profile.memory_slices <= start for h in others)

    def first_start(
        self,
        profile: Profile,
        assume_free: frozenset[int] = frozenset(),
        reserved: frozenset[Slice] = frozenset(),
    ) -> int | None:
        """The lowest legal start that takes no ``reserved`` slice, or None. Equals `allows`, but checks what does not
        depend on the start only once."""
        others: Iterable[Held] = self.held.values()
        if assume_free:
            others = [held for lease, held in self.held.items() if lease not in assume_free]
        compute, same, taken = profile.compute_slices, 0, 0
        for held in others:
            compute += held.profile.compute_slices
            same += held.profile.name == profile.name
            taken |= held.mask
        if compute > self.spec.compute_slices or same >= profile.max_instances:
            return None
        for gpu, number in reserved:
            if gpu == self.spec.gpu:
                taken |= 1 << number
        slices = (1 << profile.memory_slices) - 1
        return next((start for start in profile.starts if not slices << start & taken), None)

    def take(self, lease: int, profile: Profile, start: int) -> None:
        """Add the instance. Raises: IllegalPlacement: MIG would refuse it."""
        if lease in self.held or not self.allows(profile, start):
            raise IllegalPlacement(f"lease {lease}: {profile.name} at {start} on {self.spec.gpu}")
        self.held[lease] = Held(profile, start)

    def give_back(self, lease: int) -> None:
        """Remove the instance; idempotent."""
        self.held.pop(lease, None)


def take_all(geometries: list[GpuGeometry], lease: int, profile: str, start: int) -> None:
    """Add the same instance on each GPU, or on none. Raises: IllegalPlacement: MIG would refuse it on one of them."""
    for number, geometry in enumerate(geometries):
        known = geometry.spec.profile(profile)
        assert known is not None, "the book plans only what the GPU offers"
        try:
            geometry.take(lease, known, start)
        except IllegalPlacement:
            for taken in geometries[:number]:
                taken.give_back(lease)
            raise


Kind = tuple[str, str, int, int, int, str]
"""Model and name, α in percent, bytes for lanes and for jobs, the GPU's helper: the properties of an instance that
matter to a demand."""


def kind_of(spec: GpuSpec, profile: Profile) -> Kind:
    """The kind of the GPU's instances of this profile."""
    return spec.model, profile.name, spec.alpha(profile), profile.memory_bytes, profile.job_bytes, spec.helper
