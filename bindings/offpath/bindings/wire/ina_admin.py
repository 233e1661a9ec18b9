"""Messages of a controller's admin socket, framed and answered as those of a daemon's (`wire.admin`)."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from offpath.bindings.wire.admin import Fault
from offpath.bindings.wire.control import PROTOCOL_VERSION, U16, U32, U64, Name, Term

PAGE: Final = 64
Text = Annotated[str, Field(max_length=2048)]
Page = Annotated[int, Field(ge=1, le=PAGE)]
JobName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Host = Annotated[str, Field(min_length=1, max_length=255)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


class StatusRequest(_Message):
    """How the controller is."""

    kind: Literal["ina_status"] = "ina_status"
    version: U16 = PROTOCOL_VERSION


class SubmitRequest(_Message):
    """A training job wants ``hosts`` hosts, or those named ``on``, with so many ranks on each."""

    kind: Literal["job_submit"] = "job_submit"
    job: JobName
    hosts: Annotated[int, Field(ge=0, le=65_536)] = 0
    on: Annotated[list[Host], Field(max_length=4096)] = []
    ranks_per_host: Annotated[int, Field(ge=1, le=1024)] = 1


class JobsRequest(_Message):
    """The jobs, by name."""

    kind: Literal["job_list"] = "job_list"
    after: Annotated[str, Field(max_length=255)] = ""
    limit: Page = PAGE


class JobRequest(_Message):
    """One job."""

    kind: Literal["job_show"] = "job_show"
    job: Host


class ExplainRequest(_Message):
    """Why a job has the tree that it has, or none."""

    kind: Literal["job_explain"] = "job_explain"
    job: Host


class CancelRequest(_Message):
    """The job gets nothing any more, and its hosts are free. Its processes are its owner's to end."""

    kind: Literal["job_cancel"] = "job_cancel"
    job: Host


class GroupsRequest(_Message):
    """Who shares which root."""

    kind: Literal["ina_groups"] = "ina_groups"
    after: U64 = 0
    limit: Page = PAGE


class TreesRequest(_Message):
    """Which tree is whose, as planned and as granted."""

    kind: Literal["ina_trees"] = "ina_trees"
    after: U64 = 0
    limit: Page = PAGE


class HoldsRequest(_Message):
    """Who takes a place at which switch, since when, why."""

    kind: Literal["ina_leases"] = "ina_leases"
    after: U64 = 0
    limit: Page = PAGE


class ModeRequest(_Message):
    """How jobs share a root from now on; empty: only say. ``link_bytes_per_s``: what the Plan reckons with."""

    kind: Literal["ina_mode"] = "ina_mode"
    mode: Annotated[str, Field(max_length=80)] = ""
    link_bytes_per_s: Annotated[float, Field(gt=0, le=1e15)] | None = None


class HostsRequest(_Message):
    """The hosts whose agents are connected or that are quarantined. With ``host`` and ``is_quarantined``: quarantine it
    or release it first."""

    kind: Literal["ina_hosts"] = "ina_hosts"
    host: Annotated[str, Field(max_length=255)] = ""
    is_quarantined: bool | None = None
    after: U64 = 0
    limit: Page = PAGE


class ControllerStatus(_Message):
    """The controller in one record. ``silent``: hosts whose agent is connected and has not said what its ranks hold;
    ``quarantined``: by host, the code of the reason; ``memory``: what is wrong with the state file, empty: nothing."""

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
    """A job. ``state``: waiting (no rank was seen), running, ended, cancelled; ``environment``: what its training code
    needs."""

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


class InaJobs(_Message):
    """A page of jobs."""

    kind: Literal["job_list"] = "job_list"
    jobs: list[InaJobLine]
    next: Annotated[str, Field(max_length=255)]


class RankLine(_Message):
    """A rank, as it last said; stamps."""

    rank: U32
    host: str
    held: U64
    applied: U64
    lost: U64
    is_gone: bool


class InaJob(_Message):
    """One job with its ranks; ``reasons``: of its placement."""

    kind: Literal["job_show"] = "job_show"
    job: InaJobLine
    ranks: list[RankLine]
    reasons: list[Text]


class InaExplanation(_Message):
    """Why a job stands where it stands."""

    kind: Literal["job_explain"] = "job_explain"
    job: InaJobLine
    where: Text
    reasons: list[Text]


class GroupLine(_Message):
    """A root and the jobs whose trees have it; ``using``: those that may use it now, with how."""

    root: str
    jobs: list[str]
    using: dict[str, str]


class Groups(_Message):
    """A page of them; ``next``: where to go on, 0: that was all."""

    kind: Literal["ina_groups"] = "ina_groups"
    mode: str
    groups: list[GroupLine]
    next: U64


class TreeLine(_Message):
    """A job's tree. ``is_granted``: it may be used; ``since_ms``: of the grant; ``why``: it has none, or has this."""

    job: str
    root: str
    switches: list[str]
    attach: list[str]
    is_granted: bool
    stamp: U64
    since_ms: float
    why: Text


class TreeLines(_Message):
    """A page of them."""

    kind: Literal["ina_trees"] = "ina_trees"
    trees: list[TreeLine]
    next: U64


class HoldLine(_Message):
    """A permission that takes a place at a switch. ``why``: what it is waited for before the place is free."""

    switch: str
    job: str
    incarnation: U64
    stamp: U64
    slot: str
    since_ms: float
    is_allowed: bool
    why: Text


class Holds(_Message):
    """A page of them."""

    kind: Literal["ina_leases"] = "ina_leases"
    holds: list[HoldLine]
    next: U64


class HostLine(_Message):
    """A host. ``is_silent``: it has not said in this term what its ranks hold; ``quarantine``: the code of the reason,
    empty: its reports count."""

    host: str
    is_connected: bool
    is_silent: bool
    quarantine: str
    detail: Text


class Hosts(_Message):
    """A page of them; ``next``: where to go on, 0: that was all."""

    kind: Literal["ina_hosts"] = "ina_hosts"
    hosts: list[HostLine]
    next: U64


class ModeNow(_Message):
    """How jobs share a root."""

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
