"""Controller, agents and switches as real processes; ranks that do nothing but keep their pages and boundaries.

Whatever is killed, ranks go on (a step never waits), and the trees come back.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.bindings.wire import ina_admin
from offpath.bindings.zeromq.keys import make_keys
from offpath.cli import admin_client
from offpath.cli.local.ina_cluster import InaCluster
from offpath.cli.local.switches import Switches
from offpath.sched.ina.patterns import AllReduce, Pattern

from ...support.command import offpath
from ...support.ina_ranks import FakeJob
from ...support.processes import until

HOSTS = ("h1", "h2")
LONGEST_S = 1.0
"""A step of ranks that do nothing: more than any scheduling of this machine, less than any time-out of ours."""


class World(contextlib.ExitStack):
    """Three switches, a controller, two daemons with their helpers, and the jobs of the test."""

    def __init__(self) -> None:
        super().__init__()
        folder = tempfile.mkdtemp(prefix="offpath-i-")
        self.callback(shutil.rmtree, folder, ignore_errors=True)
        self.switches = self.enter_context(Switches(f"{folder}/switches", leaves=len(HOSTS)))
        self.where = {
            name: (self.switches.addresses[name], self.switches.controls[name].address) for name in self.switches.names
        }
        self.cluster = InaCluster(f"{folder}/cluster", self.where, hosts=HOSTS, policy={"plugin_ms": 500})
        self.enter_context(self.cluster)
        self.jobs: list[FakeJob] = []

    def job(self, name: str, incarnation: int | None = None) -> FakeJob:
        """Two ranks on each host."""
        folders = [self.cluster.state_files(host) for host in HOSTS for _ in range(2)]
        job = FakeJob(name, folders, incarnation)
        self.callback(job.close)
        self.jobs.append(job)
        return job

    def explained(self, job: str) -> ina_admin.InaExplanation:
        with self.cluster.client() as client:
            return client.query(ina_admin.ExplainRequest(job=job), ina_admin.InaExplanation)

    def holds(self) -> list[ina_admin.HoldLine]:
        with self.cluster.client() as client:
            return client.query(ina_admin.HoldsRequest(), ina_admin.Holds).holds

    def restart(self, name: str, line: str) -> None:
        """Kill it, and start it again; returns when it has said ``line`` once more."""
        before = self.cluster.log(name).count(line)
        self.cluster.kill(name)
        self.cluster.start(name)
        self.cluster.await_line(name, line, before + 1)


@pytest.fixture(scope="module")
def started() -> Iterator[World]:
    with World() as world:
        yield world
        for name in world.cluster.processes:
            assert "Traceback" not in world.cluster.log(name), world.cluster.log(name)


@pytest.fixture
def world(started: World) -> Iterator[World]:
    """The processes are shared by the tests of this module; jobs are each test's own."""
    yield started
    for job in started.jobs:
        job.close()
        assert job.longest_s < LONGEST_S, "a rank waited for somebody"
        assert [stamp for stamp, _ in job.applied] == sorted({stamp for stamp, _ in job.applied}), "epochs went back"
    names = [job.job for job in started.jobs]
    started.jobs.clear()
    until(lambda: not {job.job for job in jobs_of(started) if job.ranks} & set(names))
    for name in names:
        with contextlib.suppress(admin_client.Refused), started.cluster.client() as client:
            client.query(ina_admin.CancelRequest(job=name), ina_admin.InaJob)
    until(lambda: not started.holds())


def jobs_of(world: World) -> list[ina_admin.InaJobLine]:
    with world.cluster.client() as client:
        return client.query(ina_admin.JobsRequest(), ina_admin.InaJobs).jobs


