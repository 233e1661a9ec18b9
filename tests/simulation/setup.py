"""What a schedule is made of: tenants, sizes, faults; all of it drawn from its seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from .channels import SOCKET_MESSAGES
from .gpu import ROOM

MS = 1_000_000
TENANTS = ("ada", "bob", "cyd", "dee")
HELPER = "sim"
SECOND = "sim-b"
"""Its GPU has the same name as that of the first."""
FAULTS = {
    "copy_fails": 0.1,
    "late_copies": 0.3,
    "late_results": 0.8,
    "worker_dies": 0.03,
    "worker_dies_after": 0.15,
    "worker_killed": 0.004,
    "worker_lies": 0.05,
    "worker_repeats": 0.1,
    "channel_full": 0.04,
    "helper_dies": 0.002,
    "helper_leaves": 0.001,
    "helper_silent": 0.001,
    "helper_full": 0.0005,
    "helper_hangs": 0.001,
    "kernel_hangs": 0.03,
    "create_fails": 0.1,
    "fork_fails": 0.1,
    "slow_scrub": 0.2,
    "requester_dies": 0.01,
    "requester_dies_filled": 0.01,
    "ticket_late": 0.05,
    "no_memory": 0.05,
    "clock_jumps": 0.002,
    "long_pauses": 0.1,
    "daemon_killed": 0.003,
    "daemon_killed_inside": 0.01,
    "intruders": 0.003,
    "reloads": 0.002,
    "spurious": 0.01,
}
"""How often each may happen, where it may: per message, copy or step. A schedule has a draw of them."""
KERNEL_MIXES = (
    ("small", "small", "small", "large", "large", "half", "raises", "whole"),
    ("small", "large", "large", "large", "large", "large", "raises"),
    ("small", "half", "whole"),
)


@dataclass(slots=True)
class Setup:
    """What a schedule is made of."""

    tenants: list[dict[str, Any]] = field(default_factory=list)
    pins: list[dict[str, Any]] = field(default_factory=list)
    leasing: dict[str, int] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    model: str = "A100-40GB"
    requesters: int = 3
    hostile: int = 0
    faults: dict[str, float] = field(default_factory=dict)
    pace: float = 0.6
    inline_copies: float = 0.5
    bell_room: int = SOCKET_MESSAGES
    kernel_ns: int = MS
    max_jobs: int = 65_536
    is_durable: bool = False
    resume_ttl_s: int = 60
    kernels: tuple[str, ...] = KERNEL_MIXES[0]
    idempotent: float = 0.3
    cancels: float = 0.1
    helpers: int = 1
    second_kernels: tuple[str, ...] = ()
    """What the second helper serves; the first serves all kernels."""
    is_batching: bool = False
    """Many requests are of the kernel `rows` (`batches`), which batches."""
    batch_waits: int = 0
    """How its requests wait for others, one of `batches.WAITS` at first."""
    is_sequential: bool = False
    """Many requests are of the kernel `steps` (`sequences`), which takes sequences."""
    is_streaming: bool = False
    """Many requests are of the kernel `tokens` (`streams`), which streams."""
    slow_takers: float = 0.0
    """How often a requester leaves an answer of a stream in its slot for a while."""
    plugin_fault: float | None = None
    """A policy plug-in decides, of whose answers this part is none; None: there is no plug-in."""


@dataclass(slots=True)
class Terms:
    """What of a setup a reload may change."""

    tenants: list[dict[str, Any]]
    pins: list[dict[str, Any]]
    leasing: dict[str, int]
    limits: dict[str, int]

    @classmethod
    def of(cls, setup: Setup) -> Terms:
        """Those that a schedule begins and ends with."""
        return cls(setup.tenants, setup.pins, setup.leasing, setup.limits)


def draw_terms(setup: Setup, random: Random) -> Terms:
    """Other rights, pauses, limits and pins; some tenants are left out."""
    tenants = [{**tenant, **_draw_rights(random)} for tenant in setup.tenants if random.random() < 0.7]
    tenants = tenants or setup.tenants[:1]
    names = [tenant["name"] for tenant in tenants]
    pins = [pin for pin in setup.pins if pin["tenant"] in names and random.random() < 0.7]
    idle = {key: setup.limits[key] for key in ("sequence_idle_ms", "sequence_leave_ms") if key in setup.limits}
    return Terms(tenants, pins, {**setup.leasing, **_draw_pauses(random)}, _draw_limits(random) | idle)


def _draw_rights(random: Random) -> dict[str, int]:
    return {
        "weight": random.choice((1, 1, 2, 5)),
        "max_jobs": random.choice((2, 8, 256)),
        "max_share": random.choice((100, 100, 200)),
    }


def _draw_pauses(random: Random) -> dict[str, int]:
    return {
        "keep_warm_ms": random.choice((0, 1, 5, 50)),
        "grow_after_ms": random.choice((4, 20, 50)),
        "reclaim_after_ms": random.choice((1, 10, 100)),
        "min_hold_ms": random.choice((0, 5, 200)),
    }


def _draw_limits(random: Random) -> dict[str, int]:
    return {
        "kernel_ms": random.choice((0, 2, 100, 2_000, 60_000)),
        "open_ms": random.choice((20, 1_000, 30_000)),
        "scrub_ms": random.choice((20, 1_000, 30_000)),
        "helper_ms": random.choice((500, 5_000, 5_000, 60_000)),
        "drain_ms": random.choice((0, 10, 1_000)),
    }


def draw_setup(random: Random) -> Setup:
    """A setup that puts several tenants on one small GPU."""
    setup = Setup()
    setup.model = random.choice(("A100-40GB", "A100-40GB", "A30-24GB"))
    smallest = random.choice((None, None, "1g.5gb"))
    for name in TENANTS[: random.choice((2, 3, 4))]:
        setup.tenants.append(
            {
                "name": name,
                **_draw_rights(random),
                "max_sessions": random.choice((1, 4)),
                "max_slots": random.choice((2, 8)),
                "profile": smallest,
            }
        )
    if random.random() < 0.25 and setup.model.startswith("A100"):
        setup.pins.append({"tenant": setup.tenants[0]["name"], "profile": "1g.5gb", "start": 6, "helper": HELPER})
    setup.leasing = {
        "lanes": random.choice((1, 1, 2, 3)),
        "landing_bytes": ROOM,
        "result_bytes": ROOM,
        **_draw_pauses(random),
    }
    setup.leasing["max_lanes"] = 4 if setup.leasing["lanes"] == 2 else 1  # some leases have as many as are of use
    setup.limits = _draw_limits(random)
    setup.max_jobs = random.choice((5, 1_000, 1_000))
    setup.requesters = random.choice((2, 3, 4, 6))
    setup.hostile = random.choice((0, 0, 1, 1, 2))
    setup.inline_copies = random.choice((0.0, 0.0, 0.5))
    often = random.choice((0.2, 0.4, 0.6))  # a few faults alone meet what all together would hide
    setup.faults = {
        name: rate * random.choice((0.3, 1.0, 2.0)) for name, rate in FAULTS.items() if random.random() < often
    }
    setup.kernels = random.choice(KERNEL_MIXES)
    setup.idempotent = random.choice((0.0, 0.3, 0.9))
    setup.is_durable = random.random() < 0.5
    setup.resume_ttl_s = random.choice((0, 1, 60))
    setup.cancels = random.choice((0.0, 0.1, 0.5))
    if random.random() < 0.15:
        _let_results_travel(setup, random)
    setup.pace = random.choice((0.3, 0.6, 0.9))
    setup.bell_room = random.choice((1, 1, 2, SOCKET_MESSAGES))
    setup.kernel_ns = random.choice((10_000, MS, 20 * MS))
    aside = Random(repr(random.getstate()[1][:8]))  # what is drawn from here on is no other for it
    setup.plugin_fault = aside.choice((None,) * 6 + (0.0, 0.02))
    setup.helpers = aside.choice((1, 1, 2))
    setup.second_kernels = tuple(name for name in ("small", "half", "whole", "raises") if aside.random() < 0.6)
    if not setup.second_kernels:
        setup.helpers = 1
    if aside.random() < 0.4:
        setup.faults["helper_reloads"] = 0.004 * aside.choice((0.3, 1.0, 3.0))
    if aside.random() < 0.2:
        setup.faults["gpu_dies"] = 0.002
    setup.is_batching = aside.random() < 0.35
    if setup.is_batching:
        setup.kernels += ("rows",) * (2 * len(setup.kernels))
        setup.requesters += 2
        setup.batch_waits = aside.randrange(3)
        if aside.random() < 0.3:
            setup.faults["daemon_killed_batching"] = 0.1
    if aside.random() < 0.3:
        setup.faults["reloads_unseen"] = 0.3
    if aside.random() < 0.15:
        _let_helpers_reload(setup, aside)
    setup.is_sequential = aside.random() < 0.3
    if setup.is_sequential:
        _let_sequences_last(setup, aside)
    setup.is_streaming = aside.random() < 0.35
    if setup.is_streaming:
        setup.kernels += ("tokens",) * (2 * len(setup.kernels))
        setup.slow_takers = aside.choice((0.0, 0.2, 0.6))
    return setup


def _let_sequences_last(setup: Setup, random: Random) -> None:
    """Many requests of few sequences, of which most are served: a refused one ends its sequence for its client."""
    setup.kernels += ("steps",) * (3 * len(setup.kernels))
    setup.requesters += 2
    setup.max_jobs = 1_000
    setup.cancels = min(setup.cancels, 0.1)
    idle_ms = random.choice((1, 500, 5_000))
    setup.limits |= {"sequence_idle_ms": idle_ms, "sequence_leave_ms": max(1, idle_ms // 5)}
    for tenant in setup.tenants:
        tenant["max_sequences"] = random.choice((1, 64, 64, 64))
        tenant["max_jobs"] = random.choice((4, 64, 64))


def _let_results_travel(setup: Setup, random: Random) -> None:
    """Large results, slow to be fetched, of workers that die or repeat themselves: a corner that is seldom met."""
    setup.kernels = KERNEL_MIXES[1]
    setup.idempotent = random.choice((0.5, 1.0))
    setup.inline_copies = 0.0
    setup.leasing["lanes"] = 1
    setup.leasing["grow_after_ms"] = 4
    for tenant in setup.tenants:
        tenant["profile"] = "1g.5gb"
    setup.faults = {"late_results": 0.8, "worker_dies_after": 0.3, "slow_scrub": 0.5}
    if random.random() < 0.5:
        setup.faults["worker_repeats"] = 0.3


def _let_helpers_reload(setup: Setup, random: Random) -> None:
    """Helpers reload often, and the daemon is killed soon after: jobs end while workers that are to be replaced
    reattach. Leases are many and have several lanes, so replacements overlap."""
    setup.helpers = 2
    setup.second_kernels = ("small", "half", "whole", "raises")
    if not setup.is_batching:
        setup.kernels = KERNEL_MIXES[0]
    setup.requesters = 6
    setup.inline_copies = 0.0
    setup.leasing |= {"lanes": 3, "max_lanes": 1, "keep_warm_ms": 50}
    setup.is_durable = True
    setup.resume_ttl_s = random.choice((0, 0, 60))
    setup.faults = {"late_copies": 0.8, "helper_reloads": 0.01, "daemon_killed_reloading": 0.5, "reloads_unseen": 0.1}
