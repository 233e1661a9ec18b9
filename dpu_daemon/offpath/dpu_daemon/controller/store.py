"""What the controller remembers in SQLite: jobs, terms, the last ledger. A cache: agents and switches know better.

A file that is lost, damaged or of another form is made anew; what cannot be written is said once, and the controller
goes on. Nothing here is needed for safety: the term is raised above whatever agents and switches have heard, and no
tree is free because this file says so.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from dataclasses import dataclass
from typing import Any, Final

import orjson

logger = logging.getLogger(__name__)
FORM: Final = 1
_TABLES: Final = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL)",
    "CREATE TABLE job (name TEXT PRIMARY KEY, data TEXT NOT NULL)",
    "CREATE TABLE ledger (place TEXT PRIMARY KEY, data TEXT NOT NULL)",
)


@dataclass(frozen=True, slots=True)
class Kept:
    """What an earlier controller left. ``term``: its own, 0: none is known; ``ledger``: for people to read."""

    term: int = 0
    jobs: tuple[dict[str, Any], ...] = ()
    ledger: tuple[dict[str, Any], ...] = ()


class Store:
    """One file, or nothing where ``path`` is empty. Calls block for a moment: they are rare, and nothing is synced."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._database: sqlite3.Connection | None = None
        self.kept = Kept()
        """As the file was when it was opened."""
        self.remade = ""
        """Why the file was made anew; empty: it was not."""

    def open(self) -> None:
        """Read what there is; whatever is wrong with it, there is an empty store afterwards, or none at all."""
        if not self._path:
            return
        try:
            self._open()
        except (sqlite3.Error, ValueError, KeyError, TypeError) as fault:
            self.remade = str(fault) or type(fault).__name__
            self.close()
            for path in (self._path, f"{self._path}-journal", f"{self._path}-wal", f"{self._path}-shm"):
                with contextlib.suppress(OSError):
                    os.unlink(path)
            logger.warning("the controller's memory is made anew: %s", self.remade)
            try:
                self._open()
            except sqlite3.Error as again:
                self._lost(again)

    def _open(self) -> None:
        is_new = not os.path.exists(self._path) or not os.path.getsize(self._path)
        if is_new:
            with contextlib.suppress(OSError):
                os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        self._database = database = sqlite3.connect(self._path, isolation_level=None, timeout=0.2)
        database.execute("PRAGMA synchronous=OFF")
        if is_new:
            for statement in _TABLES:
                database.execute(statement)
            database.execute(f"PRAGMA user_version={FORM}")
        (form,) = database.execute("PRAGMA user_version").fetchone()
        if form != FORM:
            raise ValueError(f"it is of form {form}, not {FORM}")
        (verdict,) = database.execute("PRAGMA quick_check").fetchone()
        if verdict != "ok":
            raise ValueError(str(verdict)[:200])
        term = database.execute("SELECT value FROM meta WHERE name='term'").fetchone()
        jobs = [_object(data) for (data,) in database.execute("SELECT data FROM job ORDER BY name")]
        ledger = [_object(data) for (data,) in database.execute("SELECT data FROM ledger ORDER BY place")]
        self.kept = Kept(_count(term[0]) if term is not None else 0, tuple(jobs), tuple(ledger))

    def term(self, term: int) -> None:
        """This one is ours."""
        self._write("INSERT OR REPLACE INTO meta VALUES ('term', ?)", [(term,)])

    def job(self, name: str, data: dict[str, Any]) -> None:
        """A job as it is now."""
        self._write("INSERT OR REPLACE INTO job VALUES (?, ?)", [(name, orjson.dumps(data).decode())])

    def forget(self, name: str) -> None:
        """A job that is of no interest any more."""
        self._write("DELETE FROM job WHERE name=?", [(name,)])

    def ledger(self, entries: dict[str, dict[str, Any]]) -> None:
        """Who holds what now."""
        self._write("DELETE FROM ledger", [()])
        self._write(
            "INSERT INTO ledger VALUES (?, ?)", [(n, orjson.dumps(data).decode()) for n, data in entries.items()]
        )

    def _write(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        if self._database is None:
            return
        try:
            self._database.executemany(statement, rows)
        except sqlite3.Error as fault:
            self._lost(fault)

    def _lost(self, fault: Exception) -> None:
        logger.error("the controller remembers nothing from here on: %s", fault)
        self.close()

    def close(self) -> None:
        """Repeating it is harmless."""
        if self._database is not None:
            with contextlib.suppress(sqlite3.Error):
                self._database.close()
            self._database = None


def _object(text: Any) -> dict[str, Any]:
    data = orjson.loads(text)
    if not isinstance(data, dict):
        raise ValueError("a row that is no object")
    return data


def _count(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise ValueError(f"a term of {value!r:.40}")
    return value
