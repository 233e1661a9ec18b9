"""What a workload consists of: jobs, nodes, and the commands that an engine is to carry out."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

MOST_GPUS: Final = 65_536
"""Of one job."""
MOST_NS: Final = (1 << 63) - 1


class WorkState(StrEnum):
    """A job's state. Transitions go downwards; `is_final` ones end it."""

    QUEUED = "queued"
    """Waits for a placement: at the controller, or held by the engine."""
    STARTING = "starting"
    """Placed; the engine is asked to start it, repeatedly until it answers."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    """The engine does not take it; `Work.detail` has its reason."""

    @property
    def is_final(self) -> bool:
        """The job holds no GPU any more."""
        return self not in (WorkState.QUEUED, WorkState.STARTING, WorkState.RUNNING)


@dataclass(frozen=True, slots=True)
class Node:
    """``gpus``: indices from 0, so many. ``switch``: leaf switch or rack. ``is_ready``: it takes new jobs; else
    ``reason`` is the engine's."""

    name: str
    gpus: int
    switch: str = ""
    is_ready: bool = True
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """A job's part of a node. ``gpus``: indices; empty if the engine chooses them, or for a parameter server."""

    node: str
    count: int
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a job goes. ``shares``: nodes with its workers, and the parameter server's with 0 GPUs if no worker is
    there. ``server``: node of the parameter server; empty: the job needs none, having one node. ``uses_ina``: its
    packets may be aggregated by switches. ``rate_bps``: estimated rate of each worker in the steady state; 0: no
    traffic. ``reasons``: of the policy, for people."""

    shares: tuple[Share, ...]
    server: str = ""
    uses_ina: bool = False
    rate_bps: float = 0.0
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spec:
    """A job as submitted. ``model``: a name that the policy's table of models knows. ``data_bytes``: gradient bytes of
    one iteration; 0: the model's. ``value``: the user's weight, above 0. ``argv`` is empty for a job that the engine
    holds itself. ``user``: the operating system's; empty: the controller's."""

    name: str
    gpus: int
    model: str
    data_bytes: int = 0
    value: float = 1.0
    argv: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    directory: str = "/"
    output: str = ""
    user: str = ""


@dataclass(slots=True, eq=False)
class Work:
    """A job and what became of it. ``identity``: the engine's name for it, never used for another. ``is_held``: it was
    submitted to the engine, which holds it until it is released. ``batches``: how many batches deferred it,
    ``passed_over``: and how many of them started another job. ``reasons``: of the last decision. ``detail``: the
    engine's text. ``is_cancelled``: somebody wants its end. ``has_run``: the engine reported it as running.
    ``may_have_begun``: the engine took it at its places, or may have, and did not prove that its command never began;
    it must not be started at other places. ``refusals``: of the engine, after the last of which it waits until the look
    number ``rests_until``. Times are wall-clock ns; 0: not yet."""

    spec: Spec
    identity: str
    submitted_ns: int
    is_held: bool = False
    state: WorkState = WorkState.QUEUED
    placed: Placed | None = None
    batches: int = 0
    passed_over: int = 0
    reasons: tuple[str, ...] = ()
    detail: str = ""
    exit_code: int | None = None
    is_cancelled: bool = False
    has_run: bool = False
    may_have_begun: bool = False
    refusals: int = 0
    rests_until: int = 0
    started_ns: int = 0
    ended_ns: int = 0

    @property
    def is_active(self) -> bool:
        """It holds GPUs: it is placed and its end is not known."""
        return self.state in (WorkState.STARTING, WorkState.RUNNING)


# -- what the engine reports ------------------------------------------------------------------------------------------
class Report(StrEnum):
    """A job's state at its engine."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    """No process of it is left, and the engine has no record of its end."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A job as the engine reports it. ``shares``: where it is, with the GPU indices that it has once they are known.
    ``has_begun``: False: the engine proves that the job's command never began."""

    identity: str
    report: Report
    shares: tuple[Share, ...] = ()
    exit_code: int | None = None
    reason: str = ""
    has_begun: bool = True


@dataclass(frozen=True, slots=True)
class Held:
    """A job that a user submitted to the engine itself, which holds it."""

    identity: str
    user: str
    gpus: int
    model: str = ""
    data_bytes: int = 0
    value: float = 1.0


# -- commands to the shell --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Save:
    """Write the job durably before any command that follows."""

    work: Work


@dataclass(frozen=True, slots=True)
class Drop:
    """Remove the stored job."""

    identity: str


@dataclass(frozen=True, slots=True)
class Start:
    """Have the engine start the job, or find it, by its identity. Repeated until it answers."""

    identity: str


@dataclass(frozen=True, slots=True)
class Release:
    """Have the engine let its held job run on the chosen nodes. Repeated until it answers."""

    identity: str


@dataclass(frozen=True, slots=True)
class End:
    """Have the engine end the job. Repeated until it reports the end."""

    identity: str


@dataclass(frozen=True, slots=True)
class Forget:
    """The end is recorded: the engine's records may go."""

    identity: str


Command = Save | Drop | Start | Release | End | Forget


@dataclass(frozen=True, slots=True)
class Batch:
    """The input of one decision. ``number``: of the batch. ``queued``: in order of submission. ``active``: jobs that
    hold GPUs. ``free``: GPU indices that no job holds, of ready nodes."""

    number: int
    queued: tuple[Work, ...]
    active: tuple[Work, ...]
    nodes: tuple[Node, ...]
    free: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """For one queued job: where it goes, or why it waits."""

    identity: str
    placed: Placed | None
    reasons: tuple[str, ...] = ()
