"""kill -9 of job manager, slurmctld and slurmd at seeded moments while jobs run on a real Slurm.

No job starts twice (each place appends to the job's own file), every job ends in a state that is true, and in the end
every GPU is free, for the job manager and for Slurm. ``settle_s`` is as for a Slurm that may be killed.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from offpath.bindings.wire import work_admin
from offpath.cli.local.job_manager import ENDED, JobManager
from offpath.cli.local.slurm_cluster import SlurmCluster

from ..sizes import SIZE, sized
from ..support.evidence import keep
from ..support.processes import BOUND_S, until
from ..support.slurm import manager_on, slurm_cluster

SEED = 2_122
VICTIMS = ("job manager", "slurmctld", "slurmd")
KILLS = sized(quick=3, fast=3, slow=6, full=100)
GPUS = (1, 1, 2, 3, 4) if SIZE == "full" else (1, 1, 2, 4)
"""Of a job. 3 are two components in Slurm: when a kill meets their launch, srun retries for over two minutes."""
MOMENT_S = 3.0
"""At the latest so long after a submission its kill follows: the job may be held, released, settling or running."""
RUN_S = 1.5
"""At most, of a job's command."""
AT_ONCE = 5
"""Jobs that have not ended; more would only queue, because a job that slurmctld forgot is started again."""
PATIENCE_S = 10 * BOUND_S


@pytest.fixture
def slurm() -> Iterator[SlurmCluster]:
    with slurm_cluster() as made:
        yield made


@pytest.fixture
def manager(slurm: SlurmCluster, tmp_path: Path) -> Iterator[JobManager]:
    with manager_on(slurm, tmp_path / "manager") as made:
        yield made


def victims(random: Random) -> list[str]:
    """As many of each kind as of the others, in an order of the seed."""
    found = [VICTIMS[number % len(VICTIMS)] for number in range(KILLS)]
    random.shuffle(found)
    return found


def kill(victim: str, random: Random, manager: JobManager, slurm: SlurmCluster) -> None:
    """And start it again, as its service manager would."""
    if victim == "job manager":
        manager.kill()
        manager.start()
    else:
        slurm.kill("slurmctld" if victim == "slurmctld" else random.choice(slurm.nodes))
        slurm.mend()


def marks(folder: Path, job: str, word: str) -> list[str]:
    """Of the places whose command wrote the word, with repetitions."""
    path = folder / job
    lines = path.read_text().split("\n") if path.exists() else []
    return [line.split()[1] for line in lines if line.startswith(word)]


def verdict(folder: Path, job: work_admin.JobLine, detail: str) -> str:
    """How the job ended; what it did must be what its state says."""
    begun, done = marks(folder, job.job, "begin"), marks(folder, job.job, "end")
    assert len(begun) == len(set(begun)), f"{job.job} ran twice: {begun}"
    places = [str(place) for place in range(len(job.shares))]
    if job.state == "succeeded":
        assert sorted(done) == places, f"{job.job} succeeded and ran on {done} of {places}"
        return "succeeded"
    if job.state == "cancelled":  # slurmctld forgot the start, and ended the job when its node reported it
        assert begun == [], f"{job.job} is cancelled, by nobody, and had begun"
    else:  # its slurmd was killed under its srun, whose exit code it then has; or Slurm lost it, and says so
        assert job.state == "failed", f"{job.job} is {job.state}: {detail}"
        assert job.exit_code or detail, f"{job.job} is failed without a reason"
    said = folder / f"{job.job}.out.batch"
    why = detail or (" ".join(said.read_text().split())[-300:] if said.exists() else "")
    print(f"{job.job}: {job.state} with {job.exit_code} after {job.run_s:.0f} s, begun {begun}: {why}")
    return f"{job.state}, {'had begun' if begun else 'never began'}"


