"""Reads measured throughputs: MISO's iteration times on MIG instances, Gavel's pairs of jobs on whole GPUs.

Every row is checked; an error names the first invalid line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from offpath.bindings.errors import DeviceError
from offpath.bindings.mig import gpu_model
from offpath.cli.files.traces import TraceError, number, rows
from offpath.sched.gpu.rightsizing import Rate, ThroughputProfile

MISO_GPU: Final = "A100-40GB"
GAVEL_GPUS: Final = ("v100", "p100", "k80")
_SECONDS: Final = 1e9
_MOST_BATCH: Final = 1_000_000
_STEPS: Final = 1e9


def miso(path: str) -> list[ThroughputProfile]:
    """Iterations per second of each model and batch size, from the mean time of an iteration, in the file's order.

    Raises: TraceError: a profile that the GPU lacks, or twice; a model and batch size without the whole GPU.
    """
    gpu = gpu_model(MISO_GPU)
    found: dict[tuple[str, int], dict[str, Rate]] = defaultdict(dict)
    for line, row in rows(path, ("mig_profile", "model", "batch_size", "mean_iter_s")):
        try:
            profile = gpu.profile(row["mig_profile"])
        except DeviceError as fault:
            raise TraceError(f"{path}:{line}: {fault}") from None
        if not row["model"]:
            raise TraceError(f"{path}:{line}: model is {row['model']!r}")
        batch_size = number(path, line, row, "batch_size", 1, _MOST_BATCH)
        if batch_size % 1:
            raise TraceError(f"{path}:{line}: batch_size is {batch_size:g}, not a whole number")
        seconds = number(path, line, row, "mean_iter_s", 1 / _STEPS, _SECONDS)
        rates = found[row["model"], int(batch_size)]
        if any(rate.compute_slices == profile.compute_slices for rate in rates.values()):
            raise TraceError(f"{path}:{line}: {row['model']}, batch {batch_size:g}: {profile.name} twice")
        rates[profile.name] = Rate(profile.name, profile.compute_slices, 1 / seconds)
    if not found:
        raise TraceError(f"{path}: contains no measurement")
    return [
        _profile(path, model, batch_size, list(rates.values()), gpu.compute_slices)
        for (model, batch_size), rates in found.items()
    ]


def _profile(path: str, model: str, batch_size: int, rates: list[Rate], whole: int) -> ThroughputProfile:
    rates.sort(key=lambda rate: rate.compute_slices)
    if rates[-1].compute_slices != whole:
        raise TraceError(f"{path}: {model}, batch {batch_size}: not measured on the whole GPU")
    return ThroughputProfile(model, batch_size, tuple(rates))


def gavel_pairs(alone: str, together: str) -> dict[str, list[float | None]]:
    """Combined throughput of each pair of jobs on one whole GPU, by GPU (`GAVEL_GPUS`): the sum of both throughputs,
    each divided by the job's own throughput when alone; None: one of them made no progress. ``alone`` and ``together``
    are paths.

    Raises: TraceError: also if a job was measured alone twice, or is in a pair and was not measured alone.
    """
    own: dict[tuple[str, ...], float] = {}
    for line, key, (rate,) in _gavel(alone, ("",)):
        if key in own:
            raise TraceError(f"{alone}:{line}: {' on '.join(reversed(key))} twice")
        own[key] = rate
    sums: dict[str, list[float | None]] = {gpu: [] for gpu in GAVEL_GPUS}
    for line, (gpu, *jobs), rates in _gavel(together, ("_1", "_2")):
        if any(not own.get((gpu, job)) for job in jobs):
            raise TraceError(f"{together}:{line}: {' or '.join(jobs)} was not measured alone on {gpu}")
        parts = [rate / own[gpu, job] for job, rate in zip(jobs, rates, strict=True)]
        sums[gpu].append(sum(parts) if all(parts) else None)
    return sums


def _gavel(path: str, ends: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...], list[float]]]:
    """Line, GPU and jobs, steps per second; only jobs on one GPU."""
    columns = [f"{name}{end}" for end in ends for name in ("job_type", "scale_factor", "steps_per_s")]
    for line, row in rows(path, ("gpu_type", *columns)):
        scales = [number(path, line, row, f"scale_factor{end}", 1, _MOST_BATCH) for end in ends]
        if row["gpu_type"] in GAVEL_GPUS and set(scales) == {1}:
            jobs = [row[f"job_type{end}"] for end in ends]
            if not all(jobs):
                raise TraceError(f"{path}:{line}: a job without a name")
            yield (
                line,
                (row["gpu_type"], *jobs),
                [number(path, line, row, f"steps_per_s{end}", 0, _STEPS) for end in ends],
            )
