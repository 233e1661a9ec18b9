"""Time-sharing, the baseline without isolation: GPU-hours if jobs of any tenants took turns on whole GPUs.

Conspirator mentions time-multiplexing as a way to share a GPU (§2.3) but does not measure it; this is its best case.

- A job that wants R percent has the whole GPU for R percent of the turns, and progresses as with R percent of the GPU
  all the time. This assumes jobs that speed up in proportion to their part of the GPU, which figure 2 refutes: if a job
  is no faster on a whole GPU than on R percent, Σ R ≤ 100 does not help, and turns cost the GPU-hours of `exclusive`.
  Real time-sharing lies between the two.
- Switching turns takes no time, and the states of all jobs on a GPU fit into its memory together.
- First fit over GPUs while Σ R ≤ 100, independent of tenants; no job waits or moves.

Turns isolate neither memory nor faults, so two tenants on one GPU violate equations 1g and 1h and the job book's
guarantee. This is therefore not a policy: it is computed from the stream, outside the book, and also counts the
GPU-hours in which a GPU has several tenants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from offpath.sched.sim.accounting import GpuHours, Meter
from offpath.sched.sim.workload import Stream


@dataclass(frozen=True, slots=True)
class TimeShared:
    """``hours``: whole GPUs, so slices are the same. ``curve``: active and slice GPU-hours so far, at each requested
    time. ``mixed``: GPU-hours in which a GPU has jobs of several tenants."""

    hours: GpuHours
    curve: list[tuple[float, float]]
    mixed: float


@dataclass(slots=True)
class _Gpu:
    """Percent of the turns that are free, and jobs by tenant."""

    name: str
    room: int = 100
    jobs: Counter[str] = field(default_factory=Counter)


class _Turns:
    """All GPUs, by position."""

    def __init__(self, begin_ns: int, end_ns: int) -> None:
        self.meter = Meter(begin_ns, end_ns)
        self.mixed = Meter(begin_ns, end_ns)
        self._gpus: list[_Gpu] = []

    def begin(self, now_ns: int, tenant: str, share: int) -> _Gpu:
        """Start on the first GPU with enough free turns."""
        gpu = next((gpu for gpu in self._gpus if gpu.room >= share), None)
        if gpu is None:
            gpu = _Gpu(f"gpu-{len(self._gpus)}")
            self._gpus.append(gpu)
        before = len(gpu.jobs)
        gpu.room -= share
        gpu.jobs[tenant] += 1
        self._counted(now_ns, gpu, before, share)
        return gpu

    def end(self, now_ns: int, gpu: _Gpu, tenant: str, share: int) -> None:
        """Free the job's turns."""
        before = len(gpu.jobs)
        gpu.room += share
        gpu.jobs[tenant] -= 1
        if not gpu.jobs[tenant]:
            del gpu.jobs[tenant]
        self._counted(now_ns, gpu, before, -share)

    def _counted(self, now_ns: int, gpu: _Gpu, tenants_before: int, share: int) -> None:
        self.meter.placed(now_ns, share)
        for meter, least in ((self.meter, 1), (self.mixed, 2)):
            if tenants_before < least <= len(gpu.jobs):
                meter.held(now_ns, gpu.name, 100)
            elif len(gpu.jobs) < least <= tenants_before:
                meter.freed(now_ns, gpu.name, 100)


_END, _BEGIN, _ASK = range(3)
"""Order of events at the same time."""


def time_shared(stream: Stream, moments: Sequence[int] = ()) -> TimeShared:
    """Run the stream by first fit; ``moments`` in ns, ascending."""
    steps = [(moment, _ASK, 0, 0) for moment in moments]
    for row, job in enumerate(stream.jobs):
        for piece in range(max(1, job.share // 100) if job.duration_ns else 0):
            steps.append((job.submit_ns, _BEGIN, row, piece))
            steps.append((job.submit_ns + job.duration_ns, _END, row, piece))
    turns = _Turns(stream.begin_ns, stream.end_ns)
    where: dict[tuple[int, int], _Gpu] = {}
    curve = []
    for at, kind, row, piece in sorted(steps):
        if kind == _ASK:
            so_far = turns.meter.total(at)
            curve.append((so_far.active, so_far.slices))
            continue
        job = stream.jobs[row]
        share = min(job.share, 100)
        if kind == _BEGIN:
            where[row, piece] = turns.begin(at, job.tenant, share)
        else:
            turns.end(at, where.pop((row, piece)), job.tenant, share)
    return TimeShared(turns.meter.total(stream.end_ns), curve, turns.mixed.total(stream.end_ns).active)
