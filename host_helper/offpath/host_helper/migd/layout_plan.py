"""What a layout means for one GPU: whether it is applied, what would be destroyed and created, and where.

Pure: no file, no socket. The order of creation does not matter, because every instance is created at a given place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from offpath.host_helper.migd.errors import LayoutImpossible
from offpath.host_helper.migd.layout_file import LayoutEntry
from offpath.host_helper.migd.protocol import Gpu, GpuLine, InstanceLine, ProfileLine

_MEDIA: Final = "+me"
_MOST_STEPS: Final = 200_000
Place = tuple[str, int]
"""Profile and start."""


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """``keep``: instances that are part of the layout already. ``destroy`` comes before ``create``."""

    gpu: GpuLine
    keep: tuple[InstanceLine, ...]
    destroy: tuple[InstanceLine, ...]
    create: tuple[Place, ...]

    @property
    def is_applied(self) -> bool:
        """The GPU has the layout."""
        return not self.destroy and not self.create


def is_applied(found: Gpu, wanted: LayoutEntry) -> bool:
    """Whether the GPU has the entry's mode and counts, and its starts where it names them. An entry that counts a
    profile with 0 never matches, as with mig-parted."""
    if not has_mode(found, wanted):
        return False
    if not wanted.mig_enabled:
        return True
    counts = Counter(line.profile for line in found.instances)
    if dict(counts) != dict(wanted.mig_devices or {}):
        return False
    if wanted.starts is None:
        return True
    there = sorted((line.profile, line.start) for line in found.instances)
    return there == sorted((name, start) for name, starts in wanted.starts.items() for start in starts)


def has_mode(found: Gpu, wanted: LayoutEntry) -> bool:
    """Whether MIG is on or off as the entry says, with no change pending."""
    return found.gpu.mig in (("on",) if wanted.mig_enabled else ("off", "unsupported"))


def plan(found: Gpu, wanted: LayoutEntry) -> GpuPlan:
    """How to get from what is there to the layout. Instances of the layout stay where they are, if the rest still fits.

    Raises: LayoutImpossible: the mode differs, a profile is unknown, or the instances do not fit the GPU.
    """
    if not has_mode(found, wanted):
        order = "1" if wanted.mig_enabled else "0"
        raise LayoutImpossible(
            f"{found.gpu.uuid}: MIG is {found.gpu.mig}; offpath never changes it: "
            f"nvidia-smi -i {found.gpu.index} -mig {order}, and reset the GPU"
        )
    if not wanted.mig_enabled:
        return GpuPlan(found.gpu, (), (), ())
    profiles = {line.name: line for line in found.profiles}
    counts = {name: count for name, count in (wanted.mig_devices or {}).items() if count}
    if unknown := sorted(set(counts) - set(profiles)):
        raise LayoutImpossible(f"{found.gpu.uuid} has no profile {', '.join(unknown)}; it has {', '.join(profiles)}")
    if wanted.starts is not None:
        places = [(name, start) for name, starts in wanted.starts.items() for start in starts]
        if not _fit(places, profiles):
            raise LayoutImpossible(f"{found.gpu.uuid}: the starts are illegal, overlap, or exceed the GPU")
    else:
        places = _places(found, counts, profiles)
    return _difference(found, places)


def _places(found: Gpu, counts: Mapping[str, int], profiles: Mapping[str, ProfileLine]) -> list[Place]:
    """Places for the counts. Instances that are there stay where they are, if the others then still fit."""
    kept: list[Place] = []
    left = Counter(counts)
    for line in found.instances:
        if left[line.profile] > 0:
            left[line.profile] -= 1
            kept.append((line.profile, line.start))
    for fixed in (kept, []):
        wanted = Counter(counts)
        wanted.subtract(name for name, _ in fixed)
        order = sorted(wanted.elements(), key=lambda name: (-profiles[name].memory_slices, name))
        chosen = _search(order, list(fixed), profiles, [0], None)
        if chosen is not None:
            return chosen
    shown = ", ".join(f"{count} x {name}" for name, count in sorted(counts.items()))
    raise LayoutImpossible(f"{found.gpu.uuid}: {shown} do not fit this GPU together")


def _search(
    order: Sequence[str], placed: list[Place], profiles: Mapping[str, ProfileLine], steps: list[int],
    last: Place | None,
) -> list[Place] | None:  # fmt: skip
    """The first legal placement of ``order`` beside ``placed``, by depth first search. Raises: LayoutImpossible: none
    was found within a bounded number of steps."""
    if not _fit(placed, profiles):
        return None
    if not order:
        return placed
    steps[0] += 1
    if steps[0] > _MOST_STEPS:
        raise LayoutImpossible("no placement was found within the search's limit; name the starts in offpath-starts")
    name = order[0]
    # Equal profiles are placed in ascending order: another order is the same layout.
    after = last[1] if last is not None and last[0] == name else -1
    for start in profiles[name].starts:
        place = (name, start)
        if start > after and (found := _search(order[1:], [*placed, place], profiles, steps, place)) is not None:
            return found
    return None


def _fit(places: Sequence[Place], profiles: Mapping[str, ProfileLine]) -> bool:
    """MIG's rules: legal starts, disjoint memory slices, compute slices, maxima, one media extension."""
    taken: set[int] = set()
    for name, start in places:
        if start not in profiles[name].starts:
            return False
        slices = set(range(start, start + profiles[name].memory_slices))
        if taken & slices:
            return False
        taken |= slices
    counts = Counter(name for name, _ in places)
    total = max((line.compute_slices for line in profiles.values()), default=0)
    return (
        sum(profiles[name].compute_slices * count for name, count in counts.items()) <= total
        and all(count <= profiles[name].max_instances for name, count in counts.items())
        and sum(count for name, count in counts.items() if name.endswith(_MEDIA)) <= 1
    )


def _difference(found: Gpu, places: Sequence[Place]) -> GpuPlan:
    missing = Counter(places)
    keep, destroy = [], []
    for line in found.instances:
        place = (line.profile, line.start)
        if missing[place] > 0 and line.compute_instances:
            missing[place] -= 1
            keep.append(line)
        else:
            destroy.append(line)
    return GpuPlan(found.gpu, tuple(keep), tuple(destroy), tuple(sorted(missing.elements())))
