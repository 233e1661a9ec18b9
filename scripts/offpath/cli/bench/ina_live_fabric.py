"""The part of `bench ina-live` that measures the fabric alone: switches, admission, refusal.

Links have no limit here: this measures the emulation's own speed, which bounds the rates that links may have.
"""

from __future__ import annotations

import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from offpath.bindings.ina.connection import SwitchFabric, TreeConnection
from offpath.bindings.ina.port import TreeAttached, TreeRefused, TreeResult
from offpath.bindings.ina.rate_limiter import RateLimiter
from offpath.cli.bench.measure import Block
from offpath.cli.local.switches import Switches

HOSTS: Final = (0, 1, 2, 3)
LARGE_BYTES: Final = 1 << 20
SMALL_BYTES: Final = 4
"""An all-reduce of this size consists of admission and the round trip."""
_PATIENCE_S: Final = 20.0


class _Job:
    """Four ranks, each a thread."""

    def __init__(self, switches: Switches, name: str) -> None:
        switches.allow(switches.permissions(name, HOSTS))
        self.ranks: list[TreeConnection] = [
            SwitchFabric(RateLimiter(), _PATIENCE_S).attach(
                address, job=name, incarnation=1, stamp=1 << 32 | 1, rank=rank, ranks=len(HOSTS), token="token"
            )
            for rank, address in enumerate(switches.attach_addresses(HOSTS))
        ]
        self.index = 0
        for each in self.ranks:
            if each.poll(_PATIENCE_S) != TreeAttached():
                raise RuntimeError("a rank was not attached")

    def times(self, pool: ThreadPoolExecutor, nbytes: int, count: int, event: type) -> Block:
        """Of ``count`` all-reduces at rank 0, each from a common start to the event."""
        together = threading.Barrier(len(self.ranks))
        first, self.index = self.index, self.index + count

        def run(rank: TreeConnection) -> Block:
            source, target = memoryview(bytes(nbytes)), memoryview(bytearray(nbytes))
            took: list[int] = []
            begins = time.perf_counter_ns()
            for index in range(first, first + count):
                together.wait()
                began = time.perf_counter_ns()
                rank.start(index, "fp32", source, target)
                if not isinstance(got := rank.poll(_PATIENCE_S), event):
                    together.abort()
                    raise RuntimeError(f"operation {index}: {got}")
                took.append(time.perf_counter_ns() - began)
            return Block(took, time.perf_counter_ns() - begins, 0)

        return next(iter(list(pool.map(run, self.ranks))))

    def close(self) -> None:
        """Leave the tree."""
        for rank in self.ranks:
            rank.close()


def measure_fabric(count: int = 200) -> dict[str, Any]:
    """Median and p99 in µs of all-reduces of 4 ranks over five switches: of 1 MiB; of 4 bytes (the cost of admission);
    and of a refused one of 4 bytes (the delay before the plain one can begin).
    """
    with (
        tempfile.TemporaryDirectory(prefix="offpath-ina-") as folder,
        ThreadPoolExecutor(len(HOSTS)) as pool,
        Switches(folder, capacity=1) as switches,
    ):
        job, holder = _Job(switches, "measured"), _Job(switches, "holder")
        job.times(pool, LARGE_BYTES, 10, TreeResult)
        large = job.times(pool, LARGE_BYTES, count, TreeResult)
        small = job.times(pool, SMALL_BYTES, count, TreeResult)
        holder.ranks[0].start(0, "fp32", memoryview(bytes(SMALL_BYTES)), memoryview(bytearray(SMALL_BYTES)))
        until = time.monotonic() + _PATIENCE_S
        while not switches.stats()["in_flight"] and time.monotonic() < until:
            time.sleep(0.001)  # its three other ranks do not join: the only place stays occupied
        refused = job.times(pool, SMALL_BYTES, count, TreeRefused)
        job.close()
        holder.close()
    return {
        "ranks": len(HOSTS), "switches": len(switches.names), "n": count, "unit": "us",
        "all_reduce_1mib": _summary(large), "admission": _summary(small), "refusal": _summary(refused),
        "all_reduce_1mib_mb_per_s": round(LARGE_BYTES / large.p50),
    }  # fmt: skip


def _summary(block: Block) -> dict[str, float]:
    return {"median": round(block.p50, 1), "p99": round(block.p99, 1)}
