"""MinGPUCost without a cost of moving (ε2 = 0, as in Conspirator §4.2): selects fractions, then GPUs.

Without history GPUs of one kind are interchangeable, so no variable assigns a fraction to a GPU. The model counts how
often a tenant fills a fraction with which jobs, and how many GPUs are cut in each way that the geometry allows (38
maximal ones on seven slices). Both are patterns as in Gilmore and Gomory's cutting stock, whose relaxation is nearly
exact: instances with hundreds of GPUs are proven in seconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from offpath.sched.errors import SchedError
from offpath.sched.gpu.geometry import GpuGeometry, GpuSpec

Cut = tuple[tuple[str, int], ...]
"""The instances of one GPU: profile and start of each."""
Packed = dict[int, tuple[str, str, int]]
_MEDIA: Final = "+"
"""Marks the name of a profile with media engines."""
MOST_FILLINGS: Final = 50_000


class TooManyFillings(SchedError):
    """The tenant's jobs are too many and too small to enumerate the ways they fill a fraction."""


@lru_cache(maxsize=64)
def maximal_cuts(spec: GpuSpec) -> tuple[Cut, ...]:
    """The ways to cut a GPU to which no instance can be added: one per multiset of profiles, none contained in
    another."""
    geometry = GpuGeometry(spec)
    profiles = [p for p in spec.profiles if _MEDIA not in p.name]
    found: dict[tuple[tuple[str, int], ...], Cut] = {}
    seen: set[Cut] = set()

    def grow(cut: Cut) -> None:
        if cut in seen:
            return
        seen.add(cut)
        is_full = True
        for profile in profiles:
            for start in profile.starts:
                if geometry.allows(profile, start):
                    is_full = False
                    geometry.take(len(cut), profile, start)
                    grow(tuple(sorted((*cut, (profile.name, start)))))
                    geometry.give_back(len(cut))
                    if all(p.memory_slices == 1 for p in profiles):
                        break  # the paper's model: equal fractions are interchangeable
        if is_full:
            found.setdefault(tuple(sorted(Counter(name for name, _ in cut).items())), cut)

    grow(())
    counted = [(Counter(dict(key)), cut) for key, cut in found.items()]
    return tuple(cut for count, cut in counted if not any(count < other for other, _ in counted))


@dataclass(slots=True)
class _Kind:
    """GPUs with the same geometry: their names, the ways to cut them, and how many are cut each way."""

    spec: GpuSpec
    names: list[str]
    cuts: tuple[Cut, ...]
    counts: list[Any]


Instance = tuple[int, str]
"""Kind of GPU, and profile."""
_Filling = tuple[tuple[int, int], ...]
"""Jobs in one fraction: class and count."""


