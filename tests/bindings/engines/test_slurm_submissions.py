"""Several submissions of one job in Slurm: a lost answer, a kill between two commands, a slurmctld that forgot."""

from __future__ import annotations

import asyncio
import time
from itertools import permutations

import pytest

from offpath.bindings.engines.port import JobState, Place, Start
from offpath.bindings.engines.slurm import SlurmEngine, _by_identity, _chosen
from offpath.bindings.engines.slurm_reading import FORGOTTEN, SlurmJob
from offpath.bindings.errors import EngineUnavailable

from ...support.processes import until
from .rigs import Jobs, SlurmRig
from .test_engines import MARK


def submission(leader: int, state: str, priority: int = 1, code: int = 0) -> SlurmJob:
    nonce = f"{leader:016x}"
    return SlurmJob("job", nonce, leader, 0, state, "", priority == 0, (), code << 8, "user", 1, 1, 0, "", "")


HELD = submission(1, "PENDING", 0)
SURPLUS = submission(2, "CANCELLED", 0)
RUNNING = submission(3, "RUNNING")
ENDED = submission(4, "COMPLETED")
NEVER_RAN = submission(5, "FAILED", code=FORGOTTEN)
CANCELLED = submission(6, "CANCELLED")


@pytest.mark.parametrize(
    ("there", "stands"),
    [
        ((HELD, SURPLUS), HELD),
        ((HELD, RUNNING, SURPLUS), RUNNING),
        ((HELD, ENDED), ENDED),
        ((HELD, CANCELLED), CANCELLED),
        ((HELD, NEVER_RAN), HELD),
        ((NEVER_RAN, SURPLUS), NEVER_RAN),
        ((SURPLUS,), SURPLUS),
        ((ENDED, RUNNING), RUNNING),
    ],
)
def test_which_submission_stands_for_a_job(there: tuple[SlurmJob, ...], stands: SlurmJob) -> None:
    for order in permutations(there):
        assert _chosen(_by_identity(order)["job"]) == [stands]


async def submitted_twice(slurm: Jobs, script: str) -> tuple[Start, SlurmEngine]:
    """As after an sbatch whose answer was lost: two held submissions of one job."""
    assert isinstance(slurm.engine, SlurmEngine)
    start = slurm.start(script, [Place("h0", 1)])
    await slurm.engine._submit(start)
    await slurm.engine._submit(start)
    return start, slurm.engine


async def test_a_job_submitted_twice_is_not_cancelled_with_its_surplus_submission(slurm: Jobs) -> None:
    start, engine = await submitted_twice(slurm, MARK)
    for adopted in (await engine.adopt(), await engine.jobs()):
        assert [job.state for job in adopted if job.identity == start.identity] == [JobState.PENDING]
    assert (await slurm.run(start)).state is JobState.SUCCEEDED
    assert len(slurm.marks(start)) == 1


async def test_a_job_submitted_twice_and_cancelled_stays_cancelled(slurm: Jobs) -> None:
    start, engine = await submitted_twice(slurm, MARK)
    await engine.adopt()
    await engine.cancel(start.identity)
    assert (await slurm.ended(start.identity)).state is JobState.CANCELLED
    assert (await engine.start(start)).state is JobState.CANCELLED
    assert slurm.marks(start) == []


async def test_a_slurmctld_that_does_not_know_its_nodes_yet_refuses_no_job(slurm: Jobs) -> None:
    """slurmctld refuses everything for seconds after its start, and a job that is refused three times ends. A node that
    does not register stays unknown to slurmctld until SlurmdTimeout."""
    assert isinstance(slurm.rig, SlurmRig)
    cluster = slurm.rig.cluster
    start = slurm.start(MARK, [Place("h0", 1)])
    for name in ("h0", "slurmctld"):
        cluster.kill(name)
    cluster.start("slurmctld")
    cluster.until_answers()
    with pytest.raises(EngineUnavailable, match="slurmctld does not know the state of h0 yet") as raised:
        await slurm.engine.start(start)
    assert not raised.value.may_have_begun
    assert slurm.marks(start) == []
    slurm.rig.mend()
    assert (await slurm.run(start)).state is JobState.SUCCEEDED
    assert len(slurm.marks(start)) == 1


async def test_slurmctld_writes_the_start_of_a_job_while_its_script_waits(slurm: Jobs) -> None:
    """It writes its state for a release, but not for the start that follows, unless its last write is younger than 5 s:
    killed minutes later, it would forget a job that runs."""
    assert isinstance(slurm.rig, SlurmRig)
    cluster = slurm.rig.cluster
    slurm.rig.settle_s = 600.0
    try:
        engine = slurm.rig.engine()
    finally:
        slurm.rig.settle_s = 0.0
    assert isinstance(engine, SlurmEngine)
    start = slurm.start(MARK, [Place("h0", 1)])
    await engine._submit(start)
    await asyncio.sleep(6)  # from now on slurmctld writes at once
    number = (await engine.start(start)).engine_id
    until(lambda: cluster.command("squeue", "-h", "-j", number, "-o", "%T").strip() == "RUNNING")
    running = time.time()
    until(lambda: (cluster.folder / "state" / "job_state").stat().st_mtime > running)
    cluster.kill("slurmctld")
    cluster.start("slurmctld")
    cluster.until_answers()
    assert cluster.command("squeue", "-h", "-j", number, "-o", "%T").strip() == "RUNNING"
