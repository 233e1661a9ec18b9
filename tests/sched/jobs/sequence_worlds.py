"""What a world draws one of whose kernels takes sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from offpath.sched.jobs import events
from offpath.sched.jobs.settings import MS, BookSettings, TenantSpec

from .shadow import Shadow

KERNEL = 2
"""The number under which the world knows it."""


def settings(random: Random, drawn: BookSettings) -> BookSettings:
    """With bounds and time-outs that worlds reach."""
    idle_ms, leave_ms = random.choice(((1, 30), (30, 30), (400, 400), (5_000, 400), (5_000, 5_000)))
    return replace(
        drawn, max_sequences=random.choice((2, 5, 1_000)), sequence_idle_ns=idle_ms * MS,
        sequence_leave_ns=leave_ms * MS,
    )  # fmt: skip


def tenants(random: Random, drawn: tuple[TenantSpec, ...]) -> tuple[TenantSpec, ...]:
    """Each may have some sequences."""
    return tuple(replace(spec, max_sequences=random.choice((1, 3, 20))) for spec in drawn)


def kernel(random: Random, drawn: events.Kernel) -> events.Kernel:
    """One of them takes sequences, nearly always."""
    is_one = drawn.kernel == KERNEL and random.random() < 0.95
    return replace(drawn, batching=None, sequences=True) if is_one else drawn


def session(random: Random, open_: Sequence[int], drawn: int) -> int:
    """Most requests come from the same two sessions, or their sequences would have one request each."""
    return random.choice(open_[:2]) if random.random() < 0.8 else drawn


def followed(
    random: Random, event: events.JobSubmitted, kernel: int, shadow: Shadow
) -> events.JobSubmitted | events.SequenceSubmitted:
    """Most requests are of a sequence, most of those as a client would send them."""
    if random.random() < 0.25:
        return event
    if random.random() < 0.95:
        event = replace(event, kernel=kernel, share=random.choice((0, 0, 0, 14)), payload_bytes=1,
                        deadline_ns=event.deadline_ns * (random.random() < 0.3))  # fmt: skip
    number = random.choice((1, 1, 1, 2, 3))
    known = shadow.sequences.by_key.get((event.session, event.kernel, number))
    is_start = random.random() < (0.97 if known is None or known.is_over else 0.05)
    return events.SequenceSubmitted(event, number, is_start, random.random() < 0.08)
