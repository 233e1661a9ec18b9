"""Where the emulated GPU is as unkind as a real one: bytes of the last tenant stay, peer writes come late."""

from __future__ import annotations

import os
from collections.abc import Iterator
from mmap import PAGESIZE

import pytest

from offpath.bindings.errors import DeviceError, PlacementTaken
from offpath.bindings.loopback.copy import LoopbackCopyEngine
from offpath.bindings.loopback.gpu import EmulatedGpu
from offpath.bindings.memory.region import Region
from offpath.bindings.ports import CopyCompletion, MemoryExport

SLICE = 128 << 10


@pytest.fixture
def gpu() -> Iterator[EmulatedGpu]:
    made = EmulatedGpu("GPU-0", "A100-40GB", slice_bytes=SLICE)
    yield made
    made.close()


@pytest.fixture
def delaying_gpu() -> Iterator[EmulatedGpu]:
    made = EmulatedGpu("GPU-1", "A100-40GB", slice_bytes=SLICE, delayed_visibility=True)
    yield made
    made.close()


@pytest.fixture
def engine() -> Iterator[LoopbackCopyEngine]:
    made = LoopbackCopyEngine()
    yield made
    made.close()


def leave(gpu: EmulatedGpu, profile: str, start: int, content: bytes) -> int:
    """Write into an instance as its tenant, close every handle; the instance remains."""
    instance = gpu.create_instance(profile, start)
    memory = gpu.open_instance(instance)
    memory.reserve(0, 1, 4096, 4096).write(0, content)
    memory.close()
    return instance


def found(gpu: EmulatedGpu, profile: str, start: int, nbytes: int) -> bytes:
    """What the next tenant reads from its fresh instance, which is destroyed again."""
    instance = gpu.create_instance(profile, start)
    memory = gpu.open_instance(instance)
    content = memory.reserve(0, 1, 4096, 4096).read(0, nbytes)
    memory.close()
    gpu.destroy_instance(instance)
    return content


@pytest.mark.parametrize("next_profile", ["1g.5gb", "2g.10gb", "4g.20gb", "7g.40gb"])
def test_what_a_tenant_left_is_there_for_the_next_until_it_is_scrubbed(gpu: EmulatedGpu, next_profile: str) -> None:
    instance = leave(gpu, "2g.10gb", 0, b"secret")
    gpu.destroy_instance(instance)
    assert found(gpu, next_profile, 0, 6) == b"secret"
    again = gpu.create_instance("2g.10gb", 0)
    assert gpu.scrub_instance(again) == 2 * SLICE
    gpu.destroy_instance(again)
    assert found(gpu, next_profile, 0, 6) == bytes(6)


def test_closing_a_lane_scrubs_nothing(gpu: EmulatedGpu) -> None:
    instance = gpu.create_instance("1g.5gb", 3)
    memory = gpu.open_instance(instance)
    lane = memory.reserve(0, 1, 4096, 4096)
    lane.write(4096, b"left")
    lane.close()
    assert memory.reserve(0, 1, 4096, 4096).read(4096, 4) == b"left"
    memory.close()


def test_a_peer_write_is_invisible_until_acquire(delaying_gpu: EmulatedGpu, engine: LoopbackCopyEngine) -> None:
    memory = delaying_gpu.open_instance(delaying_gpu.create_instance("2g.10gb", 2))
    lane = memory.reserve(0, 1, 8192, 4096)
    lane.write(0, b"stale")
    source = Region.create("source", 4096)
    source.view[:5] = b"fresh"
    export = lane.export()
    target = engine.import_memory(MemoryExport(export.descriptor, (os.dup(export.fds[0]),)))
    assert engine.post(1, source, 0, target, 0, 5) == CopyCompletion(1, None)
    assert lane.read(0, 5) == b"stale"
    lane.acquire(2)
    assert lane.read(0, 5) == b"frale"
    lane.acquire(5)
    assert lane.read(0, 5) == b"fresh"
    for handle in (target, source, memory):
        handle.close()


def test_acquire_leaves_the_result_half_alone(delaying_gpu: EmulatedGpu) -> None:
    memory = delaying_gpu.open_instance(delaying_gpu.create_instance("1g.5gb", 0))
    lane = memory.reserve(0, 1, 4096, 4096)
    lane.write(lane.landing_bytes, b"result")
    lane.acquire(1 << 30)
    assert lane.read(lane.landing_bytes, 6) == b"result"
    memory.close()


def test_a_published_result_is_what_peers_read(delaying_gpu: EmulatedGpu, engine: LoopbackCopyEngine) -> None:
    memory = delaying_gpu.open_instance(delaying_gpu.create_instance("1g.5gb", 0))
    lane = memory.reserve(0, 1, 4096, 4096)
    lane.write(lane.landing_bytes, b"result")
    export = lane.export()
    peer = engine.import_memory(MemoryExport(export.descriptor, (os.dup(export.fds[0]),)))
    into = Region.create("into", 4096)
    lane.publish(6)
    assert engine.post(1, peer, lane.landing_bytes, into, 0, 6) == CopyCompletion(1, None)
    assert into.view[:6] == b"result"
    for handle in (peer, into, memory):
        handle.close()


def test_a_lane_scrub_clears_what_peers_wrote_but_nobody_acquired(
    delaying_gpu: EmulatedGpu, engine: LoopbackCopyEngine
) -> None:
    memory = delaying_gpu.open_instance(delaying_gpu.create_instance("1g.5gb", 0))
    lane = memory.reserve(0, 1, 4096, 4096)
    export = lane.export()
    peer = engine.import_memory(MemoryExport(export.descriptor, (os.dup(export.fds[0]),)))
    assert isinstance(peer, Region)
    peer_view = peer.view
    peer_view[:6] = b"secret"
    assert lane.scrub() == 2 * PAGESIZE
    assert peer_view[:6] == bytes(6)
    lane.acquire(4096)
    assert lane.read(0, 6) == bytes(6)
    peer.close()
    memory.close()


def test_the_one_media_extension_serves_one_instance_whatever_its_profile() -> None:
    """An A30 has two profiles with it, "1g.6gb+me" and "2g.12gb+me" (NVIDIA MIG User Guide, A30)."""
    gpu = EmulatedGpu("GPU-2", "A30-24GB", slice_bytes=4096)
    first = gpu.create_instance("1g.6gb+me", 0)
    with pytest.raises(PlacementTaken, match="media extension"):
        gpu.create_instance("2g.12gb+me", 2)
    gpu.destroy_instance(first)
    gpu.create_instance("2g.12gb+me", 2)
    gpu.close()


def test_an_unknown_model_is_refused_before_memory_is_taken() -> None:
    with pytest.raises(DeviceError, match="no GPU model"):
        EmulatedGpu("GPU-3", "A9000")
