"""Messages of a controller's admin socket, with the framing and reply rules of `wire.admin`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field, TypeAdapter

from offpath.bindings.wire.admin import Fault
from offpath.bindings.wire.fields import PROTOCOL_VERSION, STRICT, U16, U32, U64, Name, Term

PAGE: Final = 64
Text = Annotated[str, Field(max_length=2048)]
Page = Annotated[int, Field(ge=1, le=PAGE)]
JobName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Host = Annotated[str, Field(min_length=1, max_length=255)]


class _Message(BaseModel):
    model_config = STRICT


class StatusRequest(_Message):
    """The controller's status."""

    kind: Literal["ina_status"] = "ina_status"
    version: U16 = PROTOCOL_VERSION


class SubmitRequest(_Message):
    """Submit a training job on ``hosts`` hosts, or on those named in ``on``, with ``ranks_per_host`` ranks on each.
    ``switches``: its tree may use only these; none of them: it gets no tree for now; null: any. A job with switches may
    be submitted again, with other hosts and switches."""

    kind: Literal["job_submit"] = "job_submit"
    job: JobName
    hosts: Annotated[int, Field(ge=0, le=65_536)] = 0
    on: Annotated[list[Host], Field(max_length=4096)] = []
    ranks_per_host: Annotated[int, Field(ge=1, le=1024)] = 1
    switches: Annotated[list[Host], Field(max_length=1024)] | None = None


class JobsRequest(_Message):
    """A page of jobs, by name."""

    kind: Literal["job_list"] = "job_list"
    after: Annotated[str, Field(max_length=255)] = ""
    limit: Page = PAGE


class JobRequest(_Message):
    """One job."""

    kind: Literal["job_show"] = "job_show"
    job: Host


class ExplainRequest(_Message):
    """The reasons for a job's tree, or for having none."""

    kind: Literal["job_explain"] = "job_explain"
    job: Host


class CancelRequest(_Message):
    """Cancel a job: it gets no tree any more, and its hosts are released. Its owner ends its processes."""

    kind: Literal["job_cancel"] = "job_cancel"
    job: Host


class GroupsRequest(_Message):
    """A page of groups: the jobs that share a root."""

    kind: Literal["ina_groups"] = "ina_groups"
    after: U64 = 0
    limit: Page = PAGE


class TreesRequest(_Message):
    """A page of trees, as planned and as granted."""

    kind: Literal["ina_trees"] = "ina_trees"
    after: U64 = 0
    limit: Page = PAGE


class HoldsRequest(_Message):
    """A page of holds: which job occupies a place at which switch, since when, why."""

    kind: Literal["ina_leases"] = "ina_leases"
    after: U64 = 0
    limit: Page = PAGE


class ModeRequest(_Message):
    """Set how jobs share a root; empty: query only. ``link_bytes_per_s``: the bandwidth that the Plan assumes."""

    kind: Literal["ina_mode"] = "ina_mode"
    mode: Annotated[str, Field(max_length=80)] = ""
    link_bytes_per_s: Annotated[float, Field(gt=0, le=1e15)] | None = None


class HostsRequest(_Message):
    """Hosts that are quarantined or have a connected agent. With ``host`` and ``is_quarantined``: first quarantine or
    release that host."""

    kind: Literal["ina_hosts"] = "ina_hosts"
    host: Annotated[str, Field(max_length=255)] = ""
    is_quarantined: bool | None = None
    after: U64 = 0
    limit: Page = PAGE


class ControllerStatus(_Message):
    """The controller's status in one record. ``silent``: hosts with a connected agent that has not reported its ranks.
    ``quarantined``: reason code by host. ``memory``: the state file's error; empty: none."""

    kind: Literal["ina_status"] = "ina_status"
    version: U16 = PROTOCOL_VERSION
    term: Term
    pid: U32
    uptime_ms: U64
    mode: Name
    capacity: U32
    agents: list[Host]
    silent: list[Host]
    quarantined: dict[str, str]
    memory: Text
    switches: dict[str, bool]
    jobs: U32
    holds: U32
    migrations: U64
    downtime_ms: list[float]
    counters: dict[str, U64]


