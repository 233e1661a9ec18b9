"""The hardware boundary (docs/design.md, Hardware boundary): five ports, each a Protocol. Adapters inherit nothing. The
port of the INA fabric is `offpath.bindings.ina.port`.

The docstring of a method states whether it blocks, what it raises and whether it is idempotent. ``close`` closes
children first and is idempotent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from offpath.bindings.mig import GpuModel
from offpath.bindings.wire.header import RequestHeader

# -- immediates: u32, one per doorbell ----------------------------------------------------------------------------
IMM_SUBMIT = 0
"""Requester → daemon: the slot is filled. Daemon → requester: the slot is answered."""
IMM_CREDIT = 1
"""Requester → daemon: the answer was taken and the slot is empty. Submitting into the slot implies it."""
IMM_CANCEL = 2
"""Requester → daemon: cancel the slot's job if that is still possible."""
IMM_NEXT = 3
"""Requester → daemon: an answer of the slot's stream was taken, and the slot has room for the next; see `next_of`."""
IMM_SLOT_MASK = 0x00FF_FFFF
NEXT_SLOT_BITS = 10
"""A session has 1024 slots at most, so the other bits have room for the answer's number."""
NEXT_NUMBER_MASK = (1 << 24 - NEXT_SLOT_BITS) - 1


def immediate(kind: int, slot: int) -> int:
    """The kind in the high byte, the slot in the low 24 bits."""
    return kind << 24 | slot


def next_of(slot: int, number: int) -> int:
    """The immediate `IMM_NEXT`: the slot in the low 10 bits, and in the 14 bits above the low bits of the number of the
    answer that was taken."""
    return IMM_NEXT << 24 | (number & NEXT_NUMBER_MASK) << NEXT_SLOT_BITS | slot


# -- memory -------------------------------------------------------------------------------------------------------
class Memory(Protocol):
    """A registered range of bytes that a copy engine can read or write."""

    @property
    def nbytes(self) -> int:
        """Length in bytes."""

    def close(self) -> None:
        """Release the mapping. Idempotent."""


@dataclass(frozen=True, slots=True)
class MemoryExport:
    """A range that one process exports, for the copy engine of another process.

    ``descriptor`` is plain data that fits a control message. ``fds`` travel beside it. Loopback: the memfd. Verbs:
    none, the descriptor carries the exporter's queue pair, addresses and rkeys. DOCA: none, the descriptor is an export
    blob.
    """

    descriptor: dict[str, int | str]
    fds: tuple[int, ...] = ()


# -- copy engine --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class CopyCompletion:
    """A finished copy: the token passed to `CopyEngine.post`, and the error text or None."""

    token: int
    error: str | None


class Invitation(Protocol):
    """An endpoint that an engine reserves for one exporter. The import consumes it; otherwise close it."""

    @property
    def descriptor(self) -> dict[str, int | str]:
        """Plain data for the exporter, which fits a control message."""

    def close(self) -> None:
        """Release the endpoint unused. Idempotent, also after the import."""


class EndsInUse(Protocol):
    """The queue pairs that this daemon has or connects to, over all its sessions and lanes."""

    def take(self, address: Any) -> bool:
        """Register an address. False: it was registered before."""

    def give_back(self, address: Any) -> None:
        """Unregister an address. Idempotent."""


