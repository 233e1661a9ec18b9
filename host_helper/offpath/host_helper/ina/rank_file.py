"""The state file of one rank: a file in which the rank and its host's helper exchange their newest records.

Rank → helper: `RankState` and the pattern of its steps. Helper → rank: the newest epoch. Each area has one writer and
holds one record: a sequence number that is odd during a write, a length, a CRC, JSON. Neither side blocks: a reader
that finds a half-written record reads again later. Invalid records are ignored and counted.

Accessed by read and write calls, not through a mapping: truncating the file, which any process of the user may do,
would kill a process that maps it (SIGBUS).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import weakref
import zlib
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import quote, unquote

import orjson

from offpath.bindings.errors import ControlError, OffpathError, RegionError
from offpath.bindings.wire import document
from offpath.sched.errors import SchedError
from offpath.sched.ina.patterns import Pattern, parse
from offpath.sched.ina.protocol.records import (
    MOST_RANKS,
    EpochRecord,
    RankState,
    epoch_from_data,
    state_from_data,
    state_to_data,
)

SUFFIX: Final = ".page"
MAGIC: Final = b"OFFPINA1"
HEAD: Final = struct.Struct("<8sIIQ")
"""Magic, ranks, rank, incarnation; at 0."""
MARK: Final = struct.Struct("<QII")
"""Sequence number, length, CRC of the bytes; in front of each record."""
_SECOND_NS: Final = 10**9
_LONGEST_FILE_NAME: Final = 255
_TRIES: Final = 4


@dataclass(frozen=True, slots=True)
class Area:
    """Offset of a record, and its greatest size including its mark."""

    offset: int
    size: int


STATE: Final = Area(4096, 4096)
PATTERN: Final = Area(8192, 4 << 20)
EPOCH: Final = Area(PATTERN.offset + PATTERN.size, 4 << 20)
"""A grant names a switch for each rank, and a step has three numbers for each operation."""
PAGE_BYTES: Final = EPOCH.offset + EPOCH.size


class RankFileError(OffpathError):
    """A state file cannot be made (its name or its record is too long), or its content is invalid.

    ``code``: name, head, too_long, torn (no whole record: perhaps a write is under way), json, record.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


# -- records --------------------------------------------------------------------------------------------------------
def pack(sequence: int, data: Any, area: Area) -> bytes:
    """A record with its mark. Raises: RankFileError: it does not fit."""
    body = orjson.dumps(data)
    if MARK.size + len(body) > area.size:
        raise RankFileError("too_long", f"a record of {len(body)} bytes in an area of {area.size}")
    return MARK.pack(sequence, len(body), zlib.crc32(body)) + body


def unpack(raw: bytes, area: Area) -> RankState | Pattern | EpochRecord:
    """The record at the start of ``raw``, with its mark. Raises: RankFileError."""
    if len(raw) < MARK.size:
        raise RankFileError("torn", "cut short")
    sequence, length, crc = MARK.unpack_from(raw)
    if sequence & 1 or not 0 < length <= area.size - MARK.size or len(raw) < MARK.size + length:
        raise RankFileError("torn", "no whole record")
    body = raw[MARK.size : MARK.size + length]
    if zlib.crc32(body) != crc:
        raise RankFileError("torn", "its CRC does not match")
    try:
        data = document.read(body)
        return state_from_data(data) if area is STATE else _pattern(data) if area is PATTERN else epoch_from_data(data)
    except ControlError as fault:
        raise RankFileError("json", str(fault)) from fault
    except SchedError as fault:
        raise RankFileError("record", str(fault)) from fault


def _pattern(data: Any) -> Pattern:
    """Raises: PatternError."""
    name = data.get("name") if isinstance(data, dict) else None
    return parse(name if isinstance(name, str) and 0 < len(name) <= 255 and name.isprintable() else "job", data)


def pattern_to_data(pattern: Pattern) -> dict[str, Any]:
    """The pattern in the format of `patterns.parse`, with the job's name."""
    return {
        "name": pattern.name,
        "duration": pattern.duration_ns / _SECOND_NS,
        "allreduces": [{"start": each.start_ns / _SECOND_NS, "size": each.nbytes} for each in pattern.operations],
    }


# -- files ----------------------------------------------------------------------------------------------------------
def file_name(job: str, incarnation: int, rank: int) -> str:
    """JOB.INCARNATION.RANK.page; characters that a file name cannot hold are quoted as in a URL. Raises:
    RankFileError.
    """
    name = f"{quote(job, safe='')}.{incarnation}.{rank}{SUFFIX}"
    if not job or len(name) + 1 > _LONGEST_FILE_NAME:
        raise RankFileError("name", f"the job's name is empty or too long for a file's: {job!r:.80}")
    return name


def parse_name(name: str) -> tuple[str, int, int]:
    """Job, incarnation and rank. Raises: RankFileError: not the name of a state file."""
    parts = name.removesuffix(SUFFIX).rsplit(".", 2)
    if name.endswith(SUFFIX) and len(parts) == 3 and all(each.isascii() and each.isdigit() for each in parts[1:]):
        job, incarnation, rank = unquote(parts[0]), int(parts[1][:20]), int(parts[2][:20])
        is_possible = job and job.isprintable() and rank < MOST_RANKS and incarnation < 1 << 63
        if is_possible and file_name(job, incarnation, rank) == name:
            return job, incarnation, rank
    raise RankFileError("name", f"not the name of a state file: {name!r:.80}")


