"""Control messages: pydantic models in orjson, versioned, one ``kind`` each (docs/design.md, Negotiation and wire).

Those of a requester are in `wire.negotiating`. Here are the rare messages of the host channel; the frequent ones are
structs in `wire.host`. Host → daemon: HelperHello, MoreKernels, GpuOffer, KernelNeeds, KernelSignature
(`wire.signatures`), KernelsReloaded, InstanceHeld, WorkerHello, InstanceFailed, LaneLoading, LaneReady, LaneScrubbed,
InstanceClosed, WorkerDied, GpuLost, InaStates, Pong, Goodbye.
Daemon → host: HostWelcome, HostKernels, OpenInstance, InviteLane, ScrubLane, CloseInstance, KillWorker, RenewWorker,
InaEpoch, InaAsk, Ping, Closing.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

import orjson
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from offpath.bindings.errors import ControlError
from offpath.bindings.invalid import listed
from offpath.bindings.wire import document
from offpath.bindings.wire.fields import (
    HIDING,
    MAX_BATCH,
    MAX_EXPORT_ITEMS,
    MAX_GPUS,
    MAX_HELD,
    MAX_KERNELS,
    MAX_LISTED,
    MAX_MODELS,
    MAX_OFFERED,
    MAX_PREFERRED,
    MAX_QUEUE_DELAY_US,
    PROTOCOL_VERSION,
    STRICT,
    U16,
    U32,
    U64,
    BatchSize,
    Demand,
    HelperName,
    Lane,
    Lanes,
    LeaseNumber,
    MemoryBytes,
    Name,
    Part,
    Slices,
    Start,
    Token,
    at_most,
)
from offpath.bindings.wire.signatures import KernelSignature

MAX_KEPT: Final = 256
"""Numbers in one `SequencesKept`."""
_MOST_LISTED: Final = 64  # errors; a frame can hold thousands, and each costs 1 µs to describe
_T = TypeVar("_T")


class _Message(BaseModel):
    model_config = STRICT


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
    """A kernel that a helper serves. ``demand``: R in percent of a GPU (1..100), or 100 for each GPU of a gang."""

    name: Name
    demand: Demand


class ModelDemand(_Message):
    """A GPU model that a kernel runs on, as GpuOffers name it, and its R in percent of that model."""

    model: Name
    demand: Demand


class KernelNeeds(_Message):
    """What a kernel of the HelperHello or the KernelsReloaded before it needs besides its R. One per kernel that needs
    more.

    ``memory_bytes``: device memory of its worker besides the lane's buffers; 0: not stated. ``models``: those that it
    runs on, each once, with R in the place of the offer's; empty: all models. ``max_batch``: rows of
    a launch that requests share, at most; 0: each has its own. ``max_queue_delay_us``: how long a request waits for
    others. ``preferred_batch_sizes``: rows at which a batch waits no longer, ascending, none above ``max_batch``.
    ``sequences``: each request is of a sequence, and none shares a launch.
    ``streams``: it gives a stream of answers, and does not batch.
    """

    kind: Literal["kernel_needs"] = "kernel_needs"
    name: Name
    memory_bytes: MemoryBytes = 0
    models: Annotated[list[ModelDemand], Field(max_length=MAX_MODELS)] = []
    max_batch: Annotated[int, Field(ge=0, le=MAX_BATCH)] = 0
    max_queue_delay_us: Annotated[int, Field(ge=0, le=MAX_QUEUE_DELAY_US)] = 0
    preferred_batch_sizes: Annotated[list[BatchSize], Field(max_length=MAX_PREFERRED)] = []
    sequences: bool = False
    streams: bool = False


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


class GpuLink(_Message):
    """A GPU of the same helper that is reached by NVLink; ``links``: by how many."""

    uuid: Name
    links: Annotated[int, Field(ge=1, le=64)]


class GpuOffer(_Message):
    """One GPU as the helper's GPU port reports it: model, totals, legal geometry, and whether it is emulated. One per
    GPU, after HelperHello. ``linked``: where gangs prefer the rest of their GPUs."""

    kind: Literal["gpu_offer"] = "gpu_offer"
    uuid: Name
    model: Name
    is_emulated: bool
    compute_slices: Slices
    memory_slices: Slices
    profiles: Annotated[list[ProfileInfo], Field(max_length=16)]
    linked: Annotated[list[GpuLink], Field(max_length=MAX_GPUS - 1)] = []


class HelperHello(_Message):
    """First message of a helper's supervisor. ``name`` identifies the helper among those of the daemon,
    ``incarnation`` its process. ``more_kernels`` further kernels in MoreKernels, ``needs_count`` KernelNeeds, the
    KernelSignatures of ``signature_count`` kernels and ``gpu_count`` GpuOffers follow. A reconnecting helper sends
    ``held_count`` InstanceHeld messages, one for each instance that it still has. ``revision``: how often it has
    reloaded its kernels."""

    kind: Literal["helper_hello"] = "helper_hello"
    version: U16 = PROTOCOL_VERSION
    name: HelperName
    pid: U32
    kernels: Annotated[list[KernelOffer], Field(min_length=1, max_length=MAX_LISTED)]
    gpu_count: Annotated[int, Field(ge=0, le=MAX_GPUS)]
    more_kernels: Annotated[int, Field(ge=0, le=MAX_OFFERED - 1)] = 0
    incarnation: Annotated[str, Field(max_length=64)] = ""
    held_count: Annotated[int, Field(ge=0, le=MAX_HELD)] = 0
    needs_count: Annotated[int, Field(ge=0, le=MAX_OFFERED)] = 0
    signature_count: Annotated[int, Field(ge=0, le=MAX_OFFERED)] = 0
    revision: U32 = 0


class KernelsReloaded(_Message):
    """The helper serves these kernels from now on, in the place of those before, and starts workers with their code.
    ``more_kernels`` further kernels in MoreKernels, ``needs_count`` KernelNeeds and the KernelSignatures of
    ``signature_count`` kernels follow. ``revision``: how often the helper's process has reloaded its kernels; greater
    than that of its hello and of all such messages before. The daemon replies with HostKernels."""

    kind: Literal["kernels_reloaded"] = "kernels_reloaded"
    revision: U32
    kernels: Annotated[list[KernelOffer], Field(min_length=1, max_length=MAX_LISTED)]
    more_kernels: Annotated[int, Field(ge=0, le=MAX_OFFERED - 1)] = 0
    needs_count: Annotated[int, Field(ge=0, le=MAX_OFFERED)] = 0
    signature_count: Annotated[int, Field(ge=0, le=MAX_OFFERED)] = 0


class MoreKernels(_Message):
    """Further kernels of the HelperHello or KernelsReloaded before it, which has not the room for all."""

    kind: Literal["more_kernels"] = "more_kernels"
    kernels: Annotated[list[KernelOffer], Field(min_length=1, max_length=MAX_LISTED)]


class HostWelcome(_Message):
    """The daemon accepts the helper under this generation. The helper scrubs and destroys held instances that ``keep``
    does not list. If the connection is lost, it waits ``linger_ms`` and then does so with all of them.

    If the lists do not fit one message together, ``kernel_ids`` is empty and HostKernels follow at once.
    """

    kind: Literal["host_welcome"] = "host_welcome"
    generation: U64
    kernel_ids: Annotated[dict[str, U32], at_most(MAX_KERNELS)] = {}
    keep: Annotated[list[LeaseNumber], Field(max_length=MAX_HELD)] = []
    linger_ms: U32 = 0


class HostKernels(_Message):
    """The numbers of the helper's kernels, sent after a welcome that has no space for them, and in reply to
    KernelsReloaded. ``revision``: of that message or hello. ``has_more``: another one follows, with further kernels."""

    kind: Literal["host_kernels"] = "host_kernels"
    kernel_ids: Annotated[dict[str, U32], at_most(MAX_LISTED)]
    revision: U32 = 0
    has_more: bool = False


class InstanceHeld(_Message):
    """An instance that this helper kept when its connection was lost, and the lanes with a live worker. ``renewals``:
    the last RenewWorker's number of each of these lanes, 0 for none, in their order; empty: none for any."""

    kind: Literal["instance_held"] = "instance_held"
    lease: LeaseNumber
    generation: U64
    lanes: Annotated[list[Lane], Field(max_length=64)]
    renewals: Annotated[list[U32], Field(max_length=64)] = []


