"""The hardware boundary (docs/design.md, Hardware boundary): five ports, each a Protocol; adapters inherit nothing.

Every method says whether it blocks, what may fail, and whether it may be repeated. Handles close their children
first and may be closed twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from offpath.bindings.mig import GpuModel

# -- immediates: u32, one per doorbell ----------------------------------------------------------------------------
IMM_SUBMIT = 0
"""Requester → daemon: the slot is filled. Daemon → requester: the slot is answered."""
IMM_CREDIT = 1
"""Requester → daemon: the answer was taken; the slot is empty (submitting into it says the same)."""
IMM_CANCEL = 2
"""Requester → daemon: give the slot's job up if that is still possible."""
IMM_SLOT_MASK = 0x00FF_FFFF


def immediate(kind: int, slot: int) -> int:
    """Kind in the high byte, slot in the low 24 bits."""
    return kind << 24 | slot


# -- memory -------------------------------------------------------------------------------------------------------
class Memory(Protocol):
    """A registered range of bytes that a copy engine can read or write."""

    @property
    def nbytes(self) -> int:
        """Length in bytes."""

    def close(self) -> None:
        """Give the mapping back. Repeating it is harmless."""


@dataclass(frozen=True, slots=True)
class MemoryExport:
    """What one process hands another so that its copy engine reaches a range.

    ``descriptor`` is plain data that fits a control message; ``fds`` travel beside it (loopback: the memfd; verbs:
    none, the descriptor carries the exporter's queue pair, addresses and rkeys; DOCA: none, an export blob).
    """

    descriptor: dict[str, int | str]
    fds: tuple[int, ...] = ()


# -- copy engine --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class CopyCompletion:
    """A finished copy: the poster's token, and the error text or None."""

    token: int
    error: str | None


class Invitation(Protocol):
    """A way in that an engine holds open for one exporter. The import uses it up; else close it."""

    @property
    def descriptor(self) -> dict[str, int | str]:
        """What the exporter must know: plain data that fits a control message."""

    def close(self) -> None:
        """Nobody comes. Repeating it is harmless, also after the import."""


class EndsInUse(Protocol):
    """Which queue pairs this daemon has and connects to, over all its sessions and lanes."""

    def take(self, address: Any) -> bool:
        """Note one, by its address. False: it was noted before."""

    def give_back(self, address: Any) -> None:
        """It is in use no more. Repeating it is harmless."""


class CopyEngine(Protocol):
    """Moves bytes between memories without the poster touching them."""

    bytes_copied: int
    """What it moved since it was made."""

    @property
    def ends_in_use(self) -> EndsInUse | None:
        """For a fabric that has queue pairs too; None: the engine has none."""

    def is_working(self) -> bool:
        """False: what it copies beside its poster is copied no more."""

    def invite(self) -> Invitation | None:
        """What an exporter must have before it exports; None: nothing. One for each import. Raises: DeviceError."""

    def import_memory(self, export: MemoryExport, invitation: Invitation | None = None) -> Memory:
        """Reach another process's range; takes ownership of ``export.fds``, and uses the invitation up that the
        exporter had, both also on failure.

        Does not block, but for the resolution of a network address. Raises: RegionError: not sealed, too small, not
        ours to map, or nothing that could be reached.
        """

    def reaches(self, memory: Memory) -> bool:
        """False: copies with this imported memory fail from here on, until it is exported and imported anew."""

    def post(
        self, token: int, source: Memory, source_offset: int, target: Memory, target_offset: int, nbytes: int
    ) -> CopyCompletion | None:
        """Start a copy; at least one side is memory of ours. The completion comes back at once (small copies, and what
        cannot even be started) or from `poll`, never both. Once it has, nothing of the copy lands any more.

        Does not block. Not repeatable. Raises: RegionError: out of bounds or closed; nothing was copied.
        """

    def fileno(self) -> int:
        """Readable whenever `poll` has something."""

    def poll(self) -> list[CopyCompletion]:
        """Take the finished copies. Does not block."""

    def close(self) -> None:
        """Wait for the copies in flight, a bounded time; those still under way then end in an error. Repeating it is
        harmless."""


# -- fabric -------------------------------------------------------------------------------------------------------
class KeptMemory(Memory, Protocol):
    """Memory that can outlive its process, by a descriptor that a service manager holds."""

    @property
    def fd(self) -> int:
        """The descriptor to pass on; the memory keeps it. Raises: ResourceClosed."""


