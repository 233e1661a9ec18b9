"""The port of engines: what a controller of jobs needs from Slurm, Ray or one machine. Adapters inherit nothing.

Exactly once: the controller chooses each job's *identity*. `Engine.start` may be repeated at any time, also after a
restart of controller or engine and after a lost answer: the job's command runs at most once per identity. An engine's
own ids are never used to recognise a job, because an engine may lose or reuse them. Nothing is migrated: a job keeps
the places of its first start.

Every process of a job gets the environment of `Start`, and these variables: ``OFFPATH_JOB`` (identity),
``OFFPATH_NODE`` (node name), ``OFFPATH_PLACE`` (index in `Start.places`), ``OFFPATH_PLACES`` (their number),
``CUDA_VISIBLE_DEVICES`` (GPU indices, empty without GPUs) and ``PATH``, if `Start` has none. Slurm and Ray add their
own. One process runs per place. If one ends with another code than 0, the engine ends the others.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from offpath.bindings.errors import EngineRefused

PATH: Final = "/usr/local/bin:/usr/bin:/bin"
"""PATH of a job whose `Start` has none."""
MOST_BYTES: Final = 96 << 10
"""Limit of a `Start`: arguments, environment and paths together."""
MOST_PLACES: Final = 2_048
_IDENTITY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,254}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


class NodeState(StrEnum):
    """What the engine lets a node do."""

    READY = "ready"
    """It takes jobs."""
    DRAINED = "drained"
    """Its operator lets it take no further job. Jobs that run on it may go on."""
    DOWN = "down"
    """The engine has no contact to it."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """``index``: from 0, per node, as in CUDA_VISIBLE_DEVICES. ``model``: the engine's name of the type, or empty."""

    index: int
    model: str = ""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node as the engine reports it. ``switch``: its leaf switch or rack, empty if unknown. ``reason``: the engine's
    text on a node that is not ready. ``unaccounted``: GPUs that the engine counts as given while no job in its queue
    has them; for a moment also where a job has just ended. ``remedy``: the operator's command that gives them back."""

    name: str
    gpus: tuple[Gpu, ...] = ()
    switch: str = ""
    state: NodeState = NodeState.READY
    reason: str = ""
    unaccounted: int = 0
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A node of a job, and how many GPUs the job has there.

    ``gpus``: the indices, as many as ``gpu_count``, or empty: the engine chooses. Only an engine with
    `Engine.names_gpus` follows them. In an `EngineJob` they are the ones that the job really has, once the engine
    knows. ``model``: the GPUs' model, needed on nodes with several.
    """

    node: str
    gpu_count: int = 0
    gpus: tuple[int, ...] = ()
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A job to start. See the module's text for the environment of its processes.

    Args:
        identity: chosen by the controller, once per job; 1 to 64 of ``A-Z a-z 0-9 . _ -``, the first a letter or digit.
        places: shape [P]; different nodes. The process of place p has OFFPATH_PLACE=p.
        argv: the command, the same on every place; found by PATH if it has no slash.
        environment: the variables of the job; the engine's and the controller's own are not inherited.
        working_directory: absolute path on the nodes.
        output: absolute path on the nodes; the process of place p writes stdout and stderr to ``OUTPUT.p``. Empty:
            nowhere.
        user: the operating system's user to run as; empty: the one that the engine runs as or that the controller is.
    """

    identity: str
    places: tuple[Place, ...]
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    working_directory: str = "/"
    output: str = ""
    user: str = ""


class JobState(StrEnum):
    """A job's state at its engine."""

    PENDING = "pending"
    """Accepted, not running yet. `EngineJob.reason` has the engine's reason."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    """Final: every process ended with 0."""
    FAILED = "failed"
    """Final: a process ended with another code, or the engine ended the job (`EngineJob.reason`)."""
    CANCELLED = "cancelled"
    """Final: ended by `Engine.cancel`, or by somebody with the engine's own command."""
    LOST = "lost"
    """Final for the engine: it lost the job or the job's node; no process of it is left on reachable nodes. `start`
    with the same identity is allowed: it runs the command if that never ran, and else reports LOST again."""

    @property
    def is_final(self) -> bool:
        """The job has no process and no GPU."""
        return self not in (JobState.PENDING, JobState.RUNNING)


@dataclass(frozen=True, slots=True)
class EngineJob:
    """A job as the engine reports it. ``engine_id``: the engine's own id, for its users only. ``exit_code``: of the
    first process that failed, else 0; negative: a signal; None: not ended, or unknown. ``reason``: the engine's
    text. ``has_begun``: False: the engine proves that the command never began; only then may another place start it."""

    identity: str
    engine_id: str
    state: JobState
    places: tuple[Place, ...] = ()
    exit_code: int | None = None
    reason: str = ""
    has_begun: bool = True


@dataclass(frozen=True, slots=True)
class PendingJob:
    """A job that a user submitted straight to the engine, and that the engine holds until it is placed.

    ``identity``: made by the engine, unique. ``nodes``: how many nodes the user asked for, 0: any number. ``gpus``:
    GPUs in all. ``gpus_per_node``: 0 if the user gave only a total. ``model``: the GPU model asked for, or empty.
    ``comment``: the user's text, untrusted.
    """

    identity: str
    engine_id: str
    user: str
    nodes: int
    gpus: int
    gpus_per_node: int = 0
    model: str = ""
    comment: str = ""


