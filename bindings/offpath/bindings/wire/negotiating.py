"""Control messages of a requester's negotiation (docs/design.md, Negotiation and wire). `wire.control` encodes and
decodes them.

Requester → daemon: Hello, Redeem, Describe, Goodbye. Daemon → requester: Welcome, Redeemed, Refused, Kernels,
Described, Durable, Closing.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field, TypeAdapter

from offpath.bindings.wire.control import Closing, Goodbye
from offpath.bindings.wire.fields import (
    HIDING,
    MAX_BATCH,
    MAX_KERNELS,
    MAX_PREFERRED,
    MAX_QUEUE_DELAY_US,
    PROTOCOL_VERSION,
    STRICT,
    U16,
    U32,
    U64,
    BatchSize,
    Demand,
    Name,
    RequestId,
    TenantToken,
    Token,
)
from offpath.bindings.wire.signatures import KernelSignature


class _Message(BaseModel):
    model_config = STRICT


class KernelInfo(_Message):
    """A kernel that the daemon can run: its name, its id in request headers, its demand R in percent of a GPU.

    ``is_emulated``: a GPU of its helper is emulated. null: no helper has offered it since the daemon's process started.
    """

    name: Name
    kernel_id: U32
    demand: Demand
    is_emulated: bool | None


class Resume(_Message):
    """Resume a session after its connection was lost: values from its welcome, and the requests without an answer. An
    answered request that is not listed counts as taken. ``taken``: of each of these requests, in their order, how many
    answers of its stream were taken; empty: none of any."""

    session: U64
    lineage: Annotated[str, Field(max_length=64)]
    token: Token = Field(repr=False)
    unanswered: Annotated[list[RequestId], Field(max_length=1024)]
    taken: Annotated[list[U32], Field(max_length=1024)] = []


KernelList = Annotated[list[KernelInfo], Field(max_length=MAX_KERNELS)]


class Hello(_Message):
    """First message of a requester. ``token``: Unix carrier only; on TCP the certificate authenticates."""

    kind: Literal["hello"] = "hello"
    version: U16 = PROTOCOL_VERSION
    client: Annotated[str, Field(max_length=64)] = ""
    tenant: Name | None = None
    token: TenantToken | None = Field(default=None, repr=False)
    slots: Annotated[int, Field(ge=1, le=1024)]
    payload_bytes: U64
    result_bytes: U64
    resume: Resume | None = None


class FabricOffer(_Message):
    """Where the one-time ticket is redeemed. Loopback: a Unix socket. Verbs: a queue-pair exchange."""

    carrier: Literal["loopback", "verbs"]
    address: Annotated[str, Field(max_length=256)]


class Resumed(_Message):
    """The state of an unanswered request. ``running``, ``answered``: its doorbell rings after the ticket is redeemed.
    ``retry_safe``: it certainly never started. ``unknown``: it may have started, and its answer is lost."""

    request_id: RequestId
    state: Literal["answered", "running", "retry_safe", "unknown"]


class Welcome(_Message):
    """The session: its credits (one per slot), sizes and tokens, and how to reach the fabric."""

    kind: Literal["welcome"] = "welcome"
    version: U16 = PROTOCOL_VERSION
    session: U64
    tenant: Name
    lineage: Annotated[str, Field(max_length=64)]
    slots: Annotated[int, Field(ge=1, le=1024)]
    payload_bytes: U64
    result_bytes: U64
    resume_token: Token = Field(repr=False)
    resume_ttl_s: Annotated[int, Field(ge=0, le=3600)]
    ticket: Token = Field(repr=False)
    ticket_ttl_s: Annotated[int, Field(ge=1, le=60)]
    fabric: FabricOffer
    kernels: KernelList
    resumed: Annotated[list[Resumed], Field(max_length=1024)] = []


Bits24 = Annotated[int, Field(ge=0, le=0xFF_FFFF)]


class QueuePairEnd(_Message):
    """One end of a session over verbs. ``doorbells``: immediates that it accepts before it grants more. ``memory``,
    ``rkey``: where the other end writes, and its key. ``mtu``: libibverbs' number, 1 (256 bytes) to 5 (4 096)."""

    qp_num: Bits24
    psn: Bits24
    gid: Annotated[str, Field(max_length=45)]
    mtu: Annotated[int, Field(ge=1, le=5)]
    doorbells: Annotated[int, Field(ge=1, le=16384)]
    memory: U64
    rkey: U32


class Durable(_Message):
    """The service manager holds the session's memory. The session and the requests it accepts survive the daemon's
    process."""

    kind: Literal["durable"] = "durable"
    session: U64


class Redeem(_Message):
    """Over verbs: the requester's end, with the ticket from the welcome on this connection."""

    kind: Literal["redeem"] = "redeem"
    ticket: Token = Field(repr=False)
    end: QueuePairEnd


class Redeemed(_Message):
    """Over verbs: the daemon's end, connected to the requester's."""

    kind: Literal["redeemed"] = "redeemed"
    end: QueuePairEnd


class Refused(_Message):
    """The session is refused. ``retry_after_ms`` 0: a retry will not help."""

    kind: Literal["refused"] = "refused"
    code: Name
    detail: Annotated[str, Field(max_length=512)]
    retry_after_ms: U32 = 0


class Kernels(_Message):
    """The kernels changed because a helper joined. Replaces the list of the welcome."""

    kind: Literal["kernels"] = "kernels"
    kernels: KernelList


class Describe(_Message):
    """Asks for the signature of a kernel. The reply is Described."""

    kind: Literal["describe"] = "describe"
    name: Name


class KernelBatches(_Message):
    """How requests of a kernel share launches, joined from what its helpers declare: see `control.KernelNeeds`."""

    max_batch: Annotated[int, Field(ge=0, le=MAX_BATCH)]
    max_queue_delay_us: Annotated[int, Field(ge=0, le=MAX_QUEUE_DELAY_US)] = 0
    preferred_batch_sizes: Annotated[list[BatchSize], Field(max_length=MAX_PREFERRED)] = []


class Described(_Message):
    """The signature of kernel ``name``; null: no helper has declared one. ``batches``: null: each of its requests has
    its own launch. ``sequence_idle_ms``: how long a sequence of it lasts without a request; 0: it takes none."""

    kind: Literal["described"] = "described"
    name: Name
    signature: KernelSignature | None = None
    batches: KernelBatches | None = None
    sequence_idle_ms: U32 = 0


_ToDaemon = Hello | Redeem | Describe | Goodbye
_ToRequester = Welcome | Redeemed | Refused | Kernels | Described | Durable | Closing
ToDaemon = Annotated[_ToDaemon, Field(discriminator="kind")]
ToRequester = Annotated[_ToRequester, Field(discriminator="kind")]
TO_DAEMON: Final[TypeAdapter[_ToDaemon]] = TypeAdapter(ToDaemon, config=HIDING)
TO_REQUESTER: Final[TypeAdapter[_ToRequester]] = TypeAdapter(ToRequester, config=HIDING)
