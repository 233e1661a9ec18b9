"""The promises of the GPU port, for every adapter: real geometry, private lanes, proven scrubs, visibility."""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from offpath.bindings.errors import DeviceError, DeviceGone, PlacementTaken
from offpath.bindings.ports import Gpu, GpuModel, Lane

pytestmark = pytest.mark.conformance

Placed = tuple[str, int]
MODELS = ("A30-24GB", "A100-40GB", "A100-80GB", "H100-80GB", "H200-141GB", "B200-180GB")


def landing(lane: Lane) -> bytes:
    return lane.read(0, lane.landing_bytes)


def result(lane: Lane) -> bytes:
    return lane.read(lane.landing_bytes, lane.result_bytes)


def placements(model: GpuModel) -> list[Placed]:
    """Every (profile, start) the axis of memory slices has room for, legal or not."""
    return [(profile.name, start) for profile in model.profiles for start in range(-1, model.memory_slices + 1)]


def is_legal(model: GpuModel, placed: tuple[Placed, ...]) -> bool:
    """The rule of the MIG tables, written independently of any adapter.

    An instance occupies the memory slices [start, start + its memory slices); starts are the listed ones; ranges are
    disjoint; compute slices sum to at most the total; per-profile maxima hold; one media extension ("+me") per GPU.
    """
    profiles = [model.profile(name) for name, _ in placed]
    slices: Counter[int] = Counter()
    for profile, (_, start) in zip(profiles, placed, strict=True):
        slices.update(range(start, start + profile.memory_slices))
    return (
        all(start in profile.starts for profile, (_, start) in zip(profiles, placed, strict=True))
        and max(slices.values(), default=0) <= 1
        and sum(profile.compute_slices for profile in profiles) <= model.compute_slices
        and all(count <= model.profile(name).max_instances for name, count in Counter(n for n, _ in placed).items())
        and sum(name.endswith("+me") for name, _ in placed) <= 1
    )


def accepted(gpu: Gpu, placed: Placed) -> int | None:
    try:
        return gpu.create_instance(*placed)
    except PlacementTaken:
        return None


def walk(gpu: Gpu, choices: list[Placed], most: int, held: tuple[Placed, ...] = (), first: int = 0) -> Iterator[Any]:
    """Each legal set of at most ``most`` instances once, with the GPU in exactly that state."""
    yield held
    if len(held) == most:
        return
    for at in range(first, len(choices)):
        if (instance := accepted(gpu, choices[at])) is not None:
            yield from walk(gpu, choices, most, (*held, choices[at]), at)
            gpu.destroy_instance(instance)


@pytest.mark.parametrize("model", MODELS)
def test_exactly_the_legal_placements_are_accepted_in_every_state_of_two_instances(gpu_rig: Any, model: str) -> None:
    gpu = gpu_rig.gpu(model)
    choices = placements(gpu.model)
    states = 0
    for held in walk(gpu, choices, 2):
        states += 1
        for wanted in choices:
            instance = accepted(gpu, wanted)
            assert (instance is not None) == is_legal(gpu.model, (*held, wanted)), (held, wanted)
            if instance is not None:
                gpu.destroy_instance(instance)
    assert states > 40


def test_exactly_the_legal_placements_are_accepted_in_every_state_of_an_a30(gpu_rig: Any) -> None:
    gpu = gpu_rig.gpu("A30-24GB")
    choices = placements(gpu.model)
    for held in walk(gpu, choices, 99):
        for wanted in choices:
            instance = accepted(gpu, wanted)
            assert (instance is not None) == is_legal(gpu.model, (*held, wanted)), (held, wanted)
            if instance is not None:
                gpu.destroy_instance(instance)


