"""The helper's side of the state files: finds ranks, reads their records, and writes epochs for them.

The folder is polled (every 50 ms or less). Helper and ranks communicate only through the state files, so either may
start, end and restart in any order.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass, replace
from typing import Any, Final

from offpath.host_helper.ina.rank_file import (
    EPOCH,
    PATTERN,
    STATE,
    SUFFIX,
    Area,
    PageFile,
    RankFileError,
    parse_name,
)
from offpath.sched.ina.patterns import Pattern
from offpath.sched.ina.protocol.records import EpochRecord, RankState, epoch_to_data

_MOST_PAGES: Final = 4096
"""Per host: bounds the cost of a folder that is filled with files."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A rank's pattern: the all-reduces of DDP's current buckets."""

    job: str
    incarnation: int
    rank: int
    pattern: Pattern


@dataclass(slots=True)
class _Page:
    file: PageFile
    state: RankState
    seen: dict[Area, int]
    published: int = -1


class RankFileFolder:
    """The state files in ``directory``, which need not exist yet. `poll` reads them, `publish` writes to them.

    Single-threaded. ``ignored`` counts foreign files in the folder and invalid records.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.ignored = 0
        self._state_files: dict[str, _Page] = {}
        self._refused: dict[str, int] = {}
        self._epochs: dict[tuple[str, int], EpochRecord] = {}
        self._patterns: list[Measured] = []

    def poll(self) -> tuple[RankState, ...]:
        """The states that changed since the last call, including those of new files; with ``is_gone`` once a rank has
        ended.

        Removes the file of a rank that has ended without doing so.
        """
        try:
            with os.scandir(self.directory) as found:
                names = {each.name: each.inode() for each in found if each.name.endswith(SUFFIX)}
        except OSError:
            names = {}
        self._refused = {name: mark for name, mark in self._refused.items() if name in names}
        changed = []
        for name in [name for name in self._state_files if name not in names]:
            changed.append(self._drop(name))
        for name in sorted(names.keys() - self._state_files.keys())[: _MOST_PAGES - len(self._state_files)]:
            if self._refused.get(name) != names[name] and not self._open(name):
                self._refused[name] = names[name]
                self.ignored += 1
        for name, state_file in list(self._state_files.items()):
            is_free = self._is_free(state_file.file)  # before its last state is read
            if (state := self._read(state_file)) is not None:
                changed.append(state)
            if is_free:
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self.directory, name))
                changed.append(self._drop(name))
        return tuple(changed)

    def states(self) -> tuple[RankState, ...]:
        """The states of all present ranks, as of the last `poll`."""
        return tuple(state_file.state for state_file in self._state_files.values())

    def patterns(self) -> tuple[Measured, ...]:
        """The patterns that `poll` found since the last call."""
        found, self._patterns = tuple(self._patterns), []
        return found

    def publish(self, epoch: EpochRecord) -> int:
        """Write ``epoch`` for the job's ranks on this host, also for files that appear later; returns how many have it
        now.

        An epoch older than the published one is ignored. (A rank orders epochs by their stamps in any case.)
        """
        key = epoch.job, epoch.incarnation
        newest = self._epochs.get(key)
        if newest is None or epoch.stamp >= newest.stamp:
            self._epochs[key] = epoch
        return sum(
            self._hand(state_file)
            for state_file in self._state_files.values()
            if (state_file.state.job, state_file.state.incarnation) == key
        )

    def close(self) -> None:
        """Close all files; the ranks keep theirs."""
        for state_file in self._state_files.values():
            state_file.file.close()
        self._state_files.clear()

    # -- one page -----------------------------------------------------------------------------------------------------
    def _open(self, name: str) -> bool:
        """False: not a valid state file."""
        try:
            job, incarnation, rank = parse_name(name)
            fd = os.open(os.path.join(self.directory, name), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return True  # it was just removed
        except (RankFileError, OSError):
            return False
        file = PageFile(fd)
        try:
            if os.fstat(fd).st_uid != os.getuid():
                raise RankFileError("head", "another user's")
            ranks, notified_rank, notified_incarnation = file.head()
            if (notified_rank, notified_incarnation) != (rank, incarnation):
                raise RankFileError("head", "head and name differ")
        except (RankFileError, OSError):
            file.close()
            return False
        state_file = self._state_files[name] = _Page(file, RankState(job, incarnation, rank, ranks), {})
        self._hand(state_file)
        return True

    def _read(self, state_file: _Page) -> RankState | None:
        """Its state, if it changed."""
        if (pattern := self._news(state_file, PATTERN)) is not None:
            self._patterns.append(
                Measured(state_file.state.job, state_file.state.incarnation, state_file.state.rank, pattern)
            )
        state, known = self._news(state_file, STATE), state_file.state
        if state is None:
            return None
        if (state.job, state.incarnation, state.rank, state.ranks, state.is_gone) != (
            known.job, known.incarnation, known.rank, known.ranks, False,
        ):  # fmt: skip
            self.ignored += 1  # another rank's
            return None
        state_file.state = state
        return state_file.state

    def _news(self, state_file: _Page, area: Area) -> Any:
        """The record in ``area`` if it was written since the last read; else None."""
        sequence = state_file.file.sequence(area)
        if sequence == state_file.seen.get(area, 0) or (sequence > 0 and sequence & 1):
            return None
        state_file.seen[area] = sequence
        try:
            return state_file.file.read(area)
        except RankFileError:
            self.ignored += 1
            return None

    def _hand(self, state_file: _Page) -> bool:
        epoch = self._epochs.get((state_file.state.job, state_file.state.incarnation))
        if epoch is None or epoch.stamp == state_file.published:
            return epoch is not None
        try:
            state_file.file.write(EPOCH, epoch_to_data(epoch))
        except (RankFileError, OSError):
            return False
        state_file.published = epoch.stamp
        return True

    def _drop(self, name: str) -> RankState:
        state_file = self._state_files.pop(name)
        state_file.file.close()
        job = state_file.state.job, state_file.state.incarnation
        if not any((each.state.job, each.state.incarnation) == job for each in self._state_files.values()):
            self._epochs.pop(job, None)
        return replace(state_file.state, is_gone=True)

    @staticmethod
    def _is_free(file: PageFile) -> bool:
        """True: the lock is free, so the rank has ended."""
        try:
            fcntl.flock(file.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        fcntl.flock(file.fd, fcntl.LOCK_UN)
        return True
