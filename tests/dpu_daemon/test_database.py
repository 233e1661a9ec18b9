"""SQLite files: one process at a time, all of a transaction or nothing, and no file of another format."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from offpath.dpu_daemon.durability.database import check, open_alone, transaction

FORM = 3


def fill(database: sqlite3.Connection, is_new: bool) -> None:
    if is_new:
        database.execute("CREATE TABLE word (text TEXT)")
    database.execute("CREATE TABLE IF NOT EXISTS later (text TEXT)")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "file.db")


def tables(path: str) -> set[str]:
    database = sqlite3.connect(path)
    found = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    database.close()
    return found


def words(database: sqlite3.Connection) -> list[str]:
    return [text for (text,) in database.execute("SELECT text FROM word")]


def test_a_new_file_is_private_filled_and_of_the_format(path: str) -> None:
    database = open_alone(path, FORM, fill)
    check(database, FORM)
    assert database.execute("PRAGMA synchronous").fetchone() == (2,), "FULL"
    database.close()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert tables(path) == {"word", "later"}


def test_a_file_is_opened_by_one_at_a_time(path: str) -> None:
    first = open_alone(path, FORM, fill)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        open_alone(path, FORM, fill)
    first.close()
    open_alone(path, FORM, fill).close()


def test_nothing_is_made_in_a_file_of_another_format(path: str) -> None:
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version=2")
    database.close()
    with pytest.raises(ValueError, match="it has format 2, not 3"):
        open_alone(path, FORM, fill)
    assert tables(path) == set()


def test_what_later_versions_need_is_made_in_a_file_that_is_there(path: str) -> None:
    open_alone(path, FORM, lambda database, is_new: fill(database, is_new) if is_new else None).close()
    database = open_alone(path, FORM, fill)
    with transaction(database):
        database.execute("INSERT INTO later VALUES ('a')")
    database.close()


@pytest.mark.parametrize("fault", [RuntimeError, KeyboardInterrupt, sqlite3.IntegrityError])
def test_a_transaction_that_fails_writes_nothing(path: str, fault: type[BaseException]) -> None:
    database = open_alone(path, FORM, fill)

    def write() -> None:
        with transaction(database):
            database.execute("INSERT INTO word VALUES ('a')")
            raise fault

    with pytest.raises(fault):
        write()
    assert words(database) == []
    with transaction(database):
        database.execute("INSERT INTO word VALUES ('b')")
    assert words(database) == ["b"]
    database.close()


def test_a_damaged_file_is_refused_and_left_closed(path: str) -> None:
    database = open_alone(path, FORM, fill)
    with transaction(database):
        database.executemany("INSERT INTO word VALUES (?)", [("x" * 500,)] * 100)
    database.close()
    with open(path, "r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xff" * 4096)
    for _ in range(2):
        with pytest.raises((ValueError, sqlite3.DatabaseError), match=r"[Tt]ree|malformed|corrupt"):
            open_alone(path, FORM, fill)
