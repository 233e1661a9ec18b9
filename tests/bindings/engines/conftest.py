"""The rigs, one per engine and session; each test gets an engine that was adopted, and leaves no job behind."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import uvloop

from offpath.bindings.engines.port import Engine

from .rigs import BOUND_S, EngineRig, Jobs, LocalRig, RayRig, SlurmRig

RIGS = ("local", "slurm", "ray")


@pytest.fixture(scope="session", autouse=True)
def _loops_descriptors() -> None:
    """A process's first loop opens descriptors that stay: libuv's pipe of signals."""
    uvloop.run(asyncio.sleep(0))


@pytest.fixture(scope="session")
def slurm_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmRig]:
    """One Slurm for all tests."""
    rig = SlurmRig(_folder(tmp_path_factory, "slurm"))
    try:
        yield rig
    finally:
        rig.close()


@pytest.fixture(scope="session")
def ray_rig() -> Iterator[RayRig]:
    """One Ray for all tests."""
    folder = Path(tempfile.mkdtemp(prefix="offpath-r-"))
    rig = RayRig(folder)
    try:
        rig.open()
        yield rig
    finally:
        rig.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session", params=RIGS)
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineRig]:
    """Every engine."""
    if request.param == "local":
        yield LocalRig(_folder(tmp_path_factory, "local"))
    else:
        yield request.getfixturevalue(f"{request.param}_rig")


def _folder(factory: pytest.TempPathFactory, name: str) -> Path:
    return factory.mktemp(name)


@pytest.fixture
async def jobs(rig: EngineRig, tmp_path: Path) -> AsyncIterator[Jobs]:
    """An engine of the rig, and what starts jobs on it."""
    async with _of(rig, tmp_path) as made:
        yield made


@pytest.fixture
async def ray(ray_rig: RayRig, tmp_path: Path) -> AsyncIterator[Jobs]:
    """The same of Ray alone."""
    async with _of(ray_rig, tmp_path) as made:
        yield made


@pytest.fixture
async def slurm(slurm_rig: SlurmRig, tmp_path: Path) -> AsyncIterator[Jobs]:
    """The same of Slurm alone."""
    async with _of(slurm_rig, tmp_path) as made:
        yield made


class _of:
    """Opens the engine; cancels what a test left, on what it broke."""

    def __init__(self, rig: EngineRig, folder: Path) -> None:
        self._jobs = Jobs(rig, rig.engine(), folder)

    async def __aenter__(self) -> Jobs:
        await self._jobs.engine.adopt()
        return self._jobs

    async def __aexit__(self, *_: object) -> None:
        self._jobs.rig.mend()
        engine = self._jobs.engine
        try:
            async with asyncio.timeout(BOUND_S):
                await _end_all(engine)
        finally:
            await engine.close()


async def _end_all(engine: Engine) -> None:
    await engine.adopt()
    cancelled = set()
    while left := [job for job in await engine.jobs() if not job.state.is_final]:
        for job in left:
            if job.identity not in cancelled:
                await engine.cancel(job.identity)
                cancelled.add(job.identity)
        await asyncio.sleep(0.1)
    for job in await engine.jobs():
        await engine.forget(job.identity)
