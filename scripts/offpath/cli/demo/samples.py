"""The demo's data: digits and a stretch of a trace, and the plan of jobs made from them."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

DATA: Final = Path(__file__).resolve().parent.parent / "data"
DIGITS: Final = "optdigits_test.npz"
TRACE: Final = "philly_stretch.csv"
TRAINED_ON: Final = 1000
PIXELS: Final = 64
MAX_IMAGES: Final = 2400
"""2 400 images of 64 float32 are 614 400 bytes."""
DEMANDS: Final = (14, 28, 42)
STAGES: Final = ("queued", "copy", "launch", "kernel", "back", "total")
"""Of an answered request, as `offpath.bindings.wire.header.Stages` explains them."""


@dataclass(frozen=True, slots=True)
class Digits:
    """Images uint8 [n, 64] of values 0..16, labels uint8 [n]; the model is not trained on the held-out part."""

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.uint8]
    held_images: NDArray[np.uint8]
    held_labels: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Job:
    """One row of the trace as a request: sent ``at_s`` after the start, with ``images`` digits and demand R."""

    job: int
    tenant: str
    at_s: float
    images: int
    demand: int

    @property
    def kernel(self) -> str:
        """The kernel that serves this demand."""
        return kernel_name(self.demand)


@dataclass(frozen=True, slots=True)
class Plan:
    """All jobs, by time; ``tenants`` maps each tenant's name to its key in the trace; ``span_s`` is the time that the
    jobs span there.
    """

    jobs: tuple[Job, ...]
    tenants: dict[str, str]
    span_s: int


def kernel_name(demand: int) -> str:
    """The demo's kernels are named by their demand."""
    return f"digits-{demand}"


@cache
def load_digits() -> Digits:
    """Read the sample and split it."""
    with np.load(DATA / DIGITS, allow_pickle=False) as packed:
        images, labels = packed["images"], packed["labels"]
    return Digits(images[:TRAINED_ON], labels[:TRAINED_ON], images[TRAINED_ON:], labels[TRAINED_ON:])


def provenance() -> dict[str, dict[str, str]]:
    """The source of each sample file."""
    entry: dict[str, dict[str, str]] = json.loads((DATA / "provenance.json").read_text("utf-8"))
    return entry


def load_plan(seconds: float, jobs: int | None = None) -> Plan:
    """The trace's first ``jobs`` rows (None: all) as requests within ``seconds``.

    Tenants are numbered by their jobs in the whole stretch, the most active first; ties by key.
    """
    with open(DATA / TRACE, encoding="ascii", newline="") as file:
        rows = list(csv.DictReader(file))
    active = Counter(row["vc"] for row in rows)
    names = {vc: f"tenant-{n}" for n, vc in enumerate(sorted(active, key=lambda vc: (-active[vc], vc)), 1)}
    rows = rows[:jobs]
    submitted = [int(row["submit_time_s"]) for row in rows]
    durations = np.array([float(row["duration_s"]) for row in rows])
    ranks = durations.argsort(kind="stable").argsort() + 1
    first, span = submitted[0], max(submitted[-1] - submitted[0], 1)
    planned = tuple(
        Job(
            job=number,
            tenant=names[row["vc"]],
            at_s=(submitted[number] - first) / span * seconds,
            images=max(1, int(ranks[number]) * MAX_IMAGES // len(rows)),
            demand=_demand(int(row["num_gpus"])),
        )
        for number, row in enumerate(rows)
    )
    return Plan(planned, {name: vc for vc, name in names.items()}, submitted[-1] - first)


def draw(seed: int, job: int, images: int) -> NDArray[np.intp]:
    """The held-out images that a job classifies: indices [images], with replacement; deterministic."""
    chosen: NDArray[np.intp] = np.random.default_rng([seed, job]).integers(
        0, len(load_digits().held_labels), images, dtype=np.intp
    )
    return chosen


def payload(indices: NDArray[np.intp]) -> NDArray[np.float32]:
    """A job's images: float32 [n, 64]."""
    images: NDArray[Any] = load_digits().held_images[indices]
    return images.astype(np.float32)


def _demand(num_gpus: int) -> int:
    return DEMANDS[0] if num_gpus < 2 else DEMANDS[1] if num_gpus < 8 else DEMANDS[2]
