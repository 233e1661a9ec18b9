"""A job manager on a real Slurm: its own jobs and those of plain sbatch, placed by offpath, run by Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.bindings.wire import work_admin
from offpath.cli.local.job_manager import JobManager
from offpath.cli.local.slurm_cluster import SlurmCluster

from ...support.processes import BOUND_S, until
from ...support.slurm import manager_on, slurm_cluster

pytestmark = pytest.mark.not_fast("a script of the source tree fetches Slurm")
LONG_S = 3 * BOUND_S


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    with slurm_cluster() as made:
        yield made


@pytest.fixture
def here(slurm: SlurmCluster, tmp_path: Path) -> Iterator[JobManager]:
    slurm.mend()
    with manager_on(slurm, tmp_path / "manager") as made:
        yield made


def test_a_job_runs_on_the_chosen_nodes_and_a_plain_sbatch_is_placed_too(
    here: JobManager, slurm: SlurmCluster, tmp_path: Path
) -> None:
    until(lambda: len(here.status().nodes) == 4)
    assert {node.switch for node in here.status().nodes} == {"s0", "s1"}
    here.submit("own", 3, ["sh", "-c", f"echo $OFFPATH_NODE $CUDA_VISIBLE_DEVICES >> {tmp_path}/own"])
    script = tmp_path / "plain.sh"
    script.write_text(f"#!/bin/sh\necho $SLURM_JOB_NODELIST > {tmp_path}/plain\n")
    slurm.command(
        "sbatch",
        "--gpus-per-node=2",
        "--nodes=1",
        "--comment=model=resnet50;value=2",
        f"--chdir={tmp_path}",
        str(script),
    )
    ended = here.ended(["own"], LONG_S)["own"]
    assert ended.state == "succeeded", here.explain("own")
    lines = sorted(line.split() for line in (tmp_path / "own").read_text().splitlines())
    assert [line[0] for line in lines] == sorted(share.node for share in ended.shares)
    assert sum(len(line[1].split(",")) for line in lines) == 3
    until((tmp_path / "plain").exists)
    held = next(job for job in here.jobs() if job.is_held)
    assert (held.model, held.value, held.gpus) == ("resnet50", 2.0, 2)
    assert (tmp_path / "plain").read_text().split() == [share.node for share in held.shares]


def test_an_sbatch_that_its_user_cancels_while_it_is_held_ends_here_too(
    here: JobManager, slurm: SlurmCluster, tmp_path: Path
) -> None:
    until(lambda: len(here.status().nodes) == 4)
    here.submit("all", 8, ["sleep", "600"])
    until(lambda: here.explain("all").job.state == "running", 60)
    script = tmp_path / "plain.sh"
    script.write_text("#!/bin/sh\nsleep 600\n")
    number = slurm.command("sbatch", "--parsable", "--gpus-per-node=2", "--nodes=1", str(script)).strip()

    def held() -> list[work_admin.JobLine]:
        return [job for job in here.jobs() if job.is_held and job.state in ("queued", "cancelled")]

    until(lambda: held() != [])
    identity = held()[-1].identity
    slurm.command("scancel", number)
    until(lambda: here.explain(identity).job.state == "cancelled")
    here.cancel("all")
    assert here.ended(["all"], BOUND_S)["all"].state == "cancelled"