@pytest.mark.parametrize(
    ("model", "count"),
    [
        # Multisets of profiles to which no instance can be added, media extensions aside; derived from the tables of
        # NVIDIA's MIG User Guide (v580, "Supported MIG Profiles") by enumerating placements.
        ("A30-24GB", 4),
        ("A100-40GB", 38),
        ("H100-80GB", 38),
    ],
)
def test_a_gpu_has_as_many_maximal_configurations_as_its_tables_say(gpu_rig: Any, model: str, count: int) -> None:
    gpu = gpu_rig.gpu(model)
    choices = [
        (name, start)
        for name, start in placements(gpu.model)
        if not name.endswith("+me") and accepted_alone(gpu, name, start)
    ]
    maximal = set()
    for held in walk(gpu, choices, 99):
        more = next((i for wanted in choices if (i := accepted(gpu, wanted)) is not None), None)
        if more is None:
            maximal.add(tuple(sorted(name for name, _ in held)))
        else:
            gpu.destroy_instance(more)
    assert len(maximal) == count


def accepted_alone(gpu: Gpu, name: str, start: int) -> bool:
    instance = accepted(gpu, (name, start))
    if instance is not None:
        gpu.destroy_instance(instance)
    return instance is not None


def test_instances_are_listed_while_they_exist(gpu_rig: Any) -> None:
    gpu = gpu_rig.gpu("A100-40GB")
    first = gpu.create_instance("3g.20gb", 4)
    second = gpu.create_instance("1g.5gb", 0)
    assert sorted(gpu.instances()) == sorted([(first, "3g.20gb", 4), (second, "1g.5gb", 0)])
    gpu.destroy_instance(first)
    gpu.destroy_instance(first)
    assert gpu.instances() == [(second, "1g.5gb", 0)]


def test_an_identity_is_not_given_twice(gpu_rig: Any) -> None:
    gpu = gpu_rig.gpu()
    first = gpu.create_instance("7g.40gb", 0)
    gpu.destroy_instance(first)
    assert gpu.create_instance("7g.40gb", 0) != first


def test_links_lead_to_other_gpus(gpu_rig: Any) -> None:
    gpu = gpu_rig.gpu()
    assert gpu.uuid not in gpu.links
    assert all(uuid and links > 0 for uuid, links in gpu.links.items())


def test_unknown_profiles_and_instances_are_device_errors(gpu_rig: Any) -> None:
    gpu = gpu_rig.gpu("A100-40GB")
    with pytest.raises(DeviceError):
        gpu.create_instance("9g.99gb", 0)
    for call in (gpu.open_instance, gpu.scrub_instance):
        with pytest.raises(DeviceError):
            call(77)
    gone = gpu.create_instance("1g.5gb", 0)
    gpu.destroy_instance(gone)
    with pytest.raises(DeviceError):
        gpu.open_instance(gone)


def test_a_closed_gpu_is_gone(gpu_rig: Any) -> None:
    gpu = gpu_rig.gpu()
    instance = gpu.create_instance("1g.5gb", 0)
    gpu.close()
    gpu.close()
    with pytest.raises(DeviceGone):
        gpu.create_instance("1g.5gb", 1)
    with pytest.raises(DeviceGone):
        gpu.open_instance(instance)


def test_lanes_are_disjoint_and_stay_inside_their_instance(gpu_rig: Any) -> None:
    gpu = gpu_rig.gpu("A100-40GB")
    opened = [
        gpu.open_instance(gpu.create_instance(*placed)) for placed in [("2g.10gb", 0), ("2g.10gb", 2), ("3g.20gb", 4)]
    ]
    lanes = [memory.reserve(lane, 3, 40_000, 20_000) for memory in opened for lane in range(3)]
    for mark, lane in enumerate(lanes, 1):
        assert (lane.landing_bytes >= 40_000, lane.result_bytes >= 20_000) == (True, True)
        assert lane.pointer != 0
        lane.write(0, bytes([mark]) * lane.landing_bytes)
        lane.write(lane.landing_bytes, bytes([0x80 | mark]) * lane.result_bytes)
    for mark, lane in enumerate(lanes, 1):
        assert landing(lane) == bytes([mark]) * lane.landing_bytes
        assert result(lane) == bytes([0x80 | mark]) * lane.result_bytes
    for memory in opened:
        memory.close()


