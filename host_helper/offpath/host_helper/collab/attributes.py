"""Attributes that nodes have reported, in a file that the jobs of one user share."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from typing import Final

from pydantic import TypeAdapter, ValidationError

from offpath.bindings.errors import OptionRefused
from offpath.host_helper.collab.settings import NodeTable

logger = logging.getLogger(__name__)
_MOST_BYTES: Final = 64 << 20
_TABLE: Final = TypeAdapter(dict[str, NodeTable])


@contextlib.contextmanager
def kept(path: str | None) -> Iterator[dict[str, NodeTable]]:
    """The table, locked for as long as the block runs; what is added to it is written at the end. None: it is empty,
    and nothing is kept. A file that cannot be read as one is begun anew. One that cannot be written, as on a full disk,
    is a warning: the next job queries the nodes again. Raises: OptionRefused: it cannot be used."""
    if path is None:
        yield {}
        return
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as fault:
        raise OptionRefused(f"attributes: {path}: {fault.strerror}") from None
    with open(fd, "rb") as file:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            table = _read(file.read(_MOST_BYTES + 1))
        except OSError as fault:
            raise OptionRefused(f"attributes: {path}: {fault.strerror}") from None
        before = dict(table)
        yield table
        if table != before:
            try:
                _write(fd, _TABLE.dump_json(table))
            except OSError as fault:
                logger.warning("attributes of nodes are not kept: %s: %s", path, fault.strerror)


def _write(fd: int, data: bytes) -> None:
    """In place of all that is there. Raises: OSError: a part is written, which is not read as a table."""
    os.ftruncate(fd, 0)
    at = 0
    while at < len(data):
        at += os.pwrite(fd, data[at:], at)


def _read(data: bytes) -> dict[str, NodeTable]:
    """Empty, if it is none: nodes are queried again."""
    try:
        return _TABLE.validate_json(data) if 0 < len(data) <= _MOST_BYTES else {}
    except ValidationError:
        return {}
