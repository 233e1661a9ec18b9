"""A ring of 160-byte records in a preallocated, mapped file: what is written survives the process, not the power.

Entries are one record or several; each entry of a request's usual way fits one. Each record carries a CRC-32 and its
own number, which is also its place: number modulo the ring's length. A kill in the middle of a write leaves a torn
tail, which is truncated at the next start; a bad record with good ones behind it is corruption, which is refused with
its place.

File: a header page (two alternating copies of `_HEADER`, so that a torn one leaves the other), then the records.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from offpath.bindings import faults
from offpath.bindings.errors import OffpathError

RECORD_BYTES: Final = 160
HEADER_PAGE: Final = 4096
FIRST_BYTES: Final = 136
MORE_BYTES: Final = 144
MAX_ENTRY_BYTES: Final = (1 << 24) - 1
MIN_RECORDS: Final = 1024
_MAGIC: Final = b"OFJL0002"
_COPY_AT: Final = (0, 2048)
_CHECKPOINTS: Final = 64
_MAX_BYTES: Final = HEADER_PAGE + (4096 << 20)
# magic, boot id, lineage, secret, schema, records, sequence of this copy, restarts, checkpoints
_HEADER = struct.Struct("<8s36s16s32s16sQQQQ64Q")
# behind the CRC: kind and, times 256, the bytes of the entry; number, time ns, data
_FIRST = struct.Struct(f"<IQQ{FIRST_BYTES}s")
# behind the CRC: kind MORE, number, data
_MORE = struct.Struct(f"<IQ{MORE_BYTES}s")
_NUMBER = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_SEALED = struct.Struct(f"<I{RECORD_BYTES - 4}s")
_KIND_MORE: Final = 0xFF
assert _FIRST.size + 4 == RECORD_BYTES and _MORE.size + 4 == RECORD_BYTES and _HEADER.size + 4 <= _COPY_AT[1]


class JournalError(OffpathError):
    """The journal cannot be used."""


class JournalCorrupt(JournalError):
    """A record in the middle is bad although later ones are good; the message names its place."""


class JournalForeign(JournalError):
    """Another boot, another build, or no journal at all: nothing in it can be gone on with."""


class Storage(Protocol):
    """The bytes of a journal: a mapped file, or a bytearray in a simulation."""

    def view(self) -> memoryview:
        """All of it, writable."""

    def clear(self) -> None:
        """All zeros. Raises: JournalError: there is no room."""

    def cool(self) -> None:
        """Nothing of it will be touched soon: give back what memory that allows."""

    def close(self) -> None:
        """Unmap. Repeating it is harmless."""


class MappedFile:
    """A file of ``nbytes``, all of it allocated (a hole would kill us by SIGBUS when the disk is full), locked to one
    process."""

    def __init__(self, path: str, nbytes: int) -> None:
        """Raises: JournalError: no room, no right, or another daemon has it."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as fault:
            raise JournalError(f"{path}: {fault.strerror}") from None
        try:
            found = os.fstat(fd)
            if found.st_uid != os.getuid() or found.st_mode & 0o077:
                raise JournalError(f"{path} must belong to the daemon's user alone (mode 600)")
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if found.st_size != nbytes:
                os.ftruncate(fd, 0)  # another size was configured: what is in it cannot be read by number any more
            os.posix_fallocate(fd, 0, nbytes)
            self._map: mmap.mmap | None = mmap.mmap(fd, nbytes)
            self._nbytes = nbytes
        except BlockingIOError:
            os.close(fd)
            raise JournalError(f"{path}: another daemon writes it") from None
        except OSError as fault:
            os.close(fd)
            raise JournalError(f"{path}: {nbytes} bytes: {fault.strerror}") from None
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        self._view = memoryview(self._map)

    def view(self) -> memoryview:
        """See `Storage.view`."""
        return self._view

    def clear(self) -> None:
        """See `Storage.clear`: by giving the pages back and taking fresh ones, which touches none."""
        try:
            os.ftruncate(self._fd, 0)
            os.posix_fallocate(self._fd, 0, self._nbytes)
        except OSError as fault:
            raise JournalError(f"the journal: {self._nbytes} bytes: {fault.strerror}") from None

    def cool(self) -> None:
        """See `Storage.cool`: the pages stay in the page cache, not in our resident set."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """See `Storage.close`."""
        if self._map is not None:
            mapped, self._map = self._map, None
            self._view.release()
            mapped.close()
            os.close(self._fd)


class ReadOnlyFile:
    """A journal, or a copy of one, to look at, also while a daemon writes it: what was written by the time it is made
    is there, what came later is not. Writes to its view stay private."""

    def __init__(self, path: str) -> None:
        """Raises: JournalError: not there, or not of a journal's size."""
        try:
            with open(path, "rb") as file:
                nbytes = os.fstat(file.fileno()).st_size
                least = HEADER_PAGE + MIN_RECORDS * RECORD_BYTES
                if not least <= nbytes <= _MAX_BYTES or (nbytes - HEADER_PAGE) % RECORD_BYTES:
                    raise JournalForeign(f"{path} is no journal: {nbytes} bytes")
                before = file.read(nbytes)
                file.seek(0)
                self._bytes = bytearray(file.read(nbytes))
        except OSError as fault:
            raise JournalError(f"{path}: {fault.strerror}") from None
        if len(before) != nbytes or len(self._bytes) != nbytes:
            raise JournalError(f"{path} changes its size: its daemon is just ending")
        self._settle(_newest(memoryview(before)))

    def _settle(self, newest: int) -> None:
        """No read of a file is of one moment. Records up to ``newest`` were there before the second read began, so
        they are all in it; later ones may be there without those before them, and what they overwrote (with one more,
        half written) may be there in parts: both go."""
        view = memoryview(self._bytes)
        records = (len(view) - HEADER_PAGE) // RECORD_BYTES
        overwritten = _newest(view) + 1 - records
        for place, number in enumerate(_numbers(view)):
            if number > newest or 0 < number <= overwritten:
                at = HEADER_PAGE + place * RECORD_BYTES
                view[at : at + RECORD_BYTES] = bytes(RECORD_BYTES)

    def view(self) -> memoryview:
        """See `Storage.view`."""
        return memoryview(self._bytes)

    def clear(self) -> None:
        """See `Storage.clear`."""
        self._bytes[:] = bytes(len(self._bytes))

    def cool(self) -> None:
        """See `Storage.cool`."""

    def close(self) -> None:
        """See `Storage.close`."""