class Engine(Protocol):
    """An engine of jobs. No call blocks the event loop. Each raises `EngineUnavailable` when the engine does not answer
    in time (repeat it), `EngineMissing` when its programs are not installed, `EngineAnswerInvalid` when its answer
    cannot be read. One controller uses an engine at a time."""

    @property
    def name(self) -> str:
        """``local``, ``slurm`` or ``ray``."""

    @property
    def names_gpus(self) -> bool:
        """The job gets exactly the indices of `Place.gpus`. Else the engine chooses, and `EngineJob.places` reports."""

    async def adopt(self) -> tuple[EngineJob, ...]:
        """Take over the jobs that an earlier controller started. Call it first, and after each `EngineUnavailable`.
        Returns what `jobs` returns. Idempotent."""

    async def inventory(self) -> tuple[NodeInfo, ...]:
        """All nodes, sorted by name."""

    async def topology(self) -> str:
        """The network as text of topology.conf(5) for `offpath.sched.topology.slurm.conf`; empty if unknown."""

    async def pending(self) -> tuple[PendingJob, ...]:
        """Jobs that the engine holds until `release`, the oldest first. Empty where an engine has no such jobs."""

    async def start(self, start: Start) -> EngineJob:
        """Start a job, or find it by its identity: then its present state, and nothing is started. Idempotent.
        Raises: EngineRefused: the engine does not take the job, with its reason; nothing of it is left."""

    async def release(self, identity: str, places: Sequence[Place]) -> EngineJob:
        """Let a job of `pending` run on these nodes. It keeps its identity in `jobs`. Idempotent.
        Raises: EngineRefused; EngineJobUnknown: the job does not exist (any more)."""

    async def jobs(self) -> tuple[EngineJob, ...]:
        """All started or released jobs that the engine remembers, sorted by identity. A job that this object saw
        unfinished and that the engine does not know any more is LOST."""

    def watch(self) -> AsyncIterator[EngineJob]:
        """Every known job, then each one whose state, places or reason changed, without end. Ends with
        `EngineUnavailable` when the engine does not answer; call it again after `adopt`."""

    async def cancel(self, identity: str) -> None:
        """End a job: SIGTERM, some seconds later SIGKILL. Returns when the engine has accepted; `watch` reports the
        end. Harmless on a job that has ended. Raises: EngineJobUnknown."""

    async def forget(self, identity: str) -> None:
        """The controller has recorded the end: the engine's records of the job may go. From here on the identity must
        not be used again. Harmless on an unknown job. Raises: EngineRefused: the job has not ended."""

    async def close(self) -> None:
        """Leave the engine; its jobs continue. Idempotent."""


def check_identity(identity: str) -> str:
    """The identity. Raises: EngineRefused: not of the form that `Start` demands."""
    if not _IDENTITY.fullmatch(identity):
        raise EngineRefused(f"invalid identity {identity[:80]!r}: 1 to 64 of A-Z a-z 0-9 . _ -")
    return identity


def check_places(places: Sequence[Place]) -> None:
    """Raises: EngineRefused: no place, a node twice or with an invalid name, indices that do not fit the count."""
    if not 1 <= len(places) <= MOST_PLACES:
        raise EngineRefused(f"{len(places)} places; 1 to {MOST_PLACES} are allowed")
    if len({place.node for place in places}) != len(places):
        raise EngineRefused("a node occurs twice in the places")
    for place in places:
        if not _NODE.fullmatch(place.node):
            raise EngineRefused(f"invalid node name {place.node[:80]!r}")
        if place.model and not _MODEL.fullmatch(place.model):
            raise EngineRefused(f"invalid GPU model {place.model[:80]!r}")
        if not 0 <= place.gpu_count <= 1024:
            raise EngineRefused(f"{place.gpu_count} GPUs on node {place.node}; 0 to 1024 are allowed")
        if place.gpus and (len(place.gpus) != place.gpu_count or len(set(place.gpus)) != place.gpu_count):
            raise EngineRefused(f"GPUs {place.gpus} on node {place.node} are not {place.gpu_count} different ones")
        if any(index < 0 for index in place.gpus):
            raise EngineRefused(f"a negative GPU index on node {place.node}")


def check_start(start: Start) -> None:
    """What no engine could run. Raises: EngineRefused."""
    check_identity(start.identity)
    check_places(start.places)
    if not start.argv or not start.argv[0]:
        raise EngineRefused("no command")
    if not start.working_directory.startswith("/"):
        raise EngineRefused(f"working directory {start.working_directory[:80]!r} is not an absolute path")
    if start.output and not start.output.startswith("/"):
        raise EngineRefused(f"output {start.output[:80]!r} is not an absolute path")
    if start.user and not _USER.fullmatch(start.user):
        raise EngineRefused(f"invalid user name {start.user[:80]!r}")
    texts = [*start.argv, start.working_directory, start.output]
    for name, value in start.environment.items():
        if not _VARIABLE.fullmatch(name):
            raise EngineRefused(f"invalid name of a variable {name[:80]!r}")
        texts += [name, value]
    try:
        total = sum(len(text.encode()) + 1 for text in texts)
    except UnicodeEncodeError:
        raise EngineRefused("arguments and environment must be valid UTF-8") from None
    if any("\0" in text for text in texts):
        raise EngineRefused("a NUL character in arguments, environment or paths")
    if total > MOST_BYTES:
        raise EngineRefused(f"arguments and environment have {total} bytes; the limit is {MOST_BYTES}")


def bounded(text: str, most: int = 300) -> str:
    """Text of an engine for an error or a reason: one line, printable, at most ``most`` characters."""
    line = " ".join(text[: 8 * most].split())
    shown = "".join(each if each.isprintable() else "?" for each in line)
    return shown if len(shown) <= most else shown[: most - 1] + "…"