class FabricSession(Protocol):
    """The daemon's end of one requester: slots it reads, answers it writes, a doorbell each way."""

    slot_count: int
    payload_bytes: int
    """Room of a slot."""
    result_bytes: int
    """Room of an answer."""
    header_bytes_read: int
    answer_bytes_written: int

    @property
    def slots(self) -> KeptMemory:
        """``slot_count`` x (header part + payload room), written one-sidedly by the requester."""

    @property
    def answers(self) -> KeptMemory:
        """``slot_count`` x (header part + result room), written one-sidedly by the daemon."""

    def payload_offset(self, slot: int) -> int:
        """Where the slot's payload starts in ``slots``."""

    def result_offset(self, slot: int) -> int:
        """Where the slot's result starts in ``answers``."""

    def read_header(self, slot: int) -> bytes:
        """A private copy of the slot's first bytes (`wire.header.HEADER_COPY_BYTES`), taken once. Does not block."""

    def read_answer(self, slot: int) -> bytes:
        """A private copy of the answer's header part, as it was last written. Does not block."""

    @property
    def fails_alone(self) -> bool:
        """Its connection can fail while its peer lives: also a session without jobs is worth coming back to."""

    @property
    def room_is_polled(self) -> bool:
        """After a `ring` that returned False there is room again when, True: `poll` has taken in news of it; False:
        `fileno` is writable."""

    def write_answer(self, slot: int, header: bytes, inline: bytes, nbytes: int) -> None:
        """Write the answer's header part, and small results behind it; the requester sees both once it was rung.

        ``nbytes``: of the result; what is not ``inline`` the copy engine has put there. Does not block.
        """

    def ring(self, imm: int) -> bool:
        """Write-with-immediate towards the requester. Does not block.

        Returns False when the peer takes nothing now; see `room_is_polled`. Raises: PeerGone.
        """

    def has_arrived(self) -> bool:
        """What was written and rung has reached the requester's memory, or never will: hanging up cannot overtake it
        any more. While it is False, `fileno` becomes readable for it. Does not block."""

    def fileno(self) -> int:
        """Readable when doorbells wait, or the peer is gone; -1 while nobody holds the other doorbell."""

    def poll(self) -> int | None:
        """The oldest immediate, or None when there is none. Does not block. Raises: PeerGone, DoorbellError."""

    def hang_up(self) -> None:
        """Give the doorbell up; slots and answers stay, for the requester that comes back. Repeating it is harmless."""

    def close(self) -> None:
        """Unmap and hang up. Repeating it is harmless."""


class FabricListener(Protocol):
    """Where tickets are redeemed."""

    @property
    def paces_connections(self) -> bool:
        """A connection takes a queue pair and pinned memory: a tenant's connections are paced."""

    def offer(self, ticket: str, slots: int, payload_bytes: int, result_bytes: int, expires_ns: int) -> None:
        """Let one peer in that shows ``ticket`` before ``expires_ns`` (CLOCK_MONOTONIC). Does not block."""

    def withdraw(self, ticket: str) -> None:
        """Forget an offer. Repeating it is harmless."""


class RequesterSession(Protocol):
    """The requester's end: it writes slots one-sidedly, the daemon writes answers one-sidedly."""

    slot_count: int
    """Credits."""
    payload_bytes: int
    result_bytes: int

    def payload_view(self, slot: int) -> memoryview:
        """Writable bytes behind the slot's header part."""

    def write_header(self, slot: int, header: bytes, nbytes: int) -> None:
        """Write the slot's header part, in front of ``nbytes`` of payload; the daemon sees both once it was rung."""

    def answer_header(self, slot: int) -> bytes:
        """A private copy of the answer's header part."""

    def result_view(self, slot: int, nbytes: int) -> memoryview:
        """The first ``nbytes`` of the slot's result."""

    def ring(self, imm: int) -> None:
        """Write-with-immediate towards the daemon; waits at most 5 s. Raises: PeerGone."""

    def fileno(self) -> int:
        """Readable when doorbells wait, or the daemon is gone."""

    def poll(self) -> list[int]:
        """Immediates waiting, oldest first. Does not block. Raises: PeerGone."""

    def wait(self, timeout_s: float | None) -> list[int]:
        """As `poll`, but blocks until one is there; empty on time-out. Raises: PeerGone."""

    def close(self) -> None:
        """Unmap and hang up. Repeating it is harmless."""


