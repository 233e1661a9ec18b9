"""Messages of the admin socket. The daemon replies once to each request of an operator's command, in order.

Framed like the negotiation (`wire.frames`), so a list comes in pages. ``after`` is a number or name; ``next`` is the
``after`` of the next page (0 or empty: the last page). States, reasons and causes are lower-case words.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field, TypeAdapter

from offpath.bindings.wire.fields import (
    MAX_GPUS,
    MAX_HELPERS,
    MAX_LISTED,
    PROTOCOL_VERSION,
    STRICT,
    U8,
    U16,
    U32,
    U64,
    GpuIdentity,
    HelperName,
    Lanes,
    LeaseNumber,
    Name,
    RequestId,
    Slices,
    Start,
)

PAGE: Final = 64
Text = Annotated[str, Field(max_length=2048)]
Page = Annotated[int, Field(ge=1, le=PAGE)]


class _Message(BaseModel):
    model_config = STRICT


class StatusRequest(_Message):
    """The daemon's status."""

    kind: Literal["status"] = "status"
    version: U16 = PROTOCOL_VERSION


class JobsRequest(_Message):
    """Jobs whose credit was not returned. With a terminal ``state``: also the jobs that ended last."""

    kind: Literal["jobs"] = "jobs"
    tenant: Name | None = None
    session: U64 | None = None
    state: Name | None = None
    after: U64 = 0
    limit: Page = PAGE


class EndedRequest(_Message):
    """The jobs that ended last, the last one first. The reply is one page of jobs."""

    kind: Literal["ended"] = "ended"
    limit: Page = PAGE


class JobRequest(_Message):
    """One job, also for a while after its end: by its number, or by session and request id."""

    kind: Literal["request"] = "request"
    job: U64 | None = None
    session: U64 | None = None
    request_id: RequestId | None = None


class ExplainRequest(_Message):
    """The reasons for a job's state. Fields as in JobRequest."""

    kind: Literal["explain"] = "explain"
    job: U64 | None = None
    session: U64 | None = None
    request_id: RequestId | None = None


class CancelRequest(_Message):
    """Cancel a job as an operator. Fields as in JobRequest."""

    kind: Literal["cancel"] = "cancel"
    job: U64 | None = None
    session: U64 | None = None
    request_id: RequestId | None = None


class LeasesRequest(_Message):
    """A page of leases."""

    kind: Literal["leases"] = "leases"
    after: U64 = 0
    limit: Page = PAGE


class SessionsRequest(_Message):
    """A page of sessions."""

    kind: Literal["sessions"] = "sessions"
    tenant: Name | None = None
    after: U64 = 0
    limit: Page = PAGE


class StatisticsRequest(_Message):
    """Counters since the start, and a page of tenants."""

    kind: Literal["statistics"] = "statistics"
    after: Annotated[str, Field(max_length=64)] = ""
    limit: Page = PAGE


class HealthRequest(_Message):
    """Test event loop, book and copy engine now."""

    kind: Literal["health"] = "health"


class DrainRequest(_Message):
    """Stop accepting new requests (``is_on``), or resume. ``stop``: end the daemon after the reply."""

    kind: Literal["drain"] = "drain"
    is_on: bool = True
    stop: bool = False


class GpuLine(_Message):
    """A GPU of a helper, and how much of it is leased. ``is_emulated`` null: its helper has not returned since the
    daemon's process started."""

    gpu: GpuIdentity
    model: Name
    is_emulated: bool | None
    compute_slices: Slices
    held_share: U32


class HelperLine(_Message):
    """A helper that has joined. ``generation``: of its connection; it rises with each that joins. ``kernels``: the
    first of its ``kernel_count`` ones. ``lost_gpus``: those of its GPUs that need a reset."""

    name: HelperName
    generation: U64
    kernels: Annotated[list[Name], Field(max_length=MAX_LISTED)]
    kernel_count: U32
    gpus: U32
    leases: U32
    lost_gpus: U32 = 0


class Status(_Message):
    """The daemon's status in one record."""

    kind: Literal["status"] = "status"
    version: U16 = PROTOCOL_VERSION
    release: Annotated[str, Field(max_length=64)]
    lineage: Annotated[str, Field(max_length=64)]
    pid: U32
    uptime_ms: U64
    is_draining: bool
    is_last_good: bool
    drain_ms: U32
    has_helper: bool
    helpers: Annotated[list[HelperLine], Field(max_length=MAX_HELPERS)]
    gpus: list[GpuLine]
    kernels: list[Name]
    tenants: U32
    sessions: U32
    leases: U32
    unanswered: U32
    queued: U32
    leaving: U32


class JobLine(_Message):
    """A job. ``deadline_in_ms``: null without a deadline. An ended job has a ``reason``, and its age counts from its
    end. ``cancelled_by_uid``: set if an operator cancelled it. ``answers``: of its stream, that were written for its
    requester."""

    job: U64
    session: U64
    request_id: RequestId
    tenant: Name
    kernel: Annotated[str, Field(max_length=64)]
    demand: U16
    priority: U8
    payload_bytes: U64
    state: Name
    reason: Annotated[str, Field(max_length=64)]
    age_ms: float
    deadline_in_ms: float | None = None
    lease: LeaseNumber = 0
    attempt: U32 = 0
    is_ended: bool = False
    cancelled_by_uid: U32 | None = None
    answers: U32 = 0


