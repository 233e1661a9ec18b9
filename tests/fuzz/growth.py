"""How long the longest inputs of a parser take, and how the time grows with the input: measured in a process that has
done nothing else. In workers that had run thousands of tests, 16 times the bytes took 66 to 73 times the time in five
measurements of two whole runs, on a busy machine; why is not known. Here they take 15 to 17 times on a quiet one.

    python -m tests.fuzz.growth

reads names of parsers, one a line, and writes for each a JSON line: a list of `Measured`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial

from offpath.bindings.wire import frames

from ..support.processes import quickest
from .engine import Case
from .target import SLOWNESS, Target
from .targets import targets

MOST_GROWTH = 16.0 * 4
"""Of the time, for 16 times the bytes."""
TRIES = 12
PAUSE_S = 0.5
"""Between tries: on two busy cores three tries in a row were too slow, which is less than a second."""


@dataclass
class Measured:
    """``head``: the input's first bytes. ``growth``: the time of the longest input by that of a sixteenth of it."""

    head: str
    took_ns: float
    bound_ns: int
    growth: float


def measured(target: Target) -> Iterator[Measured]:
    """Of each of the parser's `longest` inputs."""
    most = frames.MAX_FRAME_BYTES
    for make in longest(target.name):
        small, large = make(most // 16), make(most)
        bound_ns = target.slow_ns + 1_000 * SLOWNESS * len(large.numbers)
        took_ns = quickest(partial(least_ns, target, large), bound_ns, TRIES, PAUSE_S)
        ratio = quickest(partial(growth, target, small, large), MOST_GROWTH, TRIES, PAUSE_S)
        yield Measured(repr(large.data[:60]), took_ns, bound_ns, ratio)


def growth(target: Target, small: Case, large: Case) -> float:
    """The time for ``large`` by that for ``small``, measured one after the other."""
    return least_ns(target, large) / max(least_ns(target, small), 20_000)


def longest(name: str) -> Iterator[Callable[[int], Case]]:
    """Ways to fill ``n`` bytes of a parser that takes long input, each made to cost as much as it can."""
    if name == "frame_reader":
        yield lambda n: Case(b"\1\0\0\0x" * (n // 5))
        yield lambda n: Case(b"\1\0\0\0x" * (n // 5), (1,) * n)
        yield lambda n: Case((n - 4).to_bytes(4, "little") + bytes(n - 4), (1,) * n)
        return
    for body in (b"[", b'{"a":', b'"\\u0000', b"1", b'{"kind":', b"[{},", b" ", b"\xff", b'"', b"\\", b"1e9"):
        yield lambda n, body=body: Case(body * (n // len(body)))
    for start, unit, end in (
        (b'{"kind":"hello",', b'"%x":0,', b'"slots":1}'),
        (b'{"kind":"kernels","kernels":[', b"{},", b"{}]}"),
        (b'{"kind":"kernels","kernels":[{', b'"%x":0,', b'"name":1}]}'),
        (b'{"kind":"host_welcome","generation":1,"kernel_ids":{', b'"%x":[],', b'"a":1}}'),
        (
            b'{"kind":"lane_ready","lease":1,"lane":0,"generation":1,"landing_bytes":1,"export":{',
            b'"%x":[],',
            b'"a":1}}',
        ),
        (b'{"kind":"helper_hello","name":"a","pid":1,"gpu_count":1,"kernels":[', b"{},", b"{}]}"),
        (b'{"kind":"goodbye","token":"', b"t", b'"}'),
        (b'{"kind":"agent_report","term":1,"states":[', b"{},", b"{}]}"),
        (b'{"kind":"new_epoch","epoch":{', b'"%x":[],', b'"a":1}}'),
        (b'{"kind":"job_submit","job":"a","on":[', b'"h",', b'"h"]}'),
        (b'{"kind":"inc_submit","name":"a","tenant":"t","composite":[', b"{},", b"{}]}"),
        (b'{"kind":"inc_submit","name":"a","tenant":"t","composite":[{"demand":{', b'"%x":[],', b'"a":1}}]}'),
        (b'{"kind":"start","identity":"a","features":[', b"{},", b"{}]}"),
        (b'{"kind":"status","counters":{', b'"%x":[],', b'"a":1}}'),
        (b'{"kind":"configure","epoch":1,"stores":[', b"{},", b"{}]}"),
        (b'{"kind":"load","entries":[', b"{},", b"{}]}"),
        (b'{"kind":"entries","entries":[', b"{},", b"{}]}"),
    ):
        yield lambda n, start=start, unit=unit, end=end: filled(start, unit, end, n)


def filled(start: bytes, unit: bytes, end: bytes, most: int) -> Case:
    """As many units as fit, numbered where they want to be."""
    parts, length = [start, end], len(start) + len(end)
    number = 0
    while length < most:
        part = unit % number if b"%" in unit else unit
        parts.insert(-1, part)
        length += len(part)
        number += 1
    return Case(b"".join(parts)[: most + len(unit)])


def least_ns(target: Target, case: Case) -> int:
    """The fastest of several runs: noise only ever adds. Without the garbage collector, whose passes over this
    process's many objects the input's own objects would trigger."""
    took = []
    gc.disable()
    try:
        for _ in range(7):
            started = time.thread_time_ns()
            with contextlib.suppress(target.refuses):
                target.run(case.data, case.numbers)
            took.append(time.thread_time_ns() - started)
    finally:
        gc.enable()
    return min(took)


def main() -> None:
    """See the module."""
    with targets() as known:
        for line in sys.stdin:
            print(json.dumps([asdict(each) for each in measured(known[line.strip()])]), flush=True)


if __name__ == "__main__":
    main()
