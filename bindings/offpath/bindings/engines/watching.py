"""The shared form of `Engine.watch` and of lost jobs: engines are polled, and what changed is reported."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace

from offpath.bindings.engines.port import EngineJob, JobState


async def changes(
    jobs: Callable[[], Awaitable[tuple[EngineJob, ...]]], pause: Callable[[], Awaitable[object]]
) -> AsyncIterator[EngineJob]:
    """Every job of ``jobs``, then each that changed. ``pause`` waits until it is worth to look again."""
    known: dict[str, EngineJob] = {}
    while True:
        found = {job.identity: job for job in await jobs()}
        for identity, job in found.items():
            if known.get(identity) != job:
                yield job
        known = found
        await pause()


class Memory:
    """The jobs that an engine reported unfinished: one that it reports no longer is lost."""

    def __init__(self) -> None:
        self._unfinished: dict[str, EngineJob] = {}

    def complete(self, found: Iterable[EngineJob], reason: str) -> tuple[EngineJob, ...]:
        """The jobs found and the lost ones, sorted by identity. ``reason``: of a lost job."""
        jobs = {job.identity: job for job in found}
        for identity, job in self._unfinished.items():
            if identity not in jobs:
                jobs[identity] = replace(job, state=JobState.LOST, exit_code=None, reason=reason)
        self._unfinished |= {i: job for i, job in jobs.items() if not job.state.is_final}
        for identity, job in jobs.items():
            if job.state.is_final and job.state is not JobState.LOST:
                self._unfinished.pop(identity, None)
        return tuple(jobs[identity] for identity in sorted(jobs))

    def saw(self, job: EngineJob) -> EngineJob:
        """A job that the engine accepted just now."""
        if not job.state.is_final:
            self._unfinished[job.identity] = job
        return job

    def knows(self, identity: str) -> bool:
        """It was seen, and its end was not."""
        return identity in self._unfinished

    def forget(self, identity: str) -> None:
        """It is not missed any more."""
        self._unfinished.pop(identity, None)