class Jobs(_Message):
    """A page of jobs by rising number; for EndedRequest the last ended one first."""

    kind: Literal["jobs"] = "jobs"
    jobs: list[JobLine]
    next: U64


class Job(_Message):
    """One job. ``stages_ms`` of an ended one: queued, copy, launch, kernel, back, total."""

    kind: Literal["request"] = "request"
    job: JobLine
    stages_ms: list[float]


class HolderLine(_Message):
    """A lease that occupies what a job needs."""

    lease: LeaseNumber
    tenant: Annotated[str, Field(max_length=64)]
    gpu: GpuIdentity
    profile: Name
    start: Start
    state: Name
    jobs: U32


class StartLine(_Message):
    """A legal start of a suitable profile, and the leases that block it."""

    gpu: GpuIdentity
    profile: Name
    start: Start
    leases: list[LeaseNumber]
    reserved_for: Annotated[str, Field(max_length=64)]


class HoldLine(_Message):
    """One reason why a job waits or ended. ``unblocked_by``: what would change it."""

    cause: Name
    text: Text
    unblocked_by: list[Annotated[str, Field(max_length=128)]]
    holders: list[HolderLine]
    starts: list[StartLine]


class Explanation(_Message):
    """The reasons for a job's state. ``ahead``: jobs of its tenant before it. ``estimate_ms``: until its end.
    ``stages_ms`` of an ended one: as in Job."""

    kind: Literal["explain"] = "explain"
    job: JobLine
    where: Text
    holds: list[HoldLine]
    ahead: U32
    estimate_ms: float | None = None
    stages_ms: list[float] = []


class Cancelled(_Message):
    """The job after the cancel. It may have ended otherwise before."""

    kind: Literal["cancel"] = "cancel"
    job: JobLine


class LeaseLine(_Message):
    """A lease. ``running_share``: the part of ``alpha`` in use; both in percent of its GPU, 100 for each GPU of a gang.
    ``is_restricted``: memory or the GPU's model decides where one of its jobs fits. ``load_ms``: the longest time that
    one of its workers took to load its models. ``others``: the further GPUs of a gang."""

    lease: LeaseNumber
    generation: U64
    tenant: Name
    gpu: GpuIdentity
    profile: Name
    start: Start
    alpha: U16
    lanes: Lanes
    state: Name
    is_pinned: bool
    jobs: U32
    running: U32
    running_share: U16
    held_ms: float
    is_restricted: bool = False
    load_ms: U32 = 0
    others: Annotated[list[GpuIdentity], Field(max_length=MAX_GPUS - 1)] = []


class Leases(_Message):
    """A page of leases."""

    kind: Literal["leases"] = "leases"
    leases: list[LeaseLine]
    next: U64


class SessionLine(_Message):
    """A session. ``jobs``: those whose credit was not returned."""

    session: U64
    tenant: Name
    credits: U32
    jobs: U32
    last_request_id: U64


class Sessions(_Message):
    """A page of sessions."""

    kind: Literal["sessions"] = "sessions"
    sessions: list[SessionLine]
    next: U64


class TenantLine(_Message):
    """A tenant: queue, holdings, ended jobs by state, and latency (0 before the first job completed)."""

    tenant: Name
    jobs: U32
    queued: U32
    running: U32
    sessions: U32
    leases: U32
    held_share: U32
    max_share: U32
    ended: dict[str, U64]
    p50_ms: float
    p99_ms: float
    sequences: U32 = 0


class Statistics(_Message):
    """Counters of the daemon, and a page of tenants."""

    kind: Literal["statistics"] = "statistics"
    uptime_ms: U64
    counters: dict[str, U64]
    tenants: list[TenantLine]
    next: Annotated[str, Field(max_length=64)]


class Health(_Message):
    """The result of each test: ``ok``, or what is wrong."""

    kind: Literal["health"] = "health"
    is_healthy: bool
    is_ready: bool
    checks: dict[str, str]


class Drained(_Message):
    """The state of the drain. ``unanswered``: jobs without an answer. ``leaving``: answered jobs that still copy or
    run. ``limit_ms``: the configured maximum duration."""

    kind: Literal["drain"] = "drain"
    is_draining: bool
    is_drained: bool
    unanswered: U32
    leaving: U32
    limit_ms: U32


class Fault(_Message):
    """The request failed."""

    kind: Literal["fault"] = "fault"
    code: Name
    detail: Annotated[str, Field(max_length=512)]


Request = (
    StatusRequest | JobsRequest | EndedRequest | JobRequest | ExplainRequest | CancelRequest | LeasesRequest
    | SessionsRequest | StatisticsRequest | HealthRequest | DrainRequest
)  # fmt: skip
Reply = Status | Jobs | Job | Explanation | Cancelled | Leases | Sessions | Statistics | Health | Drained | Fault
ToAdmin = Annotated[Request, Field(discriminator="kind")]
FromAdmin = Annotated[Reply, Field(discriminator="kind")]
TO_ADMIN: Final[TypeAdapter[Request]] = TypeAdapter(ToAdmin)
FROM_ADMIN: Final[TypeAdapter[Reply]] = TypeAdapter(FromAdmin)
