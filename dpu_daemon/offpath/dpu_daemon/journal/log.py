"""The journal as the daemon writes it and as replay reads it.

Every event is written with the time it is handled at, before the book sees it; what the book decides is written
before any of it is carried out. A checkpoint, the whole book, comes every 64th of the ring, so that a start replays
little and the ring may overwrite the rest; with a large book more rarely, up to every 16th, so that checkpoints stay a
small part of what is written.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import orjson

from offpath.bindings import faults
from offpath.dpu_daemon.journal import codec
from offpath.dpu_daemon.journal.ring import (
    HEADER_PAGE,
    RECORD_BYTES,
    Entry,
    Identity,
    JournalCorrupt,
    JournalForeign,
    Ring,
    Storage,
)
from offpath.sched.errors import PlainError
from offpath.sched.gpu.greedy import GreedyFirstFit
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.snapshot import restore, schema, snapshot

POLICIES: Final = {GreedyFirstFit.name: GreedyFirstFit}
_PART: Final = 64
_LARGEST_PART: Final = 16
_TIMES: Final = 8
"""So many times the last checkpoint's own records are written before the next."""
_Decided = tuple[int, bytes, commands.Command]


class ReplayDiverged(JournalCorrupt):
    """The book decides something else than the journal says it did."""


def our_schema() -> str:
    """What the journals of this build mean; another build's are not gone on with."""
    kinds = [kind.__name__ for kind in (*codec.EVENTS, *codec.COMMANDS)]
    return hashlib.sha256(f"{schema()} {kinds}".encode()).hexdigest()[:16]


def journal_bytes(mib: int) -> int:
    """Size of the file for a ring of ``mib`` MiB."""
    return HEADER_PAGE + (mib << 20) // RECORD_BYTES * RECORD_BYTES


