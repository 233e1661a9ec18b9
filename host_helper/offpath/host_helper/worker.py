"""A lane's worker process: owns the lane's memory, acquires, launches, answers, scrubs. Blocks on its channel only.

The supervisor forks it before threads, an event loop or CUDA exist in it. It has its own connection to the daemon, so
a launch takes one hop. It never outlives its supervisor or its channel.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable
from typing import Final

from offpath.bindings import faults
from offpath.bindings.cuda.share import MpsShare
from offpath.bindings.errors import (
    DaemonNotTrusted,
    DeviceError,
    DeviceGone,
    HostChannelError,
    OffpathError,
    OptionRefused,
    PeerGone,
)
from offpath.bindings.loopback.lane import LoopbackLaneExporter
from offpath.bindings.native import parse_launch, wait
from offpath.bindings.ports import Gpu, HostConnector, HostEnd, Lane, LaneExporter, MemoryExport
from offpath.bindings.wire import control, host
from offpath.bindings.wire.header import FLAG_PAYLOAD_CRC
from offpath.host_helper.arguments import Arguments, call_on_stream
from offpath.host_helper.kernels import KernelTable, LaneContext, LaneMemory, call_kernel, enter_lane
from offpath.host_helper.mps import require
from offpath.host_helper.payloads import Payloads
from offpath.host_helper.raised import Raised, summary
from offpath.host_helper.results import Stored, store
from offpath.host_helper.sequences import SequenceStates

logger = logging.getLogger(__name__)
_RECONNECT_S: Final = 0.01
_MOST_MS: Final = 0xFFFF_FFFF


class Worker:
    """One lane. ``break_scrub`` is a planted fault for demo and tests: scrubs are confirmed without being done.

    ``exporter`` creates the object that gives the order's copy engine access to the lane; nothing is opened before the
    first export. ``mps``: the lane's share of the instance under MPS; None: lanes take turns.
    """

    def __init__(
        self,
        order: control.OpenInstance,
        lane: int,
        gpu: Gpu,
        instance: int,
        table: KernelTable,
        kernel_ids: dict[str, int],
        *,
        break_scrub: bool = False,
        pid: int,
        linger_s: float = 0.0,
        exporter: Callable[[Lane], LaneExporter] = LoopbackLaneExporter,
        mps: MpsShare | None = None,
    ) -> None:
        """Raises: MpsNotInForce, DeviceError."""
        self._order = order
        self._lane_number = lane
        self._is_under_mps = mps is not None
        if mps is not None:
            mps.enter()
        self._memory = gpu.open_instance(instance)
        if mps is not None:
            require(self._memory, mps)
        self._lane: Lane = self._memory.reserve(lane, order.lanes, order.landing_bytes, order.result_bytes)
        self._exporter = exporter(self._lane)
        self._table = table
        self._kernels = {number: table.kernels[name] for name, number in kernel_ids.items() if name in table.kernels}
        self._break_scrub = break_scrub
        self._pid = pid
        self._linger_s = linger_s
        self._is_unwanted = False
        self._is_loaded = False
        self._load_ms = 0
        self._is_device_lost = False
        self._raised = Raised(f"lease {order.lease} lane {lane}", __file__)
        self._last_job = 0
        self._last_result = b""
        self._arguments = Arguments(self._lane)
        self._sequences = SequenceStates()
        self._payloads = Payloads(self._lane, f"lease {order.lease} lane {lane}")
        self._copies_payloads = order.copy_engine == "cuda"

    def serve(self, connector: HostConnector) -> None:
        """Connect, offer the lane, then run launches. When the channel closes, reconnect for as long as the supervisor
        would, and report the outcome of the last launch. Returns when the daemon releases the lane or the time is over.
        """
        order = self._order
        context = LaneContext(
            order.tenant, order.gpu, order.profile, order.start, order.lease, order.generation, self._lane_number,
            self._pid, LaneMemory(self._lane), tuple(order.others),
        )  # fmt: skip
        enter_lane(context)
        is_new = True
        lost_at = time.monotonic()
        while is_new or time.monotonic() - lost_at < self._linger_s:
            try:
                connection = connector.connect()
            except (PeerGone, HostChannelError, DaemonNotTrusted, OptionRefused) as fault:
                if is_new:
                    logger.warning("lease %d lane %d: %s", order.lease, self._lane_number, fault)
                    return
                time.sleep(_RECONNECT_S)
                continue
            try:
                is_new = False
                self._serve(connection, context)
            except PeerGone:
                pass
            except DeviceGone as fault:  # of a kernel, which is its tenant's affair; the supervisor replaces the lease
                logger.warning("worker of lease %d lane %d: %s", order.lease, self._lane_number, fault)
                raise SystemExit(1) from None
            except OffpathError as fault:  # logged before the close, after which the daemon may kill it
                logger.error("worker of lease %d lane %d: %s", order.lease, self._lane_number, fault)
                raise SystemExit(1) from None
            finally:
                connection.close()
            if self._is_unwanted:
                return
            lost_at = time.monotonic()

    def close(self) -> None:
        """Under MPS: release the context, so that the process does not end as a client at work. Raises: DeviceError."""
        if self._is_under_mps:
            self._payloads.clear()
            self._memory.close()

    def _serve(self, connection: HostEnd, context: LaneContext) -> None:
        """Serve one connection until it closes. Raises: PeerGone."""
        hello = control.WorkerHello(
            lease=self._order.lease, lane=self._lane_number, pid=self._pid, token=self._order.token,
            last_job=self._last_job, has_result=bool(self._last_result),
        )  # fmt: skip
        connection.send(control.encode(hello))
        self._payloads.clear()
        self._load(connection, context)
        self._offer(connection)
        if self._last_result:
            connection.send(self._last_result)
        while True:
            message = self._wait(connection) if self._copies_payloads else connection.wait_message()
            if message[0] == host.KIND_LAUNCH:
                self._last_result = self._run(message)
                if self._is_device_lost and self._is_under_mps:
                    # A fault of any client reaches all, so this kernel may be without fault: its outcome is unknown.
                    raise DeviceGone("a fault under MPS; this process cannot use its device any more")
                if faults.armed:
                    faults.hit("worker.result")
                connection.send(self._last_result)
                if self._is_device_lost:
                    raise DeviceGone("the device failed under a kernel; this process cannot use it any more")
            else:
                self._control(connection, message)

    def _wait(self, connection: HostEnd) -> bytes:
        """The next message that is not of the copy engine `cuda`, whose messages may bring descriptors. Raises: as
        `HostEnd.wait_message`; as `Payloads.handle`."""
        while True:
            wait(connection.fileno(), select.POLLIN, None)
            received = connection.receive()
            if received is not None and (message := self._payloads.handle(*received)):
                return message

    def _load(self, connection: HostEnd, context: LaneContext) -> None:
        """Once: run the functions that load models, announced so that the daemon's limit on loading counts, not that on
        opening. Raises: PeerGone."""
        if self._is_loaded:
            return
        order = self._order
        loading = control.LaneLoading(lease=order.lease, lane=self._lane_number, generation=order.generation)
        connection.send(control.encode(loading))
        began_ns = time.monotonic_ns()
        self._is_loaded = True
        for opened in self._table.on_lane_open:
            opened(context)
        self._load_ms = min((time.monotonic_ns() - began_ns) // 1_000_000, _MOST_MS)

    def _offer(self, connection: HostEnd) -> None:
        export = self._export(connection)
        ready = control.LaneReady(
            lease=self._order.lease, lane=self._lane_number, generation=self._order.generation,
            export=dict(export.descriptor), landing_bytes=self._lane.landing_bytes,
            result_bytes=self._lane.result_bytes, load_ms=self._load_ms,
        )  # fmt: skip
        connection.send(control.encode(ready), export.fds)

    def _export(self, connection: HostEnd) -> MemoryExport:
        """Export the lane as the daemon's copy engine needs it. Raises: PeerGone: the daemon closed the connection.
        DeviceError, RegionError.
        """
        if not self._exporter.needs_invitation:
            return self._exporter.export()
        invited = control.decode(control.DAEMON_TO_HOST, message := connection.wait_message())
        while not isinstance(invited, control.InviteLane):
            self._control(connection, message)
            invited = control.decode(control.DAEMON_TO_HOST, message := connection.wait_message())
        return self._exporter.export(invited.invitation)

    def _control(self, connection: HostEnd, message: bytes) -> None:
        order = control.decode(control.DAEMON_TO_HOST, message)
        if isinstance(order, control.ScrubLane):
            nbytes = self._lane.landing_bytes + self._lane.result_bytes if self._break_scrub else self._lane.scrub()
            done = control.LaneScrubbed(
                lease=self._order.lease, lane=self._lane_number, generation=self._order.generation,
                scrubbed_bytes=nbytes,
            )  # fmt: skip
            self._last_result = b""  # the result is in the lane, or refers to data that was
            self._sequences.clear()
            if faults.armed:
                faults.hit("worker.scrub")
            connection.send(control.encode(done))
        elif isinstance(order, control.SequenceEnded):
            self._sequences.ended(order.sequence)
        elif isinstance(order, control.Ping):
            connection.send(control.encode(control.Pong(number=order.number)))
        elif isinstance(order, control.Closing):
            self._is_unwanted = True
            raise PeerGone(order.detail)

    def _run(self, message: bytes) -> bytes:
        """Run one launch; always returns a result. A kernel's exception fails the job, not the worker."""
        launch = parse_launch(message)
        if self._copies_payloads and launch.generation == self._order.generation:
            self._payloads.take(launch.payload_bytes)
        self._last_job, self._last_result = launch.job, b""
        if faults.armed:
            faults.hit("worker.launch")
        started, finished = time.monotonic_ns(), 0
        status, tensors, inline, nbytes, is_inline = host.RESULT_STALE, b"", b"", 0, True
        if launch.generation == self._order.generation:
            try:
                self._lane.acquire(launch.payload_bytes)
                started = time.monotonic_ns()
                status, tensors, inline, nbytes, is_inline = self._compute(launch)
            except Exception as fault:  # boundary to user code: report it, keep serving unless the device failed
                self._is_device_lost = isinstance(fault, DeviceGone) or self._has_lost_device()
                finished = time.monotonic_ns()
                status, inline = host.RESULT_KERNEL_RAISED, _text(summary(fault))
                tensors, nbytes, is_inline = b"", len(inline), True
                kernel = self._kernels.get(launch.kernel_id)
                name = kernel.name if kernel is not None else f"#{launch.kernel_id}"
                self._raised.note(fault, name, launch.job, now_ns=finished)
        finished = finished or time.monotonic_ns()
        self._sequences.left(launch)
        return host.pack_result(
            launch.job, launch.generation, status, started, finished, nbytes, is_inline, tensors, inline
        )

    def _has_lost_device(self) -> bool:
        """Whether the device fails after a kernel's exception, which may be a library's own for a device's fault."""
        try:
            self._lane.synchronize()
        except DeviceGone:
            return True
        except DeviceError as fault:
            logger.warning("lease %d lane %d: %s", self._order.lease, self._lane_number, fault)
        return False

    def _compute(self, launch: host.Launch) -> Stored:
        self._sequences.begin(launch)
        checked = bool(launch.flags & FLAG_PAYLOAD_CRC)
        if checked and self._lane.checksum(launch.payload_bytes) != launch.payload_crc:
            inline = _text("the payload in the lane does not match its checksum")
            return Stored(host.RESULT_CHECKSUM, b"", inline, len(inline), True)
        kernel = self._kernels.get(launch.kernel_id)
        if kernel is None:
            raise LookupError(f"this helper has no kernel {launch.kernel_id}")
        sequence = self._sequences.enter(launch) if kernel.sequences else None
        arguments = self._arguments.of(kernel, launch)
        stream = self._lane.stream
        result = (
            call_on_stream(kernel, arguments, stream, sequence) if stream else call_kernel(kernel, arguments, sequence)
        )
        self._lane.synchronize()
        return store(self._lane, result)


def _text(message: str) -> bytes:
    return message.encode("utf-8", "replace")[: host.INLINE_RESULT_BYTES]