def _whole(view: memoryview, number: int) -> bytes | None:
    """The record of that number, or None when something else is in its place."""
    at = HEADER_PAGE + number % ((len(view) - HEADER_PAGE) // RECORD_BYTES) * RECORD_BYTES
    packed = bytes(view[at : at + RECORD_BYTES])
    if _NUMBER.unpack_from(packed, 8)[0] != number or _CRC.unpack_from(packed)[0] != zlib.crc32(packed[4:]):
        return None
    return packed


def _numbers(view: memoryview) -> list[int]:
    """The number that stands in each place, good or not."""
    words = view[HEADER_PAGE : len(view) - (len(view) - HEADER_PAGE) % RECORD_BYTES].cast("Q")
    return list(words[1 :: RECORD_BYTES // 8])


def _newest(view: memoryview) -> int:
    """The greatest number of a whole record; 0: there is none."""
    return next((n for n in sorted(_numbers(view), reverse=True) if n and _whole(view, n) is not None), 0)


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose journal it is. ``lineage`` names it to requesters; ``secret`` derives tokens that outlive the process."""

    boot: str
    lineage: str
    secret: bytes
    schema: str


@dataclass(frozen=True, slots=True)
class Entry:
    """What was written at once: ``number`` is that of its first record."""

    number: int
    kind: int
    time_ns: int
    data: bytes


def _newest_header(view: memoryview, records: int) -> tuple[int, Identity, int, list[int]] | None:
    """The newer of the two good copies: how many came before, whose it is, restarts, checkpoints."""
    best: tuple[int, Identity, int, list[int]] | None = None
    for at in _COPY_AT:
        packed = bytes(view[at : at + _HEADER.size])
        (crc,) = _CRC.unpack_from(view, at + _HEADER.size)
        magic, boot, lineage, secret, schema, held, copies, restarts, count, *checkpoints = _HEADER.unpack(packed)
        if magic != _MAGIC or zlib.crc32(packed) != crc or count > _CHECKPOINTS or held != records:
            continue
        if best is None or copies > best[0]:
            boot, lineage, schema = (each.decode("ascii", "replace") for each in (boot, lineage, schema))
            best = (copies, Identity(boot, lineage, secret, schema), restarts, checkpoints[:count])
    return best


def identity_of(path: str) -> Identity | None:
    """Whose journal the file is, without reading the rest or changing anything; None: there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        nbytes, page = os.fstat(fd).st_size, os.read(fd, HEADER_PAGE)
    except OSError:
        return None
    finally:
        os.close(fd)
    best = (
        _newest_header(memoryview(page), (nbytes - HEADER_PAGE) // RECORD_BYTES) if len(page) == HEADER_PAGE else None
    )
    return best[1] if best is not None else None


class Ring:
    """Appends entries, reads them back. Make one with `fresh` or `opened`."""

    def __init__(self, storage: Storage, identity: Identity) -> None:
        self.identity = identity
        self._storage = storage
        self._view = storage.view()
        self.records = (len(self._view) - HEADER_PAGE) // RECORD_BYTES
        if self.records < MIN_RECORDS:
            raise JournalError(f"{len(self._view)} bytes are no journal: {MIN_RECORDS} records at least")
        self.next_number = 1
        self.checkpoints: list[int] = []
        self.restarts = 0
        """Processes that went on with it after the first; the next checkpoint's header says so."""
        self._copies = 0

    @classmethod
    def fresh(cls, storage: Storage, identity: Identity) -> Ring:
        """An empty ring. What was there before is numbered away: every record is cleared."""
        ring = cls(storage, identity)
        ring.clear()
        ring._write_header()
        return ring

    def clear(self) -> None:
        """Nothing is in it, not even whose it is."""
        self._storage.clear()
        self.next_number, self.checkpoints = 1, []

    def retire(self) -> None:
        """Whose it is is forgotten, so nobody goes on with it. Needs no room: also a full disk allows it."""
        self._view[:HEADER_PAGE] = bytes(HEADER_PAGE)

    @classmethod
    def opened(cls, storage: Storage) -> Ring:
        """The ring that is there, its torn tail not yet looked for: `entries` does. Raises: JournalForeign."""
        view = storage.view()
        best = _newest_header(view, (len(view) - HEADER_PAGE) // RECORD_BYTES)
        if best is None:
            raise JournalForeign("no journal of this size")
        ring = cls(storage, best[1])
        ring._copies, ring.restarts, ring.checkpoints = best[0], best[2], best[3]
        return ring

    def _write_header(self) -> None:
        identity = self.identity
        self._copies += 1
        packed = _HEADER.pack(
            _MAGIC, identity.boot.encode(), identity.lineage.encode(), identity.secret, identity.schema.encode(),
            self.records, self._copies, self.restarts, len(self.checkpoints), *self.checkpoints,
            *([0] * (_CHECKPOINTS - len(self.checkpoints))),
        )  # fmt: skip
        at = _COPY_AT[self._copies % 2]
        self._view[at : at + len(packed) + 4] = packed + _CRC.pack(zlib.crc32(packed))

    # -- writing --------------------------------------------------------------------------------------------------
    def append(self, kind: int, time_ns: int, data: bytes) -> int:
        """Write an entry; returns its number. 0.7 µs up to `FIRST_BYTES`.

        Raises: OSError: where a fault is injected. JournalError: it does not fit.
        """
        if faults.armed:
            faults.hit("journal.append")
        number = self.next_number
        view, records = self._view, self.records
        nbytes = len(data)
        if nbytes > FIRST_BYTES and nbytes > min(MAX_ENTRY_BYTES, records // 2 * MORE_BYTES):
            raise JournalError(f"an entry of {nbytes} bytes does not fit the journal: raise durability.journal_mib")
        packed = _FIRST.pack(kind | nbytes << 8, number, time_ns, data)
        at = HEADER_PAGE + number % records * RECORD_BYTES
        if faults.armed:
            view[at + 4 : at + 40] = packed[:36]
            faults.hit("journal.torn")
        _SEALED.pack_into(view, at, zlib.crc32(packed), packed)
        self.next_number = number + 1
        if nbytes > FIRST_BYTES:
            self._append_more(data)
        return number

    def _append_more(self, data: bytes) -> None:
        number = self.next_number
        for begin in range(FIRST_BYTES, len(data), MORE_BYTES):
            packed = _MORE.pack(_KIND_MORE, number, data[begin : begin + MORE_BYTES])
            at = HEADER_PAGE + number % self.records * RECORD_BYTES
            _SEALED.pack_into(self._view, at, zlib.crc32(packed), packed)
            number += 1
        self.next_number = number

    def checkpoint(self, kind: int, time_ns: int, data: bytes) -> None:
        """An entry that reading may start from; the header says so once it is whole."""
        number = self.append(kind, time_ns, data)
        if faults.armed:
            faults.hit("journal.checkpoint")
        kept = [each for each in self.checkpoints if each > self.next_number - self.records]
        self.checkpoints = [*kept[-_CHECKPOINTS + 1 :], number]
        self._write_header()
        self._storage.cool()

    def since_checkpoint(self) -> int:
        """Records written since the last one began."""
        return self.next_number - self.checkpoints[-1] if self.checkpoints else self.next_number

    # -- reading --------------------------------------------------------------------------------------------------
    def entries(self, start: int) -> Iterator[Entry]:
        """Entries from ``start`` on; at the end the ring is ready to append, its torn tail cleared.

        Raises: JournalCorrupt: a bad record that is not the tail; nothing is changed then.
        """
        number = start
        while True:
            first = self._record(number)
            if first is None:
                break
            word, _, time_ns, data = _FIRST.unpack_from(first, 4)
            kind, nbytes = word & 0xFF, word >> 8
            if kind == _KIND_MORE:
                raise JournalCorrupt(f"record {number}{self._place(number)} is the middle of an entry")
            parts = [data[: min(nbytes, FIRST_BYTES)]]
            left = nbytes - len(parts[0])
            following = number + 1
            while left > 0 and (more := self._record(following)) is not None and more[4] == _KIND_MORE:
                parts.append(_MORE.unpack_from(more, 4)[2][:left])
                left -= len(parts[-1])
                following += 1
            if left > 0:
                self._end(number, following)
                return
            yield Entry(number, kind, time_ns, b"".join(parts))
            number = following
        self._end(number, number)

    def _end(self, number: int, bad: int) -> None:
        """The log ends before ``number``, because ``bad`` is no record of it: nothing good may lie behind."""
        places = _numbers(self._view)
        for found in sorted(n for n in places if bad < n <= bad + self.records):
            if self._record(found) is not None:
                raise JournalCorrupt(f"record {bad}{self._place(bad)} is bad, but record {found} behind it is good")
        for place, found in enumerate(places):
            if found >= number:
                at = HEADER_PAGE + place * RECORD_BYTES
                self._view[at : at + RECORD_BYTES] = bytes(RECORD_BYTES)
        self.next_number = number
        self._storage.cool()

    def oldest_checkpoint(self) -> int:
        """The first one of which nothing was overwritten. Raises: JournalForeign: there is none."""
        newest = self.newest_number()
        for number in self.checkpoints:
            if newest - self.records < number <= newest and self._record(number) is not None:
                return number
        raise JournalForeign("the journal has no checkpoint to start from")

    def newest_checkpoint(self) -> int:
        """The last one that is there. Raises: JournalForeign: there is none."""
        oldest, newest = self.oldest_checkpoint(), self.newest_number()
        return max(number for number in self.checkpoints if oldest <= number <= newest)

    def newest_number(self) -> int:
        """That of the last whole record. Reads all of them."""
        return _newest(self._view)

    def _record(self, number: int) -> bytes | None:
        return _whole(self._view, number)

    def _place(self, number: int) -> str:
        return f" (byte {HEADER_PAGE + number % self.records * RECORD_BYTES})"

    def close(self) -> None:
        """Unmap."""
        self._view.release()
        self._storage.close()