class CopyEngine(Protocol):
    """Copies bytes between memories without the caller's CPU."""

    bytes_copied: int
    """Total bytes copied since creation."""

    @property
    def bytes_by_cpu(self) -> int:
        """Of these, bytes that this process's own CPU copied."""

    @property
    def ends_in_use(self) -> EndsInUse | None:
        """Shared with a fabric that also has queue pairs. None: the engine has no queue pairs."""

    def is_working(self) -> bool:
        """False: the part of the engine that copies asynchronously has failed."""

    def invite(self) -> Invitation | None:
        """Reserve what an exporter needs before it exports, once for each import. None: it needs nothing. Raises:
        DeviceError."""

    def import_memory(self, export: MemoryExport, invitation: Invitation | None = None) -> Memory:
        """Map another process's range. Takes ownership of ``export.fds`` and consumes ``invitation``, which the
        exporter used; both also on failure.

        Does not block, except to resolve a network address. Raises: RegionError: unsealed, too small, not permitted, or
        no part of it can be reached.
        """

    def attach(self, memory: Memory, connection: HostConnection, landing_bytes: int) -> None:
        """``memory`` was exported by the worker behind ``connection``, as a landing buffer of this size and a result
        half. For engines whose copies the worker makes; the others ignore it. Does not block."""

    @property
    def keeps_back(self) -> bool:
        """`post` may keep back what it tells a worker, to join it with the caller's next message to this worker. Call
        `flush` in the loop's next turn, in case there is none."""

    def flush(self) -> None:
        """Send what `post` kept back. Does not block."""

    def reaches(self, memory: Memory) -> bool:
        """False: copies with this imported memory fail until it is exported and imported again."""

    def post(
        self, token: int, source: Memory, source_offset: int, target: Memory, target_offset: int, nbytes: int
    ) -> CopyCompletion | None:
        """Start a copy; at least one side is local memory. The completion is returned at once (small copies, and copies
        that cannot start) or by `poll`, never both. After the completion the copy writes nothing more, or only before
        whatever the worker of the target lane does next.

        Does not block. Not idempotent. Raises: RegionError: out of bounds or closed; nothing was copied.
        """

    def fileno(self) -> int:
        """Readable when `poll` has completions."""

    def poll(self) -> list[CopyCompletion]:
        """Take the finished copies. Does not block."""

    def close(self) -> None:
        """Wait a bounded time for the copies in flight; the rest end in an error. Idempotent."""


# -- fabric -------------------------------------------------------------------------------------------------------
class KeptMemory(Memory, Protocol):
    """Memory that survives its process through a descriptor that a service manager holds."""

    @property
    def fd(self) -> int:
        """The descriptor to pass on; the memory keeps ownership. Raises: ResourceClosed."""


class FabricSession(Protocol):
    """The daemon's end of one requester: it reads slots, writes answers, and has a doorbell in each direction."""

    slot_count: int
    payload_bytes: int
    """Payload capacity of a slot."""
    result_bytes: int
    """Result capacity of an answer."""
    header_bytes_read: int
    answer_bytes_written: int

    @property
    def slots(self) -> KeptMemory:
        """``slot_count`` x (header part + payload capacity), written one-sidedly by the requester."""

    @property
    def answers(self) -> KeptMemory:
        """``slot_count`` x (header part + result capacity), written one-sidedly by the daemon."""

    def payload_offset(self, slot: int) -> int:
        """Offset of the slot's payload in ``slots``."""

    def result_offset(self, slot: int) -> int:
        """Offset of the slot's result in ``answers``."""

    def read_header(self, slot: int) -> bytes:
        """A private copy of the slot's header: its first bytes, then the descriptors that these announce, each byte
        read once. Does not block."""

    def take_request(self, slot: int) -> tuple[RequestHeader, int]:
        """The slot's request and the checksum of its header, from one private copy as `read_header` makes it. Does not
        block. Raises: HeaderError: the header is invalid."""

    def read_answer(self, slot: int) -> bytes:
        """A private copy of the answer's header part, as last written. Does not block."""

    @property
    def fails_alone(self) -> bool:
        """The connection can fail while its peer lives. A session without jobs then also keeps its resume window."""

    @property
    def room_is_polled(self) -> bool:
        """How to learn of free space after `ring` returned False. True: `poll` receives the notification. False:
        `fileno` becomes writable."""

    def write_answer(self, slot: int, header: bytes, inline: bytes, nbytes: int) -> None:
        """Write the answer's header part, and a small result behind it. The requester sees both after `ring`.

        ``nbytes``: length of the result. The copy engine has already written what is not ``inline``. Does not block.
        """

    def ring(self, imm: int) -> bool:
        """Send an immediate to the requester (write-with-immediate). Does not block.

        Returns False when the peer's queue is full; see `room_is_polled`. Raises: PeerGone.
        """

    def has_arrived(self) -> bool:
        """True: what was written and rung has reached the requester's memory or never will, so hanging up cannot
        overtake it. While it is False, `fileno` becomes readable when it changes. Does not block."""

    def fileno(self) -> int:
        """Readable when doorbells wait or the peer is gone. -1 while the other doorbell has no owner."""

    def poll(self) -> int | None:
        """The oldest immediate, or None. Does not block. Raises: PeerGone, DoorbellError."""

    def hang_up(self) -> None:
        """Close the doorbell. Slots and answers stay, so that the requester can resume. Idempotent."""

    def close(self) -> None:
        """Unmap and hang up. Idempotent."""


