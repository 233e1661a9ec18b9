"""Five real switch processes, as in MINA's testbed (figure 10): what ranks get is the sum, and nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from offpath.bindings.ina.connection import SwitchFabric
from offpath.bindings.ina.frames import CHUNK_BYTES
from offpath.bindings.ina.port import TreeAttached, TreeRefused, TreeResult
from offpath.bindings.ina.rate_limiter import RateLimiter, plain_bytes
from offpath.cli.local.switches import Switches

from .ranks import (
    STAMP,
    TYPES,
    all_reduce,
    close_all,
    event_of,
    expected,
    inputs_of,
    job_of,
    same_bits,
    settled,
    together,
)

FOUR = (0, 1, 2, 3)
EIGHT = (0, 0, 1, 1, 2, 2, 3, 3)


@pytest.fixture(scope="module")
def switches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Switches]:
    with Switches(str(tmp_path_factory.mktemp("switches")), capacity=2) as started:
        yield started


@pytest.mark.parametrize("hosts", [FOUR, EIGHT, (0, 1, 0, 1)], ids=["4 ranks", "8 ranks", "interleaved"])
@pytest.mark.parametrize("dtype", TYPES)
def test_every_rank_gets_the_sum_to_the_bit(dtype: str, hosts: tuple[int, ...], switches: Switches) -> None:
    ranks = job_of(switches, f"{dtype}-{hosts}", hosts)
    for index, elements in enumerate((1, 3, CHUNK_BYTES // 4, CHUNK_BYTES // 4 + 1, 100_003)):
        inputs = inputs_of(dtype, len(hosts), elements, seed=index)
        wanted = expected(dtype, inputs, hosts)
        for event, target in all_reduce(ranks, index, dtype, inputs):
            assert event == TreeResult(index)
            assert same_bits(target, wanted)
    close_all(ranks)


def test_a_job_at_one_leaf_has_its_root_there(switches: Switches) -> None:
    permission = replace(switches.permissions("alone", (0, 0, 0))["s1"], parent="")
    switches.allow({"s1": permission})
    ranks = [
        SwitchFabric(RateLimiter()).attach(
            switches.addresses["s1"], job="alone", incarnation=1, stamp=STAMP, rank=rank, ranks=3, token="token"
        )
        for rank in range(3)
    ]
    assert [event_of(rank) for rank in ranks] == [TreeAttached()] * 3
    inputs = inputs_of("fp32", 3, 20_000)
    for event, target in all_reduce(ranks, 0, "fp32", inputs):
        assert event == TreeResult(0)
        assert same_bits(target, expected("fp32", inputs, (0, 0, 0)))
    close_all(ranks)


def test_ranks_may_be_far_apart_in_time_and_results_stay_apart(switches: Switches) -> None:
    """One rank is always late, another is at the next operation before the others have read their results."""
    ranks = job_of(switches, "late", FOUR)
    inputs = [inputs_of("fp32", 4, 200_000, seed) for seed in range(6)]

    def run(number: int) -> list[bool]:
        right = []
        for index, data in enumerate(inputs):
            time.sleep(0.05 * (number == index % 4))
            target = np.zeros_like(data[number])
            ranks[number].start(index, "fp32", memoryview(data[number]).cast("B"), memoryview(target).cast("B"))
            event = ranks[number].poll(20)
            right.append(event == TreeResult(index) and same_bits(target, expected("fp32", data, FOUR)))
        return right

    assert together([lambda n=n: run(n) for n in range(4)]) == [[True] * 6] * 4
    close_all(ranks)


def test_four_ranks_move_one_and_a_half_times_as_many_bytes_plain(switches: Switches) -> None:
    ranks = job_of(switches, "bytes", FOUR)
    inputs = inputs_of("fp32", 4, 1 << 18)
    all_reduce(ranks, 0, "fp32", inputs)
    for rank in ranks:
        rank._link.charge(plain_bytes(1 << 20, 4))
        for count in (rank._link.sent, rank._link.received):
            assert count == {"ina": 1 << 20, "plain": 3 << 19}
            assert count["plain"] == 1.5 * count["ina"]
    close_all(ranks)


def events(switches: Switches, name: str = "s0") -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(switches.path(name, "events")).read_text("ascii").splitlines()]


@pytest.mark.parametrize("capacity", [1, 2])
def test_two_jobs_share_and_the_root_never_has_more_than_it_has_room_for(capacity: int, tmp_path: Path) -> None:
    """Both run as often as they can; a refused job would run plain, which takes its place in the order here."""
    with Switches(str(tmp_path), capacity=capacity) as switches:
        jobs = {name: job_of(switches, name, FOUR, rates=[64 << 20] * 4) for name in ("one", "two")}
        refusals = dict.fromkeys(jobs, 0)

        def run(name: str) -> None:
            for index in range(12):
                inputs = inputs_of("fp32", 4, 100_000, index)
                found = all_reduce(jobs[name], index, "fp32", inputs)
                alike = {type(event) for event, _ in found}
                assert len(alike) == 1, "ranks differ on one operation"
                if alike == {TreeRefused}:
                    refusals[name] += 1
                    assert all(not target.any() for _, target in found), "something of a refused one was delivered"
                    continue
                assert all(same_bits(target, expected("fp32", inputs, FOUR)) for _, target in found)

        together([lambda n=n: run(n) for n in jobs])
        stats = settled(switches)
        assert stats["peak"] <= capacity
        assert stats["admitted"] + stats["refused"] == 24
        assert stats["refused"] == sum(refusals.values())
        assert (stats["refused"] > 0) == (capacity == 1)
        if capacity == 2:
            assert stats["peak"] == 2
        held: set[tuple[object, object]] = set()
        for line in events(switches):
            if line["event"] == "admitted":
                held.add((line["job"], line["index"]))
                assert line["in_flight"] == len(held)
            elif line["event"] == "completed":
                held.remove((line["job"], line["index"]))
            assert len(held) <= capacity
        assert not held
        close_all(*jobs.values())


def test_a_slow_link_slows_its_job_down_to_its_rate_and_no_further(switches: Switches) -> None:
    rate = 4 << 20
    ranks = job_of(switches, "slow", FOUR, rates=[0, 0, rate, 0])
    inputs = inputs_of("fp32", 4, 1 << 19)
    began = time.monotonic()
    found = all_reduce(ranks, 0, "fp32", inputs)
    took = time.monotonic() - began
    assert all(event == TreeResult(0) for event, _ in found)
    assert 0.45 < took < 1.5, "2 MiB at 4 MiB a second, both ways at once"
    close_all(ranks)
