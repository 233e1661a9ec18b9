"""The engine `slurm`, by Slurm's own commands (22.05 or later). Guarantees, set-up and limits: docs/engines.md.

A job is submitted held, with its identity and a nonce of the submission as its comment, and then released: a
submission whose answer was lost is found by its identity, and of two only the older is released. `slurm_script` has
what makes the command run at most once.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Final

from offpath.bindings.engines import slurm_reading as reading
from offpath.bindings.engines.commands import Done, environment, run
from offpath.bindings.engines.port import (
    EngineJob,
    JobState,
    NodeInfo,
    PendingJob,
    Place,
    Start,
    bounded,
    check_identity,
    check_places,
    check_start,
)
from offpath.bindings.engines.slurm_reading import SlurmJob
from offpath.bindings.engines.slurm_script import Submission, name
from offpath.bindings.engines.watching import Memory, changes
from offpath.bindings.errors import EngineJobUnknown, EngineRefused, EngineUnavailable, JobEngineError

PLUGIN: Final = Path(__file__).with_name("job_submit.lua")
"""Slurm's plug-in that holds jobs of users, for JobSubmitPlugins=lua."""
_AT_ONCE: Final = 4
"""Commands that run at the same time."""
_DOWN: Final = re.compile(
    r"unable to contact|connect failure|connection refused|timed out|zero bytes|communication|connection reset"
    r"|unable to connect|unexpected message|socket|standby|temporarily unable|try again|munge|no response",
    re.IGNORECASE,
)
"""Texts of commands that got no verdict from slurmctld: the request may have arrived or not."""
_FORGOTTEN: Final = "Slurm does not know the job any more"
REMEDY: Final = "scontrol reconfigure"
"""It makes slurmctld count the GPUs of its jobs anew."""