class FabricListener(Protocol):
    """Accepts connections that redeem tickets."""

    @property
    def paces_connections(self) -> bool:
        """A connection takes a queue pair and pinned memory, so the rate of a tenant's connections is limited."""

    def offer(self, ticket: str, slots: int, payload_bytes: int, result_bytes: int, expires_ns: int) -> None:
        """Accept one peer that presents ``ticket`` before ``expires_ns`` (CLOCK_MONOTONIC). Does not block."""

    def withdraw(self, ticket: str) -> None:
        """Remove an offer. Idempotent."""


class RequesterSession(Protocol):
    """The requester's end: it writes slots one-sidedly, the daemon writes answers one-sidedly."""

    slot_count: int
    """Number of credits."""
    payload_bytes: int
    result_bytes: int

    def payload_view(self, slot: int) -> memoryview:
        """The slot's payload, writable."""

    def write_header(self, slot: int, header: bytes, nbytes: int) -> None:
        """Write the slot's header part, in front of ``nbytes`` of payload. The daemon sees both after `ring`."""

    def answer_header(self, slot: int) -> bytes:
        """A private copy of the answer's header part."""

    def result_view(self, slot: int, nbytes: int) -> memoryview:
        """The first ``nbytes`` of the slot's result."""

    def ring(self, imm: int) -> None:
        """Send an immediate to the daemon (write-with-immediate). Waits at most 5 s. Raises: PeerGone."""

    def fileno(self) -> int:
        """Readable when doorbells wait or the daemon is gone."""

    def poll(self) -> list[int]:
        """The waiting immediates, oldest first. Does not block. Raises: PeerGone."""

    def wait(self, timeout_s: float | None) -> list[int]:
        """As `poll`, but blocks until there is one. Empty on time-out. Raises: PeerGone."""

    def close(self) -> None:
        """Unmap and hang up. Idempotent."""


# -- host channel -------------------------------------------------------------------------------------------------
class HostConnection(Protocol):
    """One message channel between daemon and a host process. Messages are whole, ordered, and at most 4 080 bytes.

    A connection is one session. A process that reconnects gets a new one, which delivers nothing of the old one.
    """

    @property
    def peer_pid(self) -> int:
        """The peer's process id; 0 where the carrier does not provide it."""

    @property
    def peer(self) -> str:
        """The peer's identity as the carrier authenticated it: a user, or the name of a key."""

    @property
    def is_self_probe(self) -> bool:
        """The peer is this process itself: the connection comes from `HostListener.self_connect`."""

    def send(self, message: bytes, fds: tuple[int, ...] = ()) -> bool:
        """Send the whole message or nothing. False: the peer's queue is full. Does not block. Raises: PeerGone."""

    def receive(self) -> tuple[bytes, tuple[int, ...]] | None:
        """The next message with its descriptors, or None. Raises: PeerGone, HostMessageError."""

    def receive_message(self) -> bytes | None:
        """As `receive`, where no descriptors are expected. Received descriptors are dropped."""

    def fileno(self) -> int:
        """Readable when a message waits or the peer hung up. For an accepted connection: after its listener's `accept`
        has dispatched it."""

    def death_fileno(self) -> int:
        """Readable once the peer's process has ended, even if a child of it keeps the connection open. -1: unknown."""

    def has_ended(self) -> bool:
        """The peer's process has ended, even if its last messages are unread. Where that is unknown (`death_fileno`
        -1): the peer hung up or was lost and nothing is unread; False then proves nothing, but a reply does."""

    def finish(self) -> None:
        """Send no more. The peer reads to the end and then hangs up. Its remaining messages can still be received."""

    def close(self) -> None:
        """Hang up. Idempotent."""


