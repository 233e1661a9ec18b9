"""The host's processes as actors: the supervisor's rules (`host_helper.supervisor`) without forks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from offpath.bindings.errors import OffpathError, PeerGone
from offpath.bindings.loopback.lane import LoopbackLaneExporter
from offpath.bindings.wire import control
from offpath.host_helper.demands import needs
from offpath.host_helper.instances import Instance
from offpath.host_helper.offers import gpu_offer, helper_hello, instance_failed, instance_held

from .channels import HostEnd
from .gpu import SimGpu
from .promises import promise
from .reloads import Reloading
from .worker import SimWorker

if TYPE_CHECKING:
    from .world import World

MS = 1_000_000


class SimInstance:
    def __init__(self, order: control.OpenInstance, gpu: SimGpu, instance: int) -> None:
        self.order = order
        self.gpu = gpu
        self.instance = instance
        self.workers: list[SimWorker] = []
        self.real = Instance(order, gpu, instance, LoopbackLaneExporter)
        """What the supervisor itself remembers of it."""


class SimHelper:
    """One process of the supervisor, from its start to its death. Handles one order at a time; some take long."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.gpus = world.gpus_of[name]
        self.pid = world.new_pid()
        self.key = ("helper", self.pid)
        self.is_alive = True
        self.is_busy = False
        self.is_silent = False
        self.is_hung = False
        """Silent for good."""
        self.is_leaving = False
        """It was told to end, as by SIGTERM."""
        self._has_finished = False
        self.is_welcome = False
        self._is_gpu_lost = False
        self.kernel_ids: dict[str, int] = {}
        self.linger_ns = 0
        self._lost_ns = 0
        self.instances: dict[int, SimInstance] = {}
        self._unreaped: list[SimWorker] = []
        """Dead workers that it has not noticed yet."""
        self.reloading = Reloading(self)
        self.table = self.reloading.table(world.setup.second_kernels)
        self._end: HostEnd | None = None
        for gpu in self.gpus:  # a new process finds no instance of its own; memory is as the last one left it
            for instance in list(gpu.tenancies):
                gpu.destroy_instance(instance)
        world.loop.after(world.short_ns(), self.key, self._connect)

    # -- channel --------------------------------------------------------------------------------------------------
    def _connect(self) -> None:
        if not self.is_alive or self._end is not None or self.is_leaving:
            return
        world = self.world
        if self.instances and world.loop.now_ns - self._lost_ns >= self.linger_ns:
            self._drop_all()
        if world.channel is None:
            world.loop.after(20 * MS, self.key, self._connect)
            return
        self._end = HostEnd(world, self.pid, self.wake)
        self._end.is_full = self.is_silent
        self.is_welcome = False
        needed = needs(self.table.kernels.values(), self.gpus)
        hello = helper_hello(
            self.name, f"incarnation-{self.pid}", self.table, len(self.gpus), len(self.instances), len(needed),
            self.reloading.hello(),
        )  # fmt: skip
        self._end.send(control.encode(hello))
        for message in needed:
            self._end.send(control.encode(message))
        for gpu in self.gpus:
            self._end.send(control.encode(gpu_offer(gpu)))
        for held in self.instances.values():
            self._end.send(control.encode(instance_held(held.order, held.real.lanes())))
        world.channel.connect(self._end)
        world.log("helper %s connects", self)

    def __str__(self) -> str:
        return f"{self.name} ({self.pid})"

    def has_joined(self) -> bool:
        """True while the daemon serves a helper of its name."""
        return any(helper.name == self.name for helper in self.world.daemon.host.joined())

    def is_cut_off(self) -> bool:
        """True when daemon and helper have lost each other: its workers go too."""
        end = self._end
        if not self.is_alive or end is None or end.daemon_gone or not end.is_open:
            return True
        return end.daemon_end in self.world.daemon.host._closing_connections  # hung up on once copies to it have landed

    def wake(self) -> None:
        if self.is_alive and not self.is_busy and not self.is_silent:
            self.world.loop.outside[self.key] = self._act

    def be_silent(self, is_silent: bool, *, is_full: bool = False) -> None:
        """Neither reads nor says anything (swapped out, stopped); ``is_full``: its socket takes no more."""
        self.is_silent = is_silent or self.is_hung
        if self._end is not None:
            self._end.is_full = is_full
        self.world.loop.outside.pop(self.key, None)
        self.wake()

    def _act(self) -> None:
        if not self.is_alive or self.is_busy or self.is_silent:
            return
        if self.is_leaving:
            self._take_leave()
            return
        if self._end is None:
            while self._unreaped:
                self._reap()
            return
        if self._unreaped and self.world.random.random() < 0.5:
            self._reap()
            self.wake()
            return
        try:
            message = self._end.next_message()
            if message is not None:
                self._order(control.decode(control.DAEMON_TO_HOST, message))
            elif self._unreaped:
                self._reap()
            else:
                return
        except PeerGone:
            self._daemon_gone()
            return
        self.wake()

    def lose_gpu(self) -> None:
        """As `Supervisor._on_xid` after an event that loses the GPU; somebody resets it and restarts this process."""
        if not self.is_alive or self._is_gpu_lost:
            return
        self.world.log("helper %s loses its GPU", self.pid)
        self._is_gpu_lost = True
        for held in [self.instances.pop(lease) for lease in list(self.instances)]:
            self._unreaped = [worker for worker in self._unreaped if worker not in held.workers]
            for worker in held.workers:
                worker.die()
        self._report_loss()
        self.world.loop.after(self.world.short_ns(200), ("world",), self.leave)

    def _report_loss(self) -> None:
        if self._is_gpu_lost and self.is_welcome:
            self.send(control.GpuLost(uuid=self.gpus[0].uuid, detail="Xid 79"))

    def leave(self) -> None:
        """SIGTERM: it ends once the daemon has let it go."""
        if self.is_alive and not self.is_leaving:
            self.world.log("helper %s is told to end", self.pid)
            self.is_leaving = True
            self.wake()

    def _take_leave(self) -> None:
        """As `Supervisor._take_leave`: what it scrubs then stays clean, if it was not kept waiting for too long."""
        end = self._end
        if end is not None and not self._has_finished:
            self._has_finished = True
            end.finish()
            self.world.loop.after(5_000 * MS, self.key, self._scrub_and_end)
        try:
            if end is not None and end.next_message() is not None:
                self.wake()
            if end is not None:
                return
        except PeerGone:
            for flight in self.world.engine.flights.values():
                helper = getattr(flight.target.owner, "lease", None) in self.instances
                promise(
                    not helper or end.is_orphan,
                    f"the daemon let helper {self.pid} go, and copies to {flight.target.owner}",
                )
        self._scrub_and_end()

    def _scrub_and_end(self) -> None:
        if self.is_alive and not self.is_silent:
            self._drop_all()
            self.die()
            self.world.loop.after(self.world.short_ns(20), ("world",), partial(self.world.new_helper, self.name))

    def _reap(self) -> None:
        """As `Supervisor._reap`: a dead worker leaves its instance, and the daemon is told if it can be."""
        worker = self._unreaped.pop(0)
        order = worker.order
        held = self.instances[order.lease]
        held.workers.remove(worker)
        del held.real.workers[worker.pid]
        if worker.lane in held.real.leaving:
            self.reloading.replace(held)
        else:
            died = {"lease": order.lease, "lane": worker.lane, "generation": order.generation}
            self.send(control.WorkerDied(**died, renewal=worker.renewal))

    def _daemon_gone(self) -> None:
        """Offer ourselves again, with what we hold, for as long as the daemon had asked for."""
        assert self._end is not None
        self._end.close()
        self._end = None
        self._lost_ns = self.world.loop.now_ns
        if not self.linger_ns:
            self._drop_all()
        self.world.loop.after(self.world.short_ns(50), self.key, self._connect)

    def send(self, message: Any) -> None:
        if self._end is not None and self.is_alive:
            try:
                self._end.send(control.encode(message))
            except PeerGone:
                self.wake()

    # -- orders ---------------------------------------------------------------------------------------------------
    def _order(self, order: Any) -> None:
        self.world.log("helper %s: %s", self.pid, order)
        if isinstance(order, control.HostWelcome):
            self.kernel_ids = dict(order.kernel_ids)
            self.linger_ns = order.linger_ms * MS
            for lease in [lease for lease in self.instances if lease not in order.keep]:
                self._drop(lease, scrub=True)
            self.is_welcome = True
            self._report_loss()
            self.reloading.announce()
            for held in list(self.instances.values()):
                self.reloading.replace(held)
        elif isinstance(order, control.RenewWorker):
            self.reloading.renew(order)
        elif isinstance(order, control.HostKernels):
            self.kernel_ids = dict(order.kernel_ids)
        elif isinstance(order, control.Ping):
            self.send(control.Pong(number=order.number))
        elif isinstance(order, control.KillWorker):
            self._kill(order)
        elif isinstance(order, control.OpenInstance):
            self._begin(lambda: self._open(order))
        elif isinstance(order, control.CloseInstance):
            self._begin(lambda: self._close(order), is_slow=order.scrub)
        elif isinstance(order, control.Closing):
            self.linger_ns = 0
            raise PeerGone(order.code)

    def _begin(self, work: Any, *, is_slow: bool = False) -> None:
        """Cutting and scrubbing block the supervisor for a while."""
        self.is_busy = True

        def done() -> None:
            if self.is_alive:
                self.is_busy = False
                work()
                self.wake()

        self.world.loop.after(self.world.device_ns(is_slow=is_slow), self.key, done)

    def _open(self, order: control.OpenInstance) -> None:
        world = self.world
        gpu = next((gpu for gpu in self.gpus if gpu.uuid == order.gpu), None)
        promise(gpu is not None, f"an instance on {order.gpu} is ordered, which was not offered")
        assert gpu is not None
        if self._is_gpu_lost or world.happens("create_fails"):
            self.send(instance_failed(order, "injected"))
            return
        try:
            instance = gpu.create_instance(order.profile, order.start)
        except OffpathError as fault:
            promise(False, f"MIG refuses {order.profile} at {order.start}: {fault}")
            return
        tenancy = gpu.taken(instance, order.lease, order.generation, order.tenant)
        world.judge.lease_ordered(order.lease, order.generation)
        held = self.instances[order.lease] = SimInstance(order, gpu, instance)
        if order.scrub_first:
            gpu.scrub_instance(instance)
        fails_at = world.random.randrange(order.lanes) if world.happens("fork_fails") else -1
        for lane in range(order.lanes):
            if lane == fails_at:
                self._drop(order.lease, scrub=True)
                self.send(instance_failed(order, "injected"))
                return
            self.fork(held, lane)
        world.log("%s is cut at %s of %s", tenancy, order.start, gpu.uuid)

    def fork(self, held: SimInstance, lane: int) -> None:
        """Start the lane's worker."""
        worker = SimWorker(self, held.real.order_of(lane), lane, held.gpu, held.instance)
        held.workers.append(worker)
        held.real.workers[worker.pid] = worker.pid, lane

    def _close(self, order: control.CloseInstance) -> None:
        held = self.instances.get(order.lease)
        if held is not None and held.order.generation != order.generation:
            return
        scrubbed = 0
        if held is not None:
            tenancy = held.gpu.tenancies[held.instance]
            scrubbed = self._drop(order.lease, scrub=order.scrub, tenancy=tenancy)
        self.send(
            control.InstanceClosed(lease=order.lease, generation=order.generation, scrubbed_bytes=scrubbed)
        )  # fmt: skip

    def _kill(self, order: control.KillWorker) -> None:
        held = self.instances.get(order.lease)
        if held is not None and held.order.generation == order.generation:
            held.real.leaving.pop(order.lane, None)
            for worker in held.workers:
                if worker.lane == order.lane:
                    worker.die()

    def _drop(self, lease: int, *, scrub: bool, tenancy: Any = None) -> int:
        held = self.instances.pop(lease)
        self._unreaped = [worker for worker in self._unreaped if worker not in held.workers]
        for worker in held.workers:
            worker.die()
        scrubbed = held.gpu.scrub_instance(held.instance) if scrub else 0
        if tenancy is not None:
            self.world.judge.instance_left(held.gpu, held.instance, tenancy)
        held.gpu.destroy_instance(held.instance)
        return scrubbed

    def _drop_all(self) -> None:
        for lease in list(self.instances):
            self._drop(lease, scrub=True)

    def workers_of(self, lease: int) -> list[SimWorker]:
        held = self.instances.get(lease)
        return held.workers if held is not None else []

    def workers(self) -> list[SimWorker]:
        return [worker for held in self.instances.values() for worker in held.workers if worker.is_alive]

    def died(self, worker: SimWorker) -> None:
        """A worker ended, asked or not."""
        if self.is_alive and any(worker in held.workers for held in self.instances.values()):
            self._unreaped.append(worker)
            self.wake()

    def die(self) -> None:
        """The process is killed; its workers go with it (PR_SET_PDEATHSIG). Nobody scrubs anything."""
        if not self.is_alive:
            return
        self.world.log("helper %s dies", self)
        self.is_alive = False
        self.world.loop.outside.pop(self.key, None)
        workers = self.workers()
        self.world.random.shuffle(workers)
        if self._end is not None:
            self._end.close(is_death=True)
        for worker in workers:
            worker.die()
        self.instances.clear()
