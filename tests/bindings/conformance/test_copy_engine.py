"""The promises of the copy-engine port, for every adapter; those of verbs in the virtual machine (-m rdma)."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import pytest

from offpath.bindings.errors import RegionError, ResourceClosed
from offpath.bindings.ports import CopyCompletion, CopyEngine, MemoryExport

pytestmark = pytest.mark.conformance


def take(engine: CopyEngine, readable: Any, rig: Any, count: int) -> list[CopyCompletion]:
    """The next ``count`` completions, woken only by `fileno`."""
    done: list[CopyCompletion] = []
    while len(done) < count:
        assert readable(engine.fileno(), rig.bound_s), f"{len(done)} of {count} completions came"
        done += engine.poll()
    return done


@pytest.mark.parametrize("over", ["0", "1", "limit-1", "limit", "limit+1", "large"])
def test_a_copy_of_any_size_moves_exactly_its_bytes_and_completes_once(copy_rig: Any, readable: Any, over: str) -> None:
    limit = copy_rig.inline_limit
    nbytes = {"0": 0, "1": 1, "limit-1": limit - 1, "limit": limit, "limit+1": limit + 1, "large": 5 * limit}[over]
    content = random.Random(nbytes).randbytes(nbytes + 64)
    engine = copy_rig.engine()
    source, target = copy_rig.source(content), copy_rig.target(bytes(nbytes + 64))

    at_once = engine.post(7, source, 16, target, 32, nbytes)

    done = [at_once] if at_once is not None else take(engine, readable, copy_rig, 1)
    assert done == [CopyCompletion(7, None)]
    assert engine.poll() == []
    assert engine.bytes_copied == nbytes
    assert copy_rig.read(target, 0, nbytes + 64) == bytes(32) + content[16 : 16 + nbytes] + bytes(32)


def test_every_token_completes_exactly_once_however_copies_overlap(copy_rig: Any, readable: Any) -> None:
    engine, limit = copy_rig.engine(), copy_rig.inline_limit
    source, target = copy_rig.source(b"\xa5" * (4 * limit)), copy_rig.target(bytes(4 * limit))
    dice = random.Random(1)
    seen: Counter[int] = Counter()
    later = 0
    for token in range(200):
        nbytes = dice.choice([0, 1, limit, limit + 1, 3 * limit])
        at_once = engine.post(token, source, 0, target, 0, nbytes)
        if at_once is None:
            later += 1
        else:
            seen[at_once.token] += 1
    seen.update(completion.token for completion in take(engine, readable, copy_rig, later))
    assert engine.poll() == []
    assert seen == dict.fromkeys(range(200), 1)


def test_a_large_copy_makes_fileno_readable_and_an_idle_engine_does_not(copy_rig: Any, readable: Any) -> None:
    engine, nbytes = copy_rig.engine(), copy_rig.inline_limit + 1
    source, target = copy_rig.source(bytes(nbytes)), copy_rig.target(bytes(nbytes))
    assert not readable(engine.fileno(), 0)
    at_once = engine.post(1, source, 0, target, 0, nbytes)
    if copy_rig.completes_at_once:
        assert at_once == CopyCompletion(1, None)
    else:
        assert at_once is None
        assert readable(engine.fileno(), copy_rig.bound_s)
        assert engine.poll() == [CopyCompletion(1, None)]
    for _ in range(3):  # a turn that was descheduled beyond its time asks for another one
        if not readable(engine.fileno(), 0):
            return
        assert engine.poll() == []
    assert not readable(engine.fileno(), 0)


@pytest.mark.parametrize(
    ("source_offset", "target_offset", "nbytes"),
    [(-1, 0, 1), (0, -1, 1), (0, 0, -1), (1, 0, None), (0, 1, None), (None, 0, 1), (0, None, 1), (0, 0, 1 << 63)],
)
def test_a_copy_that_leaves_a_region_is_refused_and_copies_nothing(
    copy_rig: Any, source_offset: int | None, target_offset: int | None, nbytes: int | None
) -> None:
    """None stands for the region's size."""
    engine = copy_rig.engine()
    source, target = copy_rig.source(b"\xff" * 4096), copy_rig.target(bytes(4096))
    full = source.nbytes
    offsets = [full if value is None else value for value in (source_offset, target_offset, nbytes)]
    with pytest.raises(RegionError):
        engine.post(1, source, offsets[0], target, offsets[1], offsets[2])
    assert engine.poll() == []
    assert copy_rig.read(target, 0, 4096) == bytes(4096)


