"""Control messages: pydantic models in orjson, versioned, one ``kind`` each (docs/design.md, Negotiation and wire).

Negotiation, requester → daemon: Hello, Goodbye. Daemon → requester: Welcome, Refused, Kernels, Durable,
Closing.
Host channel, rare messages (the frequent ones are structs in `wire.host`): host → daemon HelperHello, GpuOffer,
WorkerHello, InstanceFailed, LaneReady, LaneScrubbed, InstanceClosed, WorkerDied,
InaStates, Pong, Goodbye; daemon → helper HostWelcome, HostKernels, OpenInstance, InviteLane,
ScrubLane, CloseInstance, KillWorker, InaEpoch, InaAsk, Ping.
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

PROTOCOL_VERSION: Final = 1
MAX_KERNELS: Final = 256
"""Names of kernels a daemon knows at a time: with these a welcome still fits a frame."""
MAX_OFFERED: Final = 32
"""Kernels of one helper."""
MAX_HELD: Final = 256
"""Instances with which a helper comes back: their numbers alone, or its kernels', fit one host-channel message."""
MAX_EXPORT_ITEMS: Final = 16
MAX_PART_CHARACTERS: Final = 1900
"""Of a part of a text: quoted, as the worst is, it still fits a host-channel message."""
_MOST_LISTED: Final = 64  # faults; a frame can hold thousands, and to describe each costs a microsecond of the loop's
_T = TypeVar("_T")
_HIDING: Final = ConfigDict(hide_input_in_errors=True)
"""What is refused may hold a token: no error shows it."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/+-]*$")]
Token = Annotated[str, StringConstraints(min_length=16, max_length=256, pattern=r"^[A-Za-z0-9_-]+$")]
"""One that the daemon or the helper made."""
TenantToken = Annotated[
    str, StringConstraints(min_length=tokens.LEAST, max_length=tokens.MOST, pattern=r"^[\x20-\x7e]+$")
]
"""One that an operator chose: see `offpath.bindings.tokens`."""
U8 = Annotated[int, Field(ge=0, le=0xFF)]
U16 = Annotated[int, Field(ge=0, le=0xFFFF)]
U32 = Annotated[int, Field(ge=0, le=0xFFFF_FFFF)]
U64 = Annotated[int, Field(ge=0, le=0xFFFF_FFFF_FFFF_FFFF)]
RequestId = Annotated[int, Field(ge=1, le=0xFFFF_FFFF_FFFF_FFFF)]
"""As request headers have it: 64 bits, and 0 is not an id."""
Demand = Annotated[int, Field(ge=1, le=100)]
"""A kernel's R in percent of a GPU."""
MemoryBytes = Annotated[int, Field(ge=0, le=1 << 50)]
"""Of a GPU, or scrubbed in one. Sums of what hosts say stay within the 64 bits that every number here has."""
LeaseNumber = U32
"""An answer's header has 32 bits for it; with a generation, which never repeats, it names one lease."""
Lanes = Annotated[int, Field(ge=1, le=64)]
Start = Annotated[int, Field(ge=0, le=15)]
Slices = Annotated[int, Field(ge=1, le=16)]
Lane = Annotated[int, Field(ge=0, le=63)]
Term = Annotated[int, Field(ge=0, le=(1 << 31) - 1)]


def _at_most(items: int) -> BeforeValidator:
    """Counts an object's items before any is looked at: pydantic's own limit comes after it has validated them all."""

    def check(value: object) -> object:
        if isinstance(value, dict) and len(value) > items:
            raise ValueError(f"more than {items} items")
        return value

    return BeforeValidator(check)


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


class KernelInfo(_Message):
    """A kernel the daemon can run: its name, its id in request headers, its demand R in percent of a GPU."""

    name: Name
    kernel_id: U32
    demand: Demand