def test_a_job_is_submitted_seen_granted_explained_and_over(world: World) -> None:
    where = world.cluster.path("controller")
    done = offpath("job", "submit", "whole", "--on", "h1,h2", "--ranks-per-host", "2", "--runtime-dir", where)
    assert (done.code, done.out) == (0, "OFFPATH_INA_JOB=whole\n"), done.err
    assert "none of its ranks was reported" in offpath("job", "explain", "whole", "--runtime-dir", where).out
    assert offpath("job", "submit", "whole", "--hosts", "1", "--runtime-dir", where).code == 1
    job = world.job("whole")
    world.cluster.granted(["whole"])
    until(lambda: job.has_tree)
    shown = offpath("job", "show", "whole", "--runtime-dir", where, "--json").document
    assert {rank["host"] for rank in shown["ranks"]} == set(HOSTS)
    assert shown["job"]["root"] == "s0"
    leases = offpath("ina", "leases", "--runtime-dir", where, "--json").document
    assert {(hold["switch"], hold["job"]) for hold in leases} == {(name, "whole") for name in ("s0", "s1", "s2")}
    assert all(hold["why"] == "the job may use it" for hold in leases)
    groups = offpath("ina", "groups", "--runtime-dir", where, "--json").document
    assert groups["groups"] == [
        {"root": "s0", "jobs": ["whole"], "using": {"whole": "the operations that the Plan selects"}}
    ]
    trees = offpath("ina", "trees", "--runtime-dir", where)
    assert "s0" in trees.out
    assert "may use the tree" in trees.out
    assert offpath("job", "cancel", "whole", "--runtime-dir", where).code == 0
    until(lambda: not job.has_tree or not world.holds())
    assert offpath("job", "list", "--runtime-dir", where, "--json").document[0]["state"] == "cancelled"


def test_a_job_that_is_restricted_to_switches_is_refused_without_a_tree_and_loses_it_when_it_is_given_none(
    world: World,
) -> None:
    where = ["--runtime-dir", world.cluster.path("controller")]
    submit = ["job", "submit", "only", "--on", "h1,h2", "--ranks-per-host", "2", *where]
    assert "no_tree" in offpath(*submit, "--switch", "s1,s2").err
    anywhere = offpath("job", "submit", "only", "--hosts", "2", "--switch", "s0,s1,s2", *where)
    assert "needs the names of its hosts" in anywhere.err
    assert "unknown_switch" in offpath(*submit, "--switch", "s1,s2,s9").err
    done = offpath(*submit, "--switch", "s0,s1,s2")
    assert done.code == 0, done.err
    job = world.job("only")
    world.cluster.granted(["only"])
    assert "restricted to s0, s1, s2" in offpath("job", "show", "only", *where).out
    with world.cluster.client() as client:
        none = ina_admin.SubmitRequest(job="only", on=list(HOSTS), ranks_per_host=2, switches=[])
        client.query(none, ina_admin.InaJob)
    until(lambda: not job.has_tree and not world.holds())
    assert "within no switches" in world.explained("only").where
    assert offpath(*submit, "--switch", "s0,s1,s2").code == 0
    world.cluster.granted(["only"])


def test_two_jobs_share_a_root_in_every_mode_and_the_plan_knows_their_steps(world: World) -> None:
    one, two = world.job("one"), world.job("two")
    world.cluster.granted(["one", "two"])
    one.measure(Pattern("one", (AllReduce(1_000_000, 1 << 20), AllReduce(2_000_000, 1 << 20)), 5_000_000))
    until(lambda: one.ranks[0].epoch is not None and one.ranks[0].epoch.step is not None)
    for mode, both in (("none", 0), ("all", 2), ("exclusive", 1), ("trylock", 2), ("shared", 2)):
        world.cluster.mode(mode)
        until(lambda both=both: one.has_tree + two.has_tree == both)
    world.cluster.mode("alternate")
    before = len(one.applied), len(two.applied)
    until(lambda: len(one.applied) > before[0] + 4 and len(two.applied) > before[1] + 4)
    world.cluster.mode("shared")
    world.cluster.granted(["one", "two"])
    assert offpath("ina", "mode", "nonsense", "--runtime-dir", world.cluster.path("controller")).code == 1


def test_a_killed_controller_costs_no_rank_a_step_and_its_successor_knows_what_is_held(world: World) -> None:
    job = world.job("kept")
    stamp = world.cluster.granted(["kept"])["kept"]
    term = world.cluster.status().term
    world.cluster.kill("controller")
    steps = job.steps
    until(lambda: job.steps > steps + 20)
    assert job.has_tree, "the last epoch stays"
    world.cluster.start("controller")
    world.cluster.await_line("controller", "ready in", world.cluster.log("controller").count("ready in") + 1)
    until(lambda: world.cluster.status().agents == list(HOSTS))
    again = world.cluster.granted(["kept"])["kept"]
    assert world.cluster.status().term > term
    assert again > stamp
    assert again >> 32 == world.cluster.status().term