def given_away(slurm: SlurmCluster) -> dict[str, str]:
    """By node the GPUs that Slurm holds for jobs, where it holds some."""
    lines = slurm.command("scontrol", "-d", "-o", "show", "node").splitlines()
    nodes = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
    assert {each["NodeName"] for each in nodes} == set(slurm.nodes), "Slurm tells of each node"
    return {
        each["NodeName"]: f"{each['GresUsed']} ({each['State']})"
        for each in nodes
        if each["GresUsed"].partition("(")[0] != "gpu:a100:0"
    }


def assert_free(manager: JobManager, slurm: SlurmCluster) -> None:
    """For the job manager and for Slurm; and a job that needs all of them runs."""
    until(lambda: all(node.free == node.gpus for node in manager.status().nodes))
    until(lambda: slurm.command("squeue", "-h", "-o", "%i %T").strip() == "")
    with contextlib.suppress(AssertionError):  # what is left is told below
        until(lambda: given_away(slurm) == {})
    left = given_away(slurm)
    manager.submit("all", 8, ["true"])
    assert manager.ended(["all"], PATIENCE_S)["all"].state == "succeeded", f"a GPU is not free; for Slurm: {left}"
    assert left == {}


def submitted(manager: JobManager, random: Random, folder: Path, number: int) -> str:
    """A job whose processes write when they begin and end."""
    job = f"job-{number}"
    script = f'echo "begin $OFFPATH_PLACE" >>{folder}/{job}; sleep {random.random() * RUN_S:.2f}'
    script += f'; echo "end $OFFPATH_PLACE" >>{folder}/{job}'
    manager.submit(job, random.choice(GPUS), ["sh", "-c", script], output=str(folder / f"{job}.out"))
    return job


def unfinished(manager: JobManager, slurm: SlurmCluster) -> list[str]:
    """Jobs that have not ended. The operator takes back a node that slurmctld has drained meanwhile."""
    slurm.mend()
    return [job.job for job in manager.jobs() if job.state not in ENDED]


def test_the_sweep_is_as_large_as_it_says() -> None:
    counts = Counter(victims(Random(SEED)))
    assert sum(counts.values()) >= sized(quick=3, fast=3, slow=6, full=100)
    assert set(counts) == set(VICTIMS)
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.not_fast("a script of the source tree fetches Slurm")
def test_kills_at_seeded_moments_start_no_job_twice_lose_none_and_leak_no_gpu(
    manager: JobManager, slurm: SlurmCluster, tmp_path: Path
) -> None:
    random = Random(SEED)
    jobs: list[str] = []
    killed: Counter[str] = Counter()
    for victim in victims(random):
        if len(unfinished(manager, slurm)) < AT_ONCE:
            jobs.append(submitted(manager, random, tmp_path, len(jobs)))
        time.sleep(random.random() * MOMENT_S)
        states = Counter(job.state for job in manager.jobs())
        print(f"{victim} is killed; jobs: {dict(sorted(states.items()))}")
        kill(victim, random, manager, slurm)
        killed[victim] += 1
    until(lambda: unfinished(manager, slurm) == [], PATIENCE_S)
    ended = manager.ended(jobs, BOUND_S)
    assert sorted(ended) == sorted(jobs)
    ends = Counter(verdict(tmp_path, ended[job], manager.explain(job).detail) for job in jobs)
    assert_free(manager, slurm)
    keep(
        "job_kills.txt",
        f"{sum(killed.values())} kills ({dict(sorted(killed.items()))}), seed {SEED}, while {len(jobs)} jobs of 1 to 4"
        f" GPUs ran on a real Slurm of 4 nodes with 8 GPUs\n"
        f"jobs: {dict(sorted(ends.items()))}; started twice 0, without an end 0, GPUs not free in the end 0",
    )
    assert sum(killed.values()) == KILLS
    # Six kills of six jobs on a slow machine can meet nearly all of them before they begin.
    assert ends["succeeded"] >= (len(jobs) / 4 if SIZE == "full" else 1), f"the jobs hardly ran: {ends}"