class OpenInstance(_Message):
    """Create the instance and start one worker per lane. ``token`` authenticates these workers. With ``copy_engine``
    verbs they wait for an invitation before they export their lanes. ``others``: the further GPUs of a gang: the same
    instance is created on each, and each worker uses all of them."""

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
    others: Annotated[list[Name], Field(max_length=MAX_GPUS - 1)] = []


class InstanceFailed(_Message):
    """The instance or one of its workers could not be created. Nothing of it is left."""

    kind: Literal["instance_failed"] = "instance_failed"
    lease: LeaseNumber
    generation: U64
    detail: Annotated[str, Field(max_length=512)]


class WorkerHello(_Message):
    """First message of a worker on its own connection. ``token``: of its OpenInstance or RenewWorker. A reconnecting
    worker names the last launch it received. ``has_result``: its result, or an answer of its stream, follows the
    LaneReady."""

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
    export: Annotated[dict[str, U64 | str], at_most(MAX_EXPORT_ITEMS)]
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
    invitation: Annotated[dict[str, U64 | str], at_most(MAX_EXPORT_ITEMS)]


class ScrubLane(_Message):
    """Overwrite all memory that this lane's tenant could have written, then confirm."""

    kind: Literal["scrub_lane"] = "scrub_lane"
    lease: LeaseNumber
    lane: Lane


