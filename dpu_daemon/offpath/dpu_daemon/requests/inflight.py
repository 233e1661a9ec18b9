"""What is in flight, as data: jobs without an answer, and the lanes' workers that run them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from offpath.bindings.ports import FabricSession, HostConnection, Invitation, Memory
from offpath.bindings.wire.header import RequestHeader
from offpath.bindings.wire.host import Result


class SessionEnd(Protocol):
    """A requester's session as its jobs see it. While ``is_closed`` its memory is not mapped, and nobody is rung."""

    number: int
    tenant: str
    fabric: FabricSession
    is_closed: bool

    def ring(self, slot: int) -> None:
        """Signal that ``slot`` is answered."""

    def on_wait(self, wait_ms: int) -> None:
        """The last answer was a refusal for ``wait_ms``."""


class JobRef:
    """The shell's side of a job: where its bytes are. ``result`` waits here between worker and answer; ``fetching`` is
    the lane out of which a result is being copied, ``waiting`` a later attempt's result that comes next. ``is_spoilt``:
    after a restart the slot's header is not what was accepted. ``operator_uid``: of the operator who cancelled it.
    ``detail``: what the worker said of a failure, whether or not the requester has room for it."""

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


@dataclass(slots=True, eq=False)
class LaneConnection:
    """A lane's worker: its channel and its memory as the copy engine reaches it."""

    lease: int
    lane: int
    generation: int
    connection: HostConnection
    invitation: Invitation | None = None
    memory: Memory | None = None
    landing_bytes: int = 0
    result_bytes: int = 0
    ref: JobRef | None = None
    """The job whose payload was last sent here."""
    last_job: int = 0
    """Of a worker that came back: the last launch it received."""
    resent: int = 0
    """The job whose result it sends again, because it cannot know whether we had it."""
