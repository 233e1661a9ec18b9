"""Messages between `offpath-migd` and its clients: one JSON object in each packet of a SEQPACKET Unix socket.

A client sends one request and waits for its reply. Requests have at most `MAX_REQUEST_BYTES`, replies at most
`MAX_REPLY_BYTES`. After `Watch` the connection carries Xid events only. Every field is bounded; unknown fields and
values of another type are refused.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter

MAX_REQUEST_BYTES: Final = 4096
MAX_REPLY_BYTES: Final = 32768
MAX_GPUS: Final = 32
MAX_PROFILES: Final = 32
MAX_INSTANCES: Final = 32
MAX_HANDLES: Final = 64
MAX_PIDS: Final = 16
_MOST_DETAIL: Final = 1000

CODES: Final[dict[str, tuple[str, str]]] = {
    "denied": ("this uid may not use migd, or the instance belongs to another uid", "add the uid to migd's `uids`"),
    "message": ("the request is not a message of this protocol", "use the same release of migd and client"),
    "too_many": ("migd has as many connections or instances as it serves", "close connections; destroy instances"),
    "unknown_gpu": ("migd does not manage this GPU", "add it to migd's `gpus`; `offpath mig show` lists them"),
    "unknown_profile": ("the GPU has no such MIG profile", "`offpath mig show` lists the profiles"),
    "unknown_handle": ("no instance has this handle", "the instance was destroyed, or the handle is forged"),
    "handle_taken": ("the handle names another instance", "choose a new handle for each instance"),
    "handle_held": ("another connection of a living process holds the instance", "stop the other helper"),
    "placement_taken": ("an illegal start, or slices in use", "choose another place"),
    "in_use": ("the instance is in use, and is quarantined", "end the processes named; monitoring agents hold too"),
    "mig_off": ("MIG is off on a GPU that migd is to cut", "`nvidia-smi -i GPU -mig 1`, or configure mode `whole`"),
    "mig_on": ("MIG is on, on a GPU configured as `whole`", "`nvidia-smi -i GPU -mig 0`, or configure mode `mig`"),
    "mig_unsupported": ("the GPU has no MIG", "configure mode `whole`"),
    "mode_pending": ("a change of the MIG mode waits for a reset", "reset the GPU: `nvidia-smi -i GPU -r`"),
    "not_cut": ("migd does not change the instances of a GPU in this mode", "configure mode `mig`"),
    "foreign": (
        "migd did not create this instance",
        "operators may: `offpath mig apply --replace-foreign`",
    ),
    "no_right": ("migd lacks the right to call NVML", "it needs /dev/nvidia-caps/nvidia-cap1, see docs/gpu.md"),
    "driver_missing": ("no NVIDIA kernel driver is loaded", "load it; `nvidia-smi` must list the GPUs"),
    "driver_mismatch": ("driver and libraries are of different releases", "reload the kernel modules, or restart"),
    "library_missing": (
        "nvidia-ml-py or libnvidia-ml.so.1 is missing",
        'pip install "offpath[gpu]"; install the driver',
    ),
    "gpu_gone": ("the GPU was lost, or must be reset", "see the kernel's log; an operator resets the GPU"),
    "node": ("a capability node cannot be made", "see the detail; migd needs CAP_MKNOD and CAP_CHOWN"),
    "ledger": ("the ledger cannot be written", "the runtime directory must be writable and not full"),
    "device": ("another NVML call failed", "see the detail"),
}
"""Every ``code`` of `Failed`: its cause, and what to do."""

Handle = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
"""Chosen at random by the client, so that a request can be repeated after a lost reply."""
Uuid = Annotated[str, StringConstraints(min_length=1, max_length=96, pattern=r"^[A-Za-z0-9/_-]+$")]
ProfileName = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
Text = Annotated[str, StringConstraints(max_length=128)]
Start = Annotated[int, Field(ge=0, le=63)]
Slices = Annotated[int, Field(ge=0, le=64)]
Small = Annotated[int, Field(ge=0, le=0xFFFF)]
Uid = Annotated[int, Field(ge=0, le=0xFFFF_FFFE)]
Mebibytes = Annotated[int, Field(ge=0, le=1 << 32)]
Pid = Annotated[int, Field(ge=0, le=1 << 31)]
Mode = Literal["mig", "static", "whole"]


class Message(BaseModel):
    """Strict, frozen, and without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


