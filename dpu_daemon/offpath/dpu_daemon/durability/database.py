"""SQLite files: how they are opened and checked, and transactions."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator


def create_private(path: str) -> None:
    """A file that only this user can read, if there is none. Raises: OSError."""
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK, 0o600))


def open_alone(
    path: str, form: int, fill: Callable[[sqlite3.Connection, bool], None], *, any_thread: bool = False
) -> sqlite3.Connection:
    """A file that one process has open at a time, and whose transactions are on the disk when they end.

    ``form``: the number of its format. ``fill`` gets the database, and whether it is new: it makes what is missing, in
    the first transaction. ``any_thread``: others than this one may use it, one at a time.

    Raises: OSError, sqlite3.Error: it cannot be used, or another process has it open. ValueError: see `check`.
    """
    create_private(path)
    database = sqlite3.connect(path, isolation_level=None, timeout=0.5, check_same_thread=not any_thread)
    try:
        for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL"):
            database.execute(f"PRAGMA {pragma}")
        with transaction(database, "EXCLUSIVE"):  # fails while another process has the file
            found = _form(database)
            if found not in (0, form):
                raise _another(found, form)
            fill(database, not found)
            if not found:
                database.execute(f"PRAGMA user_version={form}")
        check(database, form)
    except BaseException:
        database.close()
        raise
    return database


def check(database: sqlite3.Connection, form: int) -> None:
    """Raises: ValueError: it has another format, or is damaged. sqlite3.Error: it cannot be read."""
    found = _form(database)
    if found != form:
        raise _another(found, form)
    (verdict,) = database.execute("PRAGMA quick_check").fetchone()
    if verdict != "ok":
        raise ValueError(str(verdict)[:200])


@contextlib.contextmanager
def transaction(database: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """A write transaction. ``kind``: IMMEDIATE or EXCLUSIVE. Raises: sqlite3.Error: the file is locked or cannot be
    written; nothing was."""
    database.execute(f"BEGIN {kind}")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise


def _form(database: sqlite3.Connection) -> int:
    (form,) = database.execute("PRAGMA user_version").fetchone()
    return int(form)


def _another(found: int, form: int) -> ValueError:
    return ValueError(f"it has format {found}, not {form}")