class HostEnd(HostConnection, Protocol):
    """The host's end: a supervisor or a worker, which may block."""

    def wait_message(self) -> bytes:
        """Block until a message comes. Raises: PeerGone, HostMessageError."""


class HostListener(Protocol):
    """Accepts the connections of helpers and workers in the daemon. `accept` returns only authorised peers."""

    @property
    def address(self) -> str:
        """The address that hosts connect to."""

    def fileno(self) -> int:
        """Readable when `accept` must be called: a connection waits or, where connections share a carrier, one of them
        received something. Watched as long as a connection exists."""

    def accept(self) -> HostConnection | None:
        """The next connection, or None. Dispatches what the other connections received. Does not block."""

    def self_connect(self) -> HostConnection:
        """Connect to this process's own listener and send nothing more, without waiting. When the listener hangs up, it
        has accepted the connection. Raises: OSError; EAGAIN: the backlog is full."""

    def close(self) -> None:
        """Accept nothing more. Accepted connections stay open. Idempotent."""


class HostConnector(Protocol):
    """How a host process connects to its daemon: plain data, which survives a fork."""

    @property
    def starts_threads(self) -> bool:
        """A process has threads after it connected, and must not fork any more."""

    def connect(self, timeout_s: float = 5.0) -> HostEnd:
        """Blocks at most ``timeout_s``. Raises: PeerGone: no daemon listens, or it refuses this host."""


# -- GPU ----------------------------------------------------------------------------------------------------------
DEVICE_CPU: Final = 1
DEVICE_CUDA: Final = 2
"""DLPack's device types of host memory and of an NVIDIA GPU's."""


class Lane(Protocol):
    """A landing buffer and result half in one instance's memory, reserved by the process that launches on it."""

    @property
    def pointer(self) -> int:
        """Address of the landing buffer in this process's (device) address space."""

    @property
    def peer_pointer(self) -> int:
        """Address of landing buffer and result half for peers. Equals `pointer`, unless visibility is emulated."""

    def dmabuf(self) -> tuple[int, int] | None:
        """(descriptor, offset): a dma-buf, which the lane owns, and where landing buffer and result half start in it.
        None: the memory has no dma-buf."""

    @property
    def landing_bytes(self) -> int:
        """Capacity for payloads."""

    @property
    def result_bytes(self) -> int:
        """Capacity for results, behind the landing buffer."""

    @property
    def device(self) -> tuple[int, int]:
        """DLPack's type and number of the device whose memory `pointer` is in: (1, 0) the host, (2, n) CUDA device
        n."""

    @property
    def stream(self) -> int:
        """Handle of the CUDA stream on which the lane's kernels are launched. 0: the memory is the host's."""

    def read(self, at: int, nbytes: int) -> bytes:
        """A copy of the lane's bytes from ``at``, as kernels see them. 0 is the start of the landing buffer; the result
        half follows it. Blocks while a device copies. Raises: DeviceError: out of bounds, or the device failed."""

    def write(self, at: int, content: bytes | memoryview) -> None:
        """Write flat bytes at ``at``, as a kernel would. Blocks while a device copies. Raises: as `read`."""

    def gather(self, at: int, pointer: int, nbytes: int) -> None:
        """As `write`, from an address in the memory of `device`: what a kernel left outside the lane. The copy follows
        the lane's kernels. Raises: as `read`."""

    def fetch(self, pointer: int, nbytes: int) -> bytes:
        """A copy of ``nbytes`` at an address of `device`, made after the lane's kernels. Raises: DeviceError."""

    def checksum(self, nbytes: int) -> int:
        """CRC-32 (zlib) of the first ``nbytes`` of the landing buffer, as kernels see them. Where a device has the
        memory, they are read back for it. Raises: as `read`."""

    def synchronize(self) -> None:
        """Wait for the lane's kernels to end. Raises: DeviceGone: one of them failed, and the process must end."""

    @property
    def pins_read_only(self) -> bool:
        """`pin` takes memory that this process may only read. False: it must be mapped writable."""

    def pin(self, address: int, nbytes: int) -> None:
        """Lock a mapping of this process in memory, so that the device copies out of it directly. Not idempotent.
        Raises: DeviceError: it cannot be pinned; `load` copies out of it all the same, more slowly."""

    def unpin(self, address: int) -> None:
        """Undo `pin`, after the copies out of it have ended (`synchronize`). Raises: DeviceError."""

    def load(self, at: int, address: int, nbytes: int) -> None:
        """Start to copy ``nbytes`` at ``address`` of this process into the landing buffer at ``at``. Where a device
        copies it does not wait: what is launched on `stream` next comes after the copy, and the source must stay until
        `synchronize`. Kernels see the bytes after `acquire`. Raises: as `read`."""

    def export_results(self) -> MemoryExport:
        """Export the result half alone to an engine that maps host memory; this process copies payloads by `load`."""

    def export(self) -> MemoryExport:
        """Export landing buffer and result half, in this order and contiguous, to the DPU's copy engine."""

    def acquire(self, nbytes: int) -> None:
        """Make peer writes and `load`s to the first ``nbytes`` of the landing buffer visible, at least to kernels on
        `stream`. Call before every launch."""

    def publish(self, nbytes: int) -> None:
        """Make the first ``nbytes`` of the result half visible to peers. Call before sending such a result."""

    def scrub(self) -> int:
        """Overwrite landing buffer and result half; return the bytes verified as zero. Raises: DeviceError."""

    def close(self) -> None:
        """Release the reservation, unscrubbed. Idempotent."""