@pytest.mark.parametrize("damage", ["lost", "damaged"])
def test_a_take_over_without_memory_raises_the_term_above_what_agents_have_heard(world: World, damage: str) -> None:
    world.job("orphan")
    world.cluster.granted(["orphan"])
    term = world.cluster.status().term
    world.cluster.kill("controller")
    state = Path(world.cluster.path("controller", "state.sqlite"))
    if damage == "lost":
        state.unlink()
    else:
        state.write_bytes(b"no database at all" * 400)
    ready = world.cluster.log("controller").count("ready in")
    world.cluster.start("controller")
    world.cluster.await_line("controller", "ready in", ready + 1)
    until(lambda: world.cluster.status().term > term)
    found = world.cluster.granted(["orphan"])
    assert found["orphan"] >> 32 > term
    assert ("rebuilding the state from agents" in world.cluster.log("controller")) or damage == "lost"


@pytest.mark.parametrize("name", ["daemon-h1", "helper-h1"])
def test_an_agent_or_helper_that_was_killed_comes_back_with_the_job_alive(world: World, name: str) -> None:
    job = world.job("alive")
    world.cluster.granted(["alive"])
    world.cluster.kill(name)
    steps = job.steps
    until(lambda: job.steps > steps + 20)
    assert job.has_tree
    joined = world.cluster.log("helper-h1").count("joined as generation")
    world.cluster.start(name)
    world.cluster.await_line("helper-h1", "joined as generation", joined + 1)
    world.cluster.mode("none")
    until(lambda: not job.has_tree)
    world.cluster.mode("shared")
    world.cluster.granted(["alive"])


@pytest.mark.parametrize("who_is_first", ["ranks", "controller"])
def test_a_switch_that_was_restarted_is_told_again_under_a_new_epoch(world: World, who_is_first: str) -> None:
    """Who is first to know that the tree is lost: the ranks by their connections, or the controller by its own."""
    job = world.job(f"moved-{who_is_first}")
    stamp = world.cluster.granted([job.job])[job.job]
    if who_is_first == "ranks":
        job.lose(stamp)
    world.switches.restart("s1")
    job.lose(stamp)
    until(lambda: job.has_tree and job.stamp > stamp)
    assert len(world.holds()) == 3


def test_a_new_incarnation_gets_the_tree_once_the_old_one_is_fenced(world: World) -> None:
    first = world.job("again", incarnation=10)
    world.cluster.granted(["again"])
    second = world.job("again", incarnation=11)
    until(lambda: second.has_tree)
    assert {hold.incarnation for hold in world.holds()} == {11}
    assert first.steps, "it goes on by itself"


def test_a_key_that_is_not_listed_and_a_host_under_a_wrong_name_stay_outside(world: World) -> None:
    cluster = world.cluster
    shutil.copyfile(cluster.path("keys", "h2.key"), cluster.path("keys", "saved.key"))
    os.unlink(cluster.path("keys", "h2.key"))
    make_keys("h2", cluster.path("keys"))
    away = cluster.log("daemon-h2").count("handshake refused")
    world.restart("daemon-h2", "ready in")
    cluster.await_line("daemon-h2", "handshake refused", away + 1)
    assert cluster.status().agents == ["h1"]
    shutil.copyfile(cluster.path("keys", "h1.key"), cluster.path("keys", "h2.key"))
    cluster.await_line("controller", "its key is listed as h1")
    until(lambda: cluster.status().agents == ["h1"])
    shutil.copyfile(cluster.path("keys", "saved.key"), cluster.path("keys", "h2.key"))
    until(lambda: cluster.status().agents == ["h1", "h2"])


def test_of_two_controllers_the_later_rules_and_the_former_ends(world: World) -> None:
    """The later one listens elsewhere and has no agents: what deposes the former is what switches heard."""
    cluster = world.cluster
    world.job("led")
    world.cluster.granted(["led"])
    term = cluster.status().term
    later = InaCluster(cluster.path("later"), world.where, hosts=HOSTS)
    later.prepare()
    later.start("controller")
    with contextlib.closing(later):
        until(lambda: cluster.processes["controller"].poll() is not None)
        assert later.status().term > term
    assert cluster.processes["controller"].returncode == 1
    assert "superseded by a controller" in cluster.log("controller")
    ready = cluster.log("controller").count("ready in")
    cluster.start("controller")
    cluster.await_line("controller", "ready in", ready + 1)
    until(lambda: all(cluster.status().switches.values()))
