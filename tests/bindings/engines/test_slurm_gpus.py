"""Which GPUs a real slurmctld counts as given after it was killed. It loses the GPUs of a job that names no GPU model
and starts on a node that answers, but has not registered with the new slurmctld."""

from __future__ import annotations

import json
import time

import pytest

from offpath.bindings.engines import slurm_reading
from offpath.bindings.engines.port import JobState, Place, Start
from offpath.bindings.engines.slurm import REMEDY, SlurmEngine
from offpath.bindings.engines.slurm_script import name
from offpath.bindings.errors import EngineRefused, EngineUnavailable
from offpath.cli.local.slurm_cluster import SlurmCluster

from ...support.processes import until
from .rigs import Jobs, SlurmRig
from .test_engines import LONG, MARK

pytestmark = pytest.mark.not_fast("a script of the source tree fetches Slurm")
TRIES = 5
"""slurmctld has its nodes register three seconds after its start: under load a job may start too late for a test."""
TOO_LATE = f"the node had registered before the job started, {TRIES} times: this machine is too busy"
BOTH = [Place("h0", 2)]


def of(slurm: Jobs) -> tuple[SlurmEngine, SlurmCluster]:
    assert isinstance(slurm.engine, SlurmEngine)
    assert isinstance(slurm.rig, SlurmRig)
    return slurm.engine, slurm.rig.cluster


def state(cluster: SlurmCluster, number: str) -> str:
    return cluster.command("squeue", "-h", "-t", "all", "-j", number, "-o", "%T").strip()


def is_registered(cluster: SlurmCluster) -> bool:
    return "h0" not in slurm_reading.unregistered(cluster.command("sinfo", "--json").encode())


def until_written(cluster: SlurmCluster, number: str) -> None:
    """slurmctld has written its jobs and nodes as they are now."""
    began = time.time()
    cluster.command("scontrol", "update", f"JobId={number}", "Requeue=0")
    files = [cluster.folder / "state" / file for file in ("job_state", "node_state")]
    until(lambda: all(file.stat().st_mtime > began for file in files))


async def is_started_early(slurm: Jobs, number: str) -> bool:
    """slurmctld is killed, and starts the held job on h0 before that has registered. The end of a job of before the
    kill makes slurmctld speak to the node at once."""
    engine, cluster = of(slurm)
    keeper = slurm.start(LONG, [Place("h0")])
    await engine.start(keeper)
    kept = await slurm.until(keeper.identity, JobState.RUNNING)
    until_written(cluster, kept.engine_id)
    cluster.kill("slurmctld")
    cluster.start("slurmctld")
    cluster.until_answers()
    cluster.command("scancel", kept.engine_id)
    cluster.command("scontrol", "release", number)
    until(lambda: state(cluster, number) != "PENDING")
    is_early = not is_registered(cluster)
    until(lambda: is_registered(cluster))
    until(lambda: state(cluster, number) not in ("RUNNING", "COMPLETING"))
    return is_early


async def unaccounted(engine: SlurmEngine) -> dict[str, tuple[int, str]]:
    return {node.name: (node.unaccounted, node.remedy) for node in await engine.inventory() if node.unaccounted}


async def test_a_job_that_starts_before_its_node_registered_has_its_gpu_and_gives_it_back(slurm: Jobs) -> None:
    engine, cluster = of(slurm)

    async def submitted() -> tuple[Start, str]:
        start = slurm.start(f"echo $CUDA_VISIBLE_DEVICES; {MARK}", [Place("h0", 1)])
        await engine._submit(start)
        return start, cluster.command("squeue", "-h", "-o", "%i", "--name", name(start.identity)).strip()

    for _ in range(TRIES):
        start, number = await submitted()
        if await is_started_early(slurm, number):
            break
    else:
        pytest.skip(TOO_LATE)
    ended = await slurm.ended(start.identity)
    assert ended.state is JobState.SUCCEEDED, ended
    assert slurm.output(start, 0) == "0\n"
    assert await unaccounted(engine) == {}
    assert (await slurm.run(slurm.start(MARK, BOTH))).state is JobState.SUCCEEDED


