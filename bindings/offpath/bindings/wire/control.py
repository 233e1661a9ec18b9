"""Control messages: pydantic models in orjson, versioned, one ``kind`` each (docs/design.md, Negotiation and wire).

Negotiation. Requester → daemon: Hello, Redeem, Goodbye. Daemon → requester: Welcome, Redeemed, Refused, Kernels,
Durable, Closing. Host channel, rare messages (the frequent ones are structs in `wire.host`). Host → daemon:
HelperHello, GpuOffer, KernelNeeds, InstanceHeld, WorkerHello, InstanceFailed, LaneLoading, LaneReady, LaneScrubbed,
InstanceClosed, WorkerDied, GpuLost, InaStates, Pong, Goodbye. Daemon → host: HostWelcome, HostKernels, OpenInstance,
InviteLane, ScrubLane, CloseInstance, KillWorker, InaEpoch, InaAsk, Ping, Closing.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)

from offpath.bindings import tokens
from offpath.bindings.errors import ControlError
from offpath.bindings.wire import document

PROTOCOL_VERSION: Final = 2
MAX_KERNELS: Final = 256
"""Kernel names that a daemon stores at most; a welcome with that many fits a frame."""
MAX_OFFERED: Final = 32
"""Kernels of one helper."""
MAX_MODELS: Final = 32
"""GPU models of one kernel: those that a developer names, and as many under the names that drivers report."""
MAX_HELPERS: Final = 16
"""Helpers of a daemon. Its status, with a line for each, then fits a frame."""
MAX_HELD: Final = 256
"""Instances that a reconnecting helper may hold. Their numbers alone, or its kernels' numbers, fit one host-channel
message."""
MAX_EXPORT_ITEMS: Final = 16
MAX_PART_CHARACTERS: Final = 1900
"""Limit of a part of a text; even fully escaped it fits a host-channel message."""
_MOST_LISTED: Final = 64  # errors; a frame can hold thousands, and each costs 1 µs to describe
_T = TypeVar("_T")
_HIDING: Final = ConfigDict(hide_input_in_errors=True)
"""Refused input may hold a token, so errors do not show it."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/+-]*$")]
HelperName = Annotated[str, StringConstraints(min_length=1, max_length=32, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
"""A helper's name. It contains no "/", which separates it from the GPU's in a `GpuIdentity`."""
GpuIdentity = Annotated[str, StringConstraints(min_length=1, max_length=97, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/+-]*$")]
"""A GPU in the daemon: the names of its helper and of the GPU there, as ``helper/GPU-0``."""
Token = Annotated[str, StringConstraints(min_length=16, max_length=256, pattern=r"^[A-Za-z0-9_-]+$")]
"""A token made by the daemon or the helper."""
TenantToken = Annotated[
    str, StringConstraints(min_length=tokens.LEAST, max_length=tokens.MOST, pattern=r"^[\x20-\x7e]+$")
]
"""A token chosen by an operator: see `offpath.bindings.tokens`."""
U8 = Annotated[int, Field(ge=0, le=0xFF)]
U16 = Annotated[int, Field(ge=0, le=0xFFFF)]
U32 = Annotated[int, Field(ge=0, le=0xFFFF_FFFF)]
U64 = Annotated[int, Field(ge=0, le=0xFFFF_FFFF_FFFF_FFFF)]
RequestId = Annotated[int, Field(ge=1, le=0xFFFF_FFFF_FFFF_FFFF)]
"""As in request headers: 64 bits, and 0 is invalid."""
Demand = Annotated[int, Field(ge=1, le=100)]
"""A kernel's R in percent of a GPU."""
MemoryBytes = Annotated[int, Field(ge=0, le=1 << 50)]
"""Memory of a GPU, or scrubbed in one. The limit keeps sums of reported sizes within 64 bits."""
LeaseNumber = U32
"""32 bits, as in an answer's header. With a generation, which never repeats, it identifies one lease."""
Lanes = Annotated[int, Field(ge=1, le=64)]
Start = Annotated[int, Field(ge=0, le=15)]
Slices = Annotated[int, Field(ge=1, le=16)]
Lane = Annotated[int, Field(ge=0, le=63)]
Term = Annotated[int, Field(ge=0, le=(1 << 31) - 1)]


def _at_most(items: int) -> BeforeValidator:
    """Checks an object's item count before validation: pydantic applies its own limit after it has validated all
    items."""

    def check(value: object) -> object:
        if isinstance(value, dict) and len(value) > items:
            raise ValueError(f"more than {items} items")
        return value

    return BeforeValidator(check)


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


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
    answered request that is not listed counts as taken."""

    session: U64
    lineage: Annotated[str, Field(max_length=64)]
    token: Token = Field(repr=False)
    unanswered: Annotated[list[RequestId], Field(max_length=1024)]


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


class Goodbye(_Message):
    """From a requester: it leaves, and its unfinished jobs are cancelled. From a helper: it shuts down, and scrubs what
    it holds after the daemon has hung up."""

    kind: Literal["goodbye"] = "goodbye"


class Closing(_Message):
    """The daemon ends the session; code and detail give the reason."""

    kind: Literal["closing"] = "closing"
    code: Name
    detail: Annotated[str, Field(max_length=512)]


class KernelOffer(_Message):
    """A kernel that a helper serves. ``demand``: R in percent of a GPU (1..100)."""

    name: Name
    demand: Demand


class ModelDemand(_Message):
    """A GPU model that a kernel runs on, as GpuOffers name it, and its R in percent of that model."""

    model: Name
    demand: Demand


class KernelNeeds(_Message):
    """What a kernel of the HelperHello needs besides its R. One per kernel that needs more, after HelperHello.

    ``memory_bytes``: device memory of its worker besides the lane's buffers; 0: not stated. ``models``: those that it
    runs on, each once, with R in the place of the offer's; empty: all models.
    """

    kind: Literal["kernel_needs"] = "kernel_needs"
    name: Name
    memory_bytes: MemoryBytes = 0
    models: Annotated[list[ModelDemand], Field(max_length=MAX_MODELS)] = []


class ProfileInfo(_Message):
    """One MIG profile's geometry as the GPU port reports it (units: slices, bytes). ``rated_bytes``: the memory of a
    real instance, where an emulated one has less; 0: as ``memory_bytes``."""

    name: Name
    compute_slices: Slices
    memory_slices: Slices
    memory_bytes: MemoryBytes
    starts: list[Start]
    max_instances: Annotated[int, Field(ge=1, le=16)]
    rated_bytes: MemoryBytes = 0


class GpuOffer(_Message):
    """One GPU as the helper's GPU port reports it: model, totals, legal geometry, and whether it is emulated. One per
    GPU, after HelperHello."""

    kind: Literal["gpu_offer"] = "gpu_offer"
    uuid: Name
    model: Name
    is_emulated: bool
    compute_slices: Slices
    memory_slices: Slices
    profiles: Annotated[list[ProfileInfo], Field(max_length=16)]


class HelperHello(_Message):
    """First message of a helper's supervisor. ``name`` identifies the helper among those of the daemon,
    ``incarnation`` its process. ``needs_count`` KernelNeeds and ``gpu_count`` GpuOffers follow. A reconnecting helper
    sends ``held_count`` InstanceHeld messages, one for each instance that it still has."""

    kind: Literal["helper_hello"] = "helper_hello"
    version: U16 = PROTOCOL_VERSION
    name: HelperName
    pid: U32
    kernels: Annotated[list[KernelOffer], Field(min_length=1, max_length=MAX_OFFERED)]
    gpu_count: Annotated[int, Field(ge=0, le=16)]
    incarnation: Annotated[str, Field(max_length=64)] = ""
    held_count: Annotated[int, Field(ge=0, le=MAX_HELD)] = 0
    needs_count: Annotated[int, Field(ge=0, le=MAX_OFFERED)] = 0


class HostWelcome(_Message):
    """The daemon accepts the helper under this generation. The helper scrubs and destroys held instances that ``keep``
    does not list. If the connection is lost, it waits ``linger_ms`` and then does so with all of them.

    If the lists do not fit one message together, ``kernel_ids`` is empty and a HostKernels follows at once.
    """

    kind: Literal["host_welcome"] = "host_welcome"
    generation: U64
    kernel_ids: Annotated[dict[str, U32], _at_most(MAX_KERNELS)] = {}
    keep: Annotated[list[LeaseNumber], Field(max_length=MAX_HELD)] = []
    linger_ms: U32 = 0


class HostKernels(_Message):
    """The numbers of the helper's kernels, sent after a welcome that has no space for them."""

    kind: Literal["host_kernels"] = "host_kernels"
    kernel_ids: Annotated[dict[str, U32], _at_most(MAX_OFFERED)]


class InstanceHeld(_Message):
    """An instance that this helper kept when its connection was lost, and the lanes with a live worker."""

    kind: Literal["instance_held"] = "instance_held"
    lease: LeaseNumber
    generation: U64
    lanes: Annotated[list[Lane], Field(max_length=64)]


class OpenInstance(_Message):
    """Create the instance and start one worker per lane. ``token`` authenticates these workers. With ``copy_engine``
    verbs they wait for an invitation before they export their lanes."""

    kind: Literal["open_instance"] = "open_instance"
    lease: LeaseNumber
    generation: U64
    tenant: Name
    gpu: Name
    profile: Name
    start: Start
    lanes: Lanes
    landing_bytes: U64
    result_bytes: U64
    scrub_first: bool
    token: Token = Field(repr=False)
    copy_engine: Literal["loopback", "verbs", "doca", "cuda"] = "loopback"


class InstanceFailed(_Message):
    """The instance or one of its workers could not be created. Nothing of it is left."""

    kind: Literal["instance_failed"] = "instance_failed"
    lease: LeaseNumber
    generation: U64
    detail: Annotated[str, Field(max_length=512)]


class WorkerHello(_Message):
    """First message of a worker on its own connection. ``token``: from its OpenInstance. A reconnecting worker names
    the last launch it received. ``has_result``: that launch has ended, and its result follows the LaneReady."""

    kind: Literal["worker_hello"] = "worker_hello"
    version: U16 = PROTOCOL_VERSION
    lease: LeaseNumber
    lane: Lane
    pid: U32
    token: Token = Field(repr=False)
    last_job: U64 = 0
    has_result: bool = False


class LaneLoading(_Message):
    """A new worker's lane is reserved; it loads its models, and LaneReady follows. Sent once, after the first hello."""

    kind: Literal["lane_loading"] = "lane_loading"
    lease: LeaseNumber
    lane: Lane
    generation: U64


class LaneReady(_Message):
    """A lane's memory is reserved, clean and exported. The export's descriptor travels beside this message.
    ``load_ms``: how long the worker loaded its models; the same after each hello."""

    kind: Literal["lane_ready"] = "lane_ready"
    lease: LeaseNumber
    lane: Lane
    generation: U64
    export: Annotated[dict[str, U64 | str], _at_most(MAX_EXPORT_ITEMS)]
    landing_bytes: U64
    result_bytes: U64
    load_ms: U32 = 0


class InviteLane(_Message):
    """The copy engine's end for this lane: the worker links its memory to it, then sends LaneReady. Engines that need
    it send it in reply to each WorkerHello."""

    kind: Literal["invite_lane"] = "invite_lane"
    lease: LeaseNumber
    lane: Lane
    generation: U64
    invitation: Annotated[dict[str, U64 | str], _at_most(MAX_EXPORT_ITEMS)]


class ScrubLane(_Message):
    """Overwrite all memory that this lane's tenant could have written, then confirm."""

    kind: Literal["scrub_lane"] = "scrub_lane"
    lease: LeaseNumber
    lane: Lane


class LaneScrubbed(_Message):
    """The worker verified that ``scrubbed_bytes`` of lane memory are zero."""

    kind: Literal["lane_scrubbed"] = "lane_scrubbed"
    lease: LeaseNumber
    lane: Lane
    generation: U64
    scrubbed_bytes: MemoryBytes


class CloseInstance(_Message):
    """End the workers, scrub the memory of dead ones, destroy the instance, confirm with InstanceClosed."""

    kind: Literal["close_instance"] = "close_instance"
    lease: LeaseNumber
    generation: U64
    scrub: bool


class InstanceClosed(_Message):
    """The instance is destroyed. ``scrubbed_bytes``: scrubbed by the helper itself; 0 when its workers had scrubbed."""

    kind: Literal["instance_closed"] = "instance_closed"
    lease: LeaseNumber
    generation: U64
    scrubbed_bytes: MemoryBytes


class KillWorker(_Message):
    """Kill this lane's worker at once; the other lanes continue. There is no confirmation: the worker's connection
    closes."""

    kind: Literal["kill_worker"] = "kill_worker"
    lease: LeaseNumber
    lane: Lane
    generation: U64


class GpuLost(_Message):
    """A GPU that the helper offered needs a reset. It has ended its workers there and dropped their instances. Sent
    when it happens, and after each welcome. ``detail``: for logs."""

    kind: Literal["gpu_lost"] = "gpu_lost"
    uuid: Name
    detail: Annotated[str, Field(max_length=512)]


class WorkerDied(_Message):
    """A worker ended unexpectedly. The daemon sees the end of a worker that sent its hello; only the helper can report
    one that ended before."""

    kind: Literal["worker_died"] = "worker_died"
    lease: LeaseNumber
    lane: Lane
    generation: U64


Part = Annotated[str, StringConstraints(min_length=0, max_length=MAX_PART_CHARACTERS, pattern=r"^[ -~]*$")]


class InaEpoch(_Message):
    """An epoch of a job, for the helper's ranks: a part of its record as JSON text (`sched.ina.protocol.records`).
    ``is_last``: the record is complete."""

    kind: Literal["ina_epoch"] = "ina_epoch"
    part: Part
    is_last: bool = True


class InaAsk(_Message):
    """Report the states of all ranks of this host, in InaStates with ``is_all``."""

    kind: Literal["ina_ask"] = "ina_ask"


class InaStates(_Message):
    """States reported by ranks, and their patterns: a part of ``{"states": […], "patterns": […]}`` as JSON text.
    ``is_all``: of every rank on this host, not only of those that changed."""

    kind: Literal["ina_states"] = "ina_states"
    part: Part
    is_last: bool = True
    is_all: bool = False


class Ping(_Message):
    """Liveness check. The supervisor replies between two commands."""

    kind: Literal["ping"] = "ping"
    number: U64


class Pong(_Message):
    """Reply to a Ping, with its ``number``."""

    kind: Literal["pong"] = "pong"
    number: U64


ToDaemon = Annotated[Hello | Redeem | Goodbye, Field(discriminator="kind")]
ToRequester = Annotated[Welcome | Redeemed | Refused | Kernels | Durable | Closing, Field(discriminator="kind")]
HostToDaemon = Annotated[
    HelperHello
    | GpuOffer
    | KernelNeeds
    | InstanceHeld
    | WorkerHello
    | InstanceFailed
    | LaneLoading
    | LaneReady
    | LaneScrubbed
    | InstanceClosed
    | WorkerDied
    | GpuLost
    | InaStates
    | Pong
    | Goodbye,
    Field(discriminator="kind"),
]
_ToHost = (
    HostWelcome | HostKernels | OpenInstance | InviteLane | ScrubLane | CloseInstance | KillWorker | InaEpoch | InaAsk
    | Ping | Closing
)  # fmt: skip
DaemonToHost = Annotated[_ToHost, Field(discriminator="kind")]

TO_DAEMON: Final[TypeAdapter[Hello | Redeem | Goodbye]] = TypeAdapter(ToDaemon, config=_HIDING)
TO_REQUESTER: Final[TypeAdapter[Welcome | Redeemed | Refused | Kernels | Durable | Closing]] = TypeAdapter(
    ToRequester, config=_HIDING
)
HOST_TO_DAEMON: Final[
    TypeAdapter[
        HelperHello
        | GpuOffer
        | KernelNeeds
        | InstanceHeld
        | WorkerHello
        | InstanceFailed
        | LaneLoading
        | LaneReady
        | LaneScrubbed
        | InstanceClosed
        | WorkerDied
        | GpuLost
        | InaStates
        | Pong
        | Goodbye
    ]
] = TypeAdapter(HostToDaemon, config=_HIDING)
DAEMON_TO_HOST: Final[TypeAdapter[_ToHost]] = TypeAdapter(DaemonToHost, config=_HIDING)


def encode(message: BaseModel) -> bytes:
    """A message as JSON bytes."""
    return orjson.dumps(message.model_dump(mode="json"))


def decode(adapter: TypeAdapter[_T], body: bytes) -> _T:
    """Parse and validate one message.

    Raises: ControlError: ``json`` (see `document.read`), ``version`` (another protocol version) or ``model`` with the
        errors.
    """
    raw = document.read(body)
    if isinstance(raw, dict) and raw.get("version", PROTOCOL_VERSION) != PROTOCOL_VERSION:
        raise ControlError("version", f"expected {PROTOCOL_VERSION}")
    try:
        return adapter.validate_python(raw)
    except ValidationError as fault:
        if fault.error_count() > _MOST_LISTED:
            raise ControlError("model", f"{fault.error_count()} faults") from None
        places = [".".join(str(p) for p in e["loc"]) + ": " + e["msg"] for e in fault.errors()[:8]]
        raise ControlError("model", "; ".join(places)[:400]) from None
