"""A lane's worker process: owns the lane's memory, acquires, launches, answers, scrubs. Blocks on its channel only.

The supervisor forks it before threads, an event loop or CUDA exist in it. It has its own connection to the daemon, so
a launch takes one hop. It never outlives its supervisor or its channel, but for the clean-up of a stream's kernel.
"""

from __future__ import annotations

import contextlib
import logging
import os
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
from offpath.bindings.wire.header import FLAG_PAYLOAD_CRC, FLAG_STREAM
from offpath.host_helper.arguments import Arguments, call_on_stream
from offpath.host_helper.declared import Declared
from offpath.host_helper.forks import end_if_forked, no_child
from offpath.host_helper.kernels import Kernel, KernelTable, LaneContext, LaneMemory, enter_lane
from offpath.host_helper.launched import NO_REPLY, STALE, STOPPED, LaunchedJob, failed
from offpath.host_helper.mps import require
from offpath.host_helper.payloads import Payloads
from offpath.host_helper.raised import Raised, summary
from offpath.host_helper.results import NOTHING, Stored, store
from offpath.host_helper.sequences import SequenceStates
from offpath.host_helper.streaming import END, Values

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
        self._process = os.getpid()  # ``pid`` is the one that the daemon sees
        self._linger_s = linger_s
        self._is_unwanted = False
        self._is_loaded = False
        self._load_ms = 0
        self._is_device_lost = False
        self._raised = Raised(f"lease {order.lease} lane {lane}", __file__)
        self._last_job = 0
        self._last_result = b""
        self._job: LaunchedJob | None = None
        self._arguments = Arguments(self._lane)
        self._declared = Declared()
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
        try:
            self._serve_until_released(connector, context)
        finally:
            if self._job is not None and self._job.values is not None and not self._is_device_lost:
                self._outcome(self._job, self._close)

    def _serve_until_released(self, connector: HostConnector, context: LaneContext) -> None:
        order = self._order
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
                self._report(connection, self._run(message))
            elif message[0] == host.KIND_PROCEED:
                self._report(connection, self._proceed(message))
            else:
                self._control(connection, message)

    def _report(self, connection: HostEnd, result: bytes) -> None:
        """Send a result or an answer; empty: there is none. Raises: PeerGone. DeviceGone: the device failed under the
        kernel."""
        if not result:
            return
        self._last_result = result
        if self._job is not None:
            self._job.sends()
        if self._is_device_lost and self._is_under_mps:
            # A fault of any client reaches all, so this kernel may be without fault: its outcome is unknown.
            raise DeviceGone("a fault under MPS; this process cannot use its device any more")
        if faults.armed:
            faults.hit("worker.result")
        connection.send(result)
        if self._is_device_lost:
            raise DeviceGone("the device failed under a kernel; this process cannot use it any more")
        self._work_ahead()

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
            with no_child(self._process, getattr(opened, "__name__", "a function")):
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
        elif isinstance(order, control.SequenceEnded | control.SequencesKept):
            self._sequences.obey(order)
        elif isinstance(order, control.Ping):
            connection.send(control.encode(control.Pong(number=order.number)))
        elif isinstance(order, control.Closing):
            self._is_unwanted = True
            raise PeerGone(order.detail)

    def _run(self, message: bytes) -> bytes:
        """Begin one launch; returns its result, or its first answer. A kernel's exception fails the job, not the
        worker."""
        launch = parse_launch(message)
        if self._copies_payloads and launch.generation == self._order.generation:
            self._payloads.take(launch.payload_bytes)
        self._last_job, self._last_result = launch.job, b""
        if faults.armed:
            faults.hit("worker.launch")
        self._job = job = LaunchedJob(launch, time.monotonic_ns())
        if launch.generation != self._order.generation:
            return job.packed(STALE, time.monotonic_ns())
        return self._outcome(job, self._compute)

    def _outcome(self, job: LaunchedJob, compute: Callable[[LaunchedJob], Stored]) -> bytes:
        """What ``compute`` gives, as a message."""
        finished = 0
        try:
            stored = compute(job)
            end_if_forked(self._process)
        except BaseException as fault:  # boundary to user code: report it, keep serving unless the device failed
            end_if_forked(self._process, fault)
            with contextlib.suppress(BaseException):  # after a fault of ``post`` a stream's kernel is still open
                self._close(job)
            self._is_device_lost = isinstance(fault, DeviceGone) or self._has_lost_device()
            finished = time.monotonic_ns()
            stored = failed(host.RESULT_KERNEL_RAISED, summary(fault))
            kernel = self._kernels.get(job.launch.kernel_id)
            name = kernel.name if kernel is not None else f"#{job.launch.kernel_id}"
            self._raised.note(fault, name, job.launch.job, now_ns=finished)
        if stored.status != host.RESULT_MORE:
            self._sequences.left(job.launch)
        return job.packed(stored, finished or time.monotonic_ns())

    def _has_lost_device(self) -> bool:
        """Whether the device fails after a kernel's exception, which may be a library's own for a device's fault."""
        try:
            self._lane.synchronize()
        except DeviceGone:
            return True
        except DeviceError as fault:
            logger.warning("lease %d lane %d: %s", self._order.lease, self._lane_number, fault)
        return False

    def _compute(self, job: LaunchedJob) -> Stored:
        launch = job.launch
        self._sequences.begin(launch)  # first: a device that fails leaves no former state either
        self._lane.acquire(launch.payload_bytes)
        job.started_ns = time.monotonic_ns()
        checked = bool(launch.flags & FLAG_PAYLOAD_CRC)
        if checked and self._lane.checksum(launch.payload_bytes) != launch.payload_crc:
            return failed(host.RESULT_CHECKSUM, "the payload in the lane does not match its checksum")
        kernel = self._kernels.get(launch.kernel_id)
        if kernel is None:
            raise LookupError(f"this helper has no kernel {launch.kernel_id}")
        if kernel.streams != bool(launch.flags & FLAG_STREAM):
            does = "streams" if kernel.streams else "does not stream"
            return failed(host.RESULT_STREAM_MISMATCH, f"kernel {kernel.name} {does}")
        # Before its tensors are compared: a request of other tensors fails, and its sequence goes on.
        sequence = self._sequences.enter(launch) if kernel.sequences else None
        if (why := self._declared.fault(kernel, launch)) is not None:
            return failed(host.RESULT_KERNEL_RAISED, why)
        if self._arguments.still_keeps(kernel):
            return _kept(kernel)
        asked = self._arguments.asked(kernel, launch, sequence)
        arguments = self._arguments.of(kernel, launch)
        if kernel.streams:
            job.values = Values(kernel, arguments, self._lane.stream, asked)
            del arguments
            return self._next(job)
        result = call_on_stream(kernel, arguments, self._lane.stream, asked)
        self._lane.synchronize()
        stored = store(self._lane, result)
        del arguments, result
        return self._unless_kept(kernel, stored)

    def _unless_kept(self, kernel: Kernel, stored: Stored) -> Stored:
        """The outcome, if the kernel has nothing of the lane's memory any more."""
        return _kept(kernel) if self._arguments.kept(kernel) else stored

    # -- streams ------------------------------------------------------------------------------------------------------
    def _next(self, job: LaunchedJob) -> Stored:
        """The next answer of a stream, or its end."""
        assert job.values is not None
        value = job.values.next()
        self._lane.synchronize()
        if value is END:
            kernel, job.values = job.values.kernel, None
            return self._unless_kept(kernel, NOTHING)
        stored = store(self._lane, value)
        if stored.status == host.RESULT_OK:
            return stored._replace(status=host.RESULT_MORE)
        self._close(job)
        return stored

    def _close(self, job: LaunchedJob) -> Stored:
        """End a stream whose further answers nobody wants, and the work that it queued while it was closed."""
        values, job.values = job.values, None
        if values is not None:
            values.close()
            self._lane.synchronize()
        return STOPPED

    def _work_ahead(self) -> None:
        """Compute the next answer of a stream while the last one travels. Not while that lies in the lane: the daemon
        is about to read it, and where it cannot see this process end it waits for a pong."""
        job = self._job
        if job is not None and job.values is not None and job.is_inline:
            job.ahead = self._outcome(job, self._next)

    def _proceed(self, message: bytes) -> bytes:
        """Handle the reply to the last answer; returns the next one, or the result. Empty: a reply to another answer.
        Raises: HostMessageError."""
        reply, job = host.parse_proceed(message), self._job
        if job is None or (reply.job, reply.generation, reply.number) != job.awaited:
            return b""
        job.awaited, self._last_result = NO_REPLY, b""
        ahead, job.ahead = job.ahead, b""
        if reply.is_stop:
            return self._outcome(job, self._close)
        return ahead or self._outcome(job, self._next)


def _kept(kernel: Kernel) -> Stored:
    """It may hold the lane's memory until its worker ends; it does not run again before it has let go of it."""
    return failed(
        host.RESULT_KERNEL_RAISED,
        f"kernel {kernel.name} keeps an argument, or a view of one, beyond its return, and the next request "
        "overwrites that memory: keep a copy, or declare @helper.kernel(keeps=True)",
    )
