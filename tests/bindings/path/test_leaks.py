"""The C functions keep nothing: no memory, no reference, no buffer, whether they succeed or not."""

from __future__ import annotations

import contextlib
import gc
import socket
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from offpath.bindings import twins
from offpath.bindings.wire.header import RequestHeader, pack_answer, pack_request
from offpath.bindings.wire.host import pack_launch, pack_result

from . import journalled
from .built import compiled, loaded
from .sweep import PARTS, compare

pytestmark = pytest.mark.not_fast("it makes records of wrong types, which a compiled class refuses")

TIMES = 3_000
MOST_BYTES = 4_096
"""What a cache of the interpreter's may grow by meanwhile. One object a call would be a hundred thousand bytes."""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return loaded(compiled(tmp_path_factory.mktemp("path")))


def grown(call: Callable[[], object]) -> int:
    """Bytes that the interpreter's allocator holds more after many calls."""
    for _ in range(100):
        call()
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(TIMES):
            call()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@contextlib.contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def calls(module: Any, ours: socket.socket, theirs: socket.socket) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each function on something valid, and on something that is not."""
    tensor = bytes([1, 1]) + bytes(6) + (8).to_bytes(4, "little") + bytes(28) + (8).to_bytes(8, "little")
    good = pack_request(7, 3, 4096, tensor).ljust(4096, b"\0")
    answer = pack_answer(7, 1, 0, 0, 1, 0, 5, 4096, (1 << 40, 2, 3, 4, 5, 6), tensor)
    launch, result = (
        pack_launch(1 << 40, 2, 3, 14, 0, 0, 4096, tensor),
        pack_result(1, 2, 0, 5, 6, 4, True, b"", b"text"),
    )
    for name, data in (("valid", good), ("invalid", good[:60] + b"\1" * 4036)):
        yield f"take_request, {name}", lambda data=data: module.take_request(memoryview(bytearray(data)), 0, 4096)
    yield "take_request, outside", lambda: module.take_request(memoryview(good), 1, 4096)
    for name, data in (("valid", answer), ("invalid", answer[:-1])):
        yield f"parse_answer, {name}", lambda data=data: module.parse_answer(data, 4096)
    yield "parse_launch", lambda: module.parse_launch(launch)
    yield "parse_launch, invalid", lambda: module.parse_launch(launch[:-1])
    yield "parse_result", lambda: module.parse_result(result)
    yield "parse_result, invalid", lambda: module.parse_result(result + b"x")
    yield "pack_request", lambda: module.pack_request(1 << 40, 3, 4096, tensor, 1, 2, 3, 4, 0)
    yield "pack_request, invalid", lambda: module.pack_request(-1, 3, 4096, tensor, 1, 2, 3, 4, 0)
    yield "pack_answer", lambda: module.pack_answer(1 << 40, 1, 0, 0, 1, 2, 3, 4, (1, 2, 3, 4, 5, 6), tensor)
    yield "pack_answer, invalid", lambda: module.pack_answer(1, 1, 0, 0, 1, 2, 3, 4, (1, 2, 3, 4, 5, -6), tensor)
    memory = memoryview(bytearray(64))
    yield "copy", lambda: module.copy(memory, 0, memory, 32, 32)
    yield "copy, outside", lambda: module.copy(memory, 0, memory, 33, 32)
    end, other = ours.fileno(), theirs.fileno()
    yield "ring, receive", lambda: (module.ring(end, 0xFFFFFFFF), module.wait(other, 1, 1.0), module.receive(other))
    yield "receive_message", lambda: (ours.send(launch), module.spin(other, 0), module.receive_message(other))
    yield "receive, nothing there", lambda: (module.receive(other), module.receive_message(other))
    yield "receive, closed", lambda: module.receive(-1)
    writer, noise = journalled.Writer(module.record), Random(1)
    module.configure_journal(journalled.codec.CLASSES)
    entries = [journalled.entry(noise) for _ in range(50)]
    yield "record", lambda: [writer.write(*entry, 1 << 50) for entry in entries[:20]]


def ignoring(call: Callable[[], object]) -> Callable[[], object]:
    def called() -> object:
        try:
            return call()
        except Exception:
            return None

    return called


def test_no_function_leaks(module: Any) -> None:
    with pair() as ends:
        found = {name: grown(ignoring(call)) for name, call in calls(module, *ends)}
    assert {name: nbytes for name, nbytes in found.items() if nbytes > MOST_BYTES} == {}


def test_classes_and_buffers_are_not_held(module: Any) -> None:
    before = sys.getrefcount(RequestHeader), sys.getrefcount(twins.parse_result)
    for part in PARTS:
        compare(module, part, 500, 3)
    gc.collect()
    after = sys.getrefcount(RequestHeader), sys.getrefcount(twins.parse_result)
    assert max(abs(new - old) for new, old in zip(after, before, strict=True)) < 50
    store = bytearray(pack_request(1, 2, 3).ljust(4096, b"\0"))
    view = memoryview(store)
    assert module.take_request(view, 0, 3)[0].request_id == 1
    assert module.copy(view, 0, view, 1, 5)
    assert module.record(view, 10, 1, object(), (), 0, 0) == 0
    view.release()  # raises while a buffer is held
    store.append(0)


def test_a_module_can_go(tmp_path: Path) -> None:
    module = loaded(compiled(tmp_path))
    module.configure(twins)
    module.configure_journal(journalled.codec.CLASSES)
    gc.collect()
    before = sys.getrefcount(twins.parse_answer)
    del module
    gc.collect()
    after = sys.getrefcount(twins.parse_answer)
    assert after == before - 1


def test_a_planted_leak_is_found(tmp_path: Path) -> None:
    change = ("module.c", "    Py_DECREF(args);\n    return made;", "    return made;")
    module = loaded(compiled(tmp_path, change=change))
    with pair() as ends:
        found = {name: grown(ignoring(call)) for name, call in calls(module, *ends) if name == "parse_launch"}
    assert found["parse_launch"] > MOST_BYTES
