"""A header is read once: a peer that rewrites it meanwhile can only choose which of its headers counts."""

from __future__ import annotations

import mmap
import os
import signal
import time
from pathlib import Path
from typing import Any

from offpath.bindings.errors import HeaderError
from offpath.bindings.wire.header import pack_request

from ...support.processes import BOUND_S
from .built import compiled, loaded

TRIES = 200_000
LEFT = pack_request(1, 1, 1000, bytes(0), 0, 1, 1, 1)
RIGHT = pack_request(2, 2, 2000, bytes(0), 0, 2, 2, 2)
LIMIT = 1000
"""Only the left header is valid."""


def rewrite(memory: mmap.mmap) -> None:
    while True:
        memory[:128] = LEFT
        memory[:128] = RIGHT


def mixed(module: Any, most: int) -> int:
    """How many of ``most`` headers were taken that are not the left one, while another process rewrites them; it ends
    with the first."""
    memory = mmap.mmap(-1, 4096)
    child = os.fork()
    if child == 0:
        try:
            rewrite(memory)
        finally:
            os._exit(0)
    view, found, taken = memoryview(memory), 0, 0
    expected = int.from_bytes(LEFT[124:128], "little")
    try:
        ends = time.monotonic() + BOUND_S
        while not found and taken < most and time.monotonic() < ends:
            for _ in range(200):
                try:
                    header, crc = module.take_request(view, 0, LIMIT)
                except HeaderError:
                    continue
                taken += 1
                found += (header.request_id, header.payload_bytes, crc) != (1, 1000, expected)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        view.release()
        memory.close()
    assert taken > 100
    return found


def test_a_header_that_changes_meanwhile_is_one_or_the_other(tmp_path: Path) -> None:
    assert mixed(loaded(compiled(tmp_path)), TRIES) == 0


def test_reading_the_peers_memory_twice_is_seen(tmp_path: Path) -> None:
    change = (
        "request.c", "PyObject *header = header_of(state, copied)",
        "PyObject *header = header_of(state, (const unsigned char *)memory.buf + at)",
    )  # fmt: skip
    assert mixed(loaded(compiled(tmp_path, change=change)), 1 << 40) > 0