class SlurmEngine:
    """See `Engine`.

    Args:
        expand: expands a hostlist, such as `offpath.sched.topology.hostlist.expand`; what it raises is not caught.
        submission: how jobs are submitted.
        environment: more variables for Slurm's commands, such as SLURM_CONF.
        timeout_s: of each command.
        poll_s: `watch` looks so often.
    """

    name = "slurm"
    names_gpus = False

    def __init__(
        self,
        expand: reading.Expand,
        submission: Submission | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        poll_s: float = 1.0,
    ) -> None:
        self._expand = expand
        self._submission = submission or Submission()
        self._environment = dict(environment or {})
        self._timeout_s, self._poll_s = timeout_s, poll_s
        self._commands = asyncio.Semaphore(_AT_ONCE)
        self._starting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._memory = Memory()
        self._models: dict[str, str] = {}
        """Of each node's GPUs, as last read; empty: several, or none."""

    async def adopt(self) -> tuple[EngineJob, ...]:
        """See `Engine.adopt`. Of several submissions of one job the younger ones, which are held, are cancelled."""
        for submissions in _by_identity(await self._listed()).values():
            await self._cancel_younger(submissions)
        return await self.jobs()

    async def inventory(self) -> tuple[NodeInfo, ...]:
        """See `Engine.inventory`: nodes, Gres and states of sinfo, the leaf switch of Slurm's topology."""
        switches = reading.leaves(await self.topology(), self._expand)
        listed = (await self._must("sinfo", "--json")).out
        nodes = reading.nodes(listed, switches)
        self._models = {node.name: _only({gpu.model for gpu in node.gpus}) for node in nodes}
        given = reading.given(listed)
        if not any(given.values()):
            return nodes
        # After sinfo: what it counts for a job that started just now is in the queue already.
        occupied = reading.occupied((await self._must("squeue", "--json", "-t", "all")).out)
        excess = {name: count - occupied[name] for name, count in given.items() if count > occupied[name]}
        return tuple(
            replace(node, unaccounted=excess[node.name], remedy=REMEDY) if node.name in excess else node
            for node in nodes
        )

    async def topology(self) -> str:
        """See `Engine.topology`; empty without a topology plug-in."""
        done = await self._command("scontrol", "show", "topology")
        if _DOWN.search(done.err):  # scontrol ends with 0 then
            raise EngineUnavailable(f"scontrol: {bounded(done.err)}")
        return reading.topology(done.out.decode("utf-8", "replace"))

    async def pending(self) -> tuple[PendingJob, ...]:
        """See `Engine.pending`: jobs that job_submit.lua holds."""
        found = [job for job in await self._listed() if job.is_plain and job.is_held]
        return tuple(reading.held(job) for job in sorted(found, key=lambda job: job.leader))

    async def start(self, start: Start) -> EngineJob:
        """See `Engine.start`. Slurm chooses the GPU indices: those of `Place.gpus` are not followed."""
        check_start(start)
        async with self._one_at_a_time(start.identity):
            try:
                submissions = await self._submitted(start)
            except JobEngineError as fault:
                fault.may_have_begun = False  # it is held at most
                raise
            job = await self._settle(submissions)
        if not job.places or not any(place.gpus for place in job.places):
            job = replace(job, places=tuple(replace(place, gpus=()) for place in start.places))
        return self._memory.saw(job)

    async def release(self, identity: str, places: Sequence[Place]) -> EngineJob:
        """See `Engine.release`. Slurm refuses nodes that do not fit the job; the GPUs per node are the user's."""
        check_identity(identity)
        check_places(places)
        job = await self._found(identity)
        if job.is_held:
            await self._until_known([place.node for place in places])  # see `_with_model`: this job may name none
            nodes = ",".join(place.node for place in places)
            update = [f"ReqNodeList={nodes}", f"NumNodes={len(places)}", "StartTime=now"]
            await self._must("scontrol", "update", f"JobId={job.leader}", *update)
            await self._must("scontrol", "release", str(job.leader))
            job = replace(job, is_unreleased=False, places=tuple(replace(place, gpus=()) for place in places))
        return self._memory.saw(reading.merged([job]))

    async def jobs(self) -> tuple[EngineJob, ...]:
        """See `Engine.jobs`: MinJobAge (300 s by default) after its end Slurm forgets a job."""
        found = []
        for submissions in _by_identity(await self._listed()).values():
            chosen = _chosen(submissions)
            if not (chosen[0].is_plain and chosen[0].is_held):
                found.append(reading.merged(chosen))
        return self._memory.complete(found, _FORGOTTEN)

    async def watch(self) -> AsyncIterator[EngineJob]:
        """See `Engine.watch`."""
        async for job in changes(self.jobs, lambda: asyncio.sleep(self._poll_s)):
            yield job

    async def cancel(self, identity: str) -> None:
        """See `Engine.cancel`; Slurm's KillWait is the time between the signals."""
        check_identity(identity)
        submissions = _by_identity(await self._listed()).get(identity)
        if submissions is None:
            if self._memory.knows(identity):
                return
            raise EngineJobUnknown(f"unknown job {identity}")
        for components_ in submissions.values():
            if components_[0].is_unfinished:
                await self._scancel(components_[0].leader)

    async def forget(self, identity: str) -> None:
        """See `Engine.forget`. Slurm forgets by itself."""
        check_identity(identity)
        for submissions in (_by_identity(await self._listed()).get(identity) or {}).values():
            if submissions[0].is_unfinished:
                raise EngineRefused(f"job {identity} has not ended")
        self._memory.forget(identity)

    async def close(self) -> None:
        """See `Engine.close`; there is nothing to close."""

    # -- submissions ----------------------------------------------------------------------------------------------
    async def _submitted(self, start: Start) -> dict[str, list[SlurmJob]]:
        """The job's submissions; if it has none, it is submitted."""
        submissions = await self._submissions(start.identity)
        if not submissions:
            await self._submit(start)
            submissions = await self._submissions(start.identity)
            if not submissions:
                raise EngineUnavailable(f"job {start.identity}: slurmctld lost it; start it again")
        return submissions

    async def _submit(self, start: Start) -> None:
        """Submit it held. Afterwards it is in Slurm, or EngineRefused or EngineUnavailable tells that it may not be.

        Slurm does not judge a held job; a trial of each component (sbatch --test-only) finds what it would refuse.
        """
        start = replace(start, places=await self._with_model(start.places))
        nonce = secrets.token_hex(8)
        words = self._submission.words(start, nonce)
        script = self._submission.script(start, nonce).encode()
        for component in _split(words):
            trial = ("sbatch", "--test-only", *component)
            done = await self._command(*trial, stdin=script)
            if done.code and not _DOWN.search(done.err):
                await self._until_known([place.node for place in start.places])
                done = await self._command(*trial, stdin=script)
            self._judge(done)
        done = await self._command("sbatch", "--parsable", *_held(words), stdin=script)
        if done.code and not _DOWN.search(done.err):
            raise EngineRefused(_reason(done))

    async def _with_model(self, places: Sequence[Place]) -> tuple[Place, ...]:
        """Places with the GPUs' model, if that is the same on all of them.

        A job that names none and starts on a node that did not register since slurmctld was started gets no GPU for its
        steps, and slurmctld counts its GPUs as given for ever (docs/engines.md). Several models would make several
        components of one.
        """
        places = tuple(places)
        if any(place.model for place in places):
            return places
        names = {place.node for place in places if place.gpu_count}
        if not names <= self._models.keys():
            await self.inventory()
        model = _only({self._models.get(name, "") for name in names})
        return tuple(replace(place, model=model) if place.gpu_count else place for place in places)

    async def _until_known(self, names: Sequence[str]) -> None:
        """A slurmctld that was started just now does not know its nodes yet and refuses what they could run. Raises:
        EngineUnavailable: so it is."""
        found = reading.unregistered((await self._must("sinfo", "--json")).out)
        if waiting := sorted(found & set(names)):
            raise EngineUnavailable(f"slurmctld does not know the state of {bounded(', '.join(waiting))} yet")

    def _judge(self, done: Done) -> None:
        if done.code and _DOWN.search(done.err):
            raise EngineUnavailable(f"sbatch: {_reason(done)}")
        if done.code:
            raise EngineRefused(_reason(done))

    async def _submissions(self, identity: str) -> dict[str, list[SlurmJob]]:
        """Those of a job that count: one whose command never ran may be repeated, with what was surplus beside it."""
        listed = await self._must("squeue", "-h", "-t", "all", "-o", "%i", "--name", name(identity))
        if not listed.out.strip():
            return {}
        found = _by_identity(await self._listed()).get(identity, {})
        count = {nonce: parts for nonce, parts in found.items() if not parts[0].never_ran}
        has_failed = len(count) < len(found)
        return {} if has_failed and all(parts[0].was_surplus for parts in count.values()) else count

    async def _settle(self, submissions: dict[str, list[SlurmJob]]) -> EngineJob:
        """Release the oldest submission if none runs or ended."""
        await self._cancel_younger(submissions)
        chosen = _chosen(submissions)
        if not chosen[0].is_held:
            return reading.merged(chosen)
        done = await self._command("scontrol", "release", str(chosen[0].leader))
        if done.code:
            if _DOWN.search(done.err):
                raise EngineUnavailable(f"scontrol: {_reason(done)}")
            await self._scancel(chosen[0].leader)
            raise EngineRefused(_reason(done))
        released = [replace(part, is_unreleased=False, reason="") for part in chosen]
        return replace(reading.merged(released), state=JobState.PENDING)

    async def _cancel_younger(self, submissions: dict[str, list[SlurmJob]]) -> None:
        chosen = _chosen(submissions)
        for parts in submissions.values():
            if parts is not chosen and parts[0].is_held and not parts[0].is_plain:
                await self._scancel(parts[0].leader)

    async def _found(self, identity: str) -> SlurmJob:
        submissions = _by_identity(await self._listed()).get(identity)
        if submissions is None:
            raise EngineJobUnknown(f"unknown job {identity}")
        return _chosen(submissions)[0]

    async def _scancel(self, leader: int) -> None:
        done = await self._command("scancel", str(leader))
        if done.code and not re.search("invalid job id", done.err, re.IGNORECASE):
            self._judge(done)

    @contextlib.asynccontextmanager
    async def _one_at_a_time(self, identity: str) -> AsyncIterator[None]:
        """Two calls of `start` for one job must not both find nothing."""
        lock = self._starting[identity]
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._starting.pop(identity, None)

    # -- commands -------------------------------------------------------------------------------------------------
    async def _listed(self) -> list[SlurmJob]:
        return reading.jobs((await self._must("squeue", "--json", "-t", "all")).out, self._expand)

    async def _must(self, *words: str) -> Done:
        """Raises: EngineUnavailable, or EngineRefused with Slurm's text."""
        done = await self._command(*words)
        if done.code:
            if _DOWN.search(done.err):
                raise EngineUnavailable(f"{words[0]}: {_reason(done)}")
            if re.search("invalid job id", done.err, re.IGNORECASE):
                raise EngineJobUnknown(_reason(done))
            raise EngineRefused(_reason(done))
        return done

    async def _command(self, *words: str, stdin: bytes = b"") -> Done:
        async with self._commands:
            program = self._submission.programs + words[0]
            return await run([program, *words[1:]], environment(self._environment), self._timeout_s, stdin)


