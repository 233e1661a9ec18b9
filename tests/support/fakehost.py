"""A helper and its workers played by the test: they speak the host channel by hand, so that they can also lie."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import Any

import orjson

from offpath.bindings.errors import PeerGone
from offpath.bindings.loopback.channel import LoopbackConnection, connect_channel
from offpath.bindings.memory.region import sealed_memfd
from offpath.bindings.mig import gpu_model
from offpath.bindings.wire import control, host

from .cluster import Cluster
from .processes import BOUND_S


def offer(uuid: str = "GPU-fake", model: str = "A100-40GB", *, is_emulated: bool = True) -> control.GpuOffer:
    known = gpu_model(model)
    profiles = [
        control.ProfileInfo(
            name=p.name, compute_slices=p.compute_slices, memory_slices=p.memory_slices, memory_bytes=p.memory_bytes,
            starts=list(p.starts), max_instances=p.max_instances,
        )
        for p in known.profiles
    ]  # fmt: skip
    return control.GpuOffer(
        uuid=uuid, model=model, is_emulated=is_emulated,
        compute_slices=known.compute_slices, memory_slices=known.memory_slices,
        profiles=profiles,
    )  # fmt: skip


class FakeHost:
    """Everything it opened is closed with it."""

    def __init__(self, cluster: Cluster) -> None:
        self.path = cluster.channel
        self._held: list[LoopbackConnection] = []
        self._fds: list[int] = []
        self.channel = self.connect()

    def connect(self) -> LoopbackConnection:
        self._held.append(connection := connect_channel(self.path))
        return connection

    def join(self, **changes: Any) -> control.HostWelcome:
        """As an honest helper with one kernel."""
        hello = {"name": "fake", "pid": os.getpid(), "gpu_count": 1}
        kernels = [control.KernelOffer(name="echo", demand=14)]
        self.send(control.HelperHello(**{**hello, "kernels": kernels, **changes}))
        self.send(offer())
        welcome = self.hear()
        assert isinstance(welcome, control.HostWelcome)
        return welcome

    def send(self, message: Any, connection: LoopbackConnection | None = None, fds: tuple[int, ...] = ()) -> None:
        assert (connection or self.channel).send(control.encode(message), fds)

    def hear(self, connection: LoopbackConnection | None = None) -> Any:
        """The next message, decoded where it is JSON; None when the daemon hung up."""
        wanted = connection or self.channel
        end = time.monotonic() + BOUND_S
        while True:
            try:
                received = wanted.receive()
            except PeerGone:
                return None
            if received is not None:
                body = received[0]
                if body[0] == host.KIND_JSON and isinstance(ping := decode(body), control.Ping):
                    self.send(control.Pong(number=ping.number), wanted)
                    continue
                if body[0] == host.KIND_PROCEED:
                    return host.parse_proceed(body)
                return host.parse_launch(body) if body[0] == host.KIND_LAUNCH else decode(body)
            assert time.monotonic() < end, "the daemon says nothing"
            time.sleep(0.001)

    def turned_away(self, connection: LoopbackConnection | None = None) -> str:
        """Why the daemon closed this connection."""
        closing = self.hear(connection)
        if closing is None:
            return ""
        assert isinstance(closing, control.Closing), closing
        assert self.hear(connection) is None
        return closing.detail

    def worker(self, order: control.OpenInstance, number: int, **changes: Any) -> LoopbackConnection:
        """A worker's connection with its hello said."""
        connection = self.connect()
        hello = {"lease": order.lease, "lane": number, "pid": os.getpid(), "token": order.token}
        self.send(control.WorkerHello(**{**hello, **changes}), connection)
        return connection

    def lane(self, order: control.OpenInstance, lane: int) -> LoopbackConnection:
        """An honest worker, ready for launches."""
        connection = self.worker(order, lane)
        self.offer_lane(connection, order, lane)
        return connection

    def offer_lane(
        self, connection: LoopbackConnection, order: control.OpenInstance, lane: int, **changes: Any
    ) -> None:
        nbytes = order.landing_bytes + order.result_bytes
        fd = sealed_memfd("fake-lane", nbytes)
        self._fds.append(fd)
        ready = {
            "lease": order.lease, "lane": lane, "generation": order.generation,
            "export": {"offset": 0, "nbytes": nbytes}, "landing_bytes": order.landing_bytes,
            "result_bytes": order.result_bytes,
        }  # fmt: skip
        honest = orjson.loads(control.encode(control.LaneReady(**ready)))
        assert connection.send(orjson.dumps({**honest, **changes}), (fd,))  # a liar is held to no schema

    def open_lanes(self) -> tuple[control.OpenInstance, list[LoopbackConnection]]:
        """Serve the next OpenInstance honestly."""
        order = self.hear()
        assert isinstance(order, control.OpenInstance), order
        return order, [self.lane(order, lane) for lane in range(order.lanes)]

    def close(self) -> None:
        for connection in self._held:
            connection.close()
        for fd in self._fds:
            os.close(fd)

    def __enter__(self) -> FakeHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def decode(body: bytes) -> Any:
    return control.decode(control.DAEMON_TO_HOST, body)


def result(launch: host.Launch, **changes: Any) -> bytes:
    """An honest, empty result of a launch, but for the changes."""
    now = time.monotonic_ns()
    fields: dict[str, Any] = {
        "job": launch.job, "generation": launch.generation, "status": host.RESULT_OK, "started_ns": now - 1000,
        "finished_ns": now, "result_bytes": 0, "is_inline": True, "tensors": b"", "inline": b"",
    }  # fmt: skip
    return host.pack_result(**{**fields, **changes})
