"""A real switch process and real connections: sums are right while the emulated links drop, and peers are hostile."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from offpath.bindings.errors import PeerGone
from offpath.bindings.ina.address import parse_address
from offpath.bindings.ina.packets import Packet, PacketKind, pack
from offpath.cli.local.statistical_switch import Rate, StatisticalSwitch
from offpath.host_helper.ina.statistical import endpoint
from offpath.host_helper.ina.statistical.sender import Sender, Window

SERVERS = ("a", "b", "c", "d")
RING = 64


@pytest.fixture
def switch() -> Iterator[StatisticalSwitch]:
    with tempfile.TemporaryDirectory(prefix="offpath-st-") as folder:
        rate = Rate(link_mbps=100.0, rtt_ms=5.0, mark_packets=4.0, drop_packets=6.0)
        with StatisticalSwitch(folder, SERVERS, 8, rate) as made:
            yield made
            with open(made.path("log"), encoding="utf-8") as log:
                assert "Traceback" not in log.read()


def gradients(job: int, rank: int) -> NDArray[np.int32]:
    return np.random.default_rng([job, rank]).integers(-(1 << 28), 1 << 28, 40_000, dtype=np.int32)


def worker(switch: StatisticalSwitch, job: int, rank: int, workers: int) -> list[NDArray[np.int32]]:
    """Three all-reduces, the last one short. The first window is far too wide, so that the links drop."""
    sender = Sender(job, rank, workers, Window(2, RING, RING))
    attach = endpoint.attach_of(job, workers, SERVERS[rank], rank)
    with endpoint.Worker(switch.address, sender, attach, 1024) as it:
        return [it.all_reduce(gradients(job, rank)[:length]) for length in (40_000, 20_001, 1)]


def serve(switch: StatisticalSwitch, job: int, workers: int) -> object:
    return endpoint.serve(switch.address, endpoint.attach_of(job, workers, "d", None), RING, 0.01)


def in_threads(calls: list[Callable[[], object]]) -> list[object]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(60) for future in [pool.submit(call) for call in calls]]


def test_jobs_that_share_the_switch_get_exact_sums_although_packets_are_lost(switch: StatisticalSwitch) -> None:
    jobs = {1: 2, 2: 3}
    calls: list[Callable[[], object]] = [
        (lambda job=job, rank=rank, count=count: worker(switch, job, rank, count))  # type: ignore[misc]
        for job, count in jobs.items()
        for rank in range(count)
    ]
    calls += [(lambda job=job, count=count: serve(switch, job, count)) for job, count in jobs.items()]  # type: ignore[misc]
    found = in_threads(calls)
    at = 0
    for job, count in jobs.items():
        total = np.sum([gradients(job, rank) for rank in range(count)], axis=0, dtype=np.int32)
        for _ in range(count):
            got = found[at]
            at += 1
            assert isinstance(got, list)
            for length, each in zip((40_000, 20_001, 1), got, strict=True):
                assert np.array_equal(each, total[:length])
    switch.close()
    statistics = switch.statistics()
    assert statistics["taken"] == 0
    assert sum(link[way]["dropped"] for link in statistics["links"].values() for way in ("up", "down")) > 0
    for counters in statistics["jobs"].values():
        assert min(counters["aggregated"], counters["collisions"], counters["retransmitted"]) > 0


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"GET / HTTP/1.1\r\n\r\n" * 4,
        (1 << 31).to_bytes(4, "little"),
        pack(Packet(PacketKind.DATA, 1, 0, 2, 1, 0, 0, bytes(4))),
        pack(endpoint.attach_of(7, 2, "nowhere", 0)),
        2 * pack(endpoint.attach_of(7, 2, "a", 0)),
    ],
)
def test_a_peer_that_breaks_the_rules_is_disconnected_and_the_others_go_on(
    switch: StatisticalSwitch, bytes_sent: bytes
) -> None:
    family, target = parse_address(switch.address)
    with socket.socket(family) as peer:
        peer.settimeout(10)
        peer.connect(target)
        peer.sendall(bytes_sent)
        try:
            while peer.recv(4096):
                pass  # a REFUSED, then the end
        except ConnectionResetError:
            pass
    ones = np.ones(5, np.int32)

    def one() -> NDArray[np.int32]:
        with endpoint.Worker(switch.address, Sender(1, 0, 1, Window()), endpoint.attach_of(1, 1, "a", 0)) as it:
            return it.all_reduce(ones)

    got, _ = in_threads([one, lambda: serve(switch, 1, 1)])
    assert np.array_equal(got, ones)  # type: ignore[arg-type]


def test_a_worker_learns_that_its_parameter_server_is_gone(switch: StatisticalSwitch) -> None:
    attach = endpoint.attach_of(1, 1, "d", None)

    def leave() -> None:
        with endpoint.Connection(switch.address, attach):
            pass

    def work() -> None:
        with endpoint.Worker(switch.address, Sender(1, 0, 1, Window()), endpoint.attach_of(1, 1, "a", 0)) as it:
            it.all_reduce(np.ones(5, np.int32))

    with pytest.raises(PeerGone):
        in_threads([work, leave])


def test_a_job_whose_processes_do_not_all_come_does_not_start(switch: StatisticalSwitch) -> None:
    with pytest.raises(PeerGone, match="not all processes"):
        endpoint.Connection(switch.address, endpoint.attach_of(1, 2, "a", 0), within_s=0.2)