def test_a_lane_is_read_and_written_inside_its_bounds_only(gpu_rig: Any) -> None:
    gpu = gpu_rig.gpu()
    memory = gpu.open_instance(gpu.create_instance("2g.10gb", 0))
    first, lane, last = (memory.reserve(n, 3, 8192, 4096) for n in range(3))
    for neighbour in (first, last):
        neighbour.scrub()
    end = lane.landing_bytes + lane.result_bytes
    lane.write(0, bytes(end))
    lane.write(end - 3, b"end")
    lane.write(lane.landing_bytes - 2, memoryview(b"over"))
    assert (lane.read(end - 3, 3), lane.read(lane.landing_bytes - 2, 4)) == (b"end", b"over")
    assert (lane.read(end, 0), lane.read(5, 0)) == (b"", b"")
    for at, nbytes in [
        (end, 1),
        (end - 1, 2),
        (-1, 1),
        (0, end + 1),
        (end + 1, 0),
        (1 << 62, 1),
        (0, 1 << 62),
        (0, -1),
    ]:
        with pytest.raises(DeviceError):
            lane.read(at, nbytes)
        with pytest.raises(DeviceError):
            lane.gather(at, lane.pointer, nbytes)
    for at in (end, end - 1, -1):
        with pytest.raises(DeviceError):
            lane.write(at, b"xx")
    for neighbour in (first, last):
        assert not any(neighbour.read(0, end))
    memory.close()


def test_what_is_elsewhere_on_the_device_is_gathered_and_fetched(gpu_rig: Any) -> None:
    gpu = gpu_rig.gpu()
    memory = gpu.open_instance(gpu.create_instance("2g.10gb", 0))
    one, other = (memory.reserve(n, 2, 8192, 4096) for n in range(2))
    assert one.device == other.device
    content = random.Random(7).randbytes(5000)
    one.write(100, content)
    other.gather(other.landing_bytes - 50, one.pointer + 100, len(content) - 3000)
    other.synchronize()
    assert other.read(other.landing_bytes - 50, 2000) == content[:2000]
    assert other.fetch(one.pointer + 100, len(content)) == content
    memory.close()


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 100_000])
def test_a_lanes_checksum_is_that_of_its_payload(gpu_rig: Any, nbytes: int) -> None:
    gpu = gpu_rig.gpu()
    memory = gpu.open_instance(gpu.create_instance("3g.20gb", 0))
    lane = memory.reserve(0, 1, 100_000, 4096)
    content = random.Random(nbytes).randbytes(lane.landing_bytes)
    lane.write(0, content)
    assert lane.checksum(nbytes) == zlib.crc32(content[:nbytes])
    with pytest.raises(DeviceError):
        lane.checksum(lane.landing_bytes + lane.result_bytes + 1)
    memory.close()


def test_lanes_may_fill_an_instance_and_not_a_byte_more(gpu_rig: Any) -> None:
    gpu = gpu_rig.gpu("A100-40GB")
    nbytes = gpu_rig.instance_bytes(gpu, "2g.10gb")
    memory = gpu.open_instance(gpu.create_instance("2g.10gb", 2))
    page = os.sysconf("SC_PAGE_SIZE")
    whole = memory.reserve(0, 1, nbytes - page, page)
    assert whole.landing_bytes + whole.result_bytes == nbytes
    for lane, lanes, landing, result in [(0, 1, nbytes, 1), (0, 2, nbytes - page, page), (2, 2, 1, 1), (-1, 2, 1, 1)]:
        with pytest.raises(DeviceError):
            memory.reserve(lane, lanes, landing, result)
    memory.close()
    memory.close()


def test_a_lane_scrub_proves_every_byte_of_the_lane(gpu_rig: Any) -> None:
    gpu = gpu_rig.gpu()
    memory = gpu.open_instance(gpu.create_instance("1g.5gb", 6))
    lane, other = (memory.reserve(n, 2, 70_000, 10_000) for n in range(2))
    for each in (lane, other):
        each.write(0, b"\xaa" * each.landing_bytes)
        each.write(each.landing_bytes, b"\xbb" * each.result_bytes)
    assert lane.scrub() == lane.landing_bytes + lane.result_bytes
    assert (landing(lane), result(lane)) == (bytes(lane.landing_bytes), bytes(lane.result_bytes))
    assert landing(other) == b"\xaa" * other.landing_bytes
    memory.close()