# -- host channel -------------------------------------------------------------------------------------------------
class HostConnection(Protocol):
    """One message channel between daemon and a host process; messages are whole, ordered, at most 4 080 bytes.

    A connection is one session: who connects again has a new one, and nothing of the old one comes through it.
    """

    @property
    def peer_pid(self) -> int:
        """The process at the other end, or 0 where the carrier cannot tell."""

    @property
    def peer(self) -> str:
        """Who is at the other end, as the carrier vouches for it: a user, or the name of a key."""

    @property
    def is_self_probe(self) -> bool:
        """At the other end is this process itself, which knocked."""

    def send(self, message: bytes, fds: tuple[int, ...] = ()) -> bool:
        """Send whole or not at all; False when the peer's queue is full. Does not block. Raises: PeerGone."""

    def receive(self) -> tuple[bytes, tuple[int, ...]] | None:
        """Next message with its descriptors, or None when there is none now. Raises: PeerGone, HostMessageError."""

    def receive_message(self) -> bytes | None:
        """As `receive`, for where no descriptors are expected; those that come are dropped."""

    def fileno(self) -> int:
        """Readable when a message waits or the peer hung up; of a connection that was accepted, once its listener's
        `accept` has handed that on."""

    def death_fileno(self) -> int:
        """Readable once the peer's process has ended, even if a child of it holds the connection open; -1: unknown."""

    def has_ended(self) -> bool:
        """The peer's process has ended, also while what it said last waits to be read. Where that is unknown
        (`death_fileno` -1): it hung up or was lost, and nothing waits; False then proves nothing, its answer does."""

    def finish(self) -> None:
        """Say no more: the peer reads to the end and then hangs up. What it still says can be read."""

    def close(self) -> None:
        """Hang up. Repeating it is harmless."""


class HostEnd(HostConnection, Protocol):
    """The host's end: a supervisor or a worker, which may wait."""

    def wait_message(self) -> bytes:
        """Block until a message comes. Raises: PeerGone, HostMessageError."""


class HostListener(Protocol):
    """The daemon's: where helpers and workers come in. Only those it may let in are ever accepted."""

    @property
    def address(self) -> str:
        """Where they find it."""

    def fileno(self) -> int:
        """Readable when `accept` is to be called: for a connection that waits, and, where connections share a carrier,
        for what came on any of them. Watched for as long as one lives."""

    def accept(self) -> HostConnection | None:
        """The next connection, or None when there is none now; hands on what came for the others. Does not block."""

    def self_connect(self) -> HostConnection:
        """Connect to ourselves and say no more, without waiting: whoever then hangs up on it has accepted it. Raises:
        OSError, of EAGAIN: too many wait."""

    def close(self) -> None:
        """Let nobody in any more; connections that were accepted stay. Repeating it is harmless."""


class HostConnector(Protocol):
    """How a host process reaches its daemon: plain data, which a fork leaves as it is."""

    @property
    def starts_threads(self) -> bool:
        """A process has threads once it connected: it must not fork any more."""

    def connect(self, timeout_s: float = 5.0) -> HostEnd:
        """Blocks at most ``timeout_s``. Raises: PeerGone: no daemon there, or it does not let us in."""


# -- GPU ----------------------------------------------------------------------------------------------------------
class Lane(Protocol):
    """A landing buffer and result half in one instance's memory, reserved by the process that launches on it."""

    @property
    def pointer(self) -> int:
        """Address of the landing buffer in this process's (device) address space."""

    @property
    def peer_pointer(self) -> int:
        """Address of landing buffer and result half as peers reach them; `pointer`, unless visibility is emulated."""

    def dmabuf(self) -> tuple[int, int] | None:
        """A dma-buf's descriptor, which stays the lane's, and where landing buffer and result half start in it; None:
        the memory has none."""

    @property
    def landing_bytes(self) -> int:
        """Room for payloads."""

    @property
    def result_bytes(self) -> int:
        """Room for results, behind the landing buffer."""

    def landing(self) -> memoryview:
        """The landing buffer as kernels see it."""

    def result(self) -> memoryview:
        """The result half."""

    def export(self) -> MemoryExport:
        """Let the DPU's copy engine reach landing buffer and result half (in this order, back to back)."""

    def acquire(self, nbytes: int) -> None:
        """Make peer writes to the first ``nbytes`` of the landing buffer visible; before every launch."""

    def publish(self, nbytes: int) -> None:
        """Make the first ``nbytes`` of the result half visible to peers; before every result that lies there."""

    def scrub(self) -> int:
        """Overwrite landing buffer and result half, read back, return the bytes proven zero. Raises: DeviceError."""

    def close(self) -> None:
        """Give the reservation back, unscrubbed. Repeating it is harmless."""


