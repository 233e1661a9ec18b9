"""Whatever dies, all others learn of it within a second, and nobody has half a result for a whole one."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from offpath.bindings.ina.connection import SwitchFabric, TreeConnection
from offpath.bindings.ina.port import TreeAttached, TreeLost, TreeResult
from offpath.bindings.ina.rate_limiter import RateLimiter
from offpath.cli.local.switches import Switches

from .ranks import (
    STAMP,
    all_reduce,
    close_all,
    event_of,
    expected,
    inputs_of,
    job_of,
    lost_at,
    same_bits,
    settled,
    together,
)

HOSTS = (0, 0, 1, 1)
LEARNT_S = 1.0


def kill(switches: Switches, name: str) -> None:
    switches.processes[name].kill()
    switches.processes[name].wait()


@pytest.mark.parametrize("what", ["s0", "s1", "s2"], ids=["root", "leaf", "other leaf"])
@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "in an operation"])
def test_a_killed_switch_is_known_to_all_ranks_within_a_second(what: str, is_busy: bool, tmp_path: Path) -> None:
    with Switches(str(tmp_path), leaves=2) as switches:
        ranks = job_of(switches, "job", HOSTS)
        inputs = inputs_of("fp32", 4, 1 << 20)
        if is_busy:  # one rank has not begun, so that it stands still half way
            for rank, data in list(zip(ranks, inputs, strict=True))[:3]:
                rank.start(0, "fp32", memoryview(data).cast("B"), memoryview(np.zeros_like(data)).cast("B"))
                assert rank.poll(0.1) is None
        for why, after_s in lost_at(ranks, lambda: kill(switches, what)):
            assert why in ("lost", "hung up")
            assert after_s < LEARNT_S
        survivors = [name for name in switches.names if name != what]
        for name in survivors:
            assert settled(switches, name)["parts"] == []


@pytest.mark.parametrize("nbytes", [0, 8 << 20], ids=["idle", "ahead of the others"])
def test_a_killed_rank_is_known_to_all_others_within_a_second(nbytes: int, tmp_path: Path) -> None:
    """Ahead of the others: the switch has stopped reading it, and must see its end all the same."""
    with Switches(str(tmp_path), leaves=2) as switches:
        switches.allow(switches.permissions("job", HOSTS))
        at = switches.attach_addresses(HOSTS)
        victim = subprocess.Popen(
            [sys.executable, "-m", "tests.dpu_daemon.switch.rank_main", at[1], "job", "1", "4", str(nbytes)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3],
        )  # fmt: skip
        with victim:
            others = attached(switches, [0, 2, 3])
            assert victim.stdout is not None
            assert victim.stdin is not None
            assert "TreeAttached" in victim.stdout.readline()
            victim.stdin.write("\n")
            victim.stdin.flush()
            time.sleep(0.5)
            for why, after_s in lost_at(others, victim.kill):
                assert why == "lost"
                assert after_s < LEARNT_S


def attached(switches: Switches, ranks: Sequence[int], patience_s: float = 5.0) -> list[TreeConnection]:
    at = switches.attach_addresses(HOSTS)
    found = [
        SwitchFabric(RateLimiter(), patience_s).attach(
            at[rank], job="job", incarnation=1, stamp=STAMP, rank=rank, ranks=4, token="token"
        )
        for rank in ranks
    ]
    assert [event_of(rank) for rank in found] == [TreeAttached()] * len(found)
    return found


@pytest.mark.parametrize("given", [1, 2], ids=["after one leaf", "after both leaves"])
def test_a_root_that_dies_mid_delivery_leaves_some_ranks_with_the_whole_and_others_with_none(
    given: int, tmp_path: Path
) -> None:
    with Switches(str(tmp_path), leaves=2, faults={"s0": f"switch.delivered=kill@{given}"}) as switches:
        ranks = job_of(switches, "job", HOSTS)
        inputs = inputs_of("fp32", 4, 100_000)
        found = all_reduce(ranks, 0, "fp32", inputs)
        right = expected("fp32", inputs, HOSTS)
        whole = [isinstance(event, TreeResult) for event, _ in found]
        leaves = sorted((tuple(whole[:2]), tuple(whole[2:])), reverse=True)  # either leaf may drain its socket first
        assert leaves == [(True, True)] * given + [(False, False)] * (2 - given)
        for event, target in found:
            if isinstance(event, TreeResult):
                assert same_bits(target, right)
        close_all(ranks)


def test_a_leaf_that_dies_after_delivery_to_one_of_its_two_ranks(tmp_path: Path) -> None:
    with Switches(str(tmp_path), leaves=2, faults={"s1": "switch.delivered=kill@1"}) as switches:
        ranks = job_of(switches, "job", HOSTS)
        inputs = inputs_of("int32", 4, 50_000)
        found = all_reduce(ranks, 0, "int32", inputs)
        kinds = [type(event) for event, _ in found]
        assert kinds[:2] == [TreeResult, TreeLost]
        assert same_bits(found[0][1], expected("int32", inputs, HOSTS))
        assert isinstance(event_of(ranks[0]), TreeLost)
        close_all(ranks)


@pytest.mark.parametrize(("chunk", "why"), [(2, "rules"), (4, "no progress")], ids=["one of many", "the last"])
def test_a_dropped_chunk_costs_the_tree_and_not_the_job(chunk: int, why: str, tmp_path: Path) -> None:
    """A gap breaks the rules; where nothing follows, ranks lose their patience."""
    with Switches(str(tmp_path), leaves=2, faults={"s1": f"switch.chunk=raise@{chunk}"}) as switches:
        ranks = job_of(switches, "job", HOSTS, patience_s=1.0)
        began = time.monotonic()
        found = all_reduce(ranks, 0, "fp32", inputs_of("fp32", 4, 60_000))
        assert {event.reason for event, _ in found if isinstance(event, TreeLost)} in ({why}, {why, "lost"})
        assert all(isinstance(event, TreeLost) for event, _ in found)
        assert why != "no progress" or time.monotonic() - began >= 1.0


def test_a_switch_that_hangs_is_given_up_on(tmp_path: Path) -> None:
    with Switches(str(tmp_path), leaves=2) as switches:
        ranks = job_of(switches, "job", HOSTS, patience_s=1.0)
        switches.processes["s0"].send_signal(signal.SIGSTOP)
        try:
            found = all_reduce(ranks, 0, "fp32", inputs_of("fp32", 4, 60_000))
            assert all(isinstance(event, TreeLost) for event, _ in found)
        finally:
            switches.processes["s0"].send_signal(signal.SIGCONT)


def test_a_slow_switch_is_waited_for(tmp_path: Path) -> None:
    with Switches(str(tmp_path), leaves=2, faults={"s2": "switch.operation=sleep@1"}) as switches:
        ranks = job_of(switches, "job", HOSTS)
        inputs = inputs_of("fp16", 4, 60_000)
        began = time.monotonic()
        found = all_reduce(ranks, 0, "fp16", inputs)
        assert all(same_bits(target, expected("fp16", inputs, HOSTS)) for _, target in found)
        assert time.monotonic() - began > 1.9
        close_all(ranks)


def test_a_switch_that_was_started_anew_admits_nothing_until_it_is_told_again(tmp_path: Path) -> None:
    with Switches(str(tmp_path), leaves=2) as switches:
        ranks = job_of(switches, "job", HOSTS)
        life = switches.stats()["life"]
        lost_at(ranks, lambda: switches.restart("s0"))
        assert switches.stats()["life"] != life
        at = switches.attach_addresses(HOSTS)
        again = SwitchFabric(RateLimiter()).attach(
            at[0], job="job", incarnation=1, stamp=STAMP, rank=0, ranks=4, token="token"
        )
        assert event_of(again) == TreeLost("unknown"), "a stamp that was lost does not come back"
        ranks = job_of(switches, "job", HOSTS, number=2)
        inputs = inputs_of("fp32", 4, 1000)
        assert all(event == TreeResult(0) for event, _ in all_reduce(ranks, 0, "fp32", inputs))
        close_all(ranks)


def test_sigterm_tells_everybody_and_ends_in_order(tmp_path: Path) -> None:
    with Switches(str(tmp_path), leaves=2) as switches:
        ranks = job_of(switches, "job", HOSTS)
        found = lost_at(ranks, switches.processes["s0"].terminate)
        assert {why for why, _ in found} == {"ending"}
        assert switches.processes["s0"].wait(30) == 0
        assert not Path(switches.path("s0", "sock")).exists()
        assert not Path(switches.path("s0", "control")).exists()


def test_over_tcp_it_is_the_same(tmp_path: Path) -> None:
    with Switches(str(tmp_path), leaves=2, tcp=True) as switches:
        ranks = job_of(switches, "job", HOSTS)
        inputs = inputs_of("bf16", 4, 300_000)
        for event, target in all_reduce(ranks, 0, "bf16", inputs):
            assert event == TreeResult(0)
            assert same_bits(target, expected("bf16", inputs, HOSTS))
        for why, after_s in lost_at(ranks, lambda: kill(switches, "s1")):
            assert why in ("lost", "hung up")
            assert after_s < LEARNT_S


def test_nobody_learns_of_a_loss_that_is_none(tmp_path: Path) -> None:
    """Another job's death, and a stranger's, leave a job alone."""
    with Switches(str(tmp_path), leaves=2, capacity=2) as switches:
        ranks, others = job_of(switches, "job", HOSTS), job_of(switches, "other", HOSTS)
        lost_at(others[1:], others[0].close)
        inputs = inputs_of("fp32", 4, 100_000)
        assert all(event == TreeResult(0) for event, _ in all_reduce(ranks, 0, "fp32", inputs))
        assert together([lambda r=r: r.poll(0.2) for r in ranks]) == [None] * 4
        close_all(ranks)