class PageFile:
    """One open state file; both sides read and write through it. It owns ``fd``."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._written: dict[Area, int] = {}

    @property
    def fd(self) -> int:
        """For its lock; -1: closed."""
        return self._fd

    def sequence(self, area: Area) -> int:
        """The current record's number, which grows by 2 with each write; an unchanged number means no new record. -1:
        truncated.
        """
        mark = os.pread(self._fd, 8, area.offset)
        return int.from_bytes(mark, "little") if len(mark) == 8 else -1

    def write(self, area: Area, data: Any) -> None:
        """Write a record. Raises: RankFileError: too long; the previous record stays."""
        before = self._written.get(area)
        if before is None:
            before = max(0, self.sequence(area))
        sequence = ((before | 1) + 1) & ((1 << 64) - 1)
        record = pack(sequence, data, area)
        os.pwrite(self._fd, (sequence - 1 & ((1 << 64) - 1)).to_bytes(8, "little"), area.offset)
        os.pwrite(self._fd, record[8:], area.offset + 8)
        os.pwrite(self._fd, record[:8], area.offset)
        self._written[area] = sequence

    def read(self, area: Area) -> Any:
        """The current record, `unpack`ed. Raises: RankFileError: no whole record, after retries."""
        for _ in range(_TRIES - 1):
            with contextlib.suppress(RankFileError):
                return unpack(self._raw(area), area)
        return unpack(self._raw(area), area)

    def _raw(self, area: Area) -> bytes:
        mark = os.pread(self._fd, MARK.size, area.offset)
        length = MARK.unpack(mark)[1] if len(mark) == MARK.size else 0
        return mark + os.pread(self._fd, min(length, area.size - MARK.size), area.offset + MARK.size)

    def head(self) -> tuple[int, int, int]:
        """Ranks, rank and incarnation. Raises: RankFileError."""
        raw = os.pread(self._fd, HEAD.size, 0)
        if len(raw) != HEAD.size:
            raise RankFileError("head", "cut short")
        magic, ranks, rank, incarnation = HEAD.unpack(raw)
        if magic != MAGIC or not rank < ranks <= MOST_RANKS or incarnation >= 1 << 63:
            raise RankFileError("head", "not the head of a state file")
        return ranks, rank, incarnation

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class RankStateFile:
    """The rank's side: creates the state file, writes its state and pattern, reads epochs.

    The file appears whole and locked, or not at all; the kernel releases its lock when the process ends.

    Raises: OSError: the folder is missing or not writable; RankFileError: the job's name.
    """

    def __init__(self, directory: str, state: RankState) -> None:
        self.path = os.path.join(directory, file_name(state.job, state.incarnation, state.rank))
        self.ignored = 0
        """Invalid records, and records of other ranks."""
        self._seen = 0
        new = os.path.join(directory, f".{os.getpid()}.{state.rank}.new")
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._file = PageFile(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, PAGE_BYTES)  # sparse: only written blocks take space
            os.pwrite(fd, HEAD.pack(MAGIC, state.ranks, state.rank, state.incarnation), 0)
            self.write_state(state)
            os.rename(new, self.path)
        except BaseException:
            self._file.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new)
            raise
        _OPEN.add(self._file)

    def write_state(self, state: RankState) -> None:
        """Replace the state that the helper reads."""
        self._file.write(STATE, state_to_data(state))

    def write_pattern(self, pattern: Pattern) -> None:
        """Raises: RankFileError: a step has too many operations."""
        self._file.write(PATTERN, pattern_to_data(pattern))

    def read_epoch(self) -> EpochRecord | None:
        """The newest epoch if it changed since the last call; None: unchanged, or unreadable."""
        sequence = self._file.sequence(EPOCH)
        if sequence == self._seen or sequence & 1:
            return None
        self._seen = sequence
        try:
            epoch: EpochRecord = self._file.read(EPOCH)
            return epoch
        except RankFileError:
            self.ignored += 1
            return None

    def close(self) -> None:
        """The rank ends in order: the helper sees it by the lock, or by the file's absence. Idempotent."""
        if self._file.fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_OPEN: weakref.WeakSet[PageFile] = weakref.WeakSet()


def _forked() -> None:
    """A forked child (a data loader's worker) shares the lock: it must not keep a dead rank's state file locked."""
    for each in tuple(_OPEN):
        each.close()


os.register_at_fork(after_in_child=_forked)


def make_folder(path: str) -> None:
    """The folder of state files, 0700; its parent must exist. Raises: RegionError: its owner or mode is wrong;
    OSError.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if found.st_uid != os.getuid() or found.st_mode & 0o022 or not os.path.isdir(path) or os.path.islink(path):
        raise RegionError(f"{path} is not a folder of this user, or others may write to it")