class Resume(_Message):
    """Ask for a session whose connection was lost: what its welcome said, and the requests still without an answer.
    An answered request that is not listed counts as taken."""

    session: U64
    lineage: Annotated[str, Field(max_length=64)]
    token: Token = Field(repr=False)
    unanswered: Annotated[list[RequestId], Field(max_length=1024)]


KernelList = Annotated[list[KernelInfo], Field(max_length=MAX_KERNELS)]


class Hello(_Message):
    """First message of a requester. ``token`` is for the Unix carrier only; on TCP the certificate speaks."""

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
    """Where the one-time ticket is redeemed: loopback a Unix socket, verbs a queue-pair exchange."""

    carrier: Literal["loopback", "verbs"]
    address: Annotated[str, Field(max_length=256)]


class Resumed(_Message):
    """What became of an unanswered request: ``running`` and ``answered`` are rung once the ticket is redeemed,
    ``retry_safe`` surely never started, ``unknown`` may have, and its answer is lost."""

    request_id: RequestId
    state: Literal["answered", "running", "retry_safe", "unknown"]


class Welcome(_Message):
    """The session: its credits (one per slot), sizes, tokens, and how to reach the fabric."""

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
    """One end of a session over verbs. ``doorbells``: immediates that it takes before it says that there is room for
    more; ``memory``, ``rkey``: where the other end writes, and the key for it; ``mtu``: libibverbs' number, 1 (256
    bytes) to 5 (4 096)."""

    qp_num: Bits24
    psn: Bits24
    gid: Annotated[str, Field(max_length=45)]
    mtu: Annotated[int, Field(ge=1, le=5)]
    doorbells: Annotated[int, Field(ge=1, le=16384)]
    memory: U64
    rkey: U32


class Durable(_Message):
    """The service manager holds the session's memory: the session and what it accepts outlive the daemon's process."""

    kind: Literal["durable"] = "durable"
    session: U64


class Redeem(_Message):
    """Over verbs: the requester's end, for the ticket of the welcome that came on this connection."""

    kind: Literal["redeem"] = "redeem"
    ticket: Token = Field(repr=False)
    end: QueuePairEnd


class Redeemed(_Message):
    """The daemon's end, connected to the requester's."""

    kind: Literal["redeemed"] = "redeemed"
    end: QueuePairEnd


class Refused(_Message):
    """No session. ``retry_after_ms`` 0: trying the same again will not help."""

    kind: Literal["refused"] = "refused"
    code: Name
    detail: Annotated[str, Field(max_length=512)]
    retry_after_ms: U32 = 0


class Kernels(_Message):
    """The kernels changed (a helper joined); replaces the list of the welcome."""

    kind: Literal["kernels"] = "kernels"
    kernels: KernelList


class Goodbye(_Message):
    """The requester leaves on purpose; its unfinished jobs are cancelled. From a helper: it ends in order, and scrubs
    what it holds once the daemon has hung up."""

    kind: Literal["goodbye"] = "goodbye"


class Closing(_Message):
    """The daemon ends the session and says why."""

    kind: Literal["closing"] = "closing"
    code: Name
    detail: Annotated[str, Field(max_length=512)]


class KernelOffer(_Message):
    """A kernel a helper serves. ``demand`` R in percent of a GPU (1..100)."""

    name: Name
    demand: Demand


class ProfileInfo(_Message):
    """One MIG profile's geometry as the GPU port reports it (units: slices, MiB)."""

    name: Name
    compute_slices: Slices
    memory_slices: Slices
    memory_bytes: MemoryBytes
    starts: list[Start]
    max_instances: Annotated[int, Field(ge=1, le=16)]


class GpuOffer(_Message):
    """One GPU as the helper's GPU port reports it: model, totals, legal geometry. Follows HelperHello, one per GPU."""

    kind: Literal["gpu_offer"] = "gpu_offer"
    uuid: Name
    model: Name
    compute_slices: Slices
    memory_slices: Slices
    profiles: Annotated[list[ProfileInfo], Field(max_length=16)]


