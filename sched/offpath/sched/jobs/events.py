"""What happens to the job book. Every event is a frozen value; the time it is handled at comes beside it."""

from __future__ import annotations

from offpath.sched.gpu.geometry import GpuSpec
from offpath.sched.jobs.records import BookSettings, PinnedLease, TenantSpec
from offpath.sched.jobs.states import EndReason
from offpath.sched.record import record


@record
class SessionOpened:
    """A requester of ``tenant`` redeemed its ticket and holds ``credits`` slots. ``origin`` is the shell's own note,
    opaque to the book, which keeps it so that a restarted shell finds the session's memory again."""

    session: int
    tenant: str
    credits: int
    origin: str = ""


@record
class SessionClosed:
    """The requester left or was thrown out; its jobs end, nobody reads their answers."""

    session: int


@record
class JobSubmitted:
    """A doorbell with a valid header. ``share`` 0 takes the kernel's demand; ``deadline_ns`` 0 means none; ``origin``
    is the shell's note on where the payload is, below 2⁶⁴."""

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


@record
class CancelRequested:
    """The requester gives the job up, or an operator does: the one of ``operator_uid``."""

    job: int
    operator_uid: int | None = None


@record
class SlotLost:
    """A restarted shell finds the job's payload gone or changed, and its kernel surely did not start."""

    job: int


@record
class CreditReturned:
    """The requester took the answer: the job is DELIVERED and forgotten."""

    job: int


@record
class CopyDone:
    """The payload is in the lane, or (``error``) it is not."""

    job: int
    attempt: int
    error: bool = False


@record
class LaunchFailed:
    """The launch message could not be handed to the worker: the kernel surely did not start."""

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
class Kernel:
    """A kernel helpers serve: id, demand R in percent of a GPU; the name is the shell's note; ``model``: the only model
    of GPU it runs on, if there is only one."""

    kernel: int
    share: int
    name: str = ""
    model: str = ""


@record
class HelperJoined:
    """A helper offers GPUs and kernels; GPUs hold no instance. ``origin``: the shell's note on which process it is."""

    helper: int
    gpus: tuple[GpuSpec, ...]
    kernels: tuple[Kernel, ...]
    origin: str = ""


@record
class HelperLost:
    """The helper's process or channel ended: its workers and instances are gone with it."""

    helper: int


@record
class LaneReady:
    """A worker has reserved and exported its lane."""

    lease: int
    lane: int
    generation: int


@record
class InstanceFailed:
    """The helper could not make the instance or its workers, or it is gone without the scrub that its closing asked
    for: nothing of it is left, but for what its memory may hold."""

    lease: int
    generation: int


@record
class WorkerLost:
    """A worker of the lease ended unasked."""

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
    """Workers ended, the instance is destroyed, what workers could not scrub the helper did."""

    lease: int
    generation: int


@record
class Drain:
    """An operator wants the daemon to finish what it holds and to take in nothing new; off: it takes in again."""

    is_on: bool


@record
class ConfigChanged:
    """Another configuration is in force, as a whole. Lanes and their sizes are what they were: leases and sessions
    were made for them."""

    tenants: tuple[TenantSpec, ...]
    settings: BookSettings
    pins: tuple[PinnedLease, ...]


@record
class PluginStarted:
    """The process of the policy's plug-in is there, for the first time or again: it is asked from here on."""


@record
class Tick:
    """Nothing but time passed."""


Event = (
    SessionOpened | SessionClosed | JobSubmitted | CancelRequested | SlotLost | CreditReturned | CopyDone | LaunchFailed
    | ResultArrived | HelperJoined | HelperLost | LaneReady | InstanceFailed | WorkerLost | LaneScrubbed
    | InstanceClosed | ConfigChanged | Drain | PluginStarted | Tick
)  # fmt: skip