class PackingModel:
    """Variables and constraints for `exact.solve`; ``classes`` are its classes of jobs (tenant, share, model, memory,
    …) with their members."""

    def __init__(
        self, cp_model: Any, gpus: Sequence[GpuSpec], classes: dict[Any, list[int]], gpu_cost: int, slice_cost: int
    ) -> None:
        """Raises: TooManyFillings."""
        self.model = cp_model.CpModel()
        self._classes = list(classes.items())
        self._kinds = self._kinds_of(gpus)
        self._filled: list[tuple[_Filling, frozenset[Instance], Any]] = []
        """A filling, the instances that hold it, and its number of uses."""
        by_tenant: dict[str, list[int]] = defaultdict(list)
        for c, (key, _) in enumerate(self._classes):
            by_tenant[key[0]].append(c)
        for mine in by_tenant.values():
            self._fill(mine)
        self._cut = self._cover()
        gpus_used = sum(count for kind in self._kinds for count in kind.counts)
        slices = sum(self._alpha(instance) * count for (_, instance), count in self._cut.items())
        self.model.minimize(gpu_cost * gpus_used + slice_cost * slices)

    def _kinds_of(self, gpus: Sequence[GpuSpec]) -> list[_Kind]:
        kinds: dict[Any, _Kind] = {}
        for spec in gpus:
            key = (spec.model, spec.compute_slices, spec.memory_slices, spec.profiles)
            if key not in kinds:
                kinds[key] = _Kind(spec, [], maximal_cuts(spec), [])
            kinds[key].names.append(spec.gpu)
        for k, kind in enumerate(kinds.values()):
            many = len(kind.names)
            kind.counts = [self.model.new_int_var(0, many, f"cut{k}.{n}") for n in range(len(kind.cuts))]
            self.model.add(sum(kind.counts) <= many)
        return list(kinds.values())

    def _alpha(self, instance: Instance) -> int:
        spec = self._kinds[instance[0]].spec
        profile = spec.profile(instance[1])
        assert profile is not None
        return spec.alpha(profile)

    def _holding(self, filling: _Filling) -> frozenset[Instance]:
        """The instances that hold these jobs together."""
        keys = [self._classes[c][0] for c, _ in filling]
        load = sum(self._classes[c][0][1] * count for c, count in filling)
        models = {key[2] for key in keys if key[2]}
        memory = max(key[3] for key in keys)
        return frozenset(
            (k, profile.name)
            for k, kind in enumerate(self._kinds)
            if models <= {kind.spec.model}
            for profile in kind.spec.profiles
            if _MEDIA not in profile.name and kind.spec.alpha(profile) >= load and profile.memory_bytes >= memory
        )

    def _fill(self, mine: list[int]) -> None:
        """Enumerate the ways to fill a fraction with jobs of the tenant; of those that fit the same instances, keep
        only full ones."""
        fillings: list[_Filling] = [()]
        for c in mine:
            share, members = self._classes[c][0][1], self._classes[c][1]
            for filling in list(fillings):
                left = 100 - sum(self._classes[of][0][1] * count for of, count in filling)
                fillings += [(*filling, (c, n)) for n in range(1, min(len(members), left // share) + 1)]
            if len(fillings) > MOST_FILLINGS:
                raise TooManyFillings(f"more than {MOST_FILLINGS} ways to fill a fraction")
        holding = {filling: self._holding(filling) for filling in fillings[1:]}
        used = []
        for filling, instances in holding.items():
            if instances and not any(holding.get(more) == instances for more in self._with_one_more(filling, mine)):
                most = max(len(self._classes[c][1]) for c, _ in filling)  # more uses would contain none of these jobs
                used.append((filling, instances, self.model.new_int_var(0, most, f"fill{filling}")))
        for c in mine:  # 1a; a surplus is harmless: `places` drops it
            filled = sum(count * times for filling, _, times in used for of, count in filling if of == c)
            self.model.add(filled >= len(self._classes[c][1]))
        self._filled += used

    def _with_one_more(self, filling: _Filling, mine: list[int]) -> Iterator[_Filling]:
        counts = dict(filling)
        for c in mine:
            if counts.get(c, 0) < len(self._classes[c][1]):
                more = {**counts, c: counts.get(c, 0) + 1}
                yield tuple((of, more[of]) for of in mine if of in more)

    def _cover(self) -> dict[tuple[frozenset[Instance], Instance], Any]:
        """Require an instance for each filling (1d, and the geometry). Returns how many fillings of the same set of
        instances each of these takes."""
        wanted: dict[frozenset[Instance], list[Any]] = defaultdict(list)
        for _, instances, times in self._filled:
            wanted[instances].append(times)
        jobs = sum(len(members) for _, members in self._classes)
        cut = {
            (instances, instance): self.model.new_int_var(0, jobs, f"cut{n}.{instance}")
            for n, instances in enumerate(wanted)
            for instance in sorted(instances)
        }
        for instances, times in wanted.items():
            self.model.add(sum(cut[instances, instance] for instance in instances) == sum(times))
        for k, kind in enumerate(self._kinds):
            for name in {profile.name for profile in kind.spec.profiles}:
                taken = [count for (_, instance), count in cut.items() if instance == (k, name)]
                offered = [
                    sum(each == name for each, _ in way) * count
                    for way, count in zip(kind.cuts, kind.counts, strict=True)
                ]
                if taken:
                    self.model.add(sum(taken) <= sum(offered))
        return cut

    def places(self, solver: Any) -> Packed:
        """The place of each job: assigns the ways to cut to GPUs, and the fillings to their instances."""
        free: dict[Instance, list[tuple[str, str, int]]] = defaultdict(list)
        for k, kind in enumerate(self._kinds):
            names = iter(kind.names)
            for way, count in zip(kind.cuts, kind.counts, strict=True):
                for _ in range(solver.value(count)):
                    gpu = next(names)
                    for name, start in way:
                        free[k, name].append((gpu, name, start))
        given: dict[frozenset[Instance], list[tuple[str, str, int]]] = defaultdict(list)
        for (instances, instance), count in self._cut.items():
            for _ in range(solver.value(count)):
                given[instances].append(free[instance].pop(0))
        waiting = [list(members) for _, members in self._classes]
        places: Packed = {}
        for filling, instances, times in self._filled:
            for _ in range(solver.value(times)):
                place = given[instances].pop(0)
                for c, count in filling:
                    for job in [waiting[c].pop() for _ in range(min(count, len(waiting[c])))]:
                        places[job] = place
        return places
