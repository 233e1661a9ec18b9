"""A lane's worker process as an actor: the real `Worker`, driven message by message.

Only its kernel takes time between the launch and the result, or between the answers of a stream. A dead process sends
nothing more; what it sent before is still on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from offpath.bindings.errors import PeerGone
from offpath.bindings.wire import control, host
from offpath.dpu_daemon.config.tables import LINGER_MS
from offpath.host_helper.worker import Worker

from . import streams
from .channels import HostEnd
from .gpu import SimGpu
from .judge import Request
from .promises import promise

if TYPE_CHECKING:
    from .host import SimHelper

MS = 1_000_000
SLACK_NS = 2 * MS


class SimWorker:
    """One lane's process: born, connects, offers its lane, runs launches one by one, dies."""

    def __init__(self, helper: SimHelper, order: control.OpenInstance, lane: int, gpu: SimGpu, instance: int) -> None:
        self.world = world = helper.world
        self.helper = helper
        self.order = order
        self.lane = lane
        self.revision = helper.reloading.revision
        self.renewal = helper.instances[order.lease].real.renewal_of(lane)
        self.pid = world.new_pid()
        self.key = ("worker", self.pid)
        self.is_alive = True
        self._worker = Worker(
            order, lane, gpu, instance, helper.table, helper.kernel_ids, pid=self.pid, linger_s=helper.linger_ns / 1e9
        )
        self._lost_ns = 0
        self._end: HostEnd | None = None
        self._has_offered = False
        self.running: tuple[Request, int] | None = None
        """The launch that has no result yet."""
        self._is_busy = False
        """Its kernel computes, and reads no message."""
        self._last: Request | None = None
        self._seen = b""
        self._since = 0, 0, world.config
        """When what runs began, how late the daemon was then, and what was in force."""
        self.is_liar = False
        self._took_no_reply = False
        """The daemon could not reply to an answer of its stream, and gave it up; coming back does not help."""
        world.loop.after(world.short_ns(), self.key, self._connect)

    @property
    def states(self) -> Mapping[int, object]:
        """Of sequences, by the daemon's numbers."""
        return self._worker._sequences._by_number

    def __str__(self) -> str:
        return f"worker of lease {self.order.lease} ({self.order.tenant}) lane {self.lane}"

    def _connect(self) -> None:
        if not self.is_alive:
            return
        world, order = self.world, self.order
        if world.channel is None:
            self._lost_daemon()
            return
        self._end = HostEnd(world, self.pid, self.wake)
        self._has_offered = False
        hello = control.WorkerHello(
            lease=order.lease, lane=self.lane, pid=self.pid, token=order.token, last_job=self._worker._last_job,
            has_result=bool(self._worker._last_result),
        )  # fmt: skip
        self._end.send(control.encode(hello))
        world.channel.connect(self._end)
        if world.happens("long_pauses"):
            world.loop.after(
                world.random.choice((2_000, 4_000, 8_000)), ("world",), lambda: world.stand_still(6_000 * MS)
            )
        self.wake()

    def _lost_daemon(self) -> None:
        """As `Worker.serve`: come back for as long as the supervisor would."""
        now_ns, linger_ns = self.world.loop.now_ns, int(self._worker._linger_s * 1e9)
        if self._end is not None:
            self._end.close()
            self._end = None
            self._lost_ns = now_ns
        if self._worker._is_unwanted or not self._lost_ns or now_ns - self._lost_ns >= linger_ns:
            self.die()
        else:
            self.world.loop.after(10 * MS, self.key, self._connect)

    def wake(self) -> None:
        """There is something to do."""
        if self._end is not None and self._end.daemon_gone:
            self._dropped()
        if self.is_alive and not self._is_busy and self._end is not None:
            self.world.loop.outside[self.key] = self._act

    def _dropped(self) -> None:
        """The daemon hung up on a living worker: it must have had a reason."""
        if not self.is_alive:
            return
        world, end = self.world, self._end
        self._took_no_reply = self._took_no_reply or (self._streams() and end is not None and end.was_full)
        has_reason = (
            (end is not None and end.is_orphan)
            or self.order.generation in world.closing
            or self.helper.is_cut_off()
            or not self.helper.has_joined()  # a restarted daemon gave up waiting for it
            or self.order.lease not in world.daemon.requests.book.ledger.leases
            or self.is_liar
            or self._took_no_reply
            or world.judge.is_renewed(self)
            or world.engine.has_lost(self._worker._lane)
            or world.judge.is_unwanted(self)  # the order to kill it may have met no helper
            or (world.deaths and world.judge.is_given_up(self))  # by the process before, which had no time to say so
        )  # fmt: skip
        promise(has_reason, f"the daemon hangs up on {self}, which did nothing wrong")
        self._count_death()

    def _act(self) -> None:
        """One message, as in `Worker.serve`."""
        end = self._end
        assert end is not None
        if not self.is_alive or self._is_busy:
            return
        world = self.world
        try:
            if not self._has_offered:
                self._has_offered = True
                self._worker._load(end, None)  # type: ignore[arg-type]
                self._worker._offer(end)  # type: ignore[arg-type]
                if self._worker._last_result:
                    end.send(self._worker._last_result)
            elif (message := end.next_message()) is not None:
                if message[0] == host.KIND_LAUNCH:
                    self._launch(message)
                elif message[0] == host.KIND_PROCEED:
                    self._proceed(message)
                else:
                    is_scrub = control.decode(control.DAEMON_TO_HOST, message).kind == "scrub_lane"
                    is_closed = self not in world.open_streams or self.is_liar
                    promise(is_closed or not is_scrub, f"{self} scrubs its lane beneath a stream")
                    world.log("%s: %s", self, message)
                    self._worker._control(end, message)  # type: ignore[arg-type]
            else:
                return
        except PeerGone:
            self._lost_daemon()
            return
        if world.happens("worker_dies"):
            self.die()
        elif end.inbox or end.daemon_gone:
            self.wake()

    def _launch(self, message: bytes) -> None:
        world = self.world
        launch = host.parse_launch(message)
        promise(self.running is None or self.is_liar, f"{self} gets a launch while a kernel runs")
        request = world.judge.launch_came(self, launch.job, launch.generation)
        if launch.kernel_id not in self._worker._kernels:
            is_known = self.helper.has_joined() or not world.deaths or self.revision <= self._known_revision()
            promise(not is_known, f"{self} gets a launch of kernel {launch.kernel_id}, which its helper does not serve")
            world.judge.lied_about(request)  # it fails, and meets no kernel
        world.log("%s starts job %s: %s", self, launch.job, request)
        self._last = request
        if world.happens("worker_dies"):
            self.die()
            return
        result = world.on_lane(self, request, self._worker._run, message)
        self.running = request, launch.demand
        self._since = world.loop.now_ns, world.late_ns, world.config
        alpha = world.alpha(self.order)
        world.judge.share_used(self, sum(w.share() for w in self.helper.workers_of(self.order.lease)), alpha)
        self._seen = self._worker._lane.read(0, launch.payload_bytes)
        self._compute(lambda: self._finish(result))

    def _known_revision(self) -> int:
        """Of the kernels of its helper: the daemon may have been killed before it read of the last ones."""
        known = self.world.daemon.requests.book.ledger.helpers.by_name.get(self.helper.name)
        return known.revision if known is not None else 0

    def _compute(self, then: Callable[[], None]) -> None:
        """What was computed at once takes its time."""
        self._is_busy = True
        self.world.loop.after(self.world.kernel_ns(), self.key, then)

    def _proceed(self, message: bytes) -> None:
        """A reply to an answer: the next one is there, or takes its time."""
        assert self._last is not None
        world, job = self.world, self._worker._job
        is_ahead = job is not None and bool(job.ahead)
        result = world.on_lane(self, self._last, self._worker._proceed, message)
        world.log("%s hears %s", self, host.parse_proceed(message))
        if result and is_ahead:
            self._finish(result)
        elif result:
            self._compute(lambda: self._finish(result))

    def _work_ahead(self) -> None:
        """As `Worker._report` at its end."""
        job = self._worker._job
        if job is None or job.values is None or not job.is_inline or self._last is None:
            return
        self.world.on_lane(self, self._last, lambda _: self._worker._work_ahead(), b"")

        def rest() -> None:
            self._is_busy = False
            if self.is_alive and self._end is not None:
                self.world.loop.outside[self.key] = self._act

        self._compute(rest)

    def share(self) -> int:
        """R of what runs here and the daemon knows of. One that is to be killed may not be dead yet; a liar may have
        said that its stream has ended."""
        is_known = self._end is not None and not self._end.daemon_gone and not self.world.judge.is_unwanted(self)
        is_known = is_known and not self.is_liar
        return self.running[1] if self.running is not None and is_known else 0

    def _finish(self, result: bytes) -> None:
        if not self.is_alive or self.running is None:
            return
        world = self.world
        request, _ = self.running
        promise(
            self._worker._lane.read(0, len(self._seen)) == self._seen,
            f"{self}: its lane changed beneath its kernel",
        )
        self._may_run_on(request)
        if world.happens("worker_dies"):
            self.die()
            return
        self._is_busy = False
        if result[1] != host.RESULT_MORE:
            self.running = None
        self._worker._last_result = _timed(result, world.loop.now_ns)
        if self._worker._job is not None:
            self._worker._job.sends()
        said = [_timed(result, world.loop.now_ns)]
        if world.happens("worker_lies"):
            said = [world.lie(said[0])]
            self._lied(request)
        elif world.happens("worker_repeats"):
            said *= 2
            self._lied(request)
        if self._end is None:
            return
        try:
            for message in said:
                self._end.send(message)
        except PeerGone:
            self._lost_daemon()
            return
        world.log("%s answers %s", self, request)
        if world.happens("worker_dies_after"):
            self.die()
            return
        self._work_ahead()
        if self._end.inbox or self._end.daemon_gone:
            self.wake()

    def waits_in_vain(self) -> bool:
        """The request of its stream ended long ago, and its last answer, which the daemon has read, got no reply."""
        end, world = self._end, self.world
        if not self._streams() or self._is_busy or self.is_liar or end is None or end.daemon_gone or end.was_full:
            return False
        if not self._has_offered:
            return False  # it is back, and has not repeated its answer yet
        assert self.running is not None
        ended_ns, result = self.running[0].ended_ns, self._worker._last_result
        is_read = not (end.inbox or end.daemon_end.inbox)
        is_copied = self.order.lease in world.daemon.requests.copies.leases()
        is_long_ago = 0 < ended_ns <= world.loop.now_ns - LINGER_MS * MS
        return is_long_ago and is_read and not is_copied and result[1:2] == bytes((host.RESULT_MORE,))

    def _streams(self) -> bool:
        """Whether its launch is of the kernel that streams, and needs replies."""
        return self.running is not None and self.running[0].kernel == streams.NAME

    def _may_run_on(self, request: Request) -> None:
        """A kernel that ran for longer than it may is one that the daemon wants to be killed."""
        world = self.world
        since_ns, late_ns, config = self._since
        limit_ns = config.limits.kernel_ms * MS
        if limit_ns and self._streams():
            limit_ns += LINGER_MS * MS  # it is stopped first
        ran_ns = world.loop.now_ns - since_ns - (world.late_ns - late_ns)
        is_known = self._end is not None and not self._end.daemon_gone and config is world.config
        is_ending = self.order.generation in world.closing or self.helper.is_cut_off()
        is_free = not limit_ns or ran_ns <= limit_ns + SLACK_NS or not is_known or is_ending
        promise(
            is_free or world.judge.is_unwanted(self),
            f"{self} ran {request} for {ran_ns} ns, and nobody wants it to end",
        )

    def _lied(self, request: Request) -> None:
        """The daemon may drop this worker, and what it said of the request is worth nothing."""
        self.is_liar = True
        self.world.judge.lied_about(request)

    def _count_death(self) -> None:
        """Launches that go down with this process: unread, in its hands, or with a result that is still on its way."""
        for mate in self.world.judge.mates(self._last) if self._last is not None else ():
            mate.deaths += mate.answer is None
        if self._end is None:
            return
        for message in self._end.inbox:
            if message[0] == host.KIND_LAUNCH:
                for mate in self.world.judge.mates(self.world.judge.launch_came(self, *host.parse_launch(message)[:2])):
                    mate.deaths += 1

    def die(self) -> None:
        """The process ends, whatever it was doing."""
        if not self.is_alive:
            return
        self.world.log("%s dies", self)
        self._count_death()
        self.is_alive = False
        self.running = None
        self.world.open_streams.discard(self)
        self.world.loop.outside.pop(self.key, None)
        if self._end is not None:
            self._end.close(is_death=True)
        self.helper.died(self)


def _timed(result: bytes, now_ns: int) -> bytes:
    """The same result, finished now."""
    return result[:16] + now_ns.to_bytes(8, "little") + result[24:]
