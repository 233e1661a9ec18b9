"""The collaboration controller's file (SQLite): open jobs, and every lease of the present day.

A lease stays until its day is over, also after its end: it says that the device has worked on that day. Many changes
are one transaction, and it is on the disk before anybody learns of one of them.
"""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import orjson

from offpath.bindings import faults
from offpath.bindings.errors import PlaceUnusable
from offpath.dpu_daemon.collab.tokens import SECRET_BYTES
from offpath.dpu_daemon.durability.database import open_alone, transaction
from offpath.sched.collab.errors import CollabRefused, RequirementInvalid
from offpath.sched.collab.records import DAY_NS, Job, Kept, Lease
from offpath.sched.collab.saved import job_data, job_of, profile_data

FORM: Final = 1
_PURGED: Final = 2_000
"""Numbers of leases of earlier days that one transaction looks at: a new day must not hold up answers."""
_TABLES: Final = (
    "CREATE TABLE job (name TEXT PRIMARY KEY, data BLOB NOT NULL, profile BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE lease (number INTEGER PRIMARY KEY, device INTEGER NOT NULL, job TEXT NOT NULL,"
    " round INTEGER NOT NULL, issued_ns INTEGER NOT NULL, expires_ns INTEGER NOT NULL, speed INTEGER NOT NULL,"
    " ended INTEGER NOT NULL)",
    "CREATE TABLE secret (value BLOB NOT NULL)",
)

_AT_ONCE: Final = (64, 8, 1)
"""Rows of one statement."""
_ISSUED: Final = {
    count: f"INSERT INTO lease VALUES {', '.join(['(?, ?, ?, ?, ?, ?, ?, 0)'] * count)}" for count in _AT_ONCE
}
_ENDED: Final = {count: f"UPDATE lease SET ended = 1 WHERE number IN ({', '.join('?' * count)})" for count in _AT_ONCE}


@dataclass(slots=True)
class Changes:
    """What is written together. ``jobs``: name → the row's data; ``profiles``: name → the row's profile, where it has
    changed; ``purge_before_ns``: leases issued before it are of earlier days."""

    jobs: dict[str, bytes] = field(default_factory=dict)
    profiles: dict[str, bytes] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    purge_before_ns: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """What the file holds. ``last_ends``: how each job's last round ended. ``last_ns``: the latest time in it."""

    kept: Kept
    last_ends: dict[str, str]
    last_ns: int


class StateFile:
    """One file of one controller at a time. Without it a device could get a second job: one that cannot be read stops
    the controller. `write` may be called in another thread, one call at a time."""

    def __init__(self, path: str) -> None:
        """Raises: PlaceUnusable: it cannot be used, is of another version, or another controller has it open."""
        self._path = path
        self._fault = ""
        """Why a write failed: the file lacks what later changes build on."""
        try:
            self._database = open_alone(path, FORM, _fill, any_thread=True)
            self._database.execute("PRAGMA cache_size=-8192")
        except (sqlite3.Error, OSError, ValueError) as fault:
            raise PlaceUnusable(f"state file {path}: {fault}") from None

    def secret(self) -> bytes:
        """From which devices' identities are derived."""
        (value,) = self._database.execute("SELECT value FROM secret").fetchone()
        return bytes(value)

    def read(self, period_ns: int = DAY_NS) -> Found:
        """Everything. ``period_ns``: in each a device gets one job. Raises: PlaceUnusable: a row is damaged."""
        try:
            return self._read(period_ns)
        except (sqlite3.Error, ValueError, TypeError, KeyError, RequirementInvalid, CollabRefused) as fault:
            raise PlaceUnusable(f"state file {self._path}: {fault!r:.200}") from None

    def _read(self, period_ns: int) -> Found:
        jobs, ends = list[Job](), dict[str, str]()
        for name, data, profile in self._database.execute("SELECT name, data, profile FROM job ORDER BY name"):
            row = orjson.loads(data)
            jobs.append(job_of(row["job"], orjson.loads(profile)))
            ends[name] = str(row["last_end"])
        number, last_ns = self._database.execute("SELECT MAX(number), MAX(issued_ns) FROM lease").fetchone()
        day = (last_ns or 0) // period_ns
        columns = "number, device, job, round, issued_ns, expires_ns, speed"
        leases = self._database.execute(f"SELECT {columns} FROM lease WHERE NOT ended ORDER BY number")
        worked = self._database.execute("SELECT device FROM lease WHERE issued_ns >= ?", (day * period_ns,))
        kept = Kept(
            tuple(jobs), tuple(Lease(*row) for row in leases), {device for (device,) in worked}, day, (number or 0) + 1
        )
        return Found(kept, ends, last_ns or 0)

    def write(self, changes: Changes) -> None:
        """Write all of it or nothing; it is on the disk when this returns. Raises: PlaceUnusable."""
        if faults.armed:
            faults.hit("collab.write")
        if self._fault:
            raise PlaceUnusable(f"state file {self._path}: an earlier write failed: {self._fault}")
        self._fault = "it was interrupted"
        try:
            with transaction(self._database):
                self._write(changes)
        except sqlite3.Error as fault:
            self._fault = str(fault)
            raise PlaceUnusable(f"state file {self._path}: {fault}") from None
        self._fault = ""
        if faults.armed:
            faults.hit("collab.written")

    def _write(self, changes: Changes) -> None:
        run = self._database.executemany
        run("DELETE FROM job WHERE name = ?", [(name,) for name in changes.closed])
        run(
            "INSERT INTO job (name, data, profile) VALUES (?, ?, '[]')"
            " ON CONFLICT (name) DO UPDATE SET data = excluded.data",
            list(changes.jobs.items()),
        )
        run("UPDATE job SET profile = ? WHERE name = ?", [(data, name) for name, data in changes.profiles.items()])
        self._run_for(_ISSUED, changes.leases)
        self._run_for(_ENDED, [(number,) for number in changes.ended])
        self._purge(changes.purge_before_ns)

    def _run_for(self, statements: dict[int, str], rows: Sequence[tuple[int | str, ...]]) -> None:
        """``statements``: by the rows that each takes, most first. Decisions go on while one runs; after each, this
        thread waits for the interpreter again."""
        begin = 0
        for count, statement in statements.items():
            while len(rows) - begin >= count:
                self._database.execute(statement, list(chain.from_iterable(rows[begin : begin + count])))
                begin += count

    def _purge(self, before_ns: int) -> None:
        """Remove ended leases of earlier days, the oldest first, a part at a time. The last lease stays: the next one's
        number follows it."""
        oldest = self._database.execute("SELECT number, issued_ns FROM lease ORDER BY number LIMIT 1").fetchone()
        if oldest is not None and oldest[1] < before_ns:
            self._database.execute(
                "DELETE FROM lease WHERE number < ? AND issued_ns < ? AND ended"
                " AND number < (SELECT MAX(number) FROM lease)",
                (oldest[0] + _PURGED, before_ns),
            )

    def close(self) -> None:
        """Close the file. Idempotent."""
        with contextlib.suppress(sqlite3.Error):
            self._database.close()


def _fill(database: sqlite3.Connection, is_new: bool) -> None:
    if is_new:
        for statement in _TABLES:
            database.execute(statement)
        database.execute("INSERT INTO secret VALUES (?)", (secrets.token_bytes(SECRET_BYTES),))


def row_of(job: Job, last_end: str) -> bytes:
    """A job's row, without its profile."""
    return orjson.dumps({"job": job_data(job), "last_end": last_end})


def profile_row(job: Job) -> bytes:
    """What a job has learnt of its devices."""
    return orjson.dumps(profile_data(job))