class List(Message):
    """The GPUs that migd manages. Reply: `Gpus`."""

    kind: Literal["list"] = "list"


class Describe(Message):
    """One GPU's profiles and instances. Reply: `Gpu`."""

    kind: Literal["describe"] = "describe"
    gpu: Uuid


class Create(Message):
    """Cut an instance and hold it. Repeating it with the same handle is harmless. Reply: `Created`."""

    kind: Literal["create"] = "create"
    handle: Handle
    gpu: Uuid
    profile: ProfileName
    start: Start


class Destroy(Message):
    """Give an instance back. After a lost reply the handle is unknown: then it was destroyed. Reply: `Done`."""

    kind: Literal["destroy"] = "destroy"
    handle: Handle


class Nodes(Message):
    """Make the device nodes of an instance, readable by ``uid`` alone. Reply: `NodesMade`."""

    kind: Literal["nodes"] = "nodes"
    handle: Handle
    uid: Uid


class Hold(Message):
    """Hold instances again after a reconnection; unknown handles are left out of the reply. Reply: `Held`."""

    kind: Literal["hold"] = "hold"
    handles: Annotated[list[Handle], Field(max_length=MAX_HANDLES)]


class Lay(Message):
    """Cut an instance as part of a layout, which nobody holds and which stays. Operators only. Reply: `Created`."""

    kind: Literal["lay"] = "lay"
    handle: Handle
    gpu: Uuid
    profile: ProfileName
    start: Start


class Remove(Message):
    """Destroy an instance that is no lease: of a layout, or, with ``foreign``, cut by somebody else. Operators only.
    Reply: `Done`."""

    kind: Literal["remove"] = "remove"
    gpu: Uuid
    gpu_instance: Small
    profile: ProfileName
    start: Start
    foreign: bool = False


class Watch(Message):
    """Receive `Xid` messages from now on. Reply: `Done`."""

    kind: Literal["watch"] = "watch"


Request = Annotated[
    List | Describe | Create | Destroy | Nodes | Hold | Lay | Remove | Watch, Field(discriminator="kind")
]
REQUESTS: Final[TypeAdapter[Request]] = TypeAdapter(Request)


class GpuLine(Message):
    """One GPU. ``problem``: a code of `CODES` if it cannot be used now, else empty."""

    index: Small
    uuid: Uuid
    name: Text
    pci: Text
    pci_device_id: Annotated[int, Field(ge=0, le=0xFFFF_FFFF)]
    minor: Small
    mode: Mode
    mig: Literal["unsupported", "off", "on", "pending"]
    memory_mib: Mebibytes
    problem: Annotated[str, Field(max_length=32)] = ""


class ProfileLine(Message):
    """A MIG profile as NVML reports it."""

    name: ProfileName
    number: Small
    profile_id: Small
    compute_slices: Slices
    memory_slices: Slices
    multiprocessors: Small
    memory_mib: Mebibytes
    starts: Annotated[list[Start], Field(max_length=64)]
    max_instances: Small


class InstanceLine(Message):
    """An instance that exists. ``handle``: empty unless the caller may destroy it.

    ``owner``: ``lease`` (a client's), ``layout`` (an operator's), ``foreign`` (somebody else's). ``lease_uid``: whose
    lease; -1: none. ``unheld_ms``: how long no connection has held the lease; -1: one does, or it is no lease.
    """

    gpu_instance: Annotated[int, Field(ge=-1, le=0xFFFF)]
    compute_instances: Annotated[list[Small], Field(max_length=16)]
    profile: ProfileName
    start: Start
    size: Slices
    uuid: Annotated[str, Field(max_length=96)]
    owner: Literal["lease", "layout", "foreign"]
    handle: Annotated[str, Field(max_length=32)] = ""
    lease_uid: Annotated[int, Field(ge=-1, le=0xFFFF_FFFE)] = -1
    unheld_ms: Annotated[int, Field(ge=-1, le=1 << 62)] = -1
    quarantined: bool = False
    pids: Annotated[list[Pid], Field(max_length=MAX_PIDS)] = []