@pytest.mark.parametrize("which", ["source", "target"])
def test_a_copy_with_a_closed_region_is_refused(copy_rig: Any, which: str) -> None:
    engine = copy_rig.engine()
    memories = {"source": copy_rig.source(b"s" * 4096), "target": copy_rig.target(bytes(4096))}
    memories[which].close()
    for nbytes in (0, 1, 4096):
        with pytest.raises(RegionError):
            engine.post(1, memories["source"], 0, memories["target"], 0, nbytes)


def test_a_region_closed_while_it_is_copied_does_not_harm_us(copy_rig: Any, children: Any, readable: Any) -> None:
    """In a child: the fault would be a segmentation fault. Peers vanish, and their regions with them, at any time."""

    def close_early() -> None:
        engine, nbytes = copy_rig.engine(), copy_rig.long_bytes
        for token in range(4):
            source, target = copy_rig.source(b"\x07" * nbytes), copy_rig.target(bytes(nbytes))
            assert (engine.post(token, source, 0, target, 0, nbytes) is None) is not copy_rig.completes_at_once
            source.close()
            if copy_rig.completes_at_once:
                assert copy_rig.read(target, nbytes - 1, 1) == b"\x07"
            target.close()
        if not copy_rig.completes_at_once:
            assert [c.token for c in take(engine, readable, copy_rig, 4)] == [0, 1, 2, 3]

    assert children.fork(close_early).wait(copy_rig.bound_s) == 0


def test_closing_the_engine_waits_for_copies_and_may_be_repeated(copy_rig: Any) -> None:
    engine, nbytes = copy_rig.engine(), copy_rig.long_bytes
    source, target = copy_rig.source(b"\x01" * nbytes), copy_rig.target(bytes(nbytes))
    at_once = engine.post(9, source, 0, target, 0, nbytes)
    assert (at_once is None) is not copy_rig.completes_at_once
    engine.close()
    engine.close()
    assert copy_rig.read(target, nbytes - 1, 1) == b"\x01"
    assert (engine.poll() if at_once is None else [at_once]) == [CopyCompletion(9, None)]
    with pytest.raises(ResourceClosed):
        engine.post(10, source, 0, target, 0, 1)


def test_imported_memory_is_the_exporters_memory(copy_rig: Any, readable: Any) -> None:
    engine = copy_rig.engine()
    mine, theirs = copy_rig.memory(b"payload".ljust(4096, b".")), copy_rig.memory(b"result".rjust(4096, b"."))
    invitation = engine.invite()
    imported = engine.import_memory(copy_rig.export(theirs, invitation), invitation)
    try:
        assert engine.reaches(imported)
        into = copy_rig.can_be_written
        sides = (mine, 0, imported, 100) if into else (imported, 4096 - 6, mine, 100)
        at_once = engine.post(1, *sides, 6)
        done = [at_once] if at_once is not None else take(engine, readable, copy_rig, 1)
        assert done == [CopyCompletion(1, None)]
    finally:
        imported.close()
        imported.close()
    assert copy_rig.read(theirs if into else mine, 100, 6) == (b"payloa" if into else b"result")


def test_an_export_with_a_nonsense_descriptor_is_refused_and_its_descriptors_closed(
    copy_rig: Any, count_fds: Any
) -> None:
    engine = copy_rig.engine()
    memory = copy_rig.memory(bytes(8192))
    good = copy_rig.export(memory, invitation := engine.invite())
    for fd in good.fds:
        os.close(fd)
    if invitation is not None:
        invitation.close()
        invitation.close()
    before = count_fds()
    for descriptor in copy_rig.nonsense(good.descriptor):
        with pytest.raises(RegionError):
            engine.import_memory(MemoryExport(descriptor, copy_rig.fds(memory)), engine.invite())
        assert count_fds() == before, descriptor
