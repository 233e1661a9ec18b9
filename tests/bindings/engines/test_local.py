"""What is the local engine's own: processes that leave their job's group, reasons of failed starts, private files."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from offpath.bindings.engines import local_runner, ray_process
from offpath.bindings.engines.local_ledger import Ledger
from offpath.bindings.engines.plain import start_document
from offpath.bindings.engines.port import PATH, JobState, Place, Start
from offpath.bindings.errors import EngineRefused

from .rigs import Jobs, LocalRig
from .test_engines import LONG, MARK

DAEMONISE = """
import os, signal, sys, time
{before}
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(sys.argv[1], "a") as marks:
            marks.write(f"left {{os.getpid()}}\\n")
        time.sleep(600)
    os._exit(0)
{after}
"""
"""It marks its pid, in a session of its own, as an orphan."""
ONE = Place("h0", 1, (0,))


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Jobs]:
    """An engine of its own; what a test left is cancelled."""
    rig = LocalRig(tmp_path / "rig")
    jobs = Jobs(rig, rig.engine(), tmp_path)
    await jobs.engine.adopt()
    yield jobs
    for job in await jobs.engine.jobs():
        await jobs.engine.cancel(job.identity)
    while not all(job.state.is_final for job in await jobs.engine.jobs()):
        await asyncio.sleep(0.02)
    await jobs.engine.close()


def daemonising(jobs: Jobs, *, before: str = "", after: str = "time.sleep(600)") -> Start:
    """A job that leaves a process behind: see `DAEMONISE`."""
    start = jobs.start("", [ONE])
    marks = jobs.folder / f"{start.identity}.marks"
    return replace(start, argv=(sys.executable, "-c", DAEMONISE.format(before=before, after=after), str(marks)))


async def left(jobs: Jobs, start: Start) -> int:
    """The pid of the process that left, once it runs."""
    while not jobs.marks(start):
        await asyncio.sleep(0.02)
    return int(jobs.marks(start)[0].split()[1])


async def refused(jobs: Jobs, start: Start) -> str:
    """Why the engine does not start the job; empty: it did."""
    try:
        await jobs.engine.start(start)
    except EngineRefused as fault:
        return fault.reason
    return ""


def lives(pid: int) -> bool:
    return local_runner.start_time(pid) is not None


async def test_a_process_that_left_the_jobs_group_ends_with_a_cancelled_job(local: Jobs) -> None:
    start = daemonising(local)
    await local.engine.start(start)
    pid = await left(local, start)
    await local.engine.cancel(start.identity)
    assert (await local.ended(start.identity)).state is JobState.CANCELLED
    assert not lives(pid)


@pytest.mark.parametrize(("code", "state"), [(0, JobState.SUCCEEDED), (3, JobState.FAILED)])
async def test_a_process_that_left_the_jobs_group_ends_with_its_command(
    local: Jobs, code: int, state: JobState
) -> None:
    waits = f"while not os.path.exists(sys.argv[1]): time.sleep(0.02)\nsys.exit({code})"
    start = daemonising(local, after=waits)
    ended = await local.run(start)
    assert (ended.state, ended.exit_code) == (state, code)
    assert not lives(await left(local, start))


async def test_the_gpu_is_given_on_only_when_a_process_that_ignores_sigterm_is_gone(local: Jobs) -> None:
    start = daemonising(local, before="signal.signal(signal.SIGTERM, signal.SIG_IGN)", after="sys.exit()")
    await local.engine.start(start)
    pid = await left(local, start)
    again = local.start("true", [ONE])
    refusal = await refused(local, again)
    while refusal:
        assert start.identity in refusal
        await asyncio.sleep(0.01)
        refusal = await refused(local, again)
    assert not lives(pid)


async def test_orphans_that_end_by_themselves_are_no_end_of_the_job(local: Jobs) -> None:
    script = f'{MARK}; for n in 1 2 3; do (setsid sh -c "exit 5" &); done; sleep 0.5; exit 0'
    ended = await local.run(local.start(script, [ONE]))
    assert (ended.state, ended.exit_code) == (JobState.SUCCEEDED, 0)


async def test_a_lost_jobs_processes_are_found_by_their_environment(local: Jobs) -> None:
    start = daemonising(local)
    running = await local.engine.start(start)
    pid = await left(local, start)
    local.rig.kill_job(running)
    assert (await local.ended(start.identity)).state is JobState.LOST
    assert not lives(pid)


async def test_a_process_of_another_job_survives_the_loss_of_one(local: Jobs) -> None:
    first, second = local.start(LONG, [ONE]), local.start(LONG, [Place("h1", 1)])
    running = await local.engine.start(first)
    await local.engine.start(second)
    other = await left(local, second)
    local.rig.kill_job(running)
    assert (await local.ended(first.identity)).state is JobState.LOST
    assert lives(other)


def test_a_job_says_which_processes_do_not_end(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.record(Start(identity="a", places=(ONE,), argv=("true",)), (ONE,))
    pid = os.getpid()
    started = {"pid": pid, "start": local_runner.start_time(pid), "boot": local_runner.boot()}
    local_runner.write(str(tmp_path / "jobs/a"), "started.json", started)
    local_runner.write(str(tmp_path / "jobs/a"), "left.json", {"pids": [7, 8]})
    job = ledger.job("a")
    ledger.close()
    assert job is not None
    assert (job.state, job.reason) == (JobState.RUNNING, "processes 7, 8 do not end, and keep its GPUs")


def failing(folder: Path, kind: str) -> tuple[dict[str, object], str]:
    """What of a `Start` is wrong, and the reason of it."""
    plain, folder_ = folder / "plain", folder / "folder"
    plain.write_text("#!/bin/sh\n")
    folder_.mkdir()
    interpreter, no_program = folder / "interpreter", folder / "no-program"
    interpreter.write_text("#!/no/such/interpreter\n")
    no_program.write_bytes(b"\0\1\2")
    interpreter.chmod(0o755)
    no_program.chmod(0o755)
    closed = "it must be a file with permission to execute (chmod +x), and its folders must be accessible"
    return {
        "missing": ({"argv": ("no-such-command",)}, f"cannot run no-such-command: not found in PATH={PATH}"),
        "path": ({"argv": ("/no/such",)}, "cannot run /no/such: No such file or directory"),
        "plain": ({"argv": (str(plain),)}, f"cannot run {plain}: Permission denied: {closed}"),
        "folder": ({"argv": (str(folder_),)}, f"cannot run {folder_}: Permission denied: {closed}"),
        "interpreter": (
            {"argv": (str(interpreter),)},
            f"cannot run {interpreter}: No such file or directory: the interpreter in its first line (#!), or the"
            " loader that it needs",
        ),
        "format": (
            {"argv": (str(no_program),)},
            f"cannot run {no_program}: Exec format error: no first line with #!, or made for another architecture",
        ),
        "output": (
            {"output": f"{folder}/none/out"},
            f"cannot open the output {folder}/none/out.0: No such file or directory",
        ),
        "working": (
            {"working_directory": f"{folder}/none"},
            f"cannot enter the working directory {folder}/none: No such file or directory",
        ),
    }[kind]


KINDS = ["missing", "path", "plain", "folder", "interpreter", "format", "output", "working"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_command_that_cannot_start_ends_with_the_reason(local: Jobs, kind: str) -> None:
    wrong, reason = failing(local.folder, kind)
    ended = await local.run(replace(local.start("true", [ONE]), **wrong))
    assert (ended.state, ended.exit_code) == (JobState.FAILED, 127)
    assert ended.reason[:299] == reason[:299]


async def test_a_command_that_itself_ends_with_127_has_no_reason(local: Jobs) -> None:
    ended = await local.run(local.start("exit 127", [ONE]))
    assert (ended.exit_code, ended.reason) == (127, "")


async def test_files_of_the_engine_and_outputs_are_private(local: Jobs) -> None:
    start = replace(local.start("umask; echo x >plain", [ONE]), working_directory=str(local.folder))
    await local.run(start)
    folder = Path(local.rig.specification()["folder"])
    found = {str(path.relative_to(folder)): oct(path.stat().st_mode & 0o777) for path in folder.rglob("*")}
    job = f"jobs/{start.identity}"
    assert found == {
        "lock": "0o600", "jobs": "0o700", job: "0o700",
        **{f"{job}/{name}": "0o600" for name in ("lock", *(f"{each}.json" for each in FILES))},
    }  # fmt: skip
    assert oct(Path(f"{start.output}.0").stat().st_mode & 0o777) == "0o600"
    mask = os.umask(0)
    os.umask(mask)
    assert int(local.output(start, 0), 8) == mask  # the job's own files are as its user wants them


FILES = ("start", "started", "children", "ended")


def test_a_folder_that_an_earlier_release_made_is_closed(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir(mode=0o755)
    Ledger(tmp_path).close()
    assert oct((tmp_path / "jobs").stat().st_mode & 0o777) == "0o700"


def place(folder: Path, **wrong: object) -> list[str]:
    """What a place of the engine `ray` reports of a command: pid, exit code, reason."""
    start = Start(identity="a", places=(ONE,), argv=("true",))
    order = {**start_document(start, (ONE,)), "environment": {"PATH": PATH}, **wrong}
    command = [sys.executable, "-I", "-S", "-c", Path(ray_process.__file__).read_text()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder) as runner:
        assert runner.stdin is not None
        assert runner.stdout is not None
        runner.stdin.write(json.dumps(order) + "\n")
        runner.stdin.flush()
        return runner.stdout.read().splitlines()


def test_rays_place_ends_what_left_the_commands_group(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    waits = "while not os.path.exists(sys.argv[1]): time.sleep(0.02)\nsys.exit(3)"
    script = DAEMONISE.format(before="", after=waits)
    said = place(tmp_path, argv=[sys.executable, "-c", script, str(marks)])
    assert said[1:] == ["3"]
    assert not lives(int(marks.read_text().split()[1]))


@pytest.mark.parametrize("kind", ["missing", "path", "output", "working"])
def test_rays_place_reports_why_a_command_does_not_start(tmp_path: Path, kind: str) -> None:
    wrong, reason = failing(tmp_path, kind)
    if "output" in wrong:
        wrong["output"] = f"{wrong['output']}.0"
    assert place(tmp_path, **wrong)[1:] == ["127", reason]


def test_rays_outputs_are_private(tmp_path: Path) -> None:
    assert place(tmp_path, output=f"{tmp_path}/out")[1:] == ["0"]
    assert oct((tmp_path / "out").stat().st_mode & 0o777) == "0o600"


def test_rays_place_ends_everything_with_its_life_line(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    order = {
        **start_document(Start(identity="a", places=(ONE,), argv=("x",)), (ONE,)),
        "argv": [sys.executable, "-c", DAEMONISE.format(before="", after="time.sleep(600)"), str(marks)],
    }
    command = [sys.executable, "-I", "-S", "-c", Path(ray_process.__file__).read_text()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdin is not None
        assert runner.stdout is not None
        runner.stdin.write(json.dumps(order) + "\n")
        runner.stdin.flush()
        while not marks.exists() or not marks.read_text().endswith("\n"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                runner.wait(0.02)
        runner.stdin.close()
        assert runner.stdout.read().splitlines()[1:] == [str(-signal.SIGKILL)]
    assert not lives(int(marks.read_text().split()[1]))
