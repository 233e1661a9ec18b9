"""Stores the controller's state in SQLite: jobs, its term, the last ledger, quarantined hosts.

The file is only a cache; agents and switches have the authoritative state. A file that is damaged, of another format,
or names a term that no controller of this cluster issued is moved aside and replaced by a new one. A write failure is
reported once, and the controller continues without the file. Safety does not depend on it: the term is raised above
every term that agents and switches prove, and no tree counts as free because of this file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from offpath.dpu_daemon.durability.database import check, create_private, transaction
from offpath.sched.ina.protocol.records import MOST_TERM

logger = logging.getLogger(__name__)
FORM: Final = 2
ASIDE: Final = ".set-aside"
"""Suffix of an unusable file that was moved aside; it replaces the previous one."""
_OF_THE_MACHINE: Final = frozenset({
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN,
})  # fmt: skip
_TABLES: Final = (
    "CREATE TABLE term (one INTEGER PRIMARY KEY CHECK (one = 1), term INTEGER NOT NULL, proof TEXT NOT NULL)",
    "CREATE TABLE quarantine (host TEXT PRIMARY KEY, data TEXT NOT NULL)",
    "CREATE TABLE job (name TEXT PRIMARY KEY, data TEXT NOT NULL)",
    "CREATE TABLE ledger (place TEXT PRIMARY KEY, data TEXT NOT NULL)",
)


@dataclass(frozen=True, slots=True)
class Kept:
    """What an earlier controller stored. ``term``: its term, or 0; ``ledger``: for people to read; ``quarantine``:
    reasons by host."""

    term: int = 0
    jobs: tuple[dict[str, Any], ...] = ()
    ledger: tuple[dict[str, Any], ...] = ()
    quarantine: Mapping[str, dict[str, Any]] = field(default_factory=dict)


class Store:
    """One file; nothing if ``path`` is empty. Calls block briefly: they are rare, and nothing is synced to disk.

    ``is_proven``: whether the proof of a term is valid; see `seal.TermSeal`."""

    def __init__(self, path: str, is_proven: Callable[[int, str], bool]) -> None:
        self._path = path
        self._is_proven = is_proven
        self._database: sqlite3.Connection | None = None
        self._judged = (0, 0)
        """Device and inode of the file opened last."""
        self.kept = Kept()
        """Contents of the file when it was opened."""
        self.remade = ""
        """Why the file was moved aside; "" if it was not."""
        self.lost = ""
        """Why writing has stopped; "" if it has not."""

    def open(self) -> None:
        """Read the file. If it is unusable, continue with an empty store, or with none."""
        if not self._path:
            return
        try:
            self._open()
        except (sqlite3.Error, ValueError, KeyError, TypeError, OSError) as fault:
            self.close()
            self.kept = Kept()
            if _is_of_the_machine(fault):
                self._lost(fault)
                return
            if os.path.lexists(self._path):
                self._set_aside(str(fault) or type(fault).__name__)
            try:
                self._open()
            except (sqlite3.Error, ValueError, OSError) as again:
                self._lost(again)

    def _set_aside(self, why: str) -> None:
        """Move the file aside for inspection. None of it is used; the controller gets its state from agents and
        switches."""
        aside = f"{self._path}{ASIDE}"
        with contextlib.suppress(OSError):
            found = os.stat(self._path)
            if (found.st_dev, found.st_ino) != self._judged != (0, 0):
                return  # another controller has moved it aside and created a new one
        self.remade = why
        try:
            if os.path.isdir(aside) and not os.path.islink(aside):
                os.rename(aside, f"{aside}.{os.getpid()}")  # keep it: it may contain files
            with contextlib.suppress(FileNotFoundError):
                os.unlink(aside)  # renaming a folder onto a file fails
            os.rename(self._path, aside)
        except OSError as fault:
            logger.error(
                "state file %s is unusable (%s) and cannot be moved aside: %s",
                self._path,
                why,
                fault,
                extra={"code": "memory_unusable"},
            )
            return
        for path in (f"{self._path}-journal", f"{self._path}-wal", f"{self._path}-shm"):
            with contextlib.suppress(OSError):
                os.unlink(path)
        logger.error(
            "state file %s is unusable (%s); moved to %s, rebuilding the state from agents and switches",
            self._path, why, aside,
            extra={"code": "memory_remade"},
        )  # fmt: skip

    def _open(self) -> None:
        if not os.path.lexists(self._path):
            create_private(self._path)
        found = os.stat(self._path)
        self._judged = found.st_dev, found.st_ino
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a regular file")
        self._database = database = sqlite3.connect(self._path, isolation_level=None, timeout=0.2)
        database.execute("PRAGMA synchronous=OFF")
        if _is_empty(database):
            with transaction(database):
                if _is_empty(database):  # checked again: another controller may have filled it meanwhile
                    for statement in _TABLES:
                        database.execute(statement)
                    database.execute(f"PRAGMA user_version={FORM}")
        check(database, FORM)
        terms = database.execute("SELECT term, proof FROM term").fetchall()
        term = self._proven(*terms[0]) if terms else 0
        jobs = [_object(data) for (data,) in database.execute("SELECT data FROM job ORDER BY name")]
        ledger = [_object(data) for (data,) in database.execute("SELECT data FROM ledger ORDER BY place")]
        hosts = database.execute("SELECT host, data FROM quarantine ORDER BY host")
        self.kept = Kept(term, tuple(jobs), tuple(ledger), {str(host): _object(data) for host, data in hosts})

    def _proven(self, term: Any, proof: Any) -> int:
        """Validates the stored term. Raises: ValueError: no controller of this cluster issued it."""
        if not isinstance(term, int) or not 0 <= term <= MOST_TERM:
            raise ValueError(f"invalid term {term!r:.40}")
        if not isinstance(proof, str) or not self._is_proven(term, proof):
            raise ValueError(f"term {term}, which no controller with this key issued")
        return term

    def term(self, term: int, proof: str) -> None:
        """Store the controller's term. A higher term that another controller wrote meanwhile is kept."""
        self._write((
            "INSERT INTO term VALUES (1, ?, ?) ON CONFLICT (one) DO UPDATE"
            " SET term=excluded.term, proof=excluded.proof WHERE excluded.term >= term.term",
            [(term, proof)],
        ))  # fmt: skip

    def quarantine(self, host: str, data: dict[str, Any]) -> None:
        """Store that the host is quarantined."""
        self._write(("INSERT OR REPLACE INTO quarantine VALUES (?, ?)", [(host, orjson.dumps(data).decode())]))

    def release(self, host: str) -> None:
        """Remove the host's quarantine."""
        self._write(("DELETE FROM quarantine WHERE host=?", [(host,)]))

    def job(self, name: str, data: dict[str, Any]) -> None:
        """Store a job's current state."""
        self._write(("INSERT OR REPLACE INTO job VALUES (?, ?)", [(name, orjson.dumps(data).decode())]))

    def forget(self, name: str) -> None:
        """Remove a job."""
        self._write(("DELETE FROM job WHERE name=?", [(name,)]))

    def ledger(self, entries: dict[str, dict[str, Any]]) -> None:
        """Store the places held now."""
        rows = [(place, orjson.dumps(data).decode()) for place, data in entries.items()]
        self._write(("DELETE FROM ledger", [()]), ("INSERT INTO ledger VALUES (?, ?)", rows))

    def _write(self, *statements: tuple[str, list[tuple[Any, ...]]]) -> None:
        """Write all statements or none: a controller that is taking over may have the file open too."""
        if self._database is None:
            return
        try:
            with transaction(self._database):
                for statement, rows in statements:
                    self._database.executemany(statement, rows)
        except sqlite3.Error as fault:
            self._lost(fault)

    def _lost(self, fault: Exception) -> None:
        self.lost = str(fault) or type(fault).__name__
        logger.error("stopped writing state file %s: %s", self._path, self.lost, extra={"code": "memory_failed"})
        self.close()

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._database is not None:
            with contextlib.suppress(sqlite3.Error):
                self._database.close()
            self._database = None


def _is_empty(database: sqlite3.Connection) -> bool:
    """Whether the database has neither tables nor a format number."""
    (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (form,) = database.execute("PRAGMA user_version").fetchone()
    return (tables, form) == (0, 0)


def _is_of_the_machine(fault: Exception) -> bool:
    """Whether the fault is unrelated to the file's content: a lock of another process, a full disk, failing reads."""
    return isinstance(fault, sqlite3.Error) and getattr(fault, "sqlite_errorcode", 0) & 0xFF in _OF_THE_MACHINE


def _object(text: Any) -> dict[str, Any]:
    data = orjson.loads(text)
    if not isinstance(data, dict):
        raise ValueError("a row is not a JSON object")
    return data
