"""Rigs of the engine port: how a test makes an engine, and breaks what is below it.

A rig lives as long as the session: its nodes h0 … h3 have two GPUs each, h0 and h1 below switch s0, h2 and h3 below s1.
A further engine is one more class here and one more param of the fixture ``rig``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from offpath.bindings.engines.local import LocalEngine
from offpath.bindings.engines.port import Engine, EngineJob, Gpu, JobState, NodeInfo, Place, Start
from offpath.bindings.engines.ray_engine import RayEngine
from offpath.bindings.engines.slurm import SlurmEngine
from offpath.bindings.engines.slurm_script import Submission
from offpath.cli.local.ray_cluster import RayCluster
from offpath.cli.local.slurm_cluster import SlurmCluster
from offpath.sched.topology.hostlist import expand

BOUND_S = 60.0
UNTIL_LET_GO = 'until [ -e "$0.go" ]; do sleep 0.1; done'
NODES = ["h0", "h1", "h2", "h3"]


def made(specification: dict[str, Any]) -> Engine:
    """The engine of `EngineRig.specification`; for another process too."""
    if specification["engine"] == "local":
        nodes = [NodeInfo(name, (Gpu(0, "a100"), Gpu(1, "a100")), f"s{n // 2}") for n, name in enumerate(NODES)]
        return LocalEngine(Path(specification["folder"]), nodes)
    if specification["engine"] == "ray":
        return RayEngine(
            specification["address"], python=specification["python"], token=specification["token"],
            folder=specification["folder"], poll_s=0.2,
        )  # fmt: skip
    submission = Submission(specification["programs"], specification["once"], specification["settle_s"])
    return SlurmEngine(expand, submission, environment=specification["environment"], poll_s=0.2)


class EngineRig(ABC):
    """What the promises need to know of an adapter."""

    name: str

    def __init__(self) -> None:
        self.count = 0

    @abstractmethod
    def specification(self) -> dict[str, Any]:
        """What `made` makes an engine of; JSON."""

    def engine(self) -> Engine:
        """A new one, as a new controller has it: call `adopt`."""
        return made(self.specification())

    def identity(self) -> str:
        """Never used before."""
        self.count += 1
        return f"job-{os.getpid()}.{self.count}"

    @abstractmethod
    def kill_job(self, job: EngineJob) -> None:
        """End the part of the engine that supervises the job's first place, as a power cut would."""

    @abstractmethod
    def mend(self) -> None:
        """What a test killed runs again."""

    @abstractmethod
    def close(self) -> None:
        """End everything."""


class LocalRig(EngineRig):
    """Four pretended nodes on this machine."""

    name = "local"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def specification(self) -> dict[str, Any]:
        return {"engine": "local", "folder": str(self.folder / "state")}

    def kill_job(self, job: EngineJob) -> None:
        started = json.loads((self.folder / "state/jobs" / job.identity / "started.json").read_text())
        os.kill(started["pid"], signal.SIGKILL)

    def mend(self) -> None:
        """Nothing of it outlives a job."""

    def close(self) -> None:
        """Nothing is left."""


class SlurmRig(EngineRig):
    """A real Slurm. ``settle_s``: of `Submission`; 0 spares seconds where no test kills slurmctld."""

    name = "slurm"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        # No test may last for so long: a node's state changes only by what a test does.
        self.cluster = SlurmCluster(folder, slurmd_timeout_s=600)
        self.settle_s = 0.0
        self.cluster.open()

    def specification(self) -> dict[str, Any]:
        return {
            "engine": "slurm", "programs": f"{self.cluster.programs}/", "once": f"{self.cluster.folder}/once/at",
            "settle_s": self.settle_s, "environment": self.cluster.environment,
        }  # fmt: skip

    def kill_job(self, job: EngineJob) -> None:
        node = job.places[0].node
        self.cluster.kill(node)
        # What slurmctld does by itself after SlurmdTimeout.
        self.cluster.command("scontrol", "update", f"nodename={node}", "state=down", "reason=power cut")

    def mend(self) -> None:
        self.cluster.mend()

    def close(self) -> None:
        self.cluster.close()


class RayRig(EngineRig):
    """A real Ray."""

    name = "ray"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.cluster = RayCluster(folder)

    def open(self) -> None:
        """Start it."""
        self.cluster.open()

    def specification(self) -> dict[str, Any]:
        return {
            "engine": "ray", "address": self.cluster.address, "python": str(self.cluster.programs / "python"),
            "token": str(self.cluster.token), "folder": f"{self.cluster.folder}/jobs",
        }  # fmt: skip

    def kill_job(self, job: EngineJob) -> None:
        self.cluster.kill(job.places[0].node)

    def mend(self) -> None:
        self.cluster.mend()

    def close(self) -> None:
        self.cluster.close()


class Jobs:
    """Starts jobs of a test, and what they wrote."""

    def __init__(self, rig: EngineRig, engine: Engine, folder: Path) -> None:
        self.rig, self.engine, self.folder = rig, engine, folder

    def start(self, script: str, places: Sequence[Place], identity: str = "", **more: Any) -> Start:
        """A shell's script as a job. ``$0`` is a file that only this job writes."""
        identity = identity or self.rig.identity()
        argv = ("sh", "-c", script, str(self.folder / f"{identity}.marks"))
        output = str(self.folder / identity)
        return Start(identity=identity, places=tuple(places), argv=argv, output=output, **more)

    async def until(self, identity: str, *states: JobState) -> EngineJob:
        """The job as `watch` reports it in one of these states, or ended."""
        async with asyncio.timeout(BOUND_S):
            async with aclosing(self.engine.watch()) as changes:
                async for job in changes:
                    if job.identity == identity and (job.state in states or job.state.is_final):
                        return job
        raise AssertionError("watch ended")

    async def ended(self, identity: str) -> EngineJob:
        """The job at its end."""
        return await self.until(identity)

    async def run(self, start: Start) -> EngineJob:
        """Start it and wait for its end."""
        await self.engine.start(start)
        return await self.ended(start.identity)

    def output(self, start: Start, place: int) -> str:
        """What the process of the place wrote."""
        return Path(f"{start.output}.{place}").read_text()

    def let_go(self, start: Start) -> None:
        """A job whose script has `UNTIL_LET_GO` goes on."""
        (self.folder / f"{start.identity}.marks.go").touch()

    def marks(self, start: Start) -> list[str]:
        """Lines that the job's processes wrote into ``$0``."""
        path = self.folder / f"{start.identity}.marks"
        return path.read_text().splitlines() if path.exists() else []
