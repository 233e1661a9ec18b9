"""Messages of a job manager's admin socket, with the framing and reply rules of `wire.admin`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field, TypeAdapter

from offpath.bindings.wire.admin import Fault
from offpath.bindings.wire.fields import PROTOCOL_VERSION, STRICT, U16, U32, U64, Name, at_most
from offpath.bindings.wire.ina_admin import JobName, Page

PAGE: Final = 64
MOST_ARGUMENTS: Final = 512
MOST_VARIABLES: Final = 256
Identity = Annotated[str, Field(min_length=1, max_length=64)]
NodeName = Annotated[str, Field(min_length=1, max_length=255)]
Word = Annotated[str, Field(max_length=4096, pattern=r"^[^\x00]*$")]
AbsolutePath = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^/[^\x00]*$")]
Text = Annotated[str, Field(max_length=2048)]


class _Message(BaseModel):
    model_config = STRICT


class _Job(_Message):
    """What a job needs. Bounds are the job manager's, which gives the reason for a refusal."""

    job: JobName
    gpus: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]
    model: Name
    data_bytes: Annotated[int, Field(ge=-(1 << 62), lt=1 << 62)] = 0
    value: Annotated[float, Field(ge=-1e15, le=1e15)] = 1.0


class SubmitRequest(_Job):
    """Submit a job on ``gpus`` GPUs, which the job manager chooses; ``argv`` is started on each of its nodes.

    ``model``: a name from the job manager's table. ``data_bytes``: gradients of one iteration; 0: the model's.
    ``value``: weight against other jobs. ``output``: the process of node n of the job writes to ``OUTPUT.n``; empty:
    nowhere.
    """

    kind: Literal["work_submit"] = "work_submit"
    argv: Annotated[list[Word], Field(min_length=1, max_length=MOST_ARGUMENTS)]
    environment: Annotated[dict[Name, Word], at_most(MOST_VARIABLES)] = {}
    directory: AbsolutePath = "/"
    output: Annotated[str, Field(max_length=4096, pattern=r"^(/[^\x00]*)?$")] = ""


class WhatIfRequest(_Job):
    """Where such a job would go now, and what it would cost the others. Submits nothing."""

    kind: Literal["work_whatif"] = "work_whatif"


class StatusRequest(_Message):
    """The job manager's status."""

    kind: Literal["work_status"] = "work_status"
    version: U16 = PROTOCOL_VERSION


class ListRequest(_Message):
    """A page of jobs in the order of submission, from number ``after`` on. ``is_ended``: those that have ended too."""

    kind: Literal["work_list"] = "work_list"
    after: U64 = 0
    limit: Page = PAGE
    is_ended: bool = False


class ExplainRequest(_Message):
    """One job, by name or identity, with the reasons for its state."""

    kind: Literal["work_explain"] = "work_explain"
    job: Identity


class CancelRequest(_Message):
    """End a job."""

    kind: Literal["work_cancel"] = "work_cancel"
    job: Identity


class ShareLine(_Message):
    """A job's part of a node. ``gpus``: indices, once they are known; none for a parameter server alone."""

    node: str
    count: U32
    gpus: list[U32]


class JobLine(_Message):
    """A job. ``server``: node of its parameter server; empty: it needs none. ``rate_bps``: estimated rate of each of
    its workers now; 0: it is not running, or has no traffic."""

    job: str
    identity: str
    state: Name
    gpus: U32
    model: str
    data_bytes: U64
    value: float
    user: str
    shares: list[ShareLine]
    server: str
    uses_ina: bool
    rate_bps: float
    batches: U32
    age_s: float
    run_s: float
    exit_code: int | None
    is_held: bool
    is_cancelled: bool


class JobLines(_Message):
    """A page of jobs. ``next``: ``after`` of the next page; 0: the last page."""

    kind: Literal["work_list"] = "work_list"
    jobs: list[JobLine]
    next: U64


class Explanation(_Message):
    """The reasons for a job's state: ``reasons`` are the policy's, ``detail`` is the engine's text. ``bottleneck``: the
    link that limits its rate; ``comm_s``: estimated time of one iteration's traffic, 0 without traffic."""

    kind: Literal["work_explain"] = "work_explain"
    job: JobLine
    where: Text
    reasons: list[Text]
    detail: Text
    bottleneck: Text
    comm_s: float


class RateLine(_Message):
    """A running job whose estimated rate would change."""

    job: str
    before_bps: float
    after_bps: float


class WhatIf(_Message):
    """The answer to `WhatIfRequest`. No ``shares``: it would wait, and ``reasons`` says why."""

    kind: Literal["work_whatif"] = "work_whatif"
    shares: list[ShareLine]
    server: str
    uses_ina: bool
    rate_bps: float
    comm_s: float
    bottleneck: Text
    reasons: list[Text]
    others: list[RateLine]


class NodeLine(_Message):
    """A node. ``free``: GPUs that no job holds; ``reason``: the engine's, if it is not ready. ``unaccounted``: GPUs
    that the engine has long counted as given while no job has them; ``remedy``: the command that gives them back."""

    node: str
    switch: str
    gpus: U32
    free: U32
    is_ready: bool
    reason: Text
    unaccounted: U32 = 0
    remedy: Text = ""


class Status(_Message):
    """The job manager in one record. ``engine_fault``: why the engine does not answer; empty: it does. ``nodes``: at
    most 256; ``node_count``: all."""

    kind: Literal["work_status"] = "work_status"
    version: U16 = PROTOCOL_VERSION
    pid: U32
    uptime_s: float
    engine: Name
    engine_fault: Text
    policy: Name
    batch_s: float
    batches: U64
    jobs: dict[str, U64]
    nodes: list[NodeLine]
    node_count: U32
    counters: dict[str, U64]


Request = SubmitRequest | WhatIfRequest | StatusRequest | ListRequest | ExplainRequest | CancelRequest
Reply = Explanation | WhatIf | Status | JobLines | Fault
TO_MANAGER: Final[TypeAdapter[Request]] = TypeAdapter(Annotated[Request, Field(discriminator="kind")])
FROM_MANAGER: Final[TypeAdapter[Reply]] = TypeAdapter(Annotated[Reply, Field(discriminator="kind")])
