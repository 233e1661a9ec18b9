"""Ranks of a job for the tests: threads that drive real connections to real switches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from offpath.bindings.ina.connection import SwitchFabric, TreeConnection
from offpath.bindings.ina.port import TreeAttached, TreeEvent, TreeLost
from offpath.bindings.ina.rate_limiter import RateLimiter
from offpath.cli.local.switches import Switches
from offpath.dpu_daemon.switch.summing import bf16_to_fp32, fp32_to_bf16

from ...support.processes import BOUND_S

STAMP = 1 << 32 | 1
TYPES = {"fp32": "<f4", "fp16": "<f2", "bf16": "<u2", "int32": "<i4"}


def job_of(
    switches: Switches, job: str, hosts: Sequence[int], *, rates: Sequence[int] = (), patience_s: float = 5.0,
    number: int = 1, group: str = "",
) -> list[TreeConnection]:  # fmt: skip
    """Allow a job and attach all its ranks."""
    switches.allow(switches.permissions(job, hosts, number=number, group=group))
    links = [RateLimiter(rates[rank] if rates else 0) for rank in range(len(hosts))]
    ranks = [
        SwitchFabric(link, patience_s).attach(
            address, job=job, incarnation=1, stamp=1 << 32 | number, rank=rank, ranks=len(hosts), token="token"
        )
        for rank, (address, link) in enumerate(zip(switches.attach_addresses(hosts), links, strict=True))
    ]
    for rank in ranks:
        assert event_of(rank) == TreeAttached()
    return ranks


def event_of(rank: TreeConnection, within_s: float = BOUND_S) -> TreeEvent:
    event = rank.poll(within_s)
    assert event is not None, "nothing came"
    return event


def all_reduce(
    ranks: Sequence[TreeConnection], index: int, dtype: str, inputs: Sequence[np.ndarray[Any, Any]]
) -> list[tuple[TreeEvent, np.ndarray[Any, Any]]]:
    """Every rank's event, and what its target holds."""

    def one(rank: TreeConnection, data: np.ndarray[Any, Any]) -> tuple[TreeEvent, np.ndarray[Any, Any]]:
        target = np.zeros_like(data)
        rank.start(index, dtype, memoryview(data).cast("B"), memoryview(target).cast("B"))
        return event_of(rank), target

    return together([lambda r=r, d=d: one(r, d) for r, d in zip(ranks, inputs, strict=True)])


def together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Each in a thread of its own; their results in order."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(60) for future in [pool.submit(call) for call in calls]]


def inputs_of(dtype: str, ranks: int, elements: int, seed: int = 1) -> list[np.ndarray[Any, Any]]:
    noise = np.random.default_rng(seed)
    if dtype == "int32":
        return [noise.integers(-(1 << 31), 1 << 31, elements, dtype=np.int32) for _ in range(ranks)]
    made = [(noise.standard_normal(elements) * 10.0 ** noise.integers(-3, 4)).astype(np.float32) for _ in range(ranks)]
    if dtype == "bf16":
        return [fp32_to_bf16(each) for each in made]
    return [each.astype(TYPES[dtype]) for each in made]


def expected(dtype: str, inputs: Sequence[np.ndarray[Any, Any]], hosts: Sequence[int]) -> np.ndarray[Any, Any]:
    """By numpy: left to right by rank within each leaf, then left to right over the leaves by their lowest rank."""
    leaves: dict[int, list[np.ndarray[Any, Any]]] = {}
    for rank, host in enumerate(hosts):
        leaves.setdefault(host, []).append(inputs[rank])
    return left_to_right(dtype, [left_to_right(dtype, parts) for parts in leaves.values()])


def left_to_right(dtype: str, parts: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    total = parts[0]
    with np.errstate(over="ignore"):
        for part in parts[1:]:
            total = fp32_to_bf16(bf16_to_fp32(total) + bf16_to_fp32(part)) if dtype == "bf16" else total + part
    return total


def same_bits(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    return one.tobytes() == other.tobytes()


def close_all(*jobs: Sequence[TreeConnection]) -> None:
    for job in jobs:
        for rank in job:
            rank.close()


def settled(switches: Switches, name: str = "s0") -> dict[str, Any]:
    """A switch's statistics once it has heard of the last delivery, or of the last hang-up of a lost tree."""
    until = time.monotonic() + BOUND_S
    while time.monotonic() < until:
        stats = switches.stats(name)
        if not stats["in_flight"] and all(part["attached"] == part["ranks"] for part in stats["parts"]):
            return stats
        time.sleep(0.01)
    raise AssertionError(f"{name} does not come to rest: {stats}")


def lost_at(ranks: Sequence[TreeConnection], at_once: Callable[[], None]) -> list[tuple[str, float]]:
    """Do something, and learn of each rank why, and after how many seconds, it lost its tree."""
    began = threading.Event()
    when = 0.0

    def one(rank: TreeConnection) -> tuple[str, float]:
        began.wait()
        while True:
            event = event_of(rank)
            if isinstance(event, TreeLost):
                return event.reason, time.monotonic() - when

    with ThreadPoolExecutor(len(ranks)) as pool:
        futures = [pool.submit(one, rank) for rank in ranks]
        when = time.monotonic()
        began.set()
        at_once()
        return [future.result(60) for future in futures]
