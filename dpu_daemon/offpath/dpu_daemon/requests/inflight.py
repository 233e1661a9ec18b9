"""Data of work in flight: jobs without an answer, and the connections to the workers that run them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from offpath.bindings.ports import FabricSession, HostConnection, Invitation, Memory
from offpath.bindings.wire.header import RequestHeader, Tensor
from offpath.bindings.wire.host import Result


class SessionEnd(Protocol):
    """A requester's session as its jobs see it. While ``is_closed``, its memory is unmapped and no doorbell is sent."""

    number: int
    tenant: str
    fabric: FabricSession
    is_closed: bool

    def ring(self, slot: int) -> None:
        """Signal that ``slot`` is answered."""

    def on_wait(self, wait_ms: int) -> None:
        """The last answer refused the request for ``wait_ms``."""


class JobRef:
    """The shell's record of a job: where its bytes are. ``result``: the worker's result until the answer is written.
    ``fetching``: the lane from which a result is being copied; ``waiting``: a later attempt's result, which is next.
    ``is_spoilt``: after a restart, the slot's header differs from the accepted one. ``operator_uid``: the operator who
    cancelled the job. ``detail``: the worker's failure text, even if it does not fit the requester's answer."""

    __slots__ = (
        "detail", "fetching", "header", "is_answered", "is_spoilt", "job", "operator_uid", "result", "session", "slot",
        "waiting",
    )  # fmt: skip

    def __init__(self, job: int, session: SessionEnd, slot: int, header: RequestHeader) -> None:
        self.job = job
        self.session = session
        self.slot = slot
        self.header = header
        self.result: Result | None = None
        self.is_answered = False
        self.fetching: LaneConnection | None = None
        self.waiting: tuple[LaneConnection, Result] | None = None
        self.is_spoilt = False
        self.operator_uid: int | None = None
        self.detail = b""


@dataclass(frozen=True, slots=True)
class Member:
    """A job of a batch and its rows. ``ref`` None: it has its answer, and its rows are thrown away."""

    job: int
    ref: JobRef | None
    first_row: int
    rows: int


@dataclass(slots=True, eq=False)
class LaneBatch:
    """The batch in a lane: ``tensors`` of all members together, also ``packed`` for the launch."""

    leader: int
    members: tuple[Member, ...]
    rows: int
    tensors: tuple[Tensor, ...]
    packed: bytes
    payload_bytes: int
    has_result: bool = False


@dataclass(slots=True, eq=False)
class LaneConnection:
    """A lane's worker: its channel, and its memory as the copy engine accesses it."""

    lease: int
    lane: int
    generation: int
    connection: HostConnection
    invitation: Invitation | None = None
    memory: Memory | None = None
    landing_bytes: int = 0
    result_bytes: int = 0
    is_loading: bool = False
    """Its worker has reported that it loads its models."""
    load_ms: int = 0
    ref: JobRef | None = None
    """The job whose payload was last sent here."""
    batch: LaneBatch | None = None
    """The batch that was last sent here, if it was one."""
    last_job: int = 0
    """The last launch that a reattached worker had received."""
    resent: int = 0
    """The job whose result a reattached worker sends again: it cannot know whether the daemon received it."""


class Workers(Protocol):
    """The interface to the lanes' workers."""

    @property
    def awaited(self) -> Collection[tuple[int, int]]:
        """After a restart: lanes whose workers are expected back."""

    def holds(self, link: LaneConnection) -> bool:
        """True while the lane's worker is connected."""

    def worker_gone(self, link: LaneConnection, why: str) -> None:
        """The lane is lost."""

    def copy_failed(self, link: LaneConnection, why: str) -> None:
        """A copy into or out of the lane ended in an error."""

    def request_proof(self, link: LaneConnection, number: int) -> bool:
        """Ping the worker; its pong goes to `offpath.dpu_daemon.requests.answers.Answers.proven`. False: the ping
        cannot be sent."""

    def lane_is_back(self, link: LaneConnection) -> None:
        """An awaited worker has reattached and sent its pending result."""

    def gpu_index(self, lease: int) -> int:
        """The lease's GPU as the answer header names it."""