async def test_a_gpu_that_slurm_lost_is_reported_and_the_remedy_gives_it_back(slurm: Jobs) -> None:
    """A user's own job, which an operator released, names no model."""
    engine, cluster = of(slurm)
    script = f"#!/bin/sh\n{cluster.programs}/srun true\n"
    for _ in range(TRIES):
        number = cluster.command(
            "sbatch", "--parsable", "--nodes=1", "--gres=gpu:1", "--output=/dev/null", stdin=script
        ).strip()
        cluster.command("scontrol", "update", f"JobId={number}", "ReqNodeList=h0", "StartTime=now")
        if await is_started_early(slurm, number):
            break
    else:
        pytest.skip(TOO_LATE)
    until(lambda: state(cluster, number) == "FAILED")  # Invalid generic resource (gres) specification
    assert await unaccounted(engine) == {"h0": (1, REMEDY)}
    start = slurm.start(MARK, BOTH)
    with pytest.raises(EngineRefused, match="Requested node configuration is not available"):
        await engine.start(start)
    assert await unaccounted(engine) == {"h0": (1, REMEDY)}, "not a moment's difference"
    cluster.command(*REMEDY.split())
    assert await unaccounted(engine) == {}
    assert (await slurm.run(start)).state is JobState.SUCCEEDED


async def test_a_users_job_is_not_released_to_a_node_that_has_not_registered(slurm: Jobs) -> None:
    engine, cluster = of(slurm)
    number = cluster.command(
        "sbatch", "--parsable", "--nodes=1", "--gres=gpu:1", "--output=/dev/null", stdin="#!/bin/sh\ntrue\n"
    ).strip()
    (held,) = [job for job in await engine.pending() if job.engine_id == number]
    until_written(cluster, number)
    for daemon in ("h0", "slurmctld"):
        cluster.kill(daemon)
    cluster.start("slurmctld")
    cluster.until_answers()
    with pytest.raises(EngineUnavailable, match="slurmctld does not know the state of h0 yet"):
        await engine.release(held.identity, [Place("h0", 1)])
    slurm.rig.mend()
    await engine.release(held.identity, [Place("h0", 1)])
    assert (await slurm.ended(held.identity)).state is JobState.SUCCEEDED


NODE = {"name": "h0", "gres": "gpu:a100:2", "slurmd_start_time": 1_795_545_734}


@pytest.mark.parametrize(
    ("node", "given"),
    [
        ({**NODE, "state": "mixed", "gres_used": "gpu:a100:1(IDX:0)"}, {"h0": 1}),
        ({**NODE, "state": ["MIXED"], "gres_used": "gpu:a100:2(IDX:0-1),shard:a100:3(0/4,3/4)"}, {"h0": 2}),
        ({**NODE, "state": "mixed", "gres_used": "gpu:a100:1(IDX:0),gpu:h100:3(IDX:1,2,5)"}, {"h0": 4}),
        ({**NODE, "state": "idle", "gres_used": "gpu:a100:0(IDX:N/A)"}, {"h0": 0}),
        ({**NODE, "state": "idle"}, {"h0": 0}),
        ({**NODE, "state": "mixed", "gres_used": "gpu:a100:4", "slurmd_start_time": 0}, {}),  # see `given`
    ],
)
def test_how_many_gpus_slurmctld_counts_as_given(node: dict[str, object], given: dict[str, int]) -> None:
    assert slurm_reading.given(json.dumps({"nodes": [node]}).encode()) == given


def test_how_many_gpus_the_jobs_of_the_queue_have() -> None:
    resources = {"allocated_nodes": [{"nodename": "h0"}, {"nodename": "h1"}]}
    details = ["gpu:a100:1(IDX:0)", "gpu:a100:2(IDX:0-1)"]
    job = {"job_resources": resources, "gres_detail": details}
    jobs = [
        {**job, "job_state": "RUNNING"},
        {**job, "job_state": ["CANCELLED", "COMPLETING"], "gres_detail": details[:1]},
        {**job, "job_state": "COMPLETED"},
        {"job_state": "PENDING", "job_resources": None, "gres_detail": []},
    ]
    assert slurm_reading.occupied(json.dumps({"jobs": jobs}).encode()) == {"h0": 2, "h1": 2}