class SequenceEnded(_Message):
    """A sequence ended without its last request: drop its state. ``sequence``: the daemon's number of it, as in its
    launches."""

    kind: Literal["sequence_ended"] = "sequence_ended"
    lease: LeaseNumber
    lane: Lane
    sequence: U64


class SequencesKept(_Message):
    """To a worker that reattached after a restart of the daemon: of the states numbered ``first`` to ``last``, it keeps
    those of ``kept`` and drops the others. Several such messages cover all numbers."""

    kind: Literal["sequences_kept"] = "sequences_kept"
    lease: LeaseNumber
    lane: Lane
    first: U64
    last: U64
    kept: Annotated[list[U64], Field(max_length=MAX_KEPT)]


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


class RenewWorker(_Message):
    """End this lane's worker, which is idle, and start another with the helper's present code. ``token``: of the new
    one. ``renewal``: how often this was requested for the lane, this time included. The reply is the new worker's
    hello."""

    kind: Literal["renew_worker"] = "renew_worker"
    lease: LeaseNumber
    lane: Lane
    generation: U64
    renewal: U32
    token: Token = Field(repr=False)


class WorkerDied(_Message):
    """A worker ended unexpectedly. The daemon sees the end of a worker that sent its hello; only the helper can report
    one that ended before. ``renewal``: of the RenewWorker that started it; 0: its OpenInstance did."""

    kind: Literal["worker_died"] = "worker_died"
    lease: LeaseNumber
    lane: Lane
    generation: U64
    renewal: U32 = 0


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


_FromHost = (
    HelperHello | MoreKernels | GpuOffer | KernelNeeds | KernelSignature | KernelsReloaded | InstanceHeld | WorkerHello
    | InstanceFailed | LaneLoading | LaneReady | LaneScrubbed | InstanceClosed | WorkerDied | GpuLost | InaStates | Pong
    | Goodbye
)  # fmt: skip
HostToDaemon = Annotated[_FromHost, Field(discriminator="kind")]
_ToHost = (
    HostWelcome | HostKernels | OpenInstance | InviteLane | ScrubLane | SequenceEnded | SequencesKept | CloseInstance
    | KillWorker | RenewWorker | InaEpoch | InaAsk | Ping | Closing
)  # fmt: skip
DaemonToHost = Annotated[_ToHost, Field(discriminator="kind")]

HOST_TO_DAEMON: Final[TypeAdapter[_FromHost]] = TypeAdapter(HostToDaemon, config=HIDING)
DAEMON_TO_HOST: Final[TypeAdapter[_ToHost]] = TypeAdapter(DaemonToHost, config=HIDING)


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
        raise ControlError("model", "; ".join(listed(fault))[:400]) from None
