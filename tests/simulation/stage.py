"""A world in which nothing happens by itself: for orders of things that are written down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from offpath.bindings.ports import IMM_SUBMIT, immediate
from offpath.host_helper.slots import Options

from . import batches, streams
from .judge import Request
from .lives import TokenFiles
from .requesters import MS, SimRequester
from .setup import Setup
from .world import World

QUIET = Setup(
    tenants=[{"name": "ada"}, {"name": "bob"}],
    leasing={
        "lanes": 1, "max_lanes": 1, "landing_bytes": 4096, "result_bytes": 4096, "keep_warm_ms": 60_000,
        "grow_after_ms": 5, "reclaim_after_ms": 5, "min_hold_ms": 0,
    },
    limits={"open_ms": 2_000, "helper_ms": 100_000_000},
    requesters=0, inline_copies=1.0, kernel_ns=0,
)  # fmt: skip


class Stage:
    """A world in which nothing happens by itself but what was begun."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.world = World(1, TokenFiles(str(folder)), replace(QUIET, **changes))
        self._leave = self.world.lived()
        self._leave.__enter__()

    def close(self) -> None:
        self._leave.__exit__(None, None, None)

    def requester(self, tenant: str, slots: int = 2) -> SimRequester:
        """One that has its session and submits nothing of its own."""
        made = SimRequester(self.world, len(self.world.requesters) + 1, tenant)
        made.left, made.cancels, made.slots_wanted = 1, 0.0, slots
        made._may_fill = False
        self.world.requesters.append(made)
        self.until(lambda: made.session is not None and bool(made._kernels))
        return made

    def until(self, is_there: object, steps: int = 3_000) -> None:
        for _ in range(steps):
            if is_there():  # type: ignore[operator]
                return
            assert self.world.step()
        raise AssertionError("it never came")

    def submit(self, requester: SimRequester, kernel: str, *, rows: int = 2, **options: Any) -> Request:
        session, slots = requester.session, requester._slots
        assert session is not None
        assert slots is not None
        payload = bytes(range(90))
        arrays = [np.frombuffer(payload, np.uint8)]
        if kernel == batches.NAME:
            payload = batches.payload_of(len(slots.waiters).to_bytes(12, "little"), rows)
            arrays = [batches.array_of(payload)]
        chosen = Options(**options)
        budget_ns = chosen.budget_ms * MS
        made = Request(requester, session.memory, -1, 0, kernel, payload, chosen.is_idempotent, budget_ns)
        made.options = chosen
        made.slot = slots.fill(requester._kernels[kernel], arrays, chosen, made, is_stream=kernel == streams.NAME)
        made.request_id = int.from_bytes(session.last_header[8:16], "little")
        self.world.judge.filled(made)
        session.ring(immediate(IMM_SUBMIT, made.slot).to_bytes(4, "little"))
        return made
