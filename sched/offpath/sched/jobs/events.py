"""Input events of the job book. Every event is a frozen value; its time is passed separately."""

from __future__ import annotations

from offpath.sched.gpu.geometry import GpuSpec
from offpath.sched.gpu.policy import ModelShares
from offpath.sched.jobs.settings import BookSettings, PinnedLease, TenantSpec
from offpath.sched.jobs.states import EndReason
from offpath.sched.record import record


@record
class SessionOpened:
    """A requester of ``tenant`` redeemed its ticket and holds ``credits`` slots. ``origin`` is opaque to the book,
    which keeps it so that a restarted shell finds the session's memory again."""

    session: int
    tenant: str
    credits: int
    origin: str = ""


@record
class SessionClosed:
    """The requester left or was disconnected. Its jobs end; their answers are not read."""

    session: int


@record
class JobSubmitted:
    """A doorbell with a valid header. ``share`` 0 takes the kernel's demand; ``deadline_ns`` 0 means none. ``origin``:
    the payload's location, set by the shell, below 2⁶⁴. ``credit``: the slot's former job, whose answer the requester
    has thereby taken, as in `CreditReturned`; 0 for none."""

    job: int
    session: int
    request_id: int
    kernel: int
    share: int
    priority: int
    deadline_ns: int
    payload_bytes: int
    is_idempotent: bool
    origin: int = 0
    credit: int = 0


@record
class StackSubmitted:
    """A `JobSubmitted` of a kernel that batches. ``rows``: the first dimension of each of its tensors. ``stack``: equal
    for requests whose tensors agree in number, dtype and further dimensions, never 0. An event of its own, so that the
    record of any other request does not change."""

    submitted: JobSubmitted
    rows: int
    stack: int


@record
class SequenceSubmitted:
    """A `JobSubmitted` of a sequence. ``sequence_id``: the client's, of its session and kernel, not 0. ``is_start``,
    ``is_end``: it is the first, or the last, request of the sequence."""

    submitted: JobSubmitted
    sequence_id: int
    is_start: bool
    is_end: bool


@record
class CancelRequested:
    """The requester cancels the job, or an operator (``operator_uid``) does."""

    job: int
    operator_uid: int | None = None


@record
class SlotLost:
    """A restarted shell found the job's payload gone or changed; its kernel did not start."""

    job: int


@record
class CreditReturned:
    """The requester took the answer: the job is DELIVERED and forgotten."""

    job: int


@record
class CopyDone:
    """The payload is in the lane, or the copy failed (``error``)."""

    job: int
    attempt: int
    error: bool = False


@record
class LaunchFailed:
    """The launch message could not be sent to the worker: the kernel did not start."""

    job: int
    attempt: int


@record
class NeverLaunched:
    """A worker reattached without having received the launch of a job that was answered meanwhile: the kernel did not
    start and need not."""

    job: int
    attempt: int


@record
class ResultArrived:
    """The worker reports the end of a launch; ``reason`` NONE is success. Times are monotonic ns."""

    job: int
    generation: int
    reason: EndReason
    started_ns: int
    finished_ns: int


@record
class BatchResult:
    """The worker reports the end of a batch's launch, as `ResultArrived` does in the name of its leader. ``failed``:
    members for which another reason than ``reason`` holds."""

    job: int
    generation: int
    reason: EndReason
    started_ns: int
    finished_ns: int
    failed: tuple[tuple[int, EndReason], ...]


@record
class Batching:
    """How a kernel's requests share launches. ``max_rows``: the most rows of a batch, at least 2. ``delay_ns``: how
    long a request waits for others at most. ``preferred``: exact sizes in rows, ascending, at which a batch waits no
    longer."""

    max_rows: int
    delay_ns: int = 0
    preferred: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows at which a batch does not wait for more."""
        return self.preferred or (self.max_rows,)


@record
class Kernel:
    """A kernel that helpers serve: id, demand R in percent of a GPU, name (opaque to the book).

    ``models``: the GPU models that it runs on, each with its R (``share`` is then the least of these); empty: all.
    ``memory_bytes``: device memory that its worker needs besides the lane's buffers; 0: not known. ``batching``: None:
    each of its requests has its own launch. ``sequences``: each of its requests is of a sequence. ``streams``: it waits
    for its requester between its answers.
    """

    kernel: int
    share: int
    name: str = ""
    models: ModelShares = ()
    memory_bytes: int = 0
    batching: Batching | None = None
    sequences: bool = False
    streams: bool = False


@record
class HelperJoined:
    """A helper offers GPUs, which hold no instance, and kernels. ``helper``: a new number, larger than all before.
    ``origin``: the shell's identifier of its process. ``name``: no connected helper has it; one that had it before is
    the same helper. ``revision``: how often it has reloaded its kernels."""

    helper: int
    gpus: tuple[GpuSpec, ...]
    kernels: tuple[Kernel, ...]
    origin: str = ""
    name: str = ""
    revision: int = 0


@record
class HelperLost:
    """The helper's process or channel ended; its workers and instances are gone. Those of other helpers are not."""

    helper: int


@record
class GpuLost:
    """A GPU of the helper needs a reset: its leases are gone, and it gets none until the helper joins anew."""

    helper: int
    gpu: str


@record
class KernelsReloaded:
    """The helper serves these kernels instead of the former ones, and runs them from new code. Its instances stay; its
    workers run the former code until they are replaced. ``revision``: how often it has reloaded."""

    helper: int
    kernels: tuple[Kernel, ...]
    revision: int


@record
class LaneLoading:
    """A worker has reserved its lane and loads its models; `LaneReady` follows."""

    lease: int
    lane: int
    generation: int


@record
class LaneReady:
    """A worker has reserved and exported its lane, and loaded its models."""

    lease: int
    lane: int
    generation: int


@record
class InstanceFailed:
    """The helper could not create the instance or its workers, or the instance is gone without the scrub that closing
    requested. Nothing remains but data that its memory may hold."""

    lease: int
    generation: int


@record
class WorkerLost:
    """A worker of the lease ended without a request."""

    lease: int
    lane: int
    generation: int


@record
class LaneScrubbed:
    """The worker confirmed that its lane reads as zeros."""

    lease: int
    lane: int
    generation: int


@record
class InstanceClosed:
    """Workers ended and the instance is destroyed. The helper scrubbed what workers could not."""

    lease: int
    generation: int


@record
class Drain:
    """An operator starts a drain: finish current jobs and accept no new ones. Off: accept again."""

    is_on: bool


@record
class ConfigChanged:
    """A new configuration is in force, as a whole. Lane count and sizes are unchanged: leases and sessions depend on
    them."""

    tenants: tuple[TenantSpec, ...]
    settings: BookSettings
    pins: tuple[PinnedLease, ...]


@record
class PluginStarted:
    """The process of the policy's plug-in has started or restarted: query it from now on."""


@record
class Tick:
    """Only time has passed."""


Event = (
    SessionOpened | SessionClosed | JobSubmitted | CancelRequested | SlotLost | CreditReturned | CopyDone | LaunchFailed
    | ResultArrived | HelperJoined | HelperLost | GpuLost | LaneLoading | LaneReady | InstanceFailed | WorkerLost
    | LaneScrubbed | InstanceClosed | ConfigChanged | Drain | PluginStarted | Tick | KernelsReloaded | StackSubmitted
    | BatchResult | SequenceSubmitted | NeverLaunched
)  # fmt: skip
