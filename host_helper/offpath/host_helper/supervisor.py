"""The helper's supervisor: creates instances, forks one worker per lane, and cleans up after a dead worker.

It has one thread, no event loop and no CUDA, so it may fork at any time. It waits in one ``select`` on the daemon's
channel and on its workers' pidfds. When the daemon goes away, it reattaches with the instances that it holds, for as
long as the daemon requested. Instances that the next daemon does not keep, or that time out, are scrubbed and
destroyed.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import random
import secrets
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from pydantic import BaseModel

from offpath.bindings import faults
from offpath.bindings.doca.lane import HostDevice
from offpath.bindings.errors import (
    DaemonNotTrusted,
    HostChannelError,
    KeyNotListed,
    OffpathError,
    OptionRefused,
    PeerGone,
)
from offpath.bindings.ports import Gpu, HostConnection, HostConnector
from offpath.bindings.verbs.devices import Choice, choose
from offpath.bindings.wire import control
from offpath.host_helper import forks
from offpath.host_helper.demands import needs, share_on
from offpath.host_helper.gangs import gpus_of, ordered
from offpath.host_helper.ina.watch import StateFileWatch
from offpath.host_helper.instances import Instance, exporter_for
from offpath.host_helper.kernels import KernelTable
from offpath.host_helper.migd.protocol import Xid
from offpath.host_helper.migd.watch import MigdWatch
from offpath.host_helper.migd.xids import GPU_LOST, name_of
from offpath.host_helper.mps import Mps
from offpath.host_helper.offers import (
    gpu_offer,
    helper_hello,
    instance_failed,
    instance_held,
    kernel_messages,
    kernels_reloaded,
    take_leave,
)
from offpath.host_helper.quarantine import Quarantine
from offpath.host_helper.relay import Relay
from offpath.host_helper.reload import Reloader
from offpath.host_helper.scrubbing import scrub as scrub_instance
from offpath.host_helper.worker import Worker

logger = logging.getLogger(__name__)
_PR_SET_PDEATHSIG: Final = 1
_MIN_BACKOFF_S: Final = 0.02
_MAX_BACKOFF_S: Final = 5.0
_LEAVE_S: Final = 5.0
_LAST_WORDS: Final = 4


class Supervisor:
    """Serves the daemon that ``connector`` reaches with the GPUs of this host.

    ``rdma`` finds the port over which the lanes are reachable if the daemon copies by RDMA; called for each order.
    ``doca``: the device for a daemon that copies by DOCA. ``state_files``: the folder of the state files of ranks that
    share trees; empty: no ranks are watched. ``mps``: starts a control daemon for each lease whose GPU can be shared by
    MPS; None: none. ``migd``: watches the migd that cuts the GPUs' instances. ``reloader``: reloads ``table``; the
    supervisor closes it. ``log_line`` receives a line when the supervisor joins a daemon, loses it, or cannot join;
    repeats are suppressed.
    """

    def __init__(
        self,
        name: str,
        connector: HostConnector,
        gpus: Sequence[Gpu],
        table: KernelTable,
        *,
        break_scrub: bool = False,
        rdma: Callable[[], Choice] = choose,
        doca: HostDevice | None = None,
        state_files: str = "",
        mps: Mps | None = None,
        migd: MigdWatch | None = None,
        reloader: Reloader | None = None,
        log_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._log_line = log_line
        self._last_line = ""
        self._name = name
        self._connector = connector
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._table = table
        self._break_scrub = break_scrub
        self._rdma = rdma
        self._doca = doca or HostDevice()
        self._state_files = StateFileWatch(state_files) if state_files else None
        self._mps = mps
        self._migd = migd
        self._reloader = reloader
        self._announced = 0
        """The revision of the kernels that the daemon was told of last."""
        self._is_welcome = False
        self._instances: dict[int, Instance] = {}
        self._quarantine = Quarantine()
        self._kernel_ids: dict[str, int] = {}
        self._coming_ids: dict[str, int] = {}
        self._selector = selectors.DefaultSelector()
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._stop_read, selectors.EVENT_READ)
        if migd is not None:
            self._selector.register(migd.fileno(), selectors.EVENT_READ)
        if reloader is not None:
            self._selector.register(reloader.fileno(), selectors.EVENT_READ)
        self._stopping = False
        self._in_child = False
        self._incarnation = secrets.token_urlsafe(24)
        self._linger_s = 0.0

    def stop(self) -> None:
        """End `run` soon; may be called from a signal handler."""
        self._stopping = True
        os.write(self._stop_write, b"x")

    def reload(self) -> None:
        """Reload the kernels soon; may be called from a signal handler."""
        if self._reloader is not None:
            self._reloader.request()
            os.write(self._stop_write, b"x")

    def run(self) -> None:
        """Serve until `stop`, in the main thread. Reconnects with backoff when the daemon goes away; without backoff
        while it holds instances.
        """
        backoff = _MIN_BACKOFF_S
        lost_at = 0.0
        # The handler of a signal that arrives just before the wait runs only after the next order; the wakeup fd
        # prevents that.
        woken_before = signal.set_wakeup_fd(self._stop_write)
        try:
            while not self._stopping:
                joined = time.monotonic()
                if self._serve_once():
                    lost_at = time.monotonic()
                    if lost_at - joined > 1.0:
                        backoff = _MIN_BACKOFF_S
                if self._instances and time.monotonic() - lost_at >= self._linger_s:
                    self._drop_all()
                if not self._stopping:
                    if self._instances:
                        backoff = _MIN_BACKOFF_S
                    self._wait(backoff * (0.5 + random.random()))
                    backoff = min(_MAX_BACKOFF_S, backoff * 2)
        finally:
            if not self._in_child:
                self._drop_all()
                signal.set_wakeup_fd(woken_before)
                self._selector.close()
                if self._reloader is not None:
                    self._reloader.close()
                if self._state_files is not None:
                    self._state_files.close()
                os.close(self._stop_read)
                os.close(self._stop_write)

    def _serve_once(self) -> bool:
        """Serve one connection, from hello to its end; False: no daemon was reached."""
        try:
            connection = self._connect()
        except (PeerGone, HostChannelError, DaemonNotTrusted, OptionRefused) as fault:
            is_new = self._log_once(f"not joined: {fault}; trying again")
            is_refused = not isinstance(fault, PeerGone) or isinstance(fault, KeyNotListed)
            logger.log(logging.WARNING if is_new and is_refused else logging.DEBUG, "%s", fault)
            return False
        try:
            self._serve(connection)
            if self._is_welcome:
                self._send(connection, control.Goodbye())
            if self._instances:
                take_leave(connection)
        except PeerGone as gone:
            gone = self._last_word(connection) or gone
            logger.info("lost the daemon: %s", gone)
            if not self._stopping:
                state = "lost the daemon" if self._is_welcome else "not joined"
                self._log_once(f"{state}: {gone}; trying again")
        finally:
            connection.close()  # first: the daemon must see the helper's loss before its workers'
            if self._reloader is not None and not self._in_child:
                self._reloader.not_joined()
        return True

    def _last_word(self, connection: HostConnection) -> PeerGone | None:
        """The daemon's reason for closing, if it was received while this side was still sending."""
        for _ in range(_LAST_WORDS):
            try:
                received = connection.receive()
                if received is not None:
                    order = control.decode(control.DAEMON_TO_HOST, received[0])
                    if isinstance(order, control.Closing):
                        self._linger_s = 0.0
                        return PeerGone(order.detail)
            except OffpathError:  # a broken connection raises once before it returns what it has buffered
                continue
        return None

    def _log_once(self, line: str) -> bool:
        """Log ``line`` unless it equals the last one. Returns whether it was logged."""
        if line == self._last_line:
            return False
        self._last_line = line
        self._log_line(line)
        return True

    def _connect(self) -> HostConnection:
        """This process forks, so a connector that starts threads runs in a child process. Raises: PeerGone."""
        return Relay(self._connector) if self._connector.starts_threads else self._connector.connect()

    def _wait(self, seconds: float) -> None:
        """Wait for the next attempt, and reap workers that die meanwhile."""
        end = time.monotonic() + seconds
        while not self._stopping and (left := end - time.monotonic()) > 0:
            for key, _ in self._selector.select(min(left, self._pause_s() or left)):
                if key.fd == self._stop_read:
                    os.read(self._stop_read, 64)
                else:
                    self._reap(None, key.fd)
            self._look_at_migd(None)
            self._look_at_reloader(None)

    def _pause_s(self) -> float | None:
        """How long a wait for events may last; None: for ever."""
        pauses = [each.pause_s for each in (self._state_files, self._migd, self._reloader) if each is not None]
        now_s = time.monotonic()
        if self._is_welcome:  # before, no worker is replaced
            pauses += [max(0.0, end_s - now_s) for held in self._instances.values() for end_s in held.leaving.values()]
        return min((pause for pause in pauses if pause is not None), default=None)

    # -- the daemon's channel -------------------------------------------------------------------------------------
    def _serve(self, connection: HostConnection) -> None:
        needed = needs(self._table.kernels.values(), list(self._gpus.values()))
        self._announced = self._reloader.revision if self._reloader is not None else 0
        hello = helper_hello(
            self._name, self._incarnation, self._table, len(self._gpus), len(self._instances), len(needed),
            self._announced,
        )  # fmt: skip
        self._send(connection, hello)
        for message in kernel_messages(self._table, needed):
            self._send(connection, message)
        for gpu in self._gpus.values():
            self._send(connection, gpu_offer(gpu, self._gpus.keys()))
        for held in self._instances.values():
            self._send(connection, instance_held(held.order, held.lanes()))
        self._selector.register(connection.fileno(), selectors.EVENT_READ)
        self._is_welcome = False
        try:
            while not self._stopping:
                for key, _ in self._selector.select(self._pause_s()):
                    if key.fd == connection.fileno():
                        while (received := connection.receive()) is not None:
                            self._order(connection, received[0])
                    elif key.fd == self._stop_read:
                        os.read(self._stop_read, 64)  # if it was the stop signal, its handler has run by the next turn
                    else:
                        self._reap(connection, key.fd)
                self._look_at_migd(connection)
                self._look_at_reloader(connection)
                if self._state_files is not None and self._is_welcome:
                    self._forward(connection, self._state_files.changes())
        finally:
            if not self._in_child:
                self._selector.unregister(connection.fileno())

    def _forward(self, connection: HostConnection, messages: Iterable[control.InaStates]) -> None:
        for message in messages:
            self._send(connection, message)

    def _send(self, connection: HostConnection, message: BaseModel) -> None:
        body = control.encode(message)
        deadline = time.monotonic() + 5.0
        while not connection.send(body):
            if time.monotonic() > deadline:
                raise PeerGone("the daemon has read nothing for 5 s")
            time.sleep(0.001)

    def _order(self, connection: HostConnection, message: bytes) -> None:
        order = control.decode(control.DAEMON_TO_HOST, message)
        if isinstance(order, control.HostWelcome):
            self._kernel_ids, self._coming_ids = dict(order.kernel_ids), {}
            self._linger_s = order.linger_ms / 1e3
            self._is_welcome = True
            logger.info("joined as generation %d", order.generation)
            self._log_once(f"joined the daemon as generation {order.generation} at {time.strftime('%F %T')}")
            for lease in set(self._instances) - set(order.keep):
                self._drop(lease, scrub=True)
            for uuid, why in self._quarantine.gpus.items():
                self._send(connection, control.GpuLost(uuid=uuid, detail=why))
            if self._reloader is not None and self._reloader.revision > self._announced:
                self._announce(connection, self._reloader)  # it has reloaded since its hello
        elif isinstance(order, control.HostKernels):
            self._coming_ids |= order.kernel_ids
            if not order.has_more:
                self._kernel_ids, self._coming_ids = self._coming_ids, {}
                if self._reloader is not None:
                    self._reloader.taken_over(order.revision)
        elif isinstance(order, control.OpenInstance):
            self._open(connection, order)
        elif isinstance(order, control.CloseInstance):
            self._close(connection, order)
        elif isinstance(order, control.KillWorker):
            self._kill(connection, order)
        elif isinstance(order, control.RenewWorker):
            if (held := self._instances.get(order.lease)) is not None:
                held.renew(order, time.monotonic() + _LEAVE_S)
        elif isinstance(order, control.Ping):
            self._send(connection, control.Pong(number=order.number))
        elif isinstance(order, control.InaEpoch | control.InaAsk):
            if self._state_files is not None:
                self._forward(connection, self._state_files.on_message(order))
        elif isinstance(order, control.Closing):
            self._linger_s = 0.0
            raise PeerGone(f"{order.code}: {order.detail}" if self._is_welcome else order.detail)

    # -- migd -----------------------------------------------------------------------------------------------------
    def _look_at_migd(self, connection: HostConnection | None) -> None:
        for event in self._migd.poll() if self._migd is not None else ():
            self._on_xid(connection, event)

    def _on_xid(self, connection: HostConnection | None, event: Xid) -> None:
        """After an event that makes the whole GPU untrustworthy its workers end and no instance is opened on it. After
        others the worker that met the error reports it."""
        gpu, what = self._gpus.get(event.gpu), name_of(event.xid)
        if gpu is None:
            return
        leases = [lease for lease, held in self._instances.items() if gpu in gpus_of(held.gpu)]
        logger.warning("%s: %s; leases on it: %s", event.gpu, what, ", ".join(map(str, leases)) or "none")
        if event.xid in GPU_LOST:
            self._quarantine.add_gpu(event.gpu, what)
            for lease in leases:
                held = self._instances.pop(lease)
                self._end_workers(held)
                self._quarantine.add(held.gpu, held.instance)  # the reset removes it, except on a gang's other GPUs
            if connection is not None and self._is_welcome:  # else it is sent after the welcome
                self._send(connection, control.GpuLost(uuid=event.gpu, detail=what))

    # -- reloads --------------------------------------------------------------------------------------------------
    def _look_at_reloader(self, connection: HostConnection | None) -> None:
        if self._reloader is not None and self._reloader.poll(partial(self._close_in_child, connection)):
            if connection is not None and self._is_welcome:
                self._announce(connection, self._reloader)
            else:
                self._reloader.not_joined()
        if connection is not None and self._is_welcome:
            for held in list(self._instances.values()):
                for lane in list(held.leaving):
                    self._replace(connection, held, lane)

    def _announce(self, connection: HostConnection, reloader: Reloader) -> None:
        self._announced = reloader.revision
        for message in kernels_reloaded(self._table, list(self._gpus.values()), reloader.revision):
            self._send(connection, message)

    def _replace(self, connection: HostConnection, held: Instance, lane: int) -> None:
        """Fork the lane's new worker if the former one has ended, and kill that one if it takes too long."""
        pid = held.worker_of(lane)
        if pid is not None:
            if time.monotonic() >= held.leaving[lane]:
                held.leaving[lane] += _LEAVE_S
                os.kill(pid, signal.SIGKILL)
            return
        del held.leaving[lane]
        try:
            self._fork(connection, held, lane)
        except OSError as fault:
            logger.warning("lease %d lane %d: %s", held.order.lease, lane, fault)
            self._report_death(connection, held, lane)

    # -- instances ------------------------------------------------------------------------------------------------
    def _open(self, connection: HostConnection, order: control.OpenInstance) -> None:
        self._quarantine.retry()
        gpu: Gpu | None = None
        try:
            gpu = ordered(order, self._gpus)
            self._quarantine.check(gpu)
            exporter = exporter_for(order, self._doca, self._rdma)
            instance = gpu.create_instance(order.profile, order.start)
        except OffpathError as fault:
            logger.warning("instance %s at %d on %s: %s", order.profile, order.start, order.gpu, fault)
            if gpu is not None:
                self._quarantine.add_left(gpu)
            self._send(connection, instance_failed(order, str(fault)))
            return
        held = Instance(order, gpu, instance, exporter)
        self._instances[order.lease] = held
        if faults.armed:
            faults.hit("helper.open")
        try:
            if order.scrub_first:
                scrub_instance(gpu, instance)
            if self._mps is not None:
                self._start_mps(self._mps, held)
            for lane in range(order.lanes):
                self._fork(connection, held, lane)
        except (OffpathError, OSError) as fault:
            if self._in_child:
                raise
            logger.warning("lease %d: %s", order.lease, fault)
            self._drop(order.lease, scrub=True)
            self._send(connection, instance_failed(order, str(fault)))

    def _start_mps(self, mps: Mps, held: Instance) -> None:
        """Raises: MpsError, DeviceError."""
        demands = [share for each in self._table.kernels.values() if (share := share_on(each, held.gpu))]
        held.mps = mps.start(held.order, held.gpu, held.instance, demands)
        if held.mps is not None:
            self._selector.register(held.mps.daemon.pidfd, selectors.EVENT_READ)

    def _fork(self, connection: HostConnection, held: Instance, lane: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        pools = forks.pools()
        pid = os.fork()
        if pid == 0:
            self._in_child = True
            status = 1
            try:
                self._close_in_child(connection)
                forks.renew(pools, self._table)
                self._become_worker(held, lane)
                status = 0
            except KeyboardInterrupt:
                status = 0
            except SystemExit:
                pass  # already logged
            except OffpathError as fault:
                logger.error("worker of lease %d lane %d: %s", held.order.lease, lane, fault)
            except BaseException:  # log everything; the supervisor's stack must never run in the child
                logger.exception("worker of lease %d lane %d", held.order.lease, lane)
            finally:
                os._exit(status)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:  # out of descriptors; without a pidfd the worker could be neither ended nor reaped
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        held.workers[pidfd] = (pid, lane)
        self._selector.register(pidfd, selectors.EVENT_READ, held.order.lease)

    def _close_in_child(self, connection: HostConnection | None) -> None:
        """Close this process's copies of the supervisor's connections."""
        for each in (connection, self._migd):
            if each is not None:
                each.close()
        if self._reloader is not None:
            self._reloader.close_in_child()

    def _become_worker(self, held: Instance, lane: int) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)  # the pipe is the supervisor's
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for number in (signal.SIGINT, signal.SIGHUP):  # sent to the group, they are for the supervisor
            signal.signal(number, signal.SIG_IGN)
        gc.freeze()  # objects made before the fork stay shared with the supervisor
        worker = Worker(
            held.order_of(lane), lane, held.gpu, held.instance, self._table, self._kernel_ids,
            break_scrub=self._break_scrub, pid=os.getpid(), linger_s=self._linger_s, exporter=held.exporter,
            mps=held.mps.share if held.mps is not None else None,
        )  # fmt: skip
        worker.serve(self._connector)
        worker.close()

    def _close(self, connection: HostConnection, order: control.CloseInstance) -> None:
        held = self._instances.get(order.lease)
        if held is not None and held.order.generation != order.generation:
            return
        if faults.armed:
            faults.hit("helper.close")
        # An instance that is gone was scrubbed when it went; a repeated request means that the answer was lost.
        scrubbed = self._drop(order.lease, scrub=order.scrub) if held is not None else 0
        done = control.InstanceClosed(lease=order.lease, generation=order.generation, scrubbed_bytes=scrubbed)
        self._send(connection, done)

    def _kill(self, connection: HostConnection, order: control.KillWorker) -> None:
        """The worker is reaped like any other; the daemon sees its channel close. Under MPS the others may be left in
        an undefined state, so all end."""
        held = self._instances.get(order.lease)
        if held is None or held.order.generation != order.generation:
            return
        held.leaving.pop(order.lane, None)
        if held.mps is not None:
            self._end_lanes(connection, held, f"lane {order.lane} is killed on the daemon's order")
            return
        for pid in [pid for pid, lane in held.workers.values() if lane == order.lane]:
            logger.warning("lease %d lane %d: killing worker %d on the daemon's order", order.lease, order.lane, pid)
            os.kill(pid, signal.SIGKILL)

    def _drop(self, lease: int, *, scrub: bool) -> int:
        """End the lease's workers, scrub if requested, destroy the instance; one whose scrub fails is quarantined.
        Returns the bytes scrubbed; 0 reports to the daemon that the scrub did not happen.
        """
        held = self._instances.pop(lease)
        self._end_workers(held)
        scrubbed = 0
        if scrub and not self._break_scrub:
            try:
                scrubbed = scrub_instance(held.gpu, held.instance)
            except OffpathError as fault:
                logger.error("lease %d: scrub failed, instance quarantined: %s", lease, fault)
                self._quarantine.add(held.gpu, held.instance)
                return 0
        if faults.armed:
            faults.hit("helper.scrub")
        try:
            held.gpu.destroy_instance(held.instance)
        except OffpathError as fault:
            logger.error("lease %d: the instance stays, and is quarantined: %s", lease, fault)
            self._quarantine.add(held.gpu, held.instance)
        return scrubbed

    def _drop_all(self) -> None:
        """Drop all instances with a scrub. Raises: DeviceError: one could not be scrubbed; the others were."""
        for lease in list(self._instances):
            self._drop(lease, scrub=True)
        if (failed := self._quarantine.retry()) is not None:
            raise failed

    def _end_workers(self, held: Instance) -> None:
        """SIGKILL, announced to MPS if it is there, whose daemon ends too: a scrub or another tenant comes next."""
        if held.mps is not None:
            held.mps.daemon.terminate(pid for pid, _ in held.workers.values())
        for pid, _ in held.workers.values():
            os.kill(pid, signal.SIGKILL)
        for pidfd in list(held.workers):
            self._forget(held, pidfd)
        if held.mps is not None:
            self._selector.unregister(held.mps.daemon.pidfd)
            held.mps.daemon.stop()
            held.mps = None

    def _end_lanes(self, connection: HostConnection | None, held: Instance, why: str) -> None:
        """End all lanes of a lease; the daemon then closes it. Under MPS, because after the unclean end of one client
        the state of its server and of the other clients is undefined."""
        order = held.order
        logger.warning("lease %d: %s; all its lanes end", order.lease, why)
        lanes = [lane for _, lane in held.workers.values()]
        lanes += [lane for lane in held.leaving if lane not in lanes]
        self._end_workers(held)
        held.leaving.clear()
        for lane in lanes:
            self._report_death(connection, held, lane)

    def _report_death(self, connection: HostConnection | None, held: Instance, lane: int) -> None:
        if connection is not None:  # else the next hello reports the lanes that remain
            order = held.order
            died = control.WorkerDied(
                lease=order.lease, lane=lane, generation=order.generation, renewal=held.renewal_of(lane)
            )
            self._send(connection, died)

    def _reap(self, connection: HostConnection | None, pidfd: int) -> None:
        """Reap a worker that ended by itself. The daemon saw its channel close, unless the worker had none yet. The end
        of an MPS control daemon, and under MPS that of a worker that did not exit in order, ends the lease's lanes.

        An order of the same turn may have closed this descriptor, and a worker forked since may have got its number.
        That worker lives, and waiting for it would block forever.
        """
        for held in self._instances.values():
            if pidfd in held.workers:
                ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None:
                    return
                lane = held.workers[pidfd][1]
                self._forget(held, pidfd)
                if lane not in held.leaving:  # else another takes its place
                    self._report_death(connection, held, lane)
                if held.mps is not None and (ended.si_code, ended.si_status) != (os.CLD_EXITED, 0):
                    self._end_lanes(connection, held, f"the worker of lane {lane} ended out of order")
                return
            if held.mps is not None and pidfd == held.mps.daemon.pidfd and held.mps.daemon.has_ended():
                self._end_lanes(connection, held, "its MPS control daemon ended")
                return

    def _forget(self, held: Instance, pidfd: int) -> None:
        pid, _ = held.workers.pop(pidfd)
        self._selector.unregister(pidfd)
        os.waitpid(pid, 0)
        os.close(pidfd)