class InaJobLine(_Message):
    """A job. ``state``: waiting (no rank was seen), running, ended, cancelled. ``environment``: variables for its
    training code. ``switches``: its tree may use only these; null: any."""

    job: str
    state: Name
    hosts: list[str]
    ranks_per_host: U32
    ranks: U32
    incarnation: U64
    stamp: U64
    tree: str
    root: str
    age_ms: float
    environment: dict[str, str]
    switches: list[str] | None = None


class InaJobs(_Message):
    """A page of jobs."""

    kind: Literal["job_list"] = "job_list"
    jobs: list[InaJobLine]
    next: Annotated[str, Field(max_length=255)]


class RankLine(_Message):
    """A rank's last reported state. Numbers are stamps."""

    rank: U32
    host: str
    held: U64
    applied: U64
    lost: U64
    is_gone: bool


class InaJob(_Message):
    """One job with its ranks. ``reasons``: of its placement."""

    kind: Literal["job_show"] = "job_show"
    job: InaJobLine
    ranks: list[RankLine]
    reasons: list[Text]


class InaExplanation(_Message):
    """The reasons for a job's state."""

    kind: Literal["job_explain"] = "job_explain"
    job: InaJobLine
    where: Text
    reasons: list[Text]


class GroupLine(_Message):
    """A root and the jobs whose trees have it. ``using``: the jobs that may use it now, and how."""

    root: str
    jobs: list[str]
    using: dict[str, str]


class Groups(_Message):
    """A page of groups. ``next``: ``after`` of the next page; 0: the last page."""

    kind: Literal["ina_groups"] = "ina_groups"
    mode: str
    groups: list[GroupLine]
    next: U64


class TreeLine(_Message):
    """A job's tree. ``is_granted``: it may be used. ``since_ms``: age of the grant. ``why``: the reason for it, or for
    none."""

    job: str
    root: str
    switches: list[str]
    attach: list[str]
    is_granted: bool
    stamp: U64
    since_ms: float
    why: Text


class TreeLines(_Message):
    """A page of trees."""

    kind: Literal["ina_trees"] = "ina_trees"
    trees: list[TreeLine]
    next: U64


class HoldLine(_Message):
    """A permission that occupies a place at a switch. ``why``: what must happen before the place is free."""

    switch: str
    job: str
    incarnation: U64
    stamp: U64
    slot: str
    since_ms: float
    is_allowed: bool
    why: Text


class Holds(_Message):
    """A page of holds."""

    kind: Literal["ina_leases"] = "ina_leases"
    holds: list[HoldLine]
    next: U64


class HostLine(_Message):
    """A host. ``is_silent``: no report of its ranks in this term. ``quarantine``: reason code; empty: its reports
    count."""

    host: str
    is_connected: bool
    is_silent: bool
    quarantine: str
    detail: Text


class Hosts(_Message):
    """A page of hosts. ``next``: ``after`` of the next page; 0: the last page."""

    kind: Literal["ina_hosts"] = "ina_hosts"
    hosts: list[HostLine]
    next: U64


class ModeNow(_Message):
    """How jobs share a root now."""

    kind: Literal["ina_mode"] = "ina_mode"
    mode: str
    capacity: U32
    link_bytes_per_s: float


Request = (
    StatusRequest | SubmitRequest | JobsRequest | JobRequest | ExplainRequest | CancelRequest | GroupsRequest
    | TreesRequest | HoldsRequest | ModeRequest | HostsRequest
)  # fmt: skip
Reply = ControllerStatus | InaJobs | InaJob | InaExplanation | Groups | TreeLines | Holds | ModeNow | Hosts | Fault
TO_CONTROLLER_ADMIN: Final[TypeAdapter[Request]] = TypeAdapter(Annotated[Request, Field(discriminator="kind")])
FROM_CONTROLLER_ADMIN: Final[TypeAdapter[Reply]] = TypeAdapter(Annotated[Reply, Field(discriminator="kind")])
