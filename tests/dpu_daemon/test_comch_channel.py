"""A daemon and its helper as processes, joined by Comch on DOCA's emulator, with copies by DOCA: the whole way, and
losses."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpath.bindings.doca import poller
from offpath.bindings.wire.codes import Status
from offpath.dpu_daemon.config import ConfigError, parse_config
from offpath.host_helper import RequestFailed

from ..support.carriers import Carrier
from ..support.cluster import MIB, TIMEOUT, Cluster, pids_of, said
from ..support.doca import emulator
from ..support.processes import Process, until

LOST_S = 1.0


class Comch:
    """A cluster, and helpers that come to it."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.carrier = Carrier(folder, "comch")
        self.cluster = Cluster(
            {"ada": {"max_share": 14, "profile": "1g.5gb"}}, environment=self.carrier.environment("dpu"),
            **{**self.carrier.tables(), **more},
        )  # fmt: skip

    def helper(self) -> Process:
        return self.cluster.start_helper(self.carrier.environment("host"), **self.carrier.options())


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Comch]]:
    made: list[Comch] = []

    def start(**more: Any) -> Comch:
        made.append(comch := Comch(tmp_path, **more))
        return comch

    try:
        yield start
        for each in made:
            each.cluster.close()
    finally:
        for each in made:
            each.cluster.kill()


def where(requester: Any, duration: float = 0.0) -> Any:
    return said(requester.submit("where", [np.array([duration])], timeout=TIMEOUT))


def test_requests_large_results_and_scrubs_go_the_whole_way(make: Callable[..., Comch]) -> None:
    comch = make()
    helper = comch.helper()
    with comch.cluster.connect("ada", payload_bytes=2 * MIB, result_bytes=2 * MIB) as requester:
        for nbytes in (1, 4096, 2 * MIB - 64):
            sent = np.frombuffer(np.random.default_rng(nbytes).bytes(nbytes), np.uint8)
            assert (requester.submit("echo", [sent], timeout=TIMEOUT).array == sent).all()
        assert (requester.submit("fill", [np.array([2 * MIB, 7])], timeout=TIMEOUT).array == 7).all()
        many = [requester.begin("sum", [np.full(1000 + n, n)]) for n in range(24)]
        assert [pending.result(TIMEOUT).array[0] for pending in many] == [(1000 + n) * n for n in range(24)]
    until(lambda: "lease 1 closes" in comch.cluster.daemon.errors)
    assert "host.sock" not in os.listdir(comch.cluster.run_folder)
    helper.finish()
    counted = comch.cluster.statistics()
    assert counted["ended_completed"] == 28
    assert counted["scrubbed_bytes"] > 0


def test_a_killed_worker_costs_its_own_job_and_is_known_within_a_second(make: Callable[..., Comch]) -> None:
    comch = make()
    comch.helper()
    with comch.cluster.connect("ada") as requester:
        victim = where(requester)["pid"]
        pending = [requester.begin("where", [np.array([1.0])]) for _ in range(2)]
        time.sleep(0.3)
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        ends = []
        for one in pending:
            try:
                ends.append(said(one.result(TIMEOUT))["pid"])
            except RequestFailed as failed:
                ends.append(failed.status)
                assert time.monotonic() - killed < LOST_S
        assert Status.OUTCOME_UNKNOWN in ends
        assert victim not in ends
        assert where(requester)["residue"] == [0, 0]


def test_a_kernel_that_runs_longer_than_silence_is_borne_is_not_a_worker_lost(make: Callable[..., Comch]) -> None:
    comch = make(shortened={f"{poller.__name__}.LOSS_NS": 1_200_000_000})
    comch.helper()
    with comch.cluster.connect("ada") as requester:
        first = where(requester, 2.0)
        assert where(requester)["lease"] == first["lease"]
    assert "worker of lease" not in comch.cluster.daemon.errors


def test_a_killed_helper_is_lost_and_its_successor_serves_as_another_generation(make: Callable[..., Comch]) -> None:
    comch = make()
    helper = comch.helper()
    with comch.cluster.connect("ada") as requester:
        first = where(requester)
        workers = set(pids_of(helper))
        helper.kill()
        until(lambda: "helper " in comch.cluster.daemon.errors and " lost: " in comch.cluster.daemon.errors)
        until(lambda: not any(os.path.exists(f"/proc/{pid}/root") for pid in workers))
        comch.helper()
        again = until(lambda: _served(requester))
        assert again["generation"] > first["generation"]
        assert again["pid"] not in workers
        assert again["residue"] == [0, 0]


def _served(requester: Any) -> Any:
    try:
        return where(requester)
    except RequestFailed:
        return None


def test_a_helper_that_leaves_is_let_go_once_nothing_lands_in_its_memory(make: Callable[..., Comch]) -> None:
    comch = make()
    helper = comch.helper()
    with comch.cluster.connect("ada") as requester:
        where(requester)
        helper.finish()
        assert "did not close in time" not in helper.errors
        until(lambda: re.search(r"helper \S+ is shutting down$", comch.cluster.daemon.errors, re.MULTILINE))


def test_a_second_helper_is_turned_away_with_the_reason(make: Callable[..., Comch]) -> None:
    comch = make()
    comch.helper()
    text = f'{{"comch": {{"doca_path": "{emulator()}"}}}}'
    second = comch.cluster.start("second", "helper_main.py", "-", text, environment=comch.carrier.environment("host"))
    until(lambda: "serves this daemon already" in second.errors)
    with comch.cluster.connect("ada") as requester:
        assert where(requester)["tenant"] == "ada"


def test_a_configuration_that_cannot_work_is_refused() -> None:
    tables = {"tenant": [{"name": "ada"}], "datapath": {"host_channel": "comch"}}
    with pytest.raises(ConfigError, match=r"datapath\.host_channel: the loopback copy engine needs descriptors"):
        parse_config(tables, "test")
    for bad in ({"representor": "host0"}, {"comch_name": ""}, {"comch_name": "two words"}):
        with pytest.raises(ConfigError, match=rf"doca\.{next(iter(bad))}"):
            parse_config({**tables, "datapath": {"copy_engine": "doca", "host_channel": "comch"}, "doca": bad}, "test")
