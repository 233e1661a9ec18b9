"""The job manager's file: every job, written through to the disk before the engine is asked to start it (SQLite)."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

import orjson

from offpath.bindings.errors import PlaceUnusable
from offpath.dpu_daemon.durability.database import open_alone, transaction
from offpath.sched.workload.records import Placed, Share, Spec, Work, WorkState

FORM: Final = 1
_NAME_CHARACTERS: Final = 36
"""Of a job's name in its identity, which has at most 64."""
_TABLES: Final = (
    "CREATE TABLE job (number INTEGER PRIMARY KEY AUTOINCREMENT, identity TEXT NOT NULL UNIQUE, data TEXT NOT NULL)",
    "CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL)",
    "CREATE TABLE lineage (value TEXT NOT NULL)",
)
_LATER: Final = (
    "CREATE TABLE IF NOT EXISTS inc (number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE,"
    " data TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS inc_kept (name TEXT NOT NULL, composite TEXT NOT NULL, data TEXT NOT NULL,"
    " PRIMARY KEY (name, composite))",
    "CREATE TABLE IF NOT EXISTS inc_secret (value TEXT NOT NULL)",
)
"""Tables that files of earlier versions do not have, and that earlier versions do not read."""


class JobsFile:
    """One file of one job manager at a time. Unlike the controller's file it is no cache: without it a job that has
    run could be started again, so that a file that cannot be read stops the job manager."""

    def __init__(self, path: str) -> None:
        """Raises: PlaceUnusable: it cannot be used, is of another version, or another job manager has it open."""
        self._path = path
        try:
            self._database = open_alone(path, FORM, _fill)
        except (sqlite3.Error, OSError, ValueError) as fault:
            raise PlaceUnusable(f"jobs file {path}: {fault}") from None

    def works(self) -> list[Work]:
        """All jobs, in the order of submission. Raises: PlaceUnusable: a row is damaged."""
        rows = self._database.execute("SELECT identity, data FROM job ORDER BY number").fetchall()
        try:
            return [_work(orjson.loads(data)) for _, data in rows]
        except (ValueError, TypeError, KeyError) as fault:
            raise PlaceUnusable(f"jobs file {self._path}: {fault!r:.200}") from None

    def identity(self, name: str) -> str:
        """An identity for a job of that name. Engines remember identities for long, so that they contain the file's
        lineage beside a number that this file has never used. Raises: PlaceUnusable."""
        lineage, number = self.reserve(1)
        return identity_of(name, lineage, number)

    def reserve(self, count: int) -> tuple[str, int]:
        """The file's lineage, and the first of so many numbers that it has never given. Raises: PlaceUnusable."""
        with self._transaction():
            self._database.execute(
                "INSERT INTO counter VALUES ('identity', ?) ON CONFLICT (name) DO UPDATE SET value = value + ?",
                (count, count),
            )
            (number,) = self._database.execute("SELECT value FROM counter WHERE name = 'identity'").fetchone()
            (lineage,) = self._database.execute("SELECT value FROM lineage").fetchone()
        return lineage, number - count + 1

    def write(self, saved: list[Work], dropped: list[str]) -> None:
        """Write all of it or nothing; it is on the disk when this returns. Raises: PlaceUnusable."""
        with self._transaction():
            self._database.executemany(
                "INSERT INTO job (identity, data) VALUES (?, ?)"
                " ON CONFLICT (identity) DO UPDATE SET data = excluded.data",
                [(work.identity, orjson.dumps(_data(work)).decode()) for work in saved],
            )
            self._database.executemany("DELETE FROM job WHERE identity = ?", [(identity,) for identity in dropped])

    def inc_rows(self) -> list[str]:
        """The records of requests for servers and switches, in the order of submission."""
        return [data for (data,) in self._database.execute("SELECT data FROM inc ORDER BY number").fetchall()]

    def write_inc(self, saved: dict[str, str], dropped: list[str]) -> None:
        """Write records by name, after dropping others; all of it or nothing. Raises: PlaceUnusable."""
        with self._transaction():
            self._database.executemany("DELETE FROM inc WHERE name = ?", [(name,) for name in dropped])
            self._database.executemany(
                "INSERT INTO inc (name, data) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET data = excluded.data",
                list(saved.items()),
            )

    def inc_secret(self) -> bytes:
        """From which the tokens of tasks are derived."""
        (value,) = self._database.execute("SELECT value FROM inc_secret").fetchone()
        return bytes.fromhex(value)

    def inc_kept(self) -> dict[tuple[str, str], str]:
        """What was kept of a service whose tasks were stopped, by request and composite."""
        rows = self._database.execute("SELECT name, composite, data FROM inc_kept").fetchall()
        return {(name, composite): data for name, composite, data in rows}

    def keep_inc(self, name: str, composite: str, data: str) -> None:
        """Replace what is kept; empty: nothing is. Raises: PlaceUnusable."""
        with self._transaction():
            self._database.execute("DELETE FROM inc_kept WHERE name = ? AND composite = ?", (name, composite))
            if data:
                self._database.execute("INSERT INTO inc_kept VALUES (?, ?, ?)", (name, composite, data))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            with transaction(self._database):
                yield
        except sqlite3.Error as fault:
            raise PlaceUnusable(f"jobs file {self._path}: {fault}") from None

    def close(self) -> None:
        """Close the file. Idempotent."""
        with contextlib.suppress(sqlite3.Error):
            self._database.close()


def _fill(database: sqlite3.Connection, is_new: bool) -> None:
    if is_new:
        for statement in _TABLES:
            database.execute(statement)
        database.execute("INSERT INTO lineage VALUES (?)", (secrets.token_hex(4),))
    for statement in _LATER:
        database.execute(statement)
    database.execute(
        "INSERT INTO inc_secret SELECT ? WHERE NOT EXISTS (SELECT 1 FROM inc_secret)", (secrets.token_hex(32),)
    )


def identity_of(name: str, lineage: str, number: int) -> str:
    """NAME.LINEAGE.NUMBER, of at most 64 characters."""
    return f"{name[:_NAME_CHARACTERS]}.{lineage}.{number}"


def _data(work: Work) -> dict[str, Any]:
    data = {name: getattr(work, name) for name in work.__slots__}
    data["spec"] = asdict(work.spec)
    data["placed"] = asdict(work.placed) if work.placed is not None else None
    return data


def _work(data: dict[str, Any]) -> Work:
    """Raises: TypeError, ValueError, KeyError: not what `_data` makes."""
    spec, placed = data.pop("spec"), data.pop("placed")
    spec["argv"] = tuple(spec["argv"])
    spec["environment"] = tuple([(str(name), str(value)) for name, value in spec["environment"]])
    if placed is not None:
        shares = [Share(str(each["node"]), int(each["count"]), tuple(each["gpus"])) for each in placed.pop("shares")]
        placed = Placed(tuple(shares), **{**placed, "reasons": tuple(placed["reasons"])})
    data["state"], data["reasons"] = WorkState(data["state"]), tuple(data["reasons"])
    return Work(Spec(**spec), placed=placed, **data)
