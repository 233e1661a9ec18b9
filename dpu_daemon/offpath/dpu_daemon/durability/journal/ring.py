"""A ring of 160-byte records in a preallocated, mapped file. Writes survive the process, but not a power loss.

An entry takes one record or several; each entry of a request's normal path fits one. Each record carries a CRC-32 and
its number, which also gives its place: number modulo the ring's length. A kill during a write leaves a torn tail, which
the next start truncates. A bad record followed by good ones is corruption: it is refused with an error that gives its
place.

File: a header page (two alternating copies of `_HEADER`, so a torn copy leaves the other valid), then the records.
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
# after the CRC: kind and, times 256, the bytes of the entry; number, time ns, data
_FIRST = struct.Struct(f"<IQQ{FIRST_BYTES}s")
# after the CRC: kind MORE, number, data
_MORE = struct.Struct(f"<IQ{MORE_BYTES}s")
_NUMBER = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_SEALED = struct.Struct(f"<I{RECORD_BYTES - 4}s")
_KIND_MORE: Final = 0xFF
LAYOUT: Final = f"{_FIRST.format} {_MORE.format} {_KIND_MORE} {RECORD_BYTES} {HEADER_PAGE}"
"""See `offpath.dpu_daemon.durability.journal.native`."""
assert _FIRST.size + 4 == RECORD_BYTES and _MORE.size + 4 == RECORD_BYTES and _HEADER.size + 4 <= _COPY_AT[1]


class JournalError(OffpathError):
    """The journal cannot be used."""


class JournalCorrupt(JournalError):
    """A record is bad although later ones are good; the message gives its place."""


class JournalForeign(JournalError):
    """Another boot, another build, or not a journal: it cannot be continued."""


class Storage(Protocol):
    """The bytes of a journal: a mapped file, or a bytearray in a simulation."""

    def view(self) -> memoryview:
        """All of it, writable."""

    def clear(self) -> None:
        """Fill with zeros. Raises: JournalError: no space."""

    def cool(self) -> None:
        """Release memory where possible: no access is expected soon."""

    def close(self) -> None:
        """Unmap. Idempotent."""


class MappedFile:
    """A file of ``nbytes``, fully allocated (writing to a hole on a full disk raises SIGBUS), locked to one process."""

    def __init__(self, path: str, nbytes: int) -> None:
        """Raises: JournalError: no space, no permission, or another daemon holds it."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as fault:
            raise JournalError(f"{path}: {fault.strerror}") from None
        try:
            found = os.fstat(fd)
            if found.st_uid != os.getuid() or found.st_mode & 0o077:
                raise JournalError(f"{path} must be owned by the daemon's user, with mode 600")
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if found.st_size != nbytes:
                os.ftruncate(fd, 0)  # the configured size changed: record numbers no longer match their places
            os.posix_fallocate(fd, 0, nbytes)
            self._map: mmap.mmap | None = mmap.mmap(fd, nbytes)
            self._nbytes = nbytes
        except BlockingIOError:
            os.close(fd)
            raise JournalError(f"{path}: another daemon has locked it") from None
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
        """See `Storage.clear`. Frees and reallocates the pages, which touches none."""
        try:
            os.ftruncate(self._fd, 0)
            os.posix_fallocate(self._fd, 0, self._nbytes)
        except OSError as fault:
            raise JournalError(f"the journal: {self._nbytes} bytes: {fault.strerror}") from None

    def cool(self) -> None:
        """See `Storage.cool`. The pages stay in the page cache, but not in the resident set."""
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
    """A snapshot of a journal or of a copy of one, also while a daemon writes it. Contains what was written before the
    snapshot and nothing later. Writes to its view stay private."""

    def __init__(self, path: str) -> None:
        """Raises: JournalError: the file is missing or has no valid journal size."""
        try:
            with open(path, "rb") as file:
                nbytes = os.fstat(file.fileno()).st_size
                least = HEADER_PAGE + MIN_RECORDS * RECORD_BYTES
                if not least <= nbytes <= _MAX_BYTES or (nbytes - HEADER_PAGE) % RECORD_BYTES:
                    raise JournalForeign(f"{path} is not a journal: {nbytes} bytes")
                before = file.read(nbytes)
                file.seek(0)
                self._bytes = bytearray(file.read(nbytes))
        except OSError as fault:
            raise JournalError(f"{path}: {fault.strerror}") from None
        if len(before) != nbytes or len(self._bytes) != nbytes:
            raise JournalError(f"{path} changed its size while it was read: its daemon is exiting")
        self._settle(_newest(memoryview(before)))

    def _settle(self, newest: int) -> None:
        """Make the snapshot consistent, because a read is not atomic. Records up to ``newest`` existed before the
        second read began, so all are in it. Later records may be present with gaps, and the records they overwrote
        (plus one that was half written) may be partial: both are cleared."""
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
    """The record of that number, or None if its place contains something else."""
    at = HEADER_PAGE + number % ((len(view) - HEADER_PAGE) // RECORD_BYTES) * RECORD_BYTES
    packed = bytes(view[at : at + RECORD_BYTES])
    if _NUMBER.unpack_from(packed, 8)[0] != number or _CRC.unpack_from(packed)[0] != zlib.crc32(packed[4:]):
        return None
    return packed


def _numbers(view: memoryview) -> list[int]:
    """The number field of each place, valid or not."""
    words = view[HEADER_PAGE : len(view) - (len(view) - HEADER_PAGE) % RECORD_BYTES].cast("Q")
    return list(words[1 :: RECORD_BYTES // 8])


def _newest(view: memoryview) -> int:
    """The greatest number of a valid record; 0: there is none."""
    return next((n for n in sorted(_numbers(view), reverse=True) if n and _whole(view, n) is not None), 0)


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a journal. ``lineage`` is shown to requesters; ``secret`` derives tokens that outlive the process."""

    boot: str
    lineage: str
    secret: bytes
    schema: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One written entry; ``number`` is that of its first record."""

    number: int
    kind: int
    time_ns: int
    data: bytes


def _newest_header(view: memoryview, records: int) -> tuple[int, Identity, int, list[int]] | None:
    """The newer of the valid copies: copies written so far, identity, restarts, checkpoints."""
    best: tuple[int, Identity, int, list[int]] | None = None
    for at in _COPY_AT:
        packed = bytes(view[at : at + _HEADER.size])
        (crc,) = _CRC.unpack_from(view, at + _HEADER.size)
        magic, boot, lineage, secret, schema, held, copies, restarts, count, *checkpoints = _HEADER.unpack(packed)
        if magic != _MAGIC or zlib.crc32(packed) != crc or count > _CHECKPOINTS or held != records:
            continue
        if best is None or copies > best[0]:
            boot, lineage, schema = [each.decode("ascii", "replace") for each in (boot, lineage, schema)]
            best = (copies, Identity(boot, lineage, secret, schema), restarts, checkpoints[:count])
    return best


def identity_of(path: str) -> Identity | None:
    """The identity of the journal at ``path``, read from its header only; None: it is not a journal."""
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
    """Appends and reads entries. Create with `fresh` or `opened`."""

    def __init__(self, storage: Storage, identity: Identity) -> None:
        self.identity = identity
        self._storage = storage
        self.view = storage.view()
        """The whole storage."""
        self.records = (len(self.view) - HEADER_PAGE) // RECORD_BYTES
        if self.records < MIN_RECORDS:
            raise JournalError(f"{len(self.view)} bytes are too small for a journal: at least {MIN_RECORDS} records")
        self.next_number = 1
        self.checkpoints: list[int] = []
        self.restarts = 0
        """Processes that continued it after the first; written with the next checkpoint's header."""
        self._copies = 0

    @classmethod
    def fresh(cls, storage: Storage, identity: Identity) -> Ring:
        """An empty ring: every former record is cleared."""
        ring = cls(storage, identity)
        ring.clear()
        ring._write_header()
        return ring

    def clear(self) -> None:
        """Clear everything, including the identity."""
        self._storage.clear()
        self.next_number, self.checkpoints = 1, []

    def retire(self) -> None:
        """Clear the identity so that the journal is not continued. Needs no space, so it works on a full disk."""
        self.view[:HEADER_PAGE] = bytes(HEADER_PAGE)

    @classmethod
    def opened(cls, storage: Storage) -> Ring:
        """The existing ring; `entries` then finds its torn tail. Raises: JournalForeign."""
        view = storage.view()
        best = _newest_header(view, (len(view) - HEADER_PAGE) // RECORD_BYTES)
        if best is None:
            raise JournalForeign("not a journal of this size")
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
        self.view[at : at + len(packed) + 4] = packed + _CRC.pack(zlib.crc32(packed))

    # -- writing --------------------------------------------------------------------------------------------------
    def append(self, kind: int, time_ns: int, data: bytes) -> int:
        """Write an entry; returns its number. 0.7 µs up to `FIRST_BYTES`.

        Raises: OSError: where a fault is injected. JournalError: it does not fit.
        """
        if faults.armed:
            faults.hit("journal.append")
        number = self.next_number
        view, records = self.view, self.records
        nbytes = len(data)
        if nbytes > FIRST_BYTES and nbytes > min(MAX_ENTRY_BYTES, records // 2 * MORE_BYTES):
            raise JournalError(f"an entry of {nbytes} bytes does not fit the journal: increase durability.journal_mib")
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
            _SEALED.pack_into(self.view, at, zlib.crc32(packed), packed)
            number += 1
        self.next_number = number

    def checkpoint(self, kind: int, time_ns: int, data: bytes) -> None:
        """Append an entry from which reading may start; the header lists it once it is complete."""
        number = self.append(kind, time_ns, data)
        if faults.armed:
            faults.hit("journal.checkpoint")
        kept = [each for each in self.checkpoints if each > self.next_number - self.records]
        self.checkpoints = [*kept[-_CHECKPOINTS + 1 :], number]
        self._write_header()
        self._storage.cool()

    def since_checkpoint(self) -> int:
        """Records written since the last checkpoint began."""
        return self.next_number - self.checkpoints[-1] if self.checkpoints else self.next_number

    # -- reading --------------------------------------------------------------------------------------------------
    def entries(self, start: int) -> Iterator[Entry]:
        """Entries from ``start`` on; at the end the ring is ready to append, its torn tail cleared.

        Raises: JournalCorrupt: a bad record that is not the tail; then nothing is changed.
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
        """The log ends before ``number`` because record ``bad`` is invalid. No valid record may follow it."""
        places = _numbers(self.view)
        for found in sorted(n for n in places if bad < n <= bad + self.records):
            if self._record(found) is not None:
                raise JournalCorrupt(
                    f"record {bad}{self._place(bad)} is invalid, but the later record {found} is valid"
                )
        for place, found in enumerate(places):
            if found >= number:
                at = HEADER_PAGE + place * RECORD_BYTES
                self.view[at : at + RECORD_BYTES] = bytes(RECORD_BYTES)
        self.next_number = number
        self._storage.cool()

    def oldest_checkpoint(self) -> int:
        """The first checkpoint that is not overwritten. Raises: JournalForeign: there is none."""
        newest = self.newest_number()
        for number in self.checkpoints:
            if newest - self.records < number <= newest and self._record(number) is not None:
                return number
        raise JournalForeign("the journal has no checkpoint to start from")

    def newest_checkpoint(self) -> int:
        """The last checkpoint in the ring. Raises: JournalForeign: there is none."""
        oldest, newest = self.oldest_checkpoint(), self.newest_number()
        return max(number for number in self.checkpoints if oldest <= number <= newest)

    def newest_number(self) -> int:
        """Number of the last valid record. Reads all of them."""
        return _newest(self.view)

    def _record(self, number: int) -> bytes | None:
        return _whole(self.view, number)

    def _place(self, number: int) -> str:
        return f" (byte {HEADER_PAGE + number % self.records * RECORD_BYTES})"

    def close(self) -> None:
        """Unmap."""
        self.view.release()
        self._storage.close()