class LinkLine(Message):
    """Another GPU, and how many NVLinks lead to it."""

    uuid: Uuid
    links: Annotated[int, Field(ge=1, le=64)]


class Gpus(Message):
    """Reply to `List`."""

    kind: Literal["gpus"] = "gpus"
    driver: Text
    gpus: Annotated[list[GpuLine], Field(max_length=MAX_GPUS)]


class Gpu(Message):
    """Reply to `Describe`. Profiles are those that can be created; in mode ``static`` those that exist. ``links``: the
    GPUs that NVLink reaches, in mode ``whole`` only: MIG instances reach no other GPU."""

    kind: Literal["gpu"] = "gpu"
    gpu: GpuLine
    profiles: Annotated[list[ProfileLine], Field(max_length=MAX_PROFILES)]
    instances: Annotated[list[InstanceLine], Field(max_length=MAX_INSTANCES)]
    links: Annotated[list[LinkLine], Field(max_length=MAX_GPUS - 1)] = []


class Created(Message):
    """Reply to `Create` and `Lay`. ``uuid``: what a worker sets CUDA_VISIBLE_DEVICES to; it repeats when the same place
    is cut again. ``generation`` never repeats while the machine runs. -1: a whole GPU has no such id."""

    kind: Literal["created"] = "created"
    handle: Handle
    uuid: Uuid
    generation: Annotated[int, Field(ge=1, le=1 << 62)]
    gpu_instance: Annotated[int, Field(ge=-1, le=0xFFFF)]
    compute_instance: Annotated[int, Field(ge=-1, le=0xFFFF)]
    memory_mib: Mebibytes


class NodesMade(Message):
    """Reply to `Nodes`: paths of the device nodes, empty for a whole GPU."""

    kind: Literal["nodes_made"] = "nodes_made"
    paths: Annotated[list[Annotated[str, Field(max_length=256)]], Field(max_length=2)]


class Held(Message):
    """Reply to `Hold`: the handles that this connection now holds."""

    kind: Literal["held"] = "held"
    handles: Annotated[list[Handle], Field(max_length=MAX_HANDLES)]


class Done(Message):
    """Reply to requests that return nothing."""

    kind: Literal["done"] = "done"


class Xid(Message):
    """A critical error of a GPU, after `Watch`. ``handle``: the caller's instance that it names, else empty."""

    kind: Literal["xid"] = "xid"
    gpu: Uuid
    xid: Annotated[int, Field(ge=0, le=1 << 32)]
    gpu_instance: Annotated[int, Field(ge=-1, le=0xFFFF_FFFE)]
    compute_instance: Annotated[int, Field(ge=-1, le=0xFFFF_FFFE)]
    handle: Annotated[str, Field(max_length=32)] = ""


class Failed(Message):
    """The request was not carried out. ``code``: one of `CODES`."""

    kind: Literal["failed"] = "failed"
    code: Annotated[str, Field(max_length=32)]
    detail: Annotated[str, Field(max_length=_MOST_DETAIL)]
    pids: Annotated[list[Pid], Field(max_length=MAX_PIDS)] = []


Reply = Annotated[Gpus | Gpu | Created | NodesMade | Held | Done | Xid | Failed, Field(discriminator="kind")]
REPLIES: Final[TypeAdapter[Reply]] = TypeAdapter(Reply)


def failed(code: str, detail: str, pids: tuple[int, ...] = ()) -> Failed:
    """A refusal within its bounds. ``code`` must be one of `CODES`."""
    return Failed(code=code if code in CODES else "device", detail=detail[:_MOST_DETAIL], pids=list(pids[:MAX_PIDS]))
