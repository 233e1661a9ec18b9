"""Finds few migrations that free GPUs: an inexpensive approximation of the migration part of MinGPUCost.

A GPU can be emptied if every job on it may move and fits on another GPU in use: in room of its tenant there, else in a
new instance. The least used GPUs are tried first, large jobs are placed first, the fullest GPU takes them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from offpath.sched.gpu.exact import LiveJob, Place
from offpath.sched.gpu.geometry import GpuGeometry, GpuSpec


class _Board:
    """Instances and jobs of the GPUs in use; moves are tried on it and reverted."""

    def __init__(self, gpus: Sequence[GpuSpec], jobs: Sequence[LiveJob]) -> None:
        self.specs = {spec.gpu: spec for spec in gpus}
        self.on: dict[Place, list[LiveJob]] = defaultdict(list)
        self.geometry: dict[str, GpuGeometry] = {}
        self._leases: dict[Place, int] = {}
        self._next = 0
        for job in jobs:
            assert job.place is not None
            self.put(job, job.place)

    def put(self, job: LiveJob, place: Place) -> None:
        """Add the job; creates its instance if needed."""
        if place not in self._leases:
            gpu, name, start = place
            geometry = self.geometry.setdefault(gpu, GpuGeometry(self.specs[gpu]))
            profile = self.specs[gpu].profile(name)
            assert profile is not None
            geometry.take(self._next, profile, start)
            self._leases[place] = self._next
            self._next += 1
        self.on[place].append(job)

    def take(self, job: LiveJob, place: Place) -> None:
        """Remove the job; the instance is destroyed with its last job."""
        self.on[place].remove(job)
        if not self.on[place]:
            del self.on[place]
            self.geometry[place[0]].give_back(self._leases.pop(place))

    def used(self, gpu: str) -> int:
        """Compute slices in use."""
        return sum(held.profile.compute_slices for held in self.geometry[gpu].held.values())

    def jobs_on(self, gpu: str) -> list[tuple[LiveJob, Place]]:
        """Jobs on the GPU, with their places."""
        return [(job, place) for place, jobs in self.on.items() if place[0] == gpu for job in jobs]

    def find(self, job: LiveJob, besides: str) -> Place | None:
        """Find a place on another GPU in use."""
        best: tuple[int, Place] | None = None
        for place, jobs in self.on.items():
            if place[0] == besides or jobs[0].tenant != job.tenant or not self._suits(job, place):
                continue
            spec = self.specs[place[0]]
            profile = spec.profile(place[1])
            assert profile is not None
            room = spec.alpha(profile) - sum(each.share for each in jobs) - job.share
            if room >= 0 and (best is None or room < best[0]):
                best = room, place
        return best[1] if best is not None else self._cut(job, besides)

    def _suits(self, job: LiveJob, place: Place) -> bool:
        spec = self.specs[place[0]]
        profile = spec.profile(place[1])
        return job.model in ("", spec.model) and profile is not None and profile.memory_bytes >= job.memory_bytes

    def _cut(self, job: LiveJob, besides: str) -> Place | None:
        for gpu in sorted((g for g in self.geometry if g != besides and self.used(g)), key=lambda g: -self.used(g)):
            spec = self.specs[gpu]
            for profile in sorted(spec.profiles, key=lambda p: (p.compute_slices, p.memory_slices)):
                if "+" in profile.name or spec.alpha(profile) < job.share:
                    continue
                start = self.geometry[gpu].first_start(profile)
                if start is not None and self._suits(job, (gpu, profile.name, start)):
                    return gpu, profile.name, start
        return None


def consolidate(gpus: Sequence[GpuSpec], jobs: Sequence[LiveJob], movable: Collection[int]) -> dict[int, Place]:
    """Return new places of the ``movable`` jobs that must move to free as many GPUs as this finds; each moves at most
    once.

    ``jobs``: all running jobs, each with its place. O(GPUs in use squared, times jobs).
    """
    board = _Board(gpus, jobs)
    moves: dict[int, Place] = {}
    may = set(movable)
    while True:
        emptied = next((found for gpu in _by_size(board, may) if (found := _emptied(board, gpu)) is not None), None)
        if emptied is None:
            return moves
        moves |= emptied
        may -= emptied.keys()


def _by_size(board: _Board, may: set[int]) -> list[str]:
    """GPUs in use on which every job may move, least used first."""
    gpus = [gpu for gpu in board.geometry if board.used(gpu)]
    whole = [gpu for gpu in gpus if all(job.job in may for job, _ in board.jobs_on(gpu))]
    return sorted(whole, key=lambda gpu: (board.used(gpu), len(board.jobs_on(gpu))))


def _emptied(board: _Board, gpu: str) -> dict[int, Place] | None:
    """Return the moves that empty this GPU, applied to the board; None if impossible, with the board unchanged."""
    moves: list[tuple[LiveJob, Place, Place]] = []
    for job, place in sorted(board.jobs_on(gpu), key=lambda each: -each[0].share):
        target = board.find(job, gpu)
        if target is None:
            for moved, old, new in reversed(moves):
                board.take(moved, new)
                board.put(moved, old)
            return None
        board.take(job, place)
        board.put(job, target)
        moves.append((job, place, target))
    return {job.job: target for job, _, target in moves}
