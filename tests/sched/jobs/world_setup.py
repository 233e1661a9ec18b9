"""What a world of the job book starts with: tenants, settings, pinned leases; drawn from its seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from offpath.sched.gpu.greedy import GreedyFirstFit
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.settings import MS, BookSettings, PinnedLease, TenantSpec

from ..gpus import MIB, a100

TENANTS = ("ada", "bob", "cyd", "dee")
PRIORITY_STEPS_MS = {0: 0, 5: 1, 50: 20, 500: 1_000, 2_000: 1_000}
"""By the time that an idle lease stays, which is drawn."""
PINS = ("1g.5gb", 0), ("2g.10gb", 4), ("3g.20gb", 0), ("1g.5gb", 6)
ALPHAS = {profile.name: a100().alpha(profile) for profile in a100().profiles}


@dataclass(frozen=True, slots=True)
class Setup:
    """What a book is made of, so that it can be made again."""

    tenants: tuple[TenantSpec, ...]
    settings: BookSettings
    pins: tuple[PinnedLease, ...]
    first_generation: int

    def book(self) -> JobBook:
        return JobBook(self.tenants, GreedyFirstFit(), self.settings, self.pins, self.first_generation)


def draw_pins(random: Random, names: tuple[str, ...]) -> tuple[PinnedLease, ...]:
    drawn = random.sample(PINS, random.choice((0, 0, 1, 2)))
    return tuple(PinnedLease(random.choice(names), random.choice((0, 0, 0, 2)), *place) for place in drawn)


def draw_tenants(random: Random, names: tuple[str, ...], pins: tuple[PinnedLease, ...]) -> tuple[TenantSpec, ...]:
    tenants = []
    for name in names:
        pinned = sum(ALPHAS[pin.profile] for pin in pins if pin.tenant == name)
        max_share = random.choice((100, 114, 200, 1_000) if pinned else (28, 57, 100, 100, 150, 1_000)) + pinned
        tenants.append(
            TenantSpec(
                name,
                weight=random.choice((1, 1, 2, 5)),
                max_jobs=random.choice((3, 8, 30)),
                max_share=max_share,
                max_demand=random.choice((57, 100, 100)),
                profile=random.choice((None, None, None, "1g.5gb", "2g.10gb")),
            )
        )
    return tuple(tenants)


def with_priorities(settings: BookSettings) -> BookSettings:
    """With what a step of priority is worth."""
    return replace(settings, priority_step_ns=PRIORITY_STEPS_MS[settings.keep_warm_ns // MS] * MS)


def draw_setup(random: Random) -> Setup:
    pins = draw_pins(random, TENANTS)
    tenants = draw_tenants(random, TENANTS[: random.choice((3, 4))] if not pins else TENANTS, pins)
    settings = BookSettings(
        lanes=random.choice((1, 2, 3, 3)),
        landing_bytes=random.choice((MIB, MIB, MIB, 1_500 * MIB, 1_500 * MIB, 12_000 * MIB)),
        result_bytes=MIB,
        max_jobs=random.choice((6, 20, 1_000)),
        keep_warm_ns=random.choice((0, 5, 50, 500, 2_000)) * MS,
        grow_after_ns=random.choice((0, 1, 20)) * MS,
        reclaim_after_ns=random.choice((0, 10, 100)) * MS,
        min_hold_ns=random.choice((0, 10, 200)) * MS,
        retry_open_ns=random.choice((1, 50, 1_000)) * MS,
        retry_limit_ns=2_000 * MS,
        **draw_limits(random),
    )
    if settings.lanes == 2:
        settings = replace(settings, max_lanes=6)
    settings = with_priorities(settings)
    return Setup(tenants, settings, pins, random.choice((0, 7, 1_000_000)))


def draw_limits(random: Random) -> dict[str, Any]:
    """All off in half of the worlds: they end much that would else go on."""
    if random.random() < 0.5:
        return {}
    choices = {
        "kernel_ns": (0, 3, 50), "linger_ns": (0, 1, 20), "open_ns": (0, 5, 100), "scrub_ns": (0, 5, 100),
        "drain_ns": (0, 5, 1_000), "load_ns": (0, 5, 100),
    }  # fmt: skip
    limits: dict[str, Any] = {name: random.choice(values) * MS for name, values in choices.items()}
    return limits | {"kills_expired": random.random() < 0.6}