class HelperHello(_Message):
    """First message of a helper's supervisor. ``incarnation`` names this process; one that comes back lists the
    ``held_count`` instances it still has in as many InstanceHeld."""

    kind: Literal["helper_hello"] = "helper_hello"
    version: U16 = PROTOCOL_VERSION
    name: Name
    pid: U32
    kernels: Annotated[list[KernelOffer], Field(min_length=1, max_length=MAX_OFFERED)]
    gpu_count: Annotated[int, Field(ge=0, le=16)]
    incarnation: Annotated[str, Field(max_length=64)] = ""
    held_count: Annotated[int, Field(ge=0, le=MAX_HELD)] = 0


class HostWelcome(_Message):
    """The daemon accepts the helper under this generation. The helper scrubs and destroys held instances that ``keep``
    does not list. When the connection is lost, it waits for ``linger_ms`` before it does so with all of them.

    Where both lists do not fit one message, ``kernel_ids`` is empty and a HostKernels follows at once."""

    kind: Literal["host_welcome"] = "host_welcome"
    generation: U64
    kernel_ids: Annotated[dict[str, U32], _at_most(MAX_KERNELS)] = {}
    keep: Annotated[list[LeaseNumber], Field(max_length=MAX_HELD)] = []
    linger_ms: U32 = 0


class HostKernels(_Message):
    """The numbers of the helper's kernels, behind a welcome that has no room for them."""

    kind: Literal["host_kernels"] = "host_kernels"
    kernel_ids: Annotated[dict[str, U32], _at_most(MAX_OFFERED)]


class InstanceHeld(_Message):
    """An instance this helper still has from before its connection was lost, and the lanes whose workers live."""

    kind: Literal["instance_held"] = "instance_held"
    lease: LeaseNumber
    generation: U64
    lanes: Annotated[list[Lane], Field(max_length=64)]


class OpenInstance(_Message):
    """Create the instance and start one worker per lane. ``token`` lets exactly these workers in; with ``copy_engine``
    verbs they wait to be invited before they offer their lanes."""

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
    copy_engine: Literal["loopback", "verbs", "doca"] = "loopback"


class InstanceFailed(_Message):
    """The instance or a worker of it could not be made; nothing of it is left behind."""

    kind: Literal["instance_failed"] = "instance_failed"
    lease: LeaseNumber
    generation: U64
    detail: Annotated[str, Field(max_length=512)]


class WorkerHello(_Message):
    """First message of a worker on its own connection; ``token`` is the one of its OpenInstance. A worker that comes
    back names the last launch it received; with ``has_result`` that has ended, and its result follows the LaneReady."""

    kind: Literal["worker_hello"] = "worker_hello"
    version: U16 = PROTOCOL_VERSION
    lease: LeaseNumber
    lane: Lane
    pid: U32
    token: Token = Field(repr=False)
    last_job: U64 = 0
    has_result: bool = False


class LaneReady(_Message):
    """A lane's memory is reserved, clean and exported; the export's descriptor travels beside this message."""

    kind: Literal["lane_ready"] = "lane_ready"
    lease: LeaseNumber
    lane: Lane
    generation: U64
    export: Annotated[dict[str, U64 | str], _at_most(MAX_EXPORT_ITEMS)]
    landing_bytes: U64
    result_bytes: U64


class InviteLane(_Message):
    """The copy engine's end, for this lane alone: the worker links its memory to it, then says LaneReady. Sent in
    answer to each WorkerHello by engines that need it."""

    kind: Literal["invite_lane"] = "invite_lane"
    lease: LeaseNumber
    lane: Lane
    generation: U64
    invitation: Annotated[dict[str, U64 | str], _at_most(MAX_EXPORT_ITEMS)]


class ScrubLane(_Message):
    """Overwrite everything this lane's tenant could have left, then confirm."""

    kind: Literal["scrub_lane"] = "scrub_lane"
    lease: LeaseNumber
    lane: Lane


