"""Log lines that journald files under their level.

journald gives every line that a service writes to standard error the level "info", unless the line begins with ``<N>``
(sd-daemon(3)). Without it ``journalctl -p err`` shows none of the service's errors.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import Final, TextIO

_STREAM: Final = "JOURNAL_STREAM"
_LEVELS: Final = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG: Final = 7


def goes_to_journal(descriptor: int, environment: Mapping[str, str]) -> bool:
    """Whether a descriptor is the stream that systemd connected to journald. A redirected one is not.

    Source: systemd.exec(5), ``$JOURNAL_STREAM``: device and inode, in decimal, with a colon between them.
    """
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return environment.get(_STREAM) == f"{found.st_dev}:{found.st_ino}"


class JournalHandler(logging.StreamHandler[TextIO]):
    """Begins every line of a message, also those of a traceback, with the message's level."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Handler.format`. journald ends a line at NUL, too."""
        level = next((number for least, number in _LEVELS if record.levelno >= least), _DEBUG)
        return "\n".join(f"<{level}>{line}" for line in super().format(record).replace("\0", " ").split("\n"))


def log_handler() -> logging.Handler:
    """A handler of standard error."""
    if goes_to_journal(2, os.environ):
        return JournalHandler(sys.stderr)
    return logging.StreamHandler(sys.stderr)
