"""Data of work in flight: jobs without an answer, and the connections to the workers that run them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from offpath.bindings.ports import FabricSession, HostConnection, Invitation, Memory
from offpath.bindings.wire.header import FLAG_STREAM, RequestHeader, Tensor
from offpath.bindings.wire.host import Result, unpack_rows
from offpath.sched.jobs.states import EndReason


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


class Stream:
    """A request's stream of answers. ``written``: the number of the last one in the requester's memory, 0 before the
    first; None: not known after a restart. ``is_taken``: the requester took it, and the slot has room.

    ``link``: the worker that waits for the reply to its answer ``number``; ``stopped``: the one that was told to stop.
    ``waiting``: that answer, while it is not
    known whether the one before was taken. ``is_coming``: it is being copied into the slot. ``is_restored``: after a
    restart, until the worker reports. ``failed``: how the request ends although its worker sees nothing wrong, with
    ``text``."""

    __slots__ = (
        "failed", "is_coming", "is_restored", "is_taken", "link", "number", "stopped", "text", "waiting", "written",
    )  # fmt: skip

    def __init__(self) -> None:
        self.written: int | None = 0
        self.is_taken = True
        self.link: LaneConnection | None = None
        self.stopped: LaneConnection | None = None
        self.number = 0
        self.waiting: Result | None = None
        self.is_coming = False
        self.is_restored = False
        self.failed: EndReason | None = None
        self.text = b""

    @property
    def is_free(self) -> bool:
        """True if no answer lies in the slot that the requester may not have taken."""
        return self.is_taken and self.written is not None


class JobRef:
    """The shell's record of a job: where its bytes are. ``result``: the worker's result until the answer is written.
    ``fetching``: the lane from which a result is being copied; ``waiting``: a later attempt's result, which is next.
    ``is_spoilt``: after a restart, the slot's header differs from the accepted one. ``operator_uid``: the operator who
    cancelled the job. ``detail``: the worker's failure text, even if it does not fit the requester's answer.
    ``stream``: of a request that gets several answers. ``batch``: rows and number of the launch that it shared, as the
    answer's header has them; zeros: it had one of its own."""

    __slots__ = (
        "batch", "detail", "fetching", "header", "is_answered", "is_spoilt", "job", "operator_uid", "result", "session",
        "slot", "stream", "waiting",
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
        self.batch = (0, 0)
        self.stream = Stream() if header.flags & FLAG_STREAM else None

    @property
    def is_in_slot(self) -> bool:
        """True if an answer lies in the slot that the requester is not known to have taken."""
        return self.is_answered or (self.stream is not None and not self.stream.is_taken)


@dataclass(frozen=True, slots=True)
class Member:
    """A job of a batch and its rows. ``ref`` None: it has its answer, and its rows are thrown away."""

    job: int
    ref: JobRef | None
    first_row: int
    rows: int


@dataclass(slots=True, eq=False)
class LaneBatch:
    """The batch in a lane: ``tensors`` of all members together, also ``packed`` for the launch. If its requests have
    parameters, ``parameters`` is the last tensor, and ``rows_of`` the packed rows of each request."""

    leader: int
    members: tuple[Member, ...]
    rows: int
    tensors: tuple[Tensor, ...]
    packed: bytes
    payload_bytes: int
    parameters: Tensor | None = None
    rows_of: bytes = b""
    has_result: bool = False

    @property
    def can_launch(self) -> bool:
        """Whether a launch can be made of it: without the header of each request it is not known where the parameters
        of the others are."""
        return not self.rows_of or sum(unpack_rows(self.rows_of)) == self.rows


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

    def to_worker(self, link: LaneConnection, message: bytes) -> bool:
        """Send the message. False: it certainly did not arrive."""

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
