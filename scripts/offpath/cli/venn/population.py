"""A synthetic population of devices with published statistics, and its check-ins day by day.

FedScale's sessions, which the paper replays, are not published. Published are the number of clients, sessions for each,
their mean length, and mean and range of the network's speed (`venn.json`); the classes of devices and their speeds are
those of AI-Benchmark. The authors' program makes each session of the trace a device of its own, which works once, and
repeats the trace every five days. So does this: "each unique device trace is limited to one CL job per day" (§5.1).
Invented, and therefore parameters (`Shape`): how many sessions there are in the five days and how many of them are one
device's, how they follow the hour, how their lengths and the networks are distributed.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Final

import numpy as np

from offpath.cli.demo.samples import DATA
from offpath.sched.collab.records import DAY_NS
from offpath.sched.collab.requirements import Properties
from offpath.sched.sim.collab_records import Day, Devices

SPEED: Final = "speed"
"""The property by which tiers are made: samples in 1 000 s."""
S: Final = 10**9
NOMINAL_MS: Final = 78.0
"""Milliseconds for each sample of the mean client; work and network are counted by it (the authors' simulator)."""
NETWORK_S: Final = 20.0
"""Down and up, of the mean client."""
PERIOD_DAYS: Final = 5
LONGER_S: Final = 80
"""Each session, than in the trace (the authors' simulator)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """``supply``: sessions in five days, by those of the whole trace. ``sessions_per_device``: in five days; a device
    works once a day. ``diurnal``: sessions begin in proportion to 1 + diurnal · cos of the hour; 0 to 1.
    ``session_sigma``, ``network_sigma``: of log-normal distributions, in natural logarithms."""

    supply: float = 1.0
    sessions_per_device: float = 1.0
    diurnal: float = 0.5
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


def sessions_of(clients: int) -> int:
    """Of so many of the trace's clients: those that are repeated every five days."""
    return round(clients * float(published()["population"]["sessions_per_client"]))


class Population:
    """The sessions of ``clients`` clients, drawn by the seed. `day` may be called in any order."""

    def __init__(self, clients: int, seed: int, shape: Shape) -> None:
        facts = published()["population"]
        random = np.random.default_rng([seed, 1])
        sessions = max(1, round(sessions_of(clients) * shape.supply))
        count = max(1, round(sessions / shape.sessions_per_device))
        kinds, weights, ms = [], [], []
        for each in published()["classes"]:
            models = sum(number for _, number in each["ms_per_sample"])
            for speed_ms, number in each["ms_per_sample"]:
                kinds.append(properties(each["eligible"], 1_000_000 // speed_ms))
                weights.append(each["devices"] * number / models)
                ms.append(speed_ms)
        kind = random.choice(len(kinds), count, p=np.array(weights) / sum(weights)).astype(np.int32)
        sigma = shape.network_sigma
        kbps = random.lognormal(math.log(facts["mean_kbps"]) - sigma**2 / 2, sigma, count)
        kbps = np.clip(kbps, facts["least_kbps"], facts["most_kbps"])
        self.devices = Devices(
            tuple(kinds), kind, (np.array(ms)[kind] / NOMINAL_MS * S).astype(np.int64),
            (NETWORK_S * facts["mean_kbps"] / kbps * S).astype(np.int64),
        )  # fmt: skip
        mean_s = facts["mean_active_s"] / facts["sessions_per_client"]
        self._days = _days(random, sessions, count, shape, mean_s)

    def day(self, number: int) -> Day:
        """The sessions that begin on that day: those of five days before, and of five days before them."""
        first = self._days[number % PERIOD_DAYS]
        later_ns = (number - number % PERIOD_DAYS) * DAY_NS
        return Day(first.times_ns + later_ns, first.device, first.ends_ns + later_ns)


def _days(random: np.random.Generator, sessions: int, devices: int, shape: Shape, mean_s: float) -> list[Day]:
    """``mean_s``: length of a session."""
    of_day = random.integers(0, PERIOD_DAYS, sessions)
    times = ((of_day + _hours(random.random(sessions), shape.diurnal)) * DAY_NS).astype(np.int64)
    is_own = sessions == devices
    device = np.arange(sessions, dtype=np.int32) if is_own else random.integers(0, devices, sessions, np.int32)
    sigma = shape.session_sigma
    lasts = random.lognormal(math.log(mean_s) - sigma**2 / 2, sigma, sessions) + LONGER_S
    order = np.argsort(times, kind="stable")
    times, device, ends = times[order], device[order], (times + (lasts * S).astype(np.int64))[order]
    cuts = np.searchsorted(times, np.arange(PERIOD_DAYS + 1) * DAY_NS)
    return [Day(times[a:b], device[a:b], ends[a:b]) for a, b in pairwise(cuts)]


def _hours(uniform: Any, diurnal: float) -> Any:
    """Times of day from 0 to 1 with density 1 + diurnal · cos(2π t), by a table of its integral."""
    grid = np.linspace(0.0, 1.0, 1_441)
    return np.interp(uniform, grid + diurnal * np.sin(2 * np.pi * grid) / (2 * np.pi), grid)