class InstanceMemory(Protocol):
    """A MIG instance as the one process that owns a lane of it sees it."""

    def reserve(self, lane: int, lanes: int, landing_bytes: int, result_bytes: int) -> Lane:
        """Reserve lane ``lane`` of ``lanes``. Raises: DeviceError: it does not fit the instance's memory."""

    def close(self) -> None:
        """Close lanes, then the handle. Repeating it is harmless."""


class Gpu(Protocol):
    """A GPU in MIG mode. All calls may block (real ones take up to seconds): call them from the host side only."""

    @property
    def uuid(self) -> str:
        """Identity of the GPU."""

    @property
    def model(self) -> GpuModel:
        """Totals and legal geometry."""

    def profile_bytes(self, profile: str) -> int:
        """Memory an instance of the profile really offers here (emulators are scaled). Raises: DeviceError."""

    def create_instance(self, profile: str, start: int) -> int:
        """Cut an instance; not repeatable. Raises: PlacementTaken, DeviceGone, DeviceError."""

    def open_instance(self, instance: int) -> InstanceMemory:
        """Reach the instance's memory from this process. Raises: DeviceError."""

    def scrub_instance(self, instance: int) -> int:
        """Overwrite the whole instance memory and return the bytes proven zero; no process may have it open."""

    def destroy_instance(self, instance: int) -> None:
        """Give the slices back; repeating it is harmless."""

    def instances(self) -> list[tuple[int, str, int]]:
        """(instance, profile, start) of each that exists."""

    def close(self) -> None:
        """Repeating it is harmless."""


class LaneExporter(Protocol):
    """The worker's half of the daemon's copies: lets the copy engine of one daemon after the other reach a lane."""

    @property
    def needs_invitation(self) -> bool:
        """It exports against an invitation of the engine's; see `CopyEngine.invite`."""

    def export(self, invitation: Mapping[str, int | str] | None = None) -> MemoryExport:
        """What lets the engine in, until the next export or `close`. Where a device copies, an earlier export lets
        nobody in any more.

        Blocks: opening a device and pinning memory take milliseconds. Raises: DeviceError. RegionError: the invitation
        makes no sense, or is missing.
        """

    def close(self) -> None:
        """Withdraw what was exported. The memory is the lane's. Repeating it is harmless. Raises: DeviceError."""


# -- INA fabric -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TreeAttached:
    """All switches up to the root know this rank."""


@dataclass(frozen=True, slots=True)
class TreeRefused:
    """The operation runs plain, at all ranks alike; the fabric has nothing of it any more."""

    index: int


@dataclass(frozen=True, slots=True)
class TreeResult:
    """The operation's target holds the sum, whole."""

    index: int


@dataclass(frozen=True, slots=True)
class TreeLost:
    """Nothing comes through this session any more: it was refused, aborted, hung up on, or made no progress."""

    reason: str


TreeEvent = TreeAttached | TreeRefused | TreeResult | TreeLost


class TreeSession(Protocol):
    """A rank's place in a tree, for one epoch. Driven by one thread, by calling `poll`."""

    def start(
        self, index: int, dtype: str, source: memoryview, target: memoryview, *, is_last: bool = False
    ) -> None:  # fmt: skip
        """Begin an all-reduce (SUM): ``source`` is read and ``target`` written until its event comes, which is one of
        `TreeResult` and `TreeRefused`; or the session is lost, and ``target`` is then worth nothing.

        ``dtype``: fp32, fp16, bf16 or int32; both are flat bytes of one length, a whole number of elements. One at a
        time, ``index`` rising. ``is_last``: computation follows, and others may count on the place that it leaves. Does
        not block. Raises: ValueError: not so; ResourceClosed: the session is over.
        """

    def poll(self, timeout_s: float) -> TreeEvent | None:
        """Move what can be moved, and take the next event; None: none came within ``timeout_s``. Blocks no longer."""

    def fileno(self) -> int:
        """Readable when the switch said something; -1 once the session is over. Where an operation is under way,
        `poll` must be called all the same: the link's rate lets chunks go by time."""

    def close(self) -> None:
        """Leave the tree; an operation under way is lost for all. Repeating it is harmless."""


class InaFabric(Protocol):
    """The way to the switches that aggregate, from one rank."""

    def attach(
        self, address: str, *, job: str, incarnation: int, stamp: int, rank: int, ranks: int, token: str
    ) -> TreeSession:
        """Begin to join; `TreeAttached` or `TreeLost` is the session's first event. Does not block.

        Raises: FabricAddressError: no address.
        """