@pytest.mark.parametrize("profile", ["1g.5gb", "2g.10gb", "4g.20gb", "7g.40gb"])
def test_an_instance_scrub_leaves_nothing_to_the_next_tenant_and_touches_no_neighbour(
    gpu_rig: Any, profile: str
) -> None:
    gpu = gpu_rig.gpu("A100-40GB")
    neighbour = gpu.open_instance(gpu.create_instance("1g.5gb", 4)) if profile != "7g.40gb" else None
    kept = neighbour.reserve(0, 1, 4096, 4096) if neighbour else None
    if kept:
        kept.write(0, b"\x77" * kept.landing_bytes)
    nbytes = gpu_rig.instance_bytes(gpu, profile)
    page = os.sysconf("SC_PAGE_SIZE")
    instance = gpu.create_instance(profile, 0)
    memory = gpu.open_instance(instance)
    lane = memory.reserve(0, 1, nbytes - page, page)
    lane.write(0, b"\xaa" * lane.landing_bytes)
    lane.write(lane.landing_bytes, b"\xbb" * lane.result_bytes)
    memory.close()

    assert gpu.scrub_instance(instance) == nbytes

    gpu.destroy_instance(instance)
    memory = gpu.open_instance(gpu.create_instance(profile, 0))
    lane = memory.reserve(0, 1, nbytes - page, page)
    assert (landing(lane), result(lane)) == (bytes(lane.landing_bytes), bytes(lane.result_bytes))
    memory.close()
    if neighbour and kept:
        assert landing(kept) == b"\x77" * kept.landing_bytes
        neighbour.close()


@pytest.mark.parametrize("delayed", [False, True])
def test_after_acquire_a_kernel_sees_what_peers_wrote(gpu_rig: Any, delayed: bool) -> None:
    gpu = gpu_rig.gpu(delayed_visibility=delayed)
    memory = gpu.open_instance(gpu.create_instance("2g.10gb", 4))
    lane = memory.reserve(1, 2, 8192, 4096)
    for content in (b"first payload", b"second, longer payload"):
        gpu_rig.peer_write(lane.export(), 0, content)
        lane.acquire(len(content))
        assert lane.read(0, len(content)) == content
    gpu_rig.peer_write(lane.export(), lane.landing_bytes - 1, b"!")
    lane.acquire(lane.landing_bytes)
    assert lane.read(lane.landing_bytes - 1, 1) == b"!"
    memory.close()


def test_a_worker_process_computes_on_what_the_copy_engine_brought(gpu_rig: Any, children: Any) -> None:
    gpu = gpu_rig.gpu()
    instance = gpu.create_instance("3g.20gb", 4)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def work() -> None:
        ours.close()
        memory = gpu.open_instance(instance)
        lane = memory.reserve(0, 1, 8192, 4096)
        gpu_rig.send_export(theirs, lane.export())
        assert theirs.recv(16) == b"launch"
        lane.acquire(7)
        assert lane.read(0, 7) == b"payload"
        theirs.send(b"done")
        signal.pause()

    with ours, theirs:
        worker = children.fork(work)
        theirs.close()
        ours.settimeout(10)
        export = gpu_rig.receive_export(ours)
        gpu_rig.peer_write(export, 0, b"payload")
        ours.send(b"launch")
        assert ours.recv(16) == b"done"
        worker.kill()
        for fd in export.fds:
            os.close(fd)
    assert gpu.scrub_instance(instance) == gpu_rig.instance_bytes(gpu, "3g.20gb")
    gpu.destroy_instance(instance)
    assert gpu.instances() == []


def test_the_gpus_of_the_table_are_all_offered(gpu_rig: Any) -> None:
    """The lists above and the rig agree, so that a model added to the table is tested."""
    assert sorted(MODELS) == sorted(gpu_rig.models)
    assert list(itertools.chain.from_iterable(gpu_rig.gpu(m).instances() for m in MODELS)) == []
