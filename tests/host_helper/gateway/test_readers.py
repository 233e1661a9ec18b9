"""Long bodies are read in a process beside the gateway's."""

from __future__ import annotations

import asyncio
import errno
import gc
import gzip
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest

from offpath.host_helper.gateway import bodies, buffers, grpc_calls, inference, readers
from offpath.host_helper.gateway.answers import Output
from offpath.host_helper.gateway.buffers import AT_ONCE_BYTES
from offpath.host_helper.gateway.calls import Wanted
from offpath.host_helper.gateway.errors import Refused
from offpath.host_helper.gateway.grpc_requests import Long, received
from offpath.host_helper.gateway.messages import classes
from offpath.host_helper.gateway.readers import Reader, ReaderProcess

from ...support.processes import until as wait_until
from .rig import ROWS, Rig, in_json, until

LONG = np.arange(3 * AT_ONCE_BYTES // 4, dtype=np.float32).reshape(-1, 3)


@pytest.fixture
async def process() -> AsyncIterator[ReaderProcess]:
    made = ReaderProcess()
    yield made
    made.close()


@pytest.fixture
def reader(process: ReaderProcess) -> Reader:
    return Reader(process)


async def test_it_is_another_process_of_lower_priority(reader: Reader) -> None:
    pid = await reader.run(os.getpid)
    assert pid != os.getpid()
    assert await reader.run(os.getpriority, os.PRIO_PROCESS, 0) == min(os.nice(0) + 10, 19)
    assert await reader.run(gc.isenabled) is False
    assert await reader.run(os.getpid) == pid


async def test_what_it_refuses_is_told_as_it_is(reader: Reader) -> None:
    with pytest.raises(Refused) as here:
        inference.read(b"{", 0)
    with pytest.raises(Refused) as there:
        await reader.run(inference.read, b"{", 0)
    assert vars(there.value) == vars(here.value)
    assert (there.value.http, str(there.value)) == (500, str(here.value))


async def test_after_its_death_another_is_started(reader: Reader) -> None:
    pid = await reader.run(os.getpid)
    waiting = asyncio.ensure_future(reader.run(time.sleep, 60.0))
    await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(Refused, match="has ended") as refused:
        await waiting
    assert refused.value.http == 503
    assert await reader.run(os.getpid) != pid


async def test_its_death_costs_no_other_tenant_a_body(process: ReaderProcess) -> None:
    tenants = [Reader(process) for _ in range(4)]
    pid = await tenants[0].run(os.getpid)
    begun = asyncio.ensure_future(tenants[0].run(time.sleep, 60.0))
    waiting = [asyncio.ensure_future(each.run(os.getpid)) for each in tenants]
    await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(Refused, match="has ended"):
        await begun
    others = set(await asyncio.gather(*waiting))
    assert len(others) == 1
    assert others != {pid}


async def test_one_body_of_a_tenant_at_a_time_also_if_its_client_leaves(process: ReaderProcess, tmp_path: Path) -> None:
    ada, bob = Reader(process), Reader(process)
    pid = await ada.run(os.getpid)
    os.mkfifo(fifo := tmp_path / "fifo")
    begun = [asyncio.ensure_future(ada.run(Path.read_text, fifo)) for _ in range(3)]
    writing = await asyncio.to_thread(os.open, fifo, os.O_WRONLY)  # the first one is there now, and reads until its end
    for each in begun:
        each.cancel()
    await asyncio.gather(*begun, return_exceptions=True)
    assert ada._turn.locked()  # the first one still runs
    after = asyncio.ensure_future(bob.run(os.getpid))
    os.close(writing)
    assert await after == pid  # only that one was before bob's: another would wait for a writer
    assert await ada.run(os.getpid) == pid
    assert not ada._turn.locked()


async def test_what_was_read_there_is_what_would_have_been_read_here(reader: Reader) -> None:
    header = orjson.dumps(
        {"inputs": [{"name": "x", "datatype": "INT8", "shape": [2], "parameters": {"binary_data_size": 2}}],
         "id": "7", "other": "y" * AT_ONCE_BYTES}
    )  # fmt: skip
    body = memoryview(header + b"\x01\x02")
    here, there = inference.parse(body, str(len(header))), await inference.parse_by(reader, body, str(len(header)))
    assert here == there
    assert bytes(there.inputs[0].content) == b"\x01\x02"  # type: ignore[arg-type]

    asked = classes().ModelInferRequest(model_name="scaling", id="7")
    tensor = asked.inputs.add(name="x", datatype="FP32", shape=LONG.shape)
    tensor.contents.fp32_contents.extend(LONG.ravel())
    given = received(asked.SerializeToString())
    assert isinstance(given, Long)
    far, near = await grpc_calls.parse(reader, given, 2.0), grpc_calls.read(asked, 2.0)
    assert far == near
    assert far.inputs[0].content == LONG.tobytes()


async def test_a_long_body_is_served_and_a_long_wrong_one_refused(gateway: Rig) -> None:
    answer = await gateway.infer(in_json(LONG))
    assert answer.json["outputs"][0]["data"] == (2 * LONG).ravel().tolist()
    tenants = gateway.gateway.tenants
    assert tenants._reader._child is not None
    answer = await gateway.infer(in_json(LONG)[:-1])
    assert (answer.status, answer.error[:40]) == (500, "failed to parse the request JSON buffer:")


async def test_others_are_served_while_a_long_body_is_read(gateway: Rig) -> None:
    """Counted in answers, not in seconds: in one process none would come before the reading has ended."""
    await gateway.infer(in_json(LONG))  # starts the process
    deep = in_json(np.ones((300_000, 1), np.float32), name="nope")
    waiting = asyncio.ensure_future(gateway.infer(deep))
    reader = gateway.gateway.tenants.by_name["ada"].reader
    await until(reader._turn.locked)
    answers = 0
    while reader._turn.locked():
        assert (await gateway.infer(in_json(ROWS), tenant="bob")).status == 200
        answers += 1
    assert answers >= 3
    assert (await waiting).status == 400


async def test_a_bomb_is_refused_there_and_its_memory_kept_for_the_next(reader: Reader) -> None:
    some = buffers.Buffers()
    taken: list[buffers.Buffer] = []

    def room(nbytes: int) -> buffers.Buffer:
        taken.append(some.take(nbytes))
        return taken[-1]

    packed = gzip.compress(bytes(8 << 20))
    noise = random.Random(3).randbytes(600_000)
    spoilt = gzip.compress(noise)[:300_000] + noise
    for data in (packed, packed + packed[:2], packed[:-1], b"?" * len(packed), noise[:40_000], spoilt):
        with pytest.raises(Refused) as here:
            bodies.inflate(memoryview(data), "gzip", 1 << 20)
        with pytest.raises(Refused) as there:
            await bodies.inflated(reader, buffers.shared(data), "gzip", 1 << 20, room)
        assert (there.value.http, str(there.value)) == (here.value.http, str(here.value))
    plain = await bodies.inflated(reader, memoryview(gzip.compress(b"x" * 100_000)), "gzip", 1 << 20, room)
    assert plain == b"x" * 100_000
    assert isinstance(plain.obj, buffers.SharedBuffer)
    assert isinstance(buffers.placed(plain), buffers.Place)


async def test_memory_that_the_process_still_reads_is_nobody_elses(process: ReaderProcess, tmp_path: Path) -> None:
    ada, some = Reader(process), buffers.Buffers()
    await ada.run(os.getpid)
    os.mkfifo(fifo := tmp_path / "fifo")
    body = some.take(100_000)
    assert isinstance(body, buffers.SharedBuffer)
    view = memoryview(body)
    begun = asyncio.ensure_future(ada.run(Path.read_text, fifo, of=(view,)))
    writing = await asyncio.to_thread(os.open, fifo, os.O_WRONLY)  # it has begun
    begun.cancel()
    await asyncio.gather(begun, return_exceptions=True)
    some.give_back(body)
    assert some.spare_bytes == 0
    descriptor, inode = body.descriptor, os.fstat(body.descriptor).st_ino
    del body, view, begun
    gc.collect()
    assert os.fstat(descriptor).st_ino == inode  # open as long as the process may open it
    os.close(writing)
    await ada.run(os.getpid)
    await until(lambda: _is_closed(descriptor, inode))


def _is_closed(descriptor: int, inode: int) -> bool:
    gc.collect()
    try:
        return os.fstat(descriptor).st_ino != inode
    except OSError:
        return True


async def test_a_job_that_takes_too_long_ends_the_process_not_the_bodies_of_others(
    process: ReaderProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bob = Reader(process), Reader(process)
    await ada.run(os.getpid)
    with monkeypatch.context() as short:
        short.setattr(readers, "MOST_S", 0.2)
        with pytest.raises(Refused, match="was not read") as refused:
            await ada.run(time.sleep, 60.0)
    assert refused.value.http == 503
    assert await bob.run(int) == 0
    assert await ada.run(int) == 0


async def test_after_the_end_no_process_is_started(process: ReaderProcess) -> None:
    ada, bob = Reader(process), Reader(process)
    await ada.run(os.getpid)
    waiting = [asyncio.ensure_future(ada.run(time.sleep, 60.0)), asyncio.ensure_future(bob.run(os.getpid))]
    await asyncio.sleep(0.1)
    process.close()
    ended = await asyncio.gather(*waiting, ada.run(os.getpid), return_exceptions=True)
    assert all(isinstance(each, Refused) for each in ended)
    assert process._child is None


async def test_an_answer_that_cannot_be_packed_is_given_as_it_is(process: ReaderProcess) -> None:
    process.close()
    body = b"x" * (AT_ONCE_BYTES + 1)
    assert await bodies.deflated(Reader(process), body, "gzip") == (body, "")


async def test_raw_contents_need_no_other_process(process: ReaderProcess) -> None:
    process.close()
    asked = classes().ModelInferRequest(model_name="scaling")
    asked.inputs.add(name="x", datatype="FP32", shape=[100_000]).contents.SetInParent()
    asked.raw_input_contents.append(bytes(400_000))
    parsed = await grpc_calls.parse(Reader(process), received(asked.SerializeToString()), None)
    assert parsed.inputs[0].content == bytes(400_000)


def test_buffers_of_many_lengths_are_few() -> None:
    some = buffers.Buffers()
    for nbytes in (*range(AT_ONCE_BYTES + 1, 300_000, 97), *range(1, 2_000)):
        some.give_back(some.take(nbytes))
    assert len(some._spare) <= 5
    held = [some.take(20_000) for _ in range(200)]
    for each in held:
        some.give_back(each)
    assert len(some._spare) == 64
    for each in [some.take(4 << 20) for _ in range(20)]:
        some.give_back(each)
    assert some.spare_bytes <= 32 << 20
    assert len(some.take(4 << 20)) == 4 << 20
    assert len(some._spare) == 7  # the small ones, which nobody took, made room


def test_the_length_of_shared_memory_cannot_be_changed() -> None:
    buffer = buffers.SharedBuffer(32_768)
    for nbytes in (0, 65_536):
        with pytest.raises(PermissionError):
            os.ftruncate(buffer.descriptor, nbytes)


async def test_without_a_process_long_bodies_are_refused_until_there_is_one(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as without:
        without.setattr(socket, "socketpair", none)
        with pytest.raises(Refused, match="was not read") as refused:
            await reader.run(os.getpid)
    assert refused.value.http == 503
    assert await reader.run(os.getpid) != os.getpid()


async def test_without_descriptors_a_long_body_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", none)
    with pytest.raises(Refused, match="no memory for the body") as refused:
        buffers.Buffers().take(AT_ONCE_BYTES + 1)
    assert refused.value.http == 503
    assert len(buffers.Buffers().take(AT_ONCE_BYTES)) == AT_ONCE_BYTES


def test_it_ends_with_the_gateway(tmp_path: Path) -> None:
    program = """
import asyncio, os
from offpath.host_helper.gateway.readers import Reader, ReaderProcess
async def main():
    print(await Reader(ReaderProcess()).run(os.getpid), flush=True)
    await asyncio.sleep(60)
if __name__ == "__main__":
    asyncio.run(main())
"""
    (file := tmp_path / "program.py").write_text(program)
    command = [sys.executable, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as gateway:
        assert gateway.stdout is not None
        reader = int(gateway.stdout.readline())
        assert Path(f"/proc/{reader}/exe").exists()
        gateway.kill()
    wait_until(lambda: not Path(f"/proc/{reader}/exe").exists())


def numbers_of(count: int, *, lost: bool = False) -> tuple[Any, list[Output]]:
    """A call, and its output of so many numbers."""
    values = np.arange(count, dtype=np.float32)
    if lost:
        values[5:8] = np.nan, np.inf, -np.inf
    call = SimpleNamespace(id="7", model=SimpleNamespace(name="m", version=1))
    return call, [Output(Wanted("y", False), "FP32", (count,), values.nbytes, values.tobytes())]


@pytest.mark.parametrize("lost", [False, True])
async def test_many_numbers_become_json_there_as_they_would_here(
    process: ReaderProcess, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    call, outputs = numbers_of(20_000, lost=lost)
    here = inference.written(call, outputs)
    monkeypatch.setattr(Output, "in_json", lambda output: pytest.fail("the loop writes it"))
    assert await inference.written_by(Reader(process), call, outputs) == here
    monkeypatch.undo()
    process.close()
    assert await inference.written_by(Reader(process), call, outputs) == here, "a dead process loses no answer"


async def test_some_numbers_are_written_without_another_process(process: ReaderProcess) -> None:
    process.close()
    call, outputs = numbers_of(16_384)
    assert await inference.written_by(Reader(process), call, outputs) == inference.written(call, outputs)
