"""Messages of a collaboration controller's socket for jobs and operators, with the framing and reply rules of
`wire.admin`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field, TypeAdapter

from offpath.bindings.wire.admin import Fault
from offpath.bindings.wire.collab import Labels, Numbers, Versions
from offpath.bindings.wire.fields import PROTOCOL_VERSION, STRICT, U16, U32, U64, Name
from offpath.bindings.wire.ina_admin import JobName, Page

PAGE: Final = 64
Seconds = Annotated[float, Field(ge=0, le=1e10, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=2048)]


class _Message(BaseModel):
    model_config = STRICT


class Requirement(_Message):
    """Every number and version at least this, and every label. Nothing: all devices meet it."""

    numbers: Numbers = {}
    versions: Versions = {}
    labels: Labels = []


class OpenRequest(_Message):
    """Open a job. ``quorum_percent``: of a round's devices that must answer. ``alone_s``: what the job would need
    without others, for fairness. ``speed``: the number by which devices are split into ``tiers`` classes; empty: none.
    ``rounds``: of the whole job; 0: unknown. Bounds are the controller's, which gives the reason for a refusal."""

    kind: Literal["collab_open"] = "collab_open"
    job: JobName
    requirement: Requirement = Requirement()
    quorum_percent: U32 = 80
    alone_s: Seconds = 86_400.0
    speed: Annotated[str, Field(max_length=64)] = ""
    tiers: U32 = 0
    rounds: U32 = 0


class DevicesRequest(_Message):
    """Ask for ``demand`` devices for a round. The same request again changes nothing. ``deadline_s``: from now."""

    kind: Literal["collab_request"] = "collab_request"
    job: JobName
    round: U32
    demand: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]
    deadline_s: Seconds


class CloseRequest(_Message):
    """Close a job: no device works for it any more."""

    kind: Literal["collab_close"] = "collab_close"
    job: JobName


class JobsRequest(_Message):
    """A page of open jobs in the order of their names, after the job ``after``."""

    kind: Literal["collab_jobs"] = "collab_jobs"
    after: Annotated[str, Field(max_length=64)] = ""
    limit: Page = PAGE


class SummaryRequest(_Message):
    """Numbers of devices; never their names."""

    kind: Literal["collab_devices"] = "collab_devices"
    version: U16 = PROTOCOL_VERSION


class PlanRequest(_Message):
    """Which group of jobs gets which devices now."""

    kind: Literal["collab_plan"] = "collab_plan"


class ExplainRequest(_Message):
    """Why a job has few devices."""

    kind: Literal["collab_explain"] = "collab_explain"
    job: JobName


class WhatIfRequest(_Message):
    """What a round of such a job could expect. Opens nothing."""

    kind: Literal["collab_whatif"] = "collab_whatif"
    requirement: Requirement
    demand: Annotated[int, Field(ge=1, le=1_000_000)]


class JobLine(_Message):
    """An open job. ``round``: the one that runs, or the last one; -1: none yet. ``state``: ``waits`` for devices,
    ``filled``: all have been found, ``idle``: no round runs. ``leased`` devices work now, ``done`` have answered of
    ``demand``. ``last_end``: how the last round ended, empty: none has."""

    job: str
    tenant: str
    requirement: str
    state: Literal["waits", "filled", "idle"]
    round: Annotated[int, Field(ge=-1, lt=1 << 32)]
    demand: U32
    leased: U32
    done: U32
    rounds_completed: U32
    deadline_s: float
    last_end: Annotated[str, Field(max_length=16)]
    age_s: float


class JobLines(_Message):
    """A page of jobs. ``next``: ``after`` of the next page; empty: the last page."""

    kind: Literal["collab_jobs"] = "collab_jobs"
    jobs: list[JobLine]
    next: str


class JobAnswer(_Message):
    """A job after what was asked."""

    kind: Literal["collab_job"] = "collab_job"
    job: JobLine


class Summary(_Message):
    """The controller in one record. ``leases``: of devices that work now. ``worked``: devices that got a job today.
    ``check_ins``, ``idle``, ``spent``, ``assigned``: counters since its start. ``kinds``: different devices in the
    supply of a day. ``refused``: by code."""

    kind: Literal["collab_devices"] = "collab_devices"
    version: U16 = PROTOCOL_VERSION
    pid: U32
    uptime_s: float
    policy: Name
    jobs: U32
    leases: U32
    worked: U32
    check_ins: U64
    idle: U64
    spent: U64
    assigned: U64
    kinds: U32
    supply: U64
    commits: U64
    connections: U32
    refused: dict[str, U64]


class GroupLine(_Message):
    """Jobs with one requirement. ``supply``: check-ins of a day that meet it; ``given``: those of which its first job
    gets a device now. ``remaining``: devices that its jobs wait for."""

    requirement: str
    jobs: U32
    waiting: U32
    remaining: U64
    supply: U64
    given: U64
    first: str


class Plan(_Message):
    """All groups, that with the scarcest devices first. ``unused``: check-ins of a day that no job can use now.
    ``epsilon``: the policy's fairness, 0: none."""

    kind: Literal["collab_plan"] = "collab_plan"
    policy: Name
    epsilon: float
    groups: list[GroupLine]
    supply: U64
    unused: U64


class Explanation(_Message):
    """A job with the reasons for its state."""

    kind: Literal["collab_explain"] = "collab_explain"
    job: JobLine
    where: Text
    reasons: list[Text]


class WhatIf(_Message):
    """``supply``: check-ins of a day that meet the requirement. ``alone_s``: to find the devices without other jobs;
    ``shared_s``: if the check-ins are shared evenly among the jobs that wait for them; 0: never."""

    kind: Literal["collab_whatif"] = "collab_whatif"
    supply: U64
    rivals: U32
    alone_s: float
    shared_s: float
    reasons: list[Text]


Request = (
    OpenRequest | DevicesRequest | CloseRequest | JobsRequest | SummaryRequest | PlanRequest | ExplainRequest
    | WhatIfRequest
)  # fmt: skip
Reply = JobAnswer | JobLines | Summary | Plan | Explanation | WhatIf | Fault
TO_COLLAB: Final[TypeAdapter[Request]] = TypeAdapter(Annotated[Request, Field(discriminator="kind")])
FROM_COLLAB: Final[TypeAdapter[Reply]] = TypeAdapter(Annotated[Reply, Field(discriminator="kind")])
