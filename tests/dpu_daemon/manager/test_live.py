"""A job manager as a real process with the engine `local`: jobs are real processes, and nothing is started twice."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.bindings.wire import control, work_admin
from offpath.cli import admin_client
from offpath.cli.local.job_manager import JobManager

from ...support.command import offpath
from ...support.processes import BOUND_S, until

NODES = [{"name": f"n{number}", "gpus": 2, "switch": f"s{number // 2}"} for number in range(4)]


def manager(folder: Path, **policy: object) -> JobManager:
    engine = {"kind": "local", "folder": str(folder / "engine"), "poll_ms": 100, "node": NODES}
    network = {"link_gbps": 100, "oversubscription": 4, "switch_memory_mib": 5, "rtt_us": 40}
    return JobManager(
        str(folder / "manager"), {"engine": engine, "network": network, "policy": {"batch_ms": 50, **policy}}
    )


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="offpath-m-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def started(folder: Path) -> Iterator[JobManager]:
    with manager(folder) as made:
        yield made
        assert "Traceback" not in made.log


@pytest.fixture
def here(started: JobManager) -> Iterator[JobManager]:
    yield started
    for job in started.jobs():
        if job.state not in ("succeeded", "failed", "cancelled", "refused"):
            started.cancel(job.identity)
    until(lambda: all(node.free == node.gpus for node in started.status().nodes))


def state(here: JobManager, job: str) -> str:
    return here.explain(job).job.state


def test_a_job_is_placed_started_on_each_node_and_ends(here: JobManager, tmp_path: Path) -> None:
    where = here.runtime_dir
    command = ["sh", "-c", "echo $OFFPATH_NODE $OFFPATH_PLACE/$OFFPATH_PLACES $OFFPATH_WORKERS $CUDA_VISIBLE_DEVICES"]
    done = offpath(
        "job", "submit", "first", "--gpus", "3", "--model", "vgg16", "--runtime-dir", where, "--output",
        str(tmp_path / "out"), "--env", "EPOCHS=3", "--", *command,
    )  # fmt: skip
    assert done.code == 0, done.err
    ended = here.ended(["first"], BOUND_S)["first"]
    assert (ended.state, ended.exit_code) == ("succeeded", 0)
    assert sum(share.count for share in ended.shares) == 3
    lines = [(tmp_path / f"out.{place}").read_text().split() for place in range(len(ended.shares))]
    assert [line[0] for line in lines] == [share.node for share in ended.shares]
    assert sum(len(line[3].split(",")) for line in lines) == 3
    shown = offpath("job", "explain", "first", "--runtime-dir", where)
    assert "it has ended: succeeded" in shown.out
    assert "first" in offpath("job", "list", "--ended", "--runtime-dir", where).out
    assert "first" not in offpath("job", "list", "--runtime-dir", where).out


def test_jobs_wait_until_gpus_are_free_and_say_why(here: JobManager) -> None:
    here.submit("wide", 7, ["sleep", "60"])
    until(lambda: state(here, "wide") == "running")
    here.submit("later", 2, ["true"])
    until(lambda: here.explain("later").job.batches > 0)
    found = here.explain("later")
    assert "it waits for GPUs" in found.where
    assert any("free" in reason for reason in found.reasons), found.reasons
    asked = offpath("job", "whatif", "--gpus", "2", "--model", "vgg16", "--runtime-dir", here.runtime_dir)
    assert asked.code == 1
    assert "it would wait" in asked.out
    running = here.explain("wide")
    assert running.job.rate_bps > 0
    assert "link of" in running.bottleneck
    offpath("job", "cancel", "wide", "--runtime-dir", here.runtime_dir)
    assert here.ended(["wide", "later"], BOUND_S)["later"].state == "succeeded"
    assert state(here, "wide") == "cancelled"


def test_whatif_shows_places_rates_and_what_others_lose(here: JobManager) -> None:
    here.submit("busy", 3, ["sleep", "60"])
    until(lambda: state(here, "busy") == "running")
    asked = offpath("job", "whatif", "--gpus", "5", "--model", "vgg19", "--runtime-dir", here.runtime_dir, "--json")
    assert asked.code == 0, asked.err
    found = asked.document
    assert sum(share["count"] for share in found["shares"]) == 5
    assert found["rate_bps"] > 0
    assert {other["job"] for other in found["others"]} <= {"busy"}
    assert state(here, "busy") == "running"
    assert [job.job for job in here.jobs() if job.state == "running"] == ["busy"], "it submits nothing"


def test_a_job_that_fails_says_so_with_its_exit_code(here: JobManager) -> None:
    here.submit("bad", 1, ["sh", "-c", "exit 3"])
    ended = here.ended(["bad"], BOUND_S)["bad"]
    assert (ended.state, ended.exit_code) == ("failed", 3)


def test_a_command_that_is_not_there_fails_as_in_a_shell(here: JobManager) -> None:
    here.submit("typo", 1, ["/no/such/program"])
    ended = here.ended(["typo"], BOUND_S)["typo"]
    assert (ended.state, ended.exit_code) == ("failed", 127)


def test_a_job_that_the_engine_refuses_comes_back_with_its_reason(here: JobManager) -> None:
    here.submit("crowd", 1, ["true"], environment={"NOT-A-NAME": "1"})
    ended = here.ended(["crowd"], BOUND_S)["crowd"]
    assert ended.state == "refused"
    assert "invalid name of a variable" in here.explain("crowd").detail


@pytest.mark.parametrize(
    ("wrong", "code"),
    [({"gpus": 0}, "gpus"), ({"gpus": -1}, "gpus"), ({"gpus": 9}, "gpus"), ({"model": "none-such"}, "model"),
     ({"data_bytes": -1}, "data"), ({"value": 0.0}, "value"), ({"value": 1e12}, "value")],
)  # fmt: skip
def test_bad_jobs_are_refused_with_a_reason_and_leave_nothing(
    here: JobManager, wrong: dict[str, object], code: str
) -> None:
    before = len(here.jobs())
    with pytest.raises(admin_client.Refused) as refused:
        here.submit("wrong", **{"gpus": 1, "argv": ["true"], **wrong})  # type: ignore[arg-type]
    assert refused.value.code == code
    assert len(here.jobs()) == before


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"kind":"work_submit"}', b'{"kind":"work_list","limit":1e9}', b'{"kind":"nothing"}',
     b'{"kind":"work_submit","job":"a","gpus":1,"model":"vgg16","argv":["a\\u0000b"]}',
     b'{"kind":"work_submit","job":"../a","gpus":1,"model":"vgg16","argv":["a"]}',
     b'{"kind":"work_submit","job":"a","gpus":1,"model":"vgg16","argv":["a"],"directory":"relative"}'],
)  # fmt: skip
def test_messages_that_are_none_are_refused(body: bytes) -> None:
    with pytest.raises(control.ControlError):
        control.decode(work_admin.TO_MANAGER, body)


def test_a_second_job_manager_on_the_same_file_does_not_start(here: JobManager, folder: Path, tmp_path: Path) -> None:
    done = offpath(
        "manager", "run", "--config", str(folder / "manager" / "manager.toml"), "--runtime-dir", str(tmp_path / "run")
    )
    assert done.code == 73, done.err  # EX_CANTCREAT
    assert "jobs file" in done.err
    assert here.status().engine_fault == ""


def test_a_job_manager_killed_at_any_moment_starts_no_job_twice_and_loses_none(tmp_path: Path) -> None:
    """Each job appends a line to a file of its own when it starts."""
    rng = random.Random(20261124)
    jobs = [f"job-{number}" for number in range(24)]
    with manager(tmp_path) as made:
        for number, job in enumerate(jobs):
            mark = tmp_path / job
            try:
                made.submit(job, rng.choice((1, 1, 2, 3)), ["sh", "-c", f"echo $OFFPATH_PLACE >> {mark}; sleep 0.2"])
            except admin_client.DaemonUnreachable:
                pytest.fail(f"{job}: nobody answers")
            if number % 3 == 2:
                time.sleep(rng.random() * 0.3)
                made.kill()
                made.start()
        ended = made.ended(jobs, 4 * BOUND_S)
        assert Counter(job.state for job in ended.values()) == {"succeeded": len(jobs)}
        for job in jobs:
            places = (tmp_path / job).read_text().split()
            assert sorted(places) == [str(place) for place in range(len(places))], f"{job} ran twice"
            assert len(places) == len(ended[job].shares)
        assert all(node.free == node.gpus for node in made.status().nodes)


def test_jobs_outlive_their_job_manager(tmp_path: Path) -> None:
    with manager(tmp_path) as made:
        made.submit("long", 2, ["sh", "-c", f"sleep 1.5; echo done > {tmp_path}/mark"])
        until(lambda: state(made, "long") == "running")
    until((tmp_path / "mark").exists)
    with manager(tmp_path) as again:
        assert again.ended(["long"], BOUND_S)["long"].state == "succeeded"
