"""A synthetic population of devices with published statistics, and its check-ins day by day.

FedScale's sessions, which the paper replays, are not published. Published are the number of clients, sessions for each,
their mean length, and mean and range of the network's speed (`venn.json`); the classes of devices and their speeds are
those of AI-Benchmark. Invented, and therefore parameters (`Shape`): how sessions follow the hour, how much clients
differ, how session lengths and networks are distributed.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np

from offpath.cli.demo.samples import DATA
from offpath.sched.collab.records import DAY_NS
from offpath.sched.collab.requirements import Properties
from offpath.sched.sim.collab_records import Day, Devices

SPEED: Final = "speed"
"""The property by which tiers are made: samples in 1 000 s."""
S: Final = 10**9
DAY_S: Final = 86_400
NOMINAL_MS: Final = 78.0
"""Milliseconds for each sample of the mean client; work and network are counted by it (the authors' simulator)."""
NETWORK_S: Final = 20.0
"""Down and up, of the mean client."""


@dataclass(frozen=True, slots=True)
class Shape:
    """``diurnal``: sessions begin in proportion to 1 + diurnal · cos of the hour; 0 to 1. ``activity``: shape of the
    gamma distribution of sessions by client; larger: more alike. ``session_sigma``, ``network_sigma``: of log-normal
    distributions, in natural logarithms."""

    diurnal: float = 0.5
    activity: float = 1.0
    session_sigma: float = 1.5
    network_sigma: float = 1.0


@cache
def published() -> dict[str, Any]:
    """The shipped file."""
    found: dict[str, Any] = json.loads((DATA / "venn.json").read_text("utf-8"))
    return found


def properties(eligible: list[int], speed: int) -> Properties:
    """Of a device of a class: 1 general, 2 compute-rich, 3 memory-rich, 4 both (figure 8a)."""
    return Properties.of({
        "android": 6 if 1 in eligible else 5, "cpu_f": 7 if 2 in eligible else 6, "fp16": 1_000 if 3 in eligible else 0,
        SPEED: speed,
    })  # fmt: skip


class Population:
    """``clients`` devices, drawn by the seed. `day` may be called in any order; equal calls give equal days."""

    def __init__(self, clients: int, seed: int, shape: Shape) -> None:
        self._seed, self._shape = seed, shape
        facts = published()["population"]
        random = np.random.default_rng([seed, 1])
        kinds, weights, ms = [], [], []
        for each in published()["classes"]:
            models = sum(count for _, count in each["ms_per_sample"])
            for speed_ms, count in each["ms_per_sample"]:
                kinds.append(properties(each["eligible"], 1_000_000 // speed_ms))
                weights.append(each["devices"] * count / models)
                ms.append(speed_ms)
        chances = np.array(weights) / sum(weights)
        kind = random.choice(len(kinds), clients, p=chances).astype(np.int32)
        sigma = shape.network_sigma
        kbps = random.lognormal(math.log(facts["mean_kbps"]) - sigma**2 / 2, sigma, clients)
        kbps = np.clip(kbps, facts["least_kbps"], facts["most_kbps"])
        self.devices = Devices(
            tuple(kinds), kind, (np.array(ms)[kind] / NOMINAL_MS * S).astype(np.int64),
            (NETWORK_S * facts["mean_kbps"] / kbps * S).astype(np.int64),
        )  # fmt: skip
        self._sessions = facts["sessions_per_client"] / (facts["mean_finish_s"] / DAY_S) * clients
        self._mean_s = facts["mean_active_s"] / facts["sessions_per_client"]
        activity = random.gamma(shape.activity, 1.0, clients)
        self._activity = np.cumsum(activity / activity.sum())

    def day(self, number: int) -> Day:
        """The sessions that begin on that day."""
        random, shape = np.random.default_rng([self._seed, 2, number]), self._shape
        count = int(random.poisson(self._sessions))
        at = _hours(random.random(count), shape.diurnal)
        order = np.argsort(at, kind="stable")
        times = (number * DAY_NS + at * DAY_NS).astype(np.int64)[order]
        device = np.searchsorted(self._activity, random.random(count) * self._activity[-1]).astype(np.int32)[order]
        sigma = shape.session_sigma
        lasts = random.lognormal(math.log(self._mean_s) - sigma**2 / 2, sigma, count) * S
        return Day(times, device, times + lasts.astype(np.int64)[order])


def _hours(uniform: Any, diurnal: float) -> Any:
    """Times of day from 0 to 1 with density 1 + diurnal · cos(2π t), by a table of its integral."""
    grid = np.linspace(0.0, 1.0, 1_441)
    return np.interp(uniform, grid + diurnal * np.sin(2 * np.pi * grid) / (2 * np.pi), grid)
