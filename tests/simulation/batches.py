"""The kernel `rows`, which batches: what requests bring to it, what it makes of rows, and whose rows a launch has."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offpath.host_helper.kernels import KernelTable

from .promises import promise

if TYPE_CHECKING:
    from .judge import Request
    from .world import World

NAME = "rows"
ROW = 16
"""Bytes of one row: a tag and four more."""
MOST = 12
WIDE = 20
"""A row of the result is so many rows long; a full batch's result does not fit a message."""

WAITS: tuple[tuple[int, tuple[int, ...]], ...] = ((0, ()), (2_000, (4,)), (20_000, ()))
"""Delay and preferred sizes."""


def offer(table: KernelTable, world: World, revision: int) -> None:
    """Register the kernel; with each reload it waits for others in another way."""
    delay_us, preferred = WAITS[(revision + world.setup.batch_waits) % len(WAITS)]
    table.kernel(
        NAME, demand=14, tensors="pointer", max_batch=MOST, max_queue_delay_us=delay_us,
        preferred_batch_sizes=preferred,
    )(kernel(lambda seen: show(world, NAME, seen)))  # fmt: skip


def payload_of(tag: bytes, rows: int) -> bytes:
    """Rows that name their request, each with its number."""
    return b"".join(tag + bytes((number, 255 - number, rows, 7)) for number in range(rows))


def array_of(payload: bytes) -> NDArray[Any]:
    """A payload as the requester sends it."""
    return np.frombuffer(payload, np.uint8).reshape(-1, ROW)


def result_of(payload: bytes) -> bytes:
    """What the kernel makes of rows."""
    if len(payload) % ROW:
        return payload[::-1]
    return b"".join(payload[at : at + ROW][::-1] * WIDE for at in range(0, len(payload), ROW))


def kernel(note: Callable[[bytes], None]) -> Callable[..., Any]:
    """The kernel; ``note`` gets what it sees."""

    def run(*tensors: Any) -> Any:
        seen = b"".join(ctypes.string_at(t.pointer, t.nbytes) for t in tensors)
        note(seen)
        result = np.frombuffer(result_of(seen), np.uint8)
        return result.reshape(-1, ROW * WIDE) if len(tensors) == 1 and len(tensors[0].shape) == 2 else result

    return run


def shares(mates: list[Request], seen: bytes) -> list[tuple[Request, bytes]]:
    """Whose rows the bytes are, in the order of the batch."""
    if len(mates) == 1:
        return [(mates[0], seen)]
    promise(len(seen) == sum(len(request.payload) for request in mates), f"{mates[0]} leads {len(seen)} bytes")
    promise(len(seen) <= MOST * ROW, f"{mates[0]} leads {len(seen)} bytes, more than its kernel takes")
    found, at = [], 0
    for request in mates:
        found.append((request, seen[at : at + len(request.payload)]))
        at += len(request.payload)
    return found


def show(world: World, name: str, seen: bytes) -> None:
    """Show the judge what a kernel sees, for each request of its launch."""
    assert world._on_lane is not None
    worker, leader = world._on_lane
    mates = world.judge.mates(leader)
    world.counts["batches"] += len(mates) > 1
    try:
        for request, own in shares(mates, seen):
            world.judge.kernel_starts(worker, request, name, own)
    except BaseException as fault:  # the worker would report it as the kernel's own
        world.broken = fault
        raise
