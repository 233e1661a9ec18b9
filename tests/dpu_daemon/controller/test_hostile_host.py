"""One listed host that lies about everything it can: the controller lives, and other hosts' jobs go on.

Real processes: two honest hosts with a job, and the key of a third one in hostile hands.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from offpath.bindings.errors import PeerGone
from offpath.bindings.wire import cluster as wire
from offpath.bindings.wire import ina_admin
from offpath.bindings.zeromq.keys import read_public, read_secret
from offpath.cli.local.ina_cluster import InaCluster
from offpath.cli.local.switches import Switches

from ...support.command import offpath
from ...support.hostile_agent import HostileAgent, state
from ...support.ina_ranks import FakeJob
from ...support.processes import until

HOSTS = ("h1", "h2", "h3")
LAST = (1 << 31) - 1
END = (1 << 63) - 1
ENDLESS_BYTES = 256 << 20


class World(contextlib.ExitStack):
    """Switches, a controller, daemons and helpers of h1 and h2; h3 is only listed."""

    def __init__(self) -> None:
        super().__init__()
        folder = tempfile.mkdtemp(prefix="offpath-l-")
        self.callback(shutil.rmtree, folder, ignore_errors=True)
        self.switches = self.enter_context(Switches(f"{folder}/switches", leaves=len(HOSTS)))
        where = {
            name: (self.switches.addresses[name], self.switches.controls[name].address) for name in self.switches.names
        }
        self.cluster = InaCluster(f"{folder}/cluster", where, hosts=HOSTS)
        self.callback(self.cluster.close)
        self.cluster.prepare()
        for name in ("controller", "daemon-h1", "daemon-h2"):
            self.cluster.start(name)
        for name in ("controller", "daemon-h1", "daemon-h2"):
            self.cluster.await_line(name, "ready in")
        for host in ("h1", "h2"):
            self.cluster.start(f"helper-{host}")
            self.cluster.await_line(f"helper-{host}", "joined as generation")
        self.where = self.cluster.path("controller")

    def hostile(self) -> HostileAgent:
        return HostileAgent("ipc://" + self.cluster.path("agents"), self.cluster.path("keys"), "h3")

    def quarantined(self) -> dict[str, str]:
        return self.cluster.status().quarantined

    def release(self) -> None:
        done = offpath("ina", "hosts", "--release", "h3", "--runtime-dir", self.where)
        assert done.code == 0, done.err

    def restart(self) -> None:
        ready = self.cluster.log("controller").count("ready in")
        self.cluster.start("controller")
        self.cluster.await_line("controller", "ready in", ready + 1)

    def refused(self) -> int:
        return self.cluster.status().counters.get("states_refused", 0)


@pytest.fixture(scope="module")
def started() -> Iterator[World]:
    with World() as world:
        yield world
        assert "Traceback" not in world.cluster.log("controller"), world.cluster.log("controller")


@pytest.fixture
def world(started: World) -> Iterator[World]:
    """Whatever the test did: the controller is the process that it was at the end of it, and changes what jobs have."""
    with FakeJob("steady", [started.cluster.state_files(host) for host in ("h1", "h2")]) as job:
        started.cluster.granted(["steady"])
        yield started
        assert started.cluster.processes["controller"].poll() is None, started.cluster.log("controller")[-2000:]
        started.cluster.mode("none")
        until(lambda: not job.has_tree)
        started.cluster.mode("shared")
        started.cluster.granted(["steady"])
    until(lambda: not started.cluster.status().holds)
    if "h3" in started.quarantined():
        started.release()


@pytest.mark.parametrize("proof", ["none", "zeros", "of another term"])
@pytest.mark.parametrize("term", [LAST, LAST - 1, -1])
def test_a_term_that_no_controller_issued_quarantines_its_host_and_changes_nothing_else(
    world: World, term: int, proof: str
) -> None:
    before = world.cluster.status()
    with world.hostile() as hostile:
        asked = hostile.wait(wire.AskAll)
        named = term if term > 0 else asked.term + 1
        hostile.report(term=named, proof={"none": "", "zeros": "0" * 48, "of another term": asked.proof}[proof])
        until(lambda: "h3" in world.quarantined())
    after = world.cluster.status()
    assert (after.pid, after.term) == (before.pid, before.term)
    assert after.quarantined == {"h3": "term_not_issued"}
    shown = offpath("ina", "hosts", "--runtime-dir", world.where)
    assert f"reports term {named}" in shown.out
    assert "quarantined: term_not_issued" in offpath("controller", "status", "--runtime-dir", world.where).out
    assert '"host_quarantined"' in world.cluster.log("controller")


@pytest.mark.parametrize("term", [LAST, LAST - 1])
def test_a_controller_that_just_began_takes_over_from_nobody_that_a_host_made_up(world: World, term: int) -> None:
    """Without its memory, and before anything is granted: then it believes what it is told of terms."""
    world.cluster.mode("none")
    world.cluster.kill("controller")
    Path(world.cluster.path("controller", "state.sqlite")).unlink()
    world.restart()
    with world.hostile() as hostile:
        hostile.report(term=term)
        until(lambda: "h3" in world.quarantined())
    assert world.cluster.status().term < 1 << 30
    world.cluster.kill("controller")
    world.restart()
    assert world.quarantined() == {"h3": "term_not_issued"}, "a restart releases nobody"


def test_a_quarantined_host_is_not_listened_to_until_an_operator_releases_it(world: World) -> None:
    with world.hostile() as hostile:
        asked = hostile.wait(wire.AskAll)
        hostile.report(term=asked.term + 1)
        until(lambda: "h3" in world.quarantined())
        hostile.report(state("more"), term=asked.term, proof=asked.proof)
        until(lambda: world.cluster.status().counters.get("reports_refused", 0) > 0)
        assert "more" not in jobs_of(world)
        world.release()
        hostile.wait(wire.AskAll)
        hostile.report(state("more"), term=asked.term, proof=asked.proof, is_whole=True)
        until(lambda: "more" in jobs_of(world))
        hostile.report(state("more", is_gone=True), term=asked.term, proof=asked.proof)
        until(lambda: "more" not in jobs_of(world))
    assert offpath("ina", "hosts", "--release", "h3", "--runtime-dir", world.where).code == 1
    assert offpath("ina", "hosts", "--quarantine", "nowhere", "--runtime-dir", world.where).code == 1


def test_what_a_quarantined_hosts_job_holds_is_fenced_and_granted_anew_after_the_release(world: World) -> None:
    stamp = world.cluster.granted(["steady"])["steady"]
    assert offpath("ina", "hosts", "--quarantine", "h2", "--runtime-dir", world.where).code == 0
    until(lambda: not holds_of(world))
    assert world.quarantined() == {"h2": "operator"}
    assert offpath("ina", "hosts", "--release", "h2", "--runtime-dir", world.where).code == 0
    assert world.cluster.granted(["steady"])["steady"] > stamp


def hostile_epoch(hostile: HostileAgent) -> dict[str, Any] | None:
    return next((each.epoch for each in hostile.heard() if isinstance(each, wire.NewEpoch)), None)


def jobs_of(world: World) -> list[str]:
    with world.cluster.client() as client:
        jobs = client.query(ina_admin.JobsRequest(), ina_admin.InaJobs).jobs
    return [job.job for job in jobs if job.state == "running"]


def holds_of(world: World) -> list[ina_admin.HoldLine]:
    with world.cluster.client() as client:
        return client.query(ina_admin.HoldsRequest(), ina_admin.Holds).holds


@pytest.mark.parametrize(
    "fields",
    [{"term": 1 << 31}, {"term": -1}, {"term": 1 << 200}, {"term": 1.5}, {"term": "9"}, {"proof": "x" * 65},
     {"proof": "é"}, {"states": 7}],
    ids=str,
)  # fmt: skip
def test_a_report_beyond_every_bound_ends_its_connection_and_nothing_else(world: World, fields: dict[str, Any]) -> None:
    with world.hostile() as hostile:
        hostile.wait(wire.AskAll)
        hostile.report(**fields)
        hostile.wait_gone()


@pytest.mark.parametrize(
    "fields",
    [{"incarnation": END}, {"incarnation": 1 << 63}, {"incarnation": -1}, {"held": END, "applied": END},
     {"held": END, "applied": 0}, {"held": 1 << 63}, {"lost": END}, {"index": 1 << 63}, {"index": -1},
     {"held": (LAST << 32) - 1, "applied": 0}, {"rank": 65_535, "ranks": 65_535}, {"rank": 1 << 40, "ranks": 1 << 41},
     {"job": "x" * 256}, {"job": ""}, {"proof": "0" * 65}],
    ids=str,
)  # fmt: skip
def test_a_state_at_or_beyond_the_end_of_its_range_is_refused(world: World, fields: dict[str, Any]) -> None:
    before = world.refused()
    with world.hostile() as hostile:
        asked = hostile.wait(wire.AskAll)
        hostile.report({**state("lies"), **fields}, term=asked.term, proof=asked.proof)
        until(lambda: world.refused() > before)
    assert "lies" not in jobs_of(world)
    assert world.quarantined() == {}, "a rank's page can say so: it costs its job, not its host"


def test_a_rank_that_says_all_it_may_at_the_end_of_the_range_costs_only_its_job(world: World) -> None:
    with world.hostile() as hostile:
        asked = hostile.wait(wire.AskAll)
        newest = asked.term << 32
        extreme = state("lies", index=END, rank=65_534, ranks=65_535, held=newest, applied=newest, lost=newest)
        hostile.report(extreme, term=asked.term, proof=asked.proof, is_whole=True)
        until(lambda: "lies" in jobs_of(world))
        hostile.report({**extreme, "is_gone": True}, term=asked.term, proof=asked.proof, is_whole=True)
        until(lambda: "lies" not in jobs_of(world))


@pytest.mark.parametrize(
    "fields",
    [{"rank": 0}, {"rank": 1, "is_gone": True}, {"newer": True}, {"newer": True, "ranks": 1},
     {"newer": True, "is_gone": True}],
    ids=str,
)  # fmt: skip
def test_a_host_says_nothing_of_jobs_that_live_on_others(world: World, fields: dict[str, Any]) -> None:
    with world.cluster.client() as client:
        steady = client.query(ina_admin.JobRequest(job="steady"), ina_admin.InaJob)
    said = dict(fields)
    incarnation = steady.job.incarnation + bool(said.pop("newer", False))
    before = world.refused()
    with world.hostile() as hostile:
        asked = hostile.wait(wire.AskAll)
        hostile.heard()
        lie = {**state("steady", incarnation=incarnation, ranks=2), **said}
        hostile.report(lie, term=asked.term, proof=asked.proof, is_whole=True)
        until(lambda: world.refused() > before)
        assert hostile_epoch(hostile) is None, "what ranks of others are told, tokens too"
    with world.cluster.client() as client:
        now = client.query(ina_admin.JobRequest(job="steady"), ina_admin.InaJob)
    assert (now.job.incarnation, {rank.host for rank in now.ranks}) == (steady.job.incarnation, {"h1", "h2"})
    assert (now.job.stamp, now.job.tree) == (steady.job.stamp, steady.job.tree)


def test_a_host_that_invents_jobs_without_end_gets_no_more_than_its_bound(world: World) -> None:
    with world.hostile() as hostile:
        asked = hostile.wait(wire.AskAll)
        for turn in range(3):
            said = [state(f"invented-{turn}-{n}", ranks=2) for n in range(1500)]
            hostile.report(*said, term=asked.term, proof=asked.proof)
        until(lambda: world.refused() >= 4500 - 1024)
        assert world.cluster.status().jobs <= 1024 + 8, "and those that ended just now"
        gone = [state(f"invented-0-{n}", ranks=2, is_gone=True) for n in range(1500)]
        hostile.report(*gone, term=asked.term, proof=asked.proof)
        until(lambda: not [job for job in jobs_of(world) if job.startswith("invented")])


@pytest.mark.parametrize("damage", ["last", "folder", "fifo", "earlier release"])
def test_a_poisoned_state_file_is_moved_aside_and_what_matters_is_learnt_anew(world: World, damage: str) -> None:
    term = world.cluster.status().term
    world.cluster.kill("controller")
    path = Path(world.cluster.path("controller", "state.sqlite"))
    if damage == "last":
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute(f"UPDATE term SET term={LAST}")
    elif damage == "earlier release":
        path.unlink()
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL)")
            database.execute(f"INSERT INTO meta VALUES ('term', {LAST})")
            database.execute("PRAGMA user_version=1")
    else:
        path.unlink()
        os.mkdir(path) if damage == "folder" else os.mkfifo(path)
    world.restart()
    until(lambda: world.cluster.status().term > term)
    status = world.cluster.status()
    assert status.term < 1 << 30
    assert "moved aside" in status.memory
    assert (
        "state file: the previous file was moved aside"
        in offpath("controller", "status", "--runtime-dir", world.where).out
    )
    assert os.path.lexists(f"{path}.set-aside")
    assert world.cluster.log("controller").count('"memory_remade"')
    world.cluster.granted(["steady"])


def memory(pid: int) -> int:
    """Resident, in bytes."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_message_of_parts_without_end_does_not_fill_the_controllers_memory(tmp_path: Path) -> None:
    """Over TCP, from a host with a listed key, past the handshake; another host's agent stays connected."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    cluster = InaCluster(str(tmp_path / "c"), {}, hosts=("h1", "h2"))
    cluster.prepare()
    address = f"tcp://127.0.0.1:{port}"
    for name in ("controller.toml", "h1.toml"):
        path = Path(cluster.path(name))
        path.write_text(path.read_text().replace("ipc://" + cluster.path("agents"), address))
    with contextlib.closing(cluster):
        for name in ("controller", "daemon-h1"):
            cluster.start(name)
            cluster.await_line(name, "ready in")
        until(lambda: cluster.status().agents == ["h1"])
        before = most = memory(cluster.processes["controller"].pid)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        dealer = context.socket(zmq.DEALER)
        secret = read_secret(cluster.path("keys", "h2.key"))
        dealer.setsockopt(zmq.CURVE_SERVERKEY, read_public(cluster.path("keys", "controller.pub")))
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, zmq.curve_public(secret))
        dealer.setsockopt(zmq.CURVE_SECRETKEY, secret)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.RECONNECT_IVL, -1)
        dealer.connect(address)
        with contextlib.ExitStack() as held:
            held.callback(context.destroy, 0)
            for _ in range(ENDLESS_BYTES // 4096):
                dealer.send(bytes(4096), zmq.SNDMORE)
            dealer.send(b"last")  # now libzmq puts all of it on the wire
            end = time.monotonic() + 60
            while not cluster.status().counters["connections_cut"]:
                most = max(most, memory(cluster.processes["controller"].pid))
                assert time.monotonic() < end, f"not cut off; {(most - before) >> 20} MiB more"
        assert most - before < ENDLESS_BYTES // 2
        assert cluster.status().agents == ["h1"]
        assert cluster.log("daemon-h1").count("no connection to the controller") == 0


def test_a_host_that_is_gone_in_the_middle_of_everything_leaves_no_trace(world: World) -> None:
    for _ in range(20):
        hostile = world.hostile()
        hostile.text(b'{"kind":"agent_report","term":0,"states":[')
        hostile.close()
    until(lambda: world.cluster.status().agents == ["h1", "h2"])
    with contextlib.suppress(PeerGone), world.hostile() as hostile:
        hostile.text(b"[" * 500_000)
