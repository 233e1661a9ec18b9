"""The kernel `tokens`, which streams: what its answers are, and which of its generators are open."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from offpath.host_helper.kernels import KernelTable

from .batches import show

if TYPE_CHECKING:
    from .worker import SimWorker
    from .world import World

NAME = "tokens"
MOST = 5
"""Answers of one request."""


def offer(table: KernelTable, world: World) -> None:
    """Register the kernel."""
    table.kernel(NAME, demand=14, tensors="pointer", streams=True)(kernel(world))


def answers_of(payload: bytes) -> list[bytes]:
    """All answers to a payload: some lie in the message, some in the lane, and some do not fit."""
    count = payload[4] % (MOST + 1)
    return [bytes((number,)) + payload[::-1] * (40 if number % 2 else 1) for number in range(1, count + 1)]


def raises(payload: bytes) -> bool:
    """Whether the kernel raises in the place of its last answer."""
    return payload[4] % 7 == 3


def kernel(world: World) -> Callable[..., Iterator[Any]]:
    """The kernel, which shows the judge what it sees, and the world when it is open."""

    def run(*tensors: Any) -> Iterator[Any]:
        seen = b"".join(ctypes.string_at(t.pointer, t.shape[0]) for t in tensors)
        show(world, NAME, seen)
        assert world._on_lane is not None
        worker: SimWorker = world._on_lane[0]
        world.open_streams.add(worker)
        try:
            *first, last = [*answers_of(seen), b""]
            for answer in first:
                yield np.frombuffer(answer, np.uint8)
            if raises(seen):
                raise ValueError(f"in the place of {last!r}")
        finally:
            world.open_streams.discard(worker)

    return run
