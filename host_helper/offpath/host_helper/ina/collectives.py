"""The job's CPU process groups: three gloo groups, so that none waits for another's order.

``plain`` runs the all-reduces without INA, ``boundary`` the pipelined MIN, ``recovery`` statements and redistributed
results. They are made directly from the store: groups of `torch.distributed` cost 60 µs a call in Python
alone, and a backend cannot make one while it is being made itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllgatherOptions

Shape = int | tuple["Shape", ...]
"""The order of a sum: (((0, 1), 2), 3) is ((0 + 1) + 2) + 3, and ((0, 1), (2, 3)) is the sum of two leaves and a
root.
"""

_MIN: Final = dist.AllreduceOptions()
_MIN.reduceOp = dist.ReduceOp.MIN
_SUM: Final = dist.AllreduceOptions()


class Pending:
    """A collective under way."""

    __slots__ = ("_finish", "_work")

    def __init__(self, work: Any, finish: Callable[[], Any]) -> None:
        self._work = work
        self._finish = finish

    def is_done(self) -> bool:
        """True also after a failure."""
        return bool(self._work.is_completed())

    def result(self) -> Any:
        """Wait for the result. Raises: RuntimeError: a rank is gone; gloo's text names it."""
        self._work.wait()
        return self._finish()

    def on_done(self, call: Callable[[], None]) -> None:
        """Run ``call`` once it is done or has failed, in a thread of gloo."""
        self._work.get_future().add_done_callback(lambda _: call())


class Collectives:
    """The groups of ``ranks`` ranks that share ``store``; constructing them is a collective."""

    def __init__(self, store: Any, rank: int, ranks: int, timeout: timedelta) -> None:
        self.rank, self.ranks = rank, ranks
        self._store, self._timeout = store, timeout
        self._plain, self._boundary, self._recovery = map(self._made, ("plain", "boundary", "recovery"))

    def _made(self, name: str) -> Any:
        return dist.ProcessGroupGloo(dist.PrefixStore(name, self._store), self.rank, self.ranks, self._timeout)

    def another(self) -> Any:
        """One more gloo group; a collective, to be called once."""
        return self._made("other")

    def incarnation(self) -> int:
        """Rank 0's time, in ns: a later one is newer."""
        sent = torch.tensor([time.time_ns()], dtype=torch.int64)
        self._recovery.broadcast([sent], dist.BroadcastOptions()).wait()
        return int(sent[0])

    def sum_now(self, tensor: Any) -> Any:
        """An all-reduce in place; returns gloo's Work."""
        return self._plain.allreduce([tensor], _SUM)

    def sum(self, tensor: Any, shape: Shape | None = None) -> Pending:
        """Sum in place, complete once `Pending.result` has returned. ``shape`` fixes the order, at the cost of a
        gather.
        """
        if shape is None:
            return Pending(self.sum_now(tensor), lambda: None)
        parts = [torch.empty_like(tensor) for _ in range(self.ranks)]
        work = self._plain.allgather([parts], [tensor], AllgatherOptions())
        return Pending(work, lambda: tensor.copy_(_added(parts, shape)))

    def least(self, values: tuple[int, int]) -> Pending:
        """MIN of two int64; a tuple."""
        sent = torch.tensor(values, dtype=torch.int64)
        return Pending(self._boundary.allreduce([sent], _MIN), lambda: tuple(sent.tolist()))

    def gather(self, value: int) -> Pending:
        """One int64 of each rank; a list in the order of ranks."""
        parts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.ranks)]
        sent = torch.tensor([value], dtype=torch.int64)
        work = self._recovery.allgather([parts], [sent], AllgatherOptions())
        return Pending(work, lambda: [int(part[0]) for part in parts])

    def give(self, buffer: Any, source: int) -> Pending:
        """Broadcast ``source``'s bytes into every rank's ``buffer``."""
        options = dist.BroadcastOptions()
        options.rootRank = source
        return Pending(self._recovery.broadcast([buffer], options), lambda: buffer)


def left_to_right(ranks: int) -> Shape:
    """((0 + 1) + 2) + …"""
    shape: Shape = 0
    for rank in range(1, ranks):
        shape = (shape, rank)
    return shape


def _added(parts: list[Any], shape: Shape) -> Any:
    if isinstance(shape, int):
        return parts[shape]
    first, *rest = (_added(parts, each) for each in shape)
    total = first.clone()
    for each in rest:
        total += each
    return total
