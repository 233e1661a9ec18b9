"""Attributes that nodes have reported, in a file that the jobs of one user share."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from typing import Final

from pydantic import TypeAdapter, ValidationError

from offpath.bindings.errors import OptionRefused
from offpath.host_helper.collab.settings import NodeTable

_MOST_BYTES: Final = 64 << 20
_TABLE: Final = TypeAdapter(dict[str, NodeTable])


@contextlib.contextmanager
def kept(path: str | None) -> Iterator[dict[str, NodeTable]]:
    """The table, locked for as long as the block runs; what is added to it is written at the end. None: it is empty,
    and nothing is kept. A file that cannot be read as one is begun anew. Raises: OptionRefused: it cannot be used."""
    if path is None:
        yield {}
        return
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as fault:
        raise OptionRefused(f"attributes: {path}: {fault.strerror}") from None
    with open(fd, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        table = _read(file.read(_MOST_BYTES + 1))
        before = dict(table)
        yield table
        if table != before:
            data = _TABLE.dump_json(table)
            file.seek(0)
            file.truncate()
            file.write(data)


def _read(data: bytes) -> dict[str, NodeTable]:
    """Empty, if it is none: nodes are queried again."""
    try:
        return _TABLE.validate_json(data) if 0 < len(data) <= _MOST_BYTES else {}
    except ValidationError:
        return {}
