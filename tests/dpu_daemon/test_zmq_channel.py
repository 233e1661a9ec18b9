"""A daemon and its helper as processes, joined by ZeroMQ, with copies by DOCA's emulator: the whole way, and losses.

There no pidfd tells of a worker's end, no descriptor travels, and who may come is a list of keys.
"""

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

from offpath.bindings.wire.codes import Status
from offpath.bindings.zeromq.keys import make_keys
from offpath.dpu_daemon.config import ConfigError, Sources, parse_config
from offpath.host_helper import Requester, RequestFailed

from ..support.cluster import MIB, TIMEOUT, Cluster, pids_of, said
from ..support.doca import emulator
from ..support.processes import Process, quickest, until
from ..support.toml import to_toml

Make = Callable[..., Cluster]


class Hosts:
    """The keys of a daemon and of hosts, and clusters that use them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.allowed = folder / "hosts"
        self.allowed.mkdir(mode=0o700)
        (folder / "doca").mkdir(mode=0o700)
        self.daemon_key, self.daemon_public = make_keys("daemon", str(folder))
        self.key, _ = make_keys("host-a", str(self.allowed))
        self.bind = f"ipc://{folder}/host.zmq"
        self.made: list[Cluster] = []

    def emulated(self, side: str) -> dict[str, str]:
        return {"DOCA_EMULATOR_SIDE": side, "DOCA_EMULATOR_DIR": str(self.folder / "doca")}

    def tables(self) -> dict[str, Any]:
        return {
            "datapath": {"copy_engine": "doca", "host_channel": "zmq"},
            "doca": {"path": emulator()},
            "zmq": {"bind": self.bind, "key_file": self.daemon_key, "allowed": str(self.allowed)},
        }

    def cluster(self, **tables: Any) -> Cluster:
        tenants = {"ada": {"max_share": 14, "profile": "1g.5gb"}}
        cluster = Cluster(tenants, environment=self.emulated("dpu"), **{**self.tables(), **tables})
        self.made.append(cluster)
        return cluster

    def helper(self, cluster: Cluster, key: str = "", **options: Any) -> Process:
        zmq = {"daemon": self.bind, "key": key or self.key, "server_key": self.daemon_public}
        return cluster.start_helper(self.emulated("host"), zmq=zmq, doca_path=emulator(), **options)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    try:
        yield made
        for cluster in made.made:
            cluster.close()
    finally:
        for cluster in made.made:
            cluster.kill()


def where(requester: Any, duration: float = 0.0) -> Any:
    return said(requester.submit("where", [np.array([duration])], timeout=TIMEOUT))


def test_requests_large_results_and_scrubs_go_the_whole_way(hosts: Hosts) -> None:
    cluster = hosts.cluster()
    helper = hosts.helper(cluster)
    with cluster.connect("ada", payload_bytes=2 * MIB, result_bytes=2 * MIB) as requester:
        for nbytes in (1, 4096, 2 * MIB - 64):
            sent = np.frombuffer(np.random.default_rng(nbytes).bytes(nbytes), np.uint8)
            assert (requester.submit("echo", [sent], timeout=TIMEOUT).array == sent).all()
        assert (requester.submit("fill", [np.array([2 * MIB, 7])], timeout=TIMEOUT).array == 7).all()
        many = [requester.begin("sum", [np.full(1000 + n, n)]) for n in range(24)]
        assert [pending.result(TIMEOUT).array[0] for pending in many] == [(1000 + n) * n for n in range(24)]
    until(lambda: "lease 1 closes" in cluster.daemon.errors)
    assert "host.sock" not in os.listdir(cluster.run_folder)
    helper.finish()
    counted = cluster.statistics()
    assert counted["ended_completed"] == 28
    assert counted["scrubbed_bytes"] > 0


@pytest.mark.parametrize("elements", [4, 40_000], ids=["in the message", "in the lane"])
def test_streams_go_the_whole_way_and_each_large_answer_with_its_proof(hosts: Hosts, elements: int) -> None:
    """A pong proves that the worker lived while its answer was fetched; it does not wait for the next answer."""
    cluster = hosts.cluster()
    hosts.helper(cluster)
    with cluster.connect("ada", payload_bytes=MIB, result_bytes=MIB) as requester:
        wish = [np.array([9, elements, 0, 0], np.float64)]
        taken = [set(each.array.tolist()) for each in requester.stream("count", wish, timeout=TIMEOUT)]
        assert taken == [{number} for number in range(1, 10)]
        next(requester.stream("count", wish))
        assert requester.submit("echo", [np.arange(3)], timeout=TIMEOUT).array.tolist() == [0, 1, 2]
    assert "lost: " not in cluster.daemon.errors


def test_workers_are_replaced_by_a_reload_and_their_lease_stays(hosts: Hosts) -> None:
    cluster = hosts.cluster(leasing={"keep_warm_ms": 60_000})
    helper = hosts.helper(cluster, reloads=True)
    with cluster.connect("ada") as requester:
        before = [where(requester) for _ in range(8)]
        for revision in (1, 2):
            running = requester.begin("where", [np.array([0.2])])
            helper.signal(signal.SIGHUP)
            until(lambda revision=revision: f"reloaded its kernels, revision {revision}" in cluster.daemon.errors)
            after = [where(requester) for _ in range(8)]
            said(running.result(TIMEOUT))
            assert {each["pid"] for each in after}.isdisjoint({each["pid"] for each in before})
            assert {(each["lease"], each["generation"]) for each in after} == {(1, 1)}
            before = after
    assert "lost: " not in cluster.daemon.errors


def test_a_killed_worker_costs_its_own_job_and_is_known_within_a_second(hosts: Hosts, tmp_path: Path) -> None:
    cluster = hosts.cluster()
    hosts.helper(cluster)
    with cluster.connect("ada") as requester:
        assert quickest(lambda: seconds_until_told(requester), 1.0) < 1.0


def seconds_until_told(requester: Requester) -> float:
    """Of a job whose worker is killed; the next job runs elsewhere."""
    victim = where(requester)["pid"]
    pending = [requester.begin("where", [np.array([1.0])]) for _ in range(2)]
    time.sleep(0.3)
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    ends, took_s = [], 0.0
    for one in pending:
        try:
            ends.append(said(one.result(TIMEOUT))["pid"])
        except RequestFailed as failed:
            ends.append(failed.status)
            took_s = time.monotonic() - killed
    assert Status.OUTCOME_UNKNOWN in ends
    assert victim not in ends
    assert where(requester)["residue"] == [0, 0]
    return took_s


def test_a_killed_helper_is_lost_and_its_successor_serves_as_another_generation(hosts: Hosts) -> None:
    cluster = hosts.cluster()
    helper = hosts.helper(cluster)
    with cluster.connect("ada") as requester:
        first = where(requester)
        workers = set(pids_of(helper))
        helper.kill()
        until(lambda: "helper " in cluster.daemon.errors and " lost: " in cluster.daemon.errors)
        until(lambda: not any(os.path.exists(f"/proc/{pid}/root") for pid in workers))
        hosts.helper(cluster)
        again = until(lambda: _served(requester))
        assert again["generation"] > first["generation"]
        assert again["pid"] not in workers
        assert again["residue"] == [0, 0]


def _served(requester: Any) -> Any:
    try:
        return where(requester)
    except RequestFailed:
        return None


def test_a_killed_daemon_comes_back_to_the_same_workers_as_a_new_session(hosts: Hosts) -> None:
    cluster = hosts.cluster(keep={}, durability={"resume_ttl_s": 60}, leasing={"keep_warm_ms": 60_000})
    hosts.helper(cluster)
    with cluster.connect("ada") as requester:
        before = where(requester)
        (daemon,) = pids_of(cluster.daemon)
        os.kill(daemon, signal.SIGKILL)
        after = until(lambda: _served(requester))
        assert after["generation"] == before["generation"], "the lease went on, with the workers that hold it"
        until(lambda: "reattached with 1 of 1 leases" in cluster.daemon.errors)  # its workers may be back before it


def test_a_helper_that_leaves_is_let_go_once_nothing_lands_in_its_memory(hosts: Hosts) -> None:
    cluster = hosts.cluster()
    helper = hosts.helper(cluster)
    with cluster.connect("ada") as requester:
        where(requester)
        helper.finish()
        assert "did not close in time" not in helper.errors
        until(lambda: re.search(r"helper \S+ is shutting down$", cluster.daemon.errors, re.MULTILINE))


def test_a_host_that_is_not_listed_is_refused_until_it_is_and_cut_once_it_is_not(hosts: Hosts) -> None:
    cluster = hosts.cluster()
    key, public = make_keys("host-b", str(hosts.folder))
    options = {"daemon": hosts.bind, "key": key, "server_key": hosts.daemon_public}
    text = '{"zmq": ' + str(options).replace("'", '"') + f', "doca_path": "{emulator()}"' + "}"
    helper = cluster.start("helper-b", "helper_main.py", "-", text, environment=hosts.emulated("host"))
    until(lambda: "refused this host's key" in helper.errors)
    os.rename(public, hosts.allowed / "host-b.pub")
    assert cluster.reload()
    until(lambda: "joined as generation" in helper.errors)
    with cluster.connect("ada") as requester:
        assert where(requester)["tenant"] == "ada"
        os.unlink(hosts.allowed / "host-b.pub")
        assert cluster.reload()
        until(lambda: "lost: key" in cluster.daemon.errors)
    os.unlink(hosts.allowed / "host-a.pub")
    assert not cluster.reload(), "a list of nobody is refused, and the old one stays"


def test_the_daemon_does_not_start_without_a_list_or_with_descriptors_to_carry(hosts: Hosts) -> None:
    tables = {"tenant": [{"name": "ada"}], **hosts.tables()}
    with pytest.raises(ConfigError, match=r"zmq\.allowed: required for the host channel zmq"):
        parse_config({**tables, "zmq": {"bind": hosts.bind, "key_file": hosts.daemon_key}}, "test")
    with pytest.raises(ConfigError, match=r"datapath\.host_channel: the loopback copy engine needs descriptors"):
        parse_config({**tables, "datapath": {"host_channel": "zmq"}}, "test")
    file = hosts.folder / "offpathd.toml"
    file.write_text(to_toml(tables))
    Sources(str(file)).read()
    os.chmod(hosts.daemon_key, 0o640)
    with pytest.raises(ConfigError, match=r"zmq\.key_file: .* may be read or written by others"):
        Sources(str(file)).read()
    os.chmod(hosts.daemon_key, 0o600)
    os.unlink(hosts.allowed / "host-a.pub")
    with pytest.raises(ConfigError, match=r"zmq\.allowed: .* lists no client's key"):
        Sources(str(file)).read()
