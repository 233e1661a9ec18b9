"""Log lines carry their level where standard error is journald's stream, and only there."""

from __future__ import annotations

import io
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from offpath.cli.journald import JournalHandler, goes_to_journal

CODE = (
    "import logging, sys\n"
    "from offpath.cli.journald import log_handler\n"
    "logging.basicConfig(handlers=[log_handler()], format='%(levelname)s %(message)s', level=logging.DEBUG)\n"
    "logging.error('one'); logging.info('two')\n"
)


@pytest.mark.parametrize(
    ("level", "prefix"),
    [
        (logging.CRITICAL, "<2>"), (logging.ERROR, "<3>"), (logging.WARNING, "<4>"), (logging.INFO, "<6>"),
        (logging.DEBUG, "<7>"), (logging.ERROR + 5, "<3>"),
    ],
)  # fmt: skip
def test_each_line_of_a_message_begins_with_its_level(level: int, prefix: str) -> None:
    to = io.StringIO()
    JournalHandler(to).emit(logging.LogRecord("name", level, "file", 1, "first\n<0>second\0<0>third", (), None))
    assert to.getvalue() == f"{prefix}first\n{prefix}<0>second <0>third\n"


def test_only_the_stream_that_systemd_names_is_the_journals(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        found = os.fstat(file.fileno())
        named = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        assert goes_to_journal(file.fileno(), named)
        assert not goes_to_journal(file.fileno(), {})
        assert not goes_to_journal(file.fileno(), {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino + 1}"})
        number = file.fileno()
    assert not goes_to_journal(number, named), "a closed descriptor is no stream"


@pytest.mark.parametrize("is_journal", [True, False])
def test_a_process_looks_at_its_own_standard_error(is_journal: bool) -> None:
    ours, journal = socket.socketpair()
    with ours, journal:
        found = os.fstat(journal.fileno() if is_journal else ours.fileno())
        environment = {**os.environ, "JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        subprocess.run([sys.executable, "-P", "-c", CODE], stderr=journal, env=environment, check=True, timeout=60)
        said = ours.recv(4096).decode()
    assert said == ("<3>ERROR one\n<6>INFO two\n" if is_journal else "ERROR one\nINFO two\n")