def _only(models: Set[str]) -> str:
    """The model, if there is one only; else empty."""
    return next(iter(models)) if len(models) == 1 else ""


def _by_identity(listed: Sequence[SlurmJob]) -> dict[str, dict[str, list[SlurmJob]]]:
    """identity → submission → components, the leader first."""
    found: dict[str, dict[str, list[SlurmJob]]] = {}
    for job in sorted(listed, key=lambda job: (job.leader, job.offset)):
        found.setdefault(job.identity, {}).setdefault(f"{job.nonce}/{job.leader}", []).append(job)
    return found


def _chosen(submissions: Mapping[str, list[SlurmJob]]) -> list[SlurmJob]:
    """The submission that stands for the job: one that runs or may run without a release, then one whose command ran,
    then the oldest held one, then one that Slurm forgot, then one that was cancelled before its release."""

    def rank(parts: list[SlurmJob]) -> tuple[int, int]:
        leader = parts[0]
        if leader.is_unfinished:
            kind = 2 if leader.is_held else 0
        else:
            kind = 3 if leader.never_ran else 4 if leader.was_surplus else 1
        return kind, leader.leader

    return min(submissions.values(), key=rank)


def _split(words: Sequence[str]) -> list[list[str]]:
    """The options of each component."""
    found: list[list[str]] = [[]]
    for word in words:
        if word == ":":
            found.append([])
        else:
            found[-1].append(word)
    return found


def _held(words: Sequence[str]) -> list[str]:
    """Every component held."""
    return [each for component in _split(words) for each in (":", "--hold", *component)][1:]


def _reason(done: Done) -> str:
    """Slurm's own text: of a command that prints several lines, all but its prefixes."""
    lines = [re.sub(r"^\w+: (?:error|fatal): ", "", line.strip()) for line in done.err.splitlines()]
    return bounded("; ".join(line for line in lines if line)) or f"exit code {done.code}"
