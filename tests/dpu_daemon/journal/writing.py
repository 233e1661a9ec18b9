"""Journals in memory, written from the worlds of the job book's property tests."""

from __future__ import annotations

import struct
import zlib
from random import Random

from offpath.dpu_daemon.durability.journal.log import Journal, Replayed, journal_bytes, new_identity, open_journal
from offpath.dpu_daemon.durability.journal.ring import HEADER_PAGE, RECORD_BYTES, Ring
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.events import Event

from ...sched.jobs.world import World

BOOT = "b" * 36


class Bytes:
    """A journal's storage that outlives its writer."""

    def __init__(self, nbytes: int) -> None:
        self.bytes = bytearray(nbytes)

    @classmethod
    def copy_of(cls, other: Bytes) -> Bytes:
        made = cls(0)
        made.bytes = bytearray(other.bytes)
        return made

    def view(self) -> memoryview:
        return memoryview(self.bytes)

    def clear(self) -> None:
        self.bytes[:] = bytes(len(self.bytes))

    def cool(self) -> None:
        pass

    def close(self) -> None:
        pass


class Writer:
    """A daemon's dispatch and nothing else: book, then journal."""

    def __init__(self, storage: Bytes, book: JobBook) -> None:
        self.storage = storage
        self.ring = Ring.fresh(storage, new_identity(BOOT))
        self.journal = Journal(self.ring)
        self.book = book
        self.journal.checkpoint(book, 0)

    def handle(self, event: Event, now_ns: int) -> None:
        self.journal.record(event, self.book.handle(event, now_ns), now_ns)
        if self.journal.is_due():
            self.journal.checkpoint(self.book, now_ns)


def written(seed: int, mib: int = 4, steps: int = 200) -> Writer:
    """The story of one world in a journal."""
    world = World(seed)
    world.run(steps)
    writer = Writer(Bytes(journal_bytes(mib)), world.setup.book())
    for number, (event, now_ns, _) in enumerate(world.log):
        if number not in world.implied:
            writer.handle(event, now_ns)
    return writer


def reopened(storage: Bytes) -> Replayed:
    """What the next start makes of it."""
    _, replayed, why = open_journal(storage, BOOT)
    assert replayed is not None, why
    return replayed


def record_at(number: int, ring: Ring) -> int:
    return HEADER_PAGE + number % ring.records * RECORD_BYTES


def seal(storage: Bytes, at: int) -> None:
    """Make the changed record at ``at`` a good one again."""
    body = bytes(storage.bytes[at + 4 : at + RECORD_BYTES])
    struct.pack_into("<I", storage.bytes, at, zlib.crc32(body))


def any_record(random: Random, writer: Writer) -> int:
    """The number of some record behind the first checkpoint."""
    entries = Ring.opened(Bytes.copy_of(writer.storage)).entries(writer.ring.checkpoints[-1])
    next(entries)
    return random.randrange(next(entries).number, writer.ring.next_number)