class InstanceMemory(Protocol):
    """A MIG instance, as seen by the one process that owns a lane of it."""

    def reserve(self, lane: int, lanes: int, landing_bytes: int, result_bytes: int) -> Lane:
        """Reserve lane ``lane`` of ``lanes``. Raises: DeviceError: the instance's memory is too small."""

    def close(self) -> None:
        """Close lanes, then the handle. Idempotent."""


class Gpu(Protocol):
    """A GPU in MIG mode. All calls may block (on real GPUs for seconds), so only the host side calls them."""

    @property
    def uuid(self) -> str:
        """Identity of the GPU."""

    @property
    def model(self) -> GpuModel:
        """Totals and legal geometry."""

    @property
    def is_emulated(self) -> bool:
        """No GPU computes: the host's CPU does, also behind an emulated driver. Daemon and requesters learn it."""

    @property
    def links(self) -> Mapping[str, int]:
        """NVLinks to other GPUs of this machine: UUID → number of links. Empty: there are none, or none are known."""

    def profile_bytes(self, profile: str) -> int:
        """Memory that an instance of the profile really offers (emulators are scaled). Raises: DeviceError."""

    def create_instance(self, profile: str, start: int) -> int:
        """Create an instance. Not idempotent. Raises: PlacementTaken, DeviceGone, DeviceError."""

    def open_instance(self, instance: int) -> InstanceMemory:
        """Open the instance's memory in this process. Raises: DeviceError."""

    def scrub_instance(self, instance: int) -> int:
        """Overwrite the whole instance memory; return the bytes verified as zero. No process may have it open.
        The calling process must not fork any more. Raises: DeviceError."""

    def destroy_instance(self, instance: int) -> None:
        """Free the slices. Idempotent. Raises: DeviceError: a process holds the instance, or the device failed."""

    def instances(self) -> list[tuple[int, str, int]]:
        """(instance, profile, start) of each existing instance."""

    def close(self) -> None:
        """Close the GPU. Idempotent."""


class LaneExporter(Protocol):
    """Exports a lane from its worker to the copy engine of the current daemon, and again to each later one."""

    @property
    def needs_invitation(self) -> bool:
        """An export requires an invitation of the engine; see `CopyEngine.invite`."""

    def export(self, invitation: Mapping[str, int | str] | None = None) -> MemoryExport:
        """Give the engine access until the next export or `close`. Where a device copies, this revokes the earlier
        export.

        Blocks for milliseconds: it opens a device and pins memory. Raises: DeviceError. RegionError: the invitation is
        invalid or missing.
        """

    def close(self) -> None:
        """Revoke the export. The lane keeps the memory. Idempotent. Raises: DeviceError."""