class Journal:
    """Writes. ``ring`` is positioned at its end."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._every = ring.records // _PART
        self.entries = 0
        self.checkpoints = 0

    @property
    def identity(self) -> Identity:
        """Lineage and secret."""
        return self._ring.identity

    @property
    def restarts(self) -> int:
        """Processes of this lineage before this one."""
        return self._ring.restarts

    @property
    def records(self) -> int:
        """Written since the lineage began."""
        return self._ring.next_number - 1

    @property
    def fill(self) -> float:
        """Records since the last checkpoint over those that the ring holds: what a start would have to replay."""
        return self._ring.since_checkpoint() / self._ring.records

    def event(self, event: events.Event, now_ns: int) -> None:
        """Before the book sees it. Raises: OSError: it could not be written."""
        kind, data = codec.pack(event)
        self._ring.append(kind, now_ns, data)
        self.entries += 1
        if faults.armed:
            faults.hit("daemon.event")

    def decided(self, decided: Iterable[commands.Command], now_ns: int) -> None:
        """Before any of it is carried out. Raises: OSError: it could not be written."""
        append, pack = self._ring.append, codec.pack
        for command in decided:
            kind, data = pack(command)
            append(kind, now_ns, data)
        if faults.armed:
            faults.hit("daemon.decided")

    def is_due(self) -> bool:
        """It is time for a checkpoint."""
        return self._ring.since_checkpoint() >= self._every

    def checkpoint(self, book: JobBook, now_ns: int) -> None:
        """Between events. Raises: JournalError: the book has outgrown the journal."""
        ring = self._ring
        ring.checkpoint(codec.KIND_CHECKPOINT, now_ns, orjson.dumps(snapshot(book)))
        self._every = min(ring.records // _LARGEST_PART, max(ring.records // _PART, _TIMES * ring.since_checkpoint()))
        self.checkpoints += 1

    def retire(self) -> None:
        """Nothing will be gone on with: the next start has a lineage of its own."""
        self._ring.retire()

    def close(self) -> None:
        """Unmap."""
        self._ring.close()


@dataclass(slots=True)
class Replayed:
    """What a replay did. ``unwritten`` are the decisions of the last event that its process had no time to write."""

    book: JobBook
    event_count: int = 0
    command_count: int = 0
    checkpoint_count: int = 0
    time_ns: int = 0
    unwritten: list[commands.Command] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)


def replay(entries: Iterator[Entry], on_entry: Callable[[Entry], None] | None = None) -> Replayed:
    """Handle every event again, from the checkpoint that comes first, and hold what the book says against what was
    written, byte by byte; each later checkpoint must be the book.

    Raises: ReplayDiverged: another decision. JournalCorrupt: an entry that makes no sense.
    """
    done: Replayed | None = None
    expected: deque[_Decided] = deque()
    for entry in entries:
        if on_entry is not None:
            on_entry(entry)
        if done is None:
            done = Replayed(_restored(entry))
            continue
        if entry.kind < codec.FIRST_COMMAND and expected:
            raise ReplayDiverged(f"record {entry.number}: before it {expected[0][2]} should have been decided")
        if entry.kind == codec.KIND_CHECKPOINT:
            _same_book(done.book, entry)
            done.checkpoint_count += 1
        elif codec.is_event(entry.kind):
            event = codec.unpack(entry)
            done.kinds[type(event).__name__] += 1
            expected.extend(_handled(done, event, entry))
            done.event_count += 1
        else:
            if entry.time_ns != done.time_ns:
                raise ReplayDiverged(f"record {entry.number} was decided at another time than its event's")
            _same_command(entry, expected.popleft() if expected else None)
            done.command_count += 1
        done.time_ns = max(done.time_ns, entry.time_ns)
    if done is None:
        raise JournalCorrupt("the checkpoint that the journal names is not there")
    done.unwritten = [command for _, _, command in expected]
    return done


def _restored(entry: Entry) -> JobBook:
    if entry.kind != codec.KIND_CHECKPOINT:
        raise JournalCorrupt(f"record {entry.number} is no checkpoint")
    try:
        return restore(orjson.loads(entry.data), POLICIES)
    except (orjson.JSONDecodeError, PlainError) as fault:
        raise JournalCorrupt(f"record {entry.number}: {fault}") from None


def _handled(done: Replayed, event: events.Event | commands.Command, entry: Entry) -> list[_Decided]:
    if entry.time_ns < done.time_ns:
        raise JournalCorrupt(f"record {entry.number} is earlier than the one before it")
    try:
        decided = done.book.handle(event, entry.time_ns)  # type: ignore[arg-type]
        return [(*codec.pack(command), command) for command in decided]
    except Exception as fault:  # the book trusts its shell; a journal may be anybody's
        raise ReplayDiverged(f"record {entry.number}: {type(event).__name__}: {fault!r}") from fault


def _same_command(entry: Entry, expected: _Decided | None) -> None:
    if expected is None or (entry.kind, entry.data) != expected[:2]:
        written = codec.unpack(entry)
        raise ReplayDiverged(
            f"record {entry.number} says {written}; the book now decides {expected[2] if expected else 'nothing'}"
        )


def _same_book(book: JobBook, entry: Entry) -> None:
    if orjson.dumps(snapshot(book)) != entry.data:
        raise ReplayDiverged(f"record {entry.number}: the checkpoint is another book than replay made")


def new_identity(boot: str) -> Identity:
    """A lineage that never was."""
    return Identity(boot, secrets.token_hex(8), secrets.token_bytes(32), our_schema())


def open_journal(storage: Storage, boot: str) -> tuple[Ring, Replayed | None, str]:
    """The ring to write on, and the book it holds; or a fresh ring, None, and why.

    Raises: JournalCorrupt, ReplayDiverged: it is ours, and it is damaged: an operator must decide.
    """
    try:
        ring = Ring.opened(storage)
        if ring.identity.boot != boot:
            raise JournalForeign("it is of an earlier boot")
        if ring.identity.schema != our_schema():
            raise JournalForeign("another build wrote it")
        if not ring.checkpoints:
            raise JournalForeign("it has no checkpoint")
    except JournalForeign as fault:
        return Ring.fresh(storage, new_identity(boot)), None, str(fault)
    replayed = replay(ring.entries(ring.checkpoints[-1]))
    ring.restarts += 1
    return ring, replayed, ""