class LaneScrubbed(_Message):
    """The worker read back nothing but zeros from ``scrubbed_bytes`` of lane memory."""

    kind: Literal["lane_scrubbed"] = "lane_scrubbed"
    lease: LeaseNumber
    lane: Lane
    generation: U64
    scrubbed_bytes: MemoryBytes


class CloseInstance(_Message):
    """End the workers, scrub what a dead one left, destroy the instance, confirm with InstanceClosed."""

    kind: Literal["close_instance"] = "close_instance"
    lease: LeaseNumber
    generation: U64
    scrub: bool


class InstanceClosed(_Message):
    """The instance is gone; ``scrubbed_bytes`` the helper scrubbed itself, 0 when its workers had."""

    kind: Literal["instance_closed"] = "instance_closed"
    lease: LeaseNumber
    generation: U64
    scrubbed_bytes: MemoryBytes


class KillWorker(_Message):
    """End this lane's worker at once, whatever it does; the other lanes go on. Nothing is confirmed: it hangs up."""

    kind: Literal["kill_worker"] = "kill_worker"
    lease: LeaseNumber
    lane: Lane
    generation: U64


class WorkerDied(_Message):
    """A worker ended unasked. Of one that had said hello the daemon knows already; a stillborn one only we can tell."""

    kind: Literal["worker_died"] = "worker_died"
    lease: LeaseNumber
    lane: Lane
    generation: U64


Part = Annotated[str, StringConstraints(min_length=0, max_length=MAX_PART_CHARACTERS, pattern=r"^[ -~]*$")]


class InaEpoch(_Message):
    """An epoch of a job, for the helper's ranks: a part of its record as JSON text (`sched.ina.protocol.records`), of
    which ``is_last`` ends it."""

    kind: Literal["ina_epoch"] = "ina_epoch"
    part: Part
    is_last: bool = True


class InaAsk(_Message):
    """Say all that the ranks of this host say, in InaStates with ``is_all``."""

    kind: Literal["ina_ask"] = "ina_ask"


class InaStates(_Message):
    """What ranks say of themselves, and their patterns: a part of ``{"states": […], "patterns": […]}`` as JSON text.
    ``is_all``: of every rank on this host; else of those that changed."""

    kind: Literal["ina_states"] = "ina_states"
    part: Part
    is_last: bool = True
    is_all: bool = False


class Ping(_Message):
    """Are you there? The supervisor answers between two orders."""

    kind: Literal["ping"] = "ping"
    number: U64


class Pong(_Message):
    """The helper is there; ``number`` of the ping."""

    kind: Literal["pong"] = "pong"
    number: U64


ToDaemon = Annotated[Hello | Redeem | Goodbye, Field(discriminator="kind")]
ToRequester = Annotated[Welcome | Redeemed | Refused | Kernels | Durable | Closing, Field(discriminator="kind")]
HostToDaemon = Annotated[
    HelperHello
    | GpuOffer
    | InstanceHeld
    | WorkerHello
    | InstanceFailed
    | LaneReady
    | LaneScrubbed
    | InstanceClosed
    | WorkerDied
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
        | InstanceHeld
        | WorkerHello
        | InstanceFailed
        | LaneReady
        | LaneScrubbed
        | InstanceClosed
        | WorkerDied
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

    Raises: ControlError: ``json`` (see `document.read`), ``version`` (another protocol version) or ``model`` with every
    fault.
    """
    raw = document.read(body)
    if isinstance(raw, dict) and raw.get("version", PROTOCOL_VERSION) != PROTOCOL_VERSION:
        raise ControlError("version", f"we speak {PROTOCOL_VERSION}")
    try:
        return adapter.validate_python(raw)
    except ValidationError as fault:
        if fault.error_count() > _MOST_LISTED:
            raise ControlError("model", f"{fault.error_count()} faults") from None
        places = [".".join(str(p) for p in e["loc"]) + ": " + e["msg"] for e in fault.errors()[:8]]
        raise ControlError("model", "; ".join(places)[:400]) from None
