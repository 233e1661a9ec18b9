"""A whole node in one thread: the real daemon among simulated processes, memories and faults, all drawn from one seed.

`run(seed)` lives through one schedule: requesters come with their requests while everything fails that may fail; then
the faults stop, and everybody must be served (`heal`); then all leave, and nothing may be left over (`rest`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any, Protocol, cast

import numpy as np

from offpath.bindings.errors import RegionError
from offpath.bindings.loopback.fabric import LoopbackFabricSession
from offpath.bindings.wire import control, negotiating
from offpath.dpu_daemon.config import DaemonConfig, parse_config
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.durability.journal.log import Journal, open_journal, replay
from offpath.dpu_daemon.durability.journal.ring import Ring
from offpath.dpu_daemon.durability.notify import close_all
from offpath.dpu_daemon.ingress.admission import Admission, credentials
from offpath.dpu_daemon.ingress.fabric_acceptor import LoopbackAcceptor
from offpath.dpu_daemon.operation import recovery as recovery_module
from offpath.dpu_daemon.operation.recovery import Recovery
from offpath.host_helper import worker as worker_module
from offpath.sched.gpu.plugin import PluginDecision
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.snapshot import snapshot

from . import batches
from .channels import HostEnd, SimChannelListener
from .gpu import SimGpu
from .host import SimHelper
from .judge import Judge, Request, result_of
from .plugin import POLICY, SimPlugin
from .promises import promise
from .requesters import SimRequester
from .setup import HELPER, SECOND, TENANTS, Setup, Terms, draw_setup, draw_terms
from .simloop import SimLoop
from .survivors import IDENTITY, DaemonKilled, SimManager, SimStorage
from .wires import Memory, SessionMemory, SimEngine, SimFabricListener, SimFabricSession
from .worker import SimWorker

MS = 1_000_000
MOST_STEPS = 6_000
HEAL_STEPS = 30_000
HEAL_NS = 900_000 * MS
BEAT_STEPS = 8 * HEAL_NS // (100 * MS)
"""Steps of all heartbeats in that time, where they are most frequent."""


class _HostTime:
    """``time`` as the workers see it."""

    def __init__(self, loop: SimLoop) -> None:
        self.monotonic_ns = loop.clock_ns


class TenantTokens(Protocol):
    """The tenants' tokens, and the files they lie in."""

    tokens: dict[str, str]

    def path(self, name: str) -> str: ...


class World:
    """Everything around the daemon, and the daemon."""

    def __init__(self, seed: int, tokens: TenantTokens, setup: Setup | None = None) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.setup = setup or draw_setup(self.random)
        self.loop = SimLoop(self.random, self.setup.pace)
        self.lines: list[str] | None = None
        self.counts: Counter[str] = Counter()
        self._plugin_random = Random(f"plug-in {seed}")
        self.orders = Random(f"sequences {seed}")
        self.uid = os.getuid()
        self.tokens = tokens.tokens
        self.are_faults_on = True
        self.late_ns = 0
        self.broken: BaseException | None = None
        self.exports: dict[int, Memory] = {}
        self.old_tickets: list[bytes] = []
        self.intruders: list[HostEnd] = []
        self.closing: dict[int, None] = {}
        self.may_lose_sessions = False
        self._next_pid = 1000
        self._next_fd = 0
        self._kept: dict[int, SessionMemory] = {}
        self.owned: dict[Any, None] = {}
        """What the daemon's process has open."""
        self.storage = SimStorage()
        self.manager = SimManager(self._kept)
        self.is_daemon_dying = False
        self._died_ns = 0
        self.deaths = 0
        """How often the daemon was killed."""
        self._tokens_made = 0
        self._on_lane: tuple[SimWorker, Request] | None = None
        self.open_streams: set[SimWorker] = set()
        """Workers with a generator that is not closed."""
        self._token_path = tokens.path
        self.removals: Counter[str] = Counter()
        """How often a tenant was taken out of the configuration."""
        self.removed: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        """By tenant, each time it was taken out: when, and the shortest time in ms that it had for its answers by any
        configuration since."""
        self.most_jobs: Counter[str] = Counter()
        self.least_kernel_ns = 0
        self.config = self._configured(Terms.of(self.setup))
        self.slots_given = 0
        self._strikes: dict[str, Callable[[], None]] = {
            "helper_dies": self._kill_helper,
            "helper_reloads": lambda: self._some_helper().reloading.strike(),
            "helper_leaves": lambda: self._some_helper().leave(),
            "worker_killed": self._kill_worker,
            "helper_silent": lambda: self._silence(is_full=False),
            "helper_full": lambda: self._silence(is_full=True),
            "helper_hangs": self._hang_helper,
            "clock_jumps": self._jump,
            "daemon_killed": self._kill_between,
            "intruders": self._intrude,
            "reloads": lambda: self._reload(draw_terms(self.setup, self.random)),
            "spurious": self.loop.wake_somebody,
            "gpu_dies": lambda: self._some_helper().lose_gpu(),
        }
        self._striking = sum(self.setup.faults.get(name, 0.0) for name in self._strikes)
        names = [HELPER, SECOND][: self.setup.helpers]
        self.gpus_of = {name: [SimGpu(self, "gpu-0", self.setup.model)] for name in names}
        self.gpus = [gpu for gpus in self.gpus_of.values() for gpu in gpus]
        self.lanes_possible = self.setup.leasing["lanes"] * 8 * len(names)
        self.counts["two_helpers"] = len(names) - 1
        self.judge = Judge(self)
        self.channel: SimChannelListener | None = None
        self.loop.executor[LoopbackFabricSession] = self._make_fabric
        self.is_made = False
        self.start_daemon()
        self.is_made = True
        self.helpers = {name: SimHelper(self, name) for name in names}
        number = 0
        self.requesters: list[SimRequester] = []
        for is_hostile, count in ((False, self.setup.requesters), (True, self.setup.hostile)):
            for _ in range(count):
                number += 1
                tenant = self.random.choice(self.setup.tenants)["name"]
                self.requesters.append(SimRequester(self, number, tenant, is_hostile=is_hostile))

    # -- the daemon -----------------------------------------------------------------------------------------------
    def start_daemon(self) -> None:
        """A daemon with its ports, on this loop."""
        self.engine = SimEngine(self)
        self.channel = SimChannelListener(self)
        self.listener = SimFabricListener(self)
        self.late_ns += self.loop.now_ns - self._died_ns + 600 * MS if self.deaths else 0
        self.loop.running(self._make_daemon)

    def kill_daemon(self) -> None:
        """SIGKILL: everything of the process is gone; its peers see their connections close."""
        self.log("the daemon is killed")
        self._last_book = snapshot(self.daemon.requests.book)
        self.deaths += 1
        self._died_ns = self.loop.now_ns
        self.judge.daemon_died()
        self.loop.forget_daemon()
        self.engine.flights.clear()
        self.channel = None
        self.is_daemon_dying = True
        for end in list(self.owned):
            end.close()
        self.is_daemon_dying = False
        if self.happens("reloads_unseen"):
            self._reload(draw_terms(self.setup, self.random))
        self.loop.after(self.short_ns(self.random.choice((5, 50, 500))), ("world",), self.start_daemon)

    def _journal(self) -> tuple[Journal, JobBook | None]:
        """The journal, and the book it holds: that of the process before, exactly; replaying changes nothing."""
        if not self.deaths:
            return Journal(Ring.fresh(self.storage, IDENTITY)), None
        ring, replayed, why = open_journal(self.storage, IDENTITY.boot)
        promise(replayed is not None, f"the journal cannot be gone on with: {why}")
        assert replayed is not None
        now = snapshot(replayed.book)
        promise(now == self._last_book, "the replayed book is another than the killed one's")
        promise(snapshot(replay(ring.entries(ring.checkpoints[-1])).book) == now, "a second replay gives another book")
        return Journal(ring, replayed.times), replayed.book

    def _make_daemon(self) -> None:
        assert self.channel is not None
        listener, channel = cast("Any", self.listener), cast("Any", self.channel)
        journal, book = self._journal() if self.setup.is_durable else (None, None)
        store: Any = self.manager if journal is not None else None
        self.daemon = Daemon(
            self.config, channel, engine=self.engine, now_ns=self.loop.clock_ns, token=self._token, journal=journal,
            book=book, store=store,
        )  # fmt: skip
        self.daemon.identity._secret = IDENTITY.secret
        self._offer_plugin()
        handle = self.daemon.requests.book_loop.handle

        def kill_soon() -> None:
            self.loop.after(self.short_ns(self.random.choice((0, 1, 20))), ("world",), self._kill_between)

        def heard(event: events.Event, now_ns: int) -> tuple[commands.Command, ...]:
            self.may_be_killed("before anything of an event is journalled")
            self.judge.book_heard(event, now_ns)
            if isinstance(event, events.KernelsReloaded) and self.happens("daemon_killed_reloading"):
                kill_soon()
            said = handle(event, now_ns)
            if self.lines is not None:
                self.log("book: %s", event)
            for command in said:
                if self.lines is not None:
                    self.log("      %s", command)
                if isinstance(command, PluginDecision):
                    self.counts["plugin_faults" if command.fault else "plugin_answers"] += 1
                if isinstance(command, commands.CloseLease):
                    self.closing[command.generation] = None
                if isinstance(command, commands.CopyBatch) and self.happens("daemon_killed_batching"):
                    kill_soon()
                self.judge.book_said(command)
            return said

        self.daemon.requests.book_loop.handle = heard
        self.admission = Admission(
            self.daemon, self.config, listener, negotiating.FabricOffer(carrier="loopback", address="sim")
        )
        self.acceptor = LoopbackAcceptor(self.daemon, self.admission, listener)
        if book is not None:
            self.judge.went_on(book)
            for lease in book.ledger.leases.values():
                if lease.is_closing:
                    self.closing[lease.generation] = None
            Recovery(self.daemon, self.admission, self.manager.stored(self.keep), self._fabric_again).run()
        else:
            self.daemon.plugin.adopt()
        self.acceptor.open()

    def _offer_plugin(self) -> None:
        """A fresh one for a start and for each reload, as the daemon has them."""
        fault = self.setup.plugin_fault
        if fault is not None:
            plugin: Any = SimPlugin(self._plugin_random, fault if self.are_faults_on else 0.0)
            self.daemon.plugin.offer(plugin)

    def _configured(self, terms: Terms) -> DaemonConfig:
        config = parse_config(
            {
                "tenant": [{**t, "token_file": self._token_path(t["name"])} for t in terms.tenants],
                "lease": terms.pins,
                "leasing": {**terms.leasing, **({} if self.setup.plugin_fault is None else {"policy": POLICY})},
                "limits": terms.limits,
                "max_jobs": self.setup.max_jobs,
                "durability": {"journal_mib": 0, "resume_ttl_s": self.setup.resume_ttl_s, "adopt_ms": 500},
            },
            "simulation",
        )  # fmt: skip
        for tenant in config.tenant:
            self.most_jobs[tenant.name] = max(self.most_jobs[tenant.name], tenant.max_jobs)
        if limit_ns := config.limits.kernel_ms * MS:
            self.least_kernel_ns = min(limit_ns, self.least_kernel_ns or limit_ns)
        return config

    def _reload(self, terms: Terms) -> None:
        """The file is another from now on; a daemon that runs is told so between two callbacks."""
        self.loop.outside["world", "reload"] = lambda: self._come_into_force(self._configured(terms))

    def _come_into_force(self, config: DaemonConfig) -> None:
        """As `offpath.dpu_daemon.operation.reload.Reloader`, whose sources and TLS are not simulated."""
        names = {tenant.name for tenant in config.tenant}
        for name, removed in self.removed.items():
            self.removed[name] = [(at_ns, min(drain_ms, config.limits.drain_ms)) for at_ns, drain_ms in removed]
        for tenant in self.config.tenant:
            if tenant.name not in names:
                self.removals[tenant.name] += 1
                self.removed[tenant.name].append((self.loop.now_ns, config.limits.drain_ms))
        self.config = config
        self.log("the configuration names %s; %s", ", ".join(sorted(names)), config.limits)
        if self.channel is not None:
            known = credentials(config)
            self.loop.running(self.admission.reload, config, known)
            self._offer_plugin()
            self.loop.running(self.daemon.reconfigure, config)

    def _token(self) -> str:
        self._tokens_made += 1
        return f"sim-token-{self.seed}-{self._tokens_made:08d}"

    def _make_fabric(self, slots: int, payload_bytes: int, result_bytes: int) -> SimFabricSession:
        if self.happens("no_memory"):
            raise RegionError("injected")
        return SimFabricSession(self, SessionMemory(slots, payload_bytes, result_bytes))

    def _fabric_again(self, slots: int, payload: int, result: int, memory: tuple[int, int]) -> SimFabricSession:
        """What recovery maps anew."""
        kept = self._kept[memory[0]]
        promise((kept.slot_count, kept.payload_bytes, kept.result_bytes) == (slots, payload, result), "another session")
        return SimFabricSession(self, kept)

    def keep(self, memory: SessionMemory) -> int:
        """A number to keep the memory under, as a descriptor would be."""
        self._next_fd += 1
        self._kept[self._next_fd] = memory
        return self._next_fd

    def may_be_killed(self, where: str) -> None:
        """The daemon may die here, in the middle of what it does."""
        if self.setup.is_durable and self.is_made and self.happens("daemon_killed_inside"):
            self.log("... %s", where)
            raise DaemonKilled

    def entered(self, requester: SimRequester, session: SessionMemory, number: int) -> None:
        """A requester holds its session."""
        promise(number not in self.judge.sessions, f"session {number} is given twice")
        self.judge.sessions[number] = session
        self.slots_given += session.slot_count
        self.log("%s enters session %s", requester.name, number)

    @property
    def helper(self) -> SimHelper:
        """The process of the first helper."""
        return self.helpers[HELPER]

    def _some_helper(self) -> SimHelper:
        return self.helper if len(self.helpers) == 1 else self.random.choice(list(self.helpers.values()))

    # -- what the actors ask of the world -------------------------------------------------------------------------
    def log(self, text: str, *args: object) -> None:
        """A line of the trace, when one is kept."""
        if self.lines is not None:
            self.lines.append(f"{self.loop.now_ns / MS:12.3f} ms  {text % args if args else text}")

    def happens(self, fault: str) -> bool:
        """Whether the fault strikes here."""
        rate = self.setup.faults.get(fault, 0.0)
        if not rate or not self.are_faults_on or self.random.random() >= rate:
            return False
        self.counts[fault] += 1
        self.log("FAULT %s", fault)
        return True

    def new_pid(self) -> int:
        self._next_pid += 1
        return self._next_pid

    def export(self, memory: Memory) -> int:
        number = len(self.exports) + 1
        self.exports[number] = memory
        return number

    def holder(self, store: bytearray, at: int) -> Any:
        """Whose GPU memory that is now."""
        gpu = next(gpu for gpu in self.gpus if gpu.store is store)
        return gpu.holder(at)

    def number_of(self, tenant: str) -> int:
        return TENANTS.index(tenant) + 1

    def alpha(self, order: Any) -> int:
        model = self.gpus[0].model
        return 100 * model.profile(order.profile).compute_slices // model.compute_slices

    def draw_kernel(self) -> str:
        """A pinned lease leaves no room for the whole GPU, ever."""
        name = self.random.choice(self.setup.kernels)
        return "half" if name == "whole" and self.setup.pins else name

    def short_ns(self, ms: int = 1) -> int:
        return int(self.random.expovariate(1.0) * ms * MS)

    def copy_ns(self, *, is_result: bool) -> int:
        slow = self.happens("late_results" if is_result else "late_copies")
        return int(self.random.expovariate(1.0) * (self.random.choice((5, 20, 100, 3_000)) * MS if slow else 30_000))

    def kernel_ns(self) -> int:
        """Some run far longer than any limit; without one, longer than one whose job was answered may."""
        if self.happens("kernel_hangs"):
            return (10 * self.setup.limits.get("kernel_ms", 0) + 3_000) * MS
        return int(self.random.expovariate(1.0) * self.setup.kernel_ns)

    def device_ns(self, *, is_slow: bool) -> int:
        slow = is_slow and self.happens("slow_scrub")
        return int(self.random.expovariate(1.0) * (2_000 * MS if slow else MS))

    def kernel(self, name: str) -> Callable[..., Any]:
        """The kernel ``name``, which shows the judge what it sees."""

        def run(*tensors: Any) -> Any:
            seen = b"".join(ctypes.string_at(t.pointer, t.shape[0]) for t in tensors)
            batches.show(self, name, seen)
            if name == "raises":
                raise ValueError("as it always does")
            return np.frombuffer(result_of(name, seen), np.uint8)

        return run

    def on_lane(self, worker: SimWorker, request: Request, run: Callable[[bytes], bytes], message: bytes) -> bytes:
        """Let the worker run a launch, and hear what its kernel has to say."""
        self._on_lane = worker, request
        result = run(message)
        self._on_lane = None
        if self.broken is not None:
            raise self.broken
        return result

    def lie(self, result: bytes) -> bytes:
        """What a broken worker says instead."""
        at = self.random.choice((0, 1, 3, 24, 32, 40))
        return result[:at] + bytes((result[at] ^ self.random.choice((1, 2, 255)),)) + result[at + 1 :]

    # -- faults that come by themselves ---------------------------------------------------------------------------
    def _strike(self) -> None:
        """Once a step: one of the faults that need no cause may come."""
        if self.random.random() >= self._striking or not self.are_faults_on:
            return
        (fault,) = self.random.choices(
            list(self._strikes), [self.setup.faults.get(name, 0.0) for name in self._strikes]
        )
        self.counts[fault] += 1
        self.log("FAULT %s", fault)
        self._strikes[fault]()

    def _jump(self) -> None:
        self.stand_still(int(self.random.choice((5, 50, 2_000, 7_000)) * MS * self.random.random()))

    def stand_still(self, pause: int) -> None:
        """The daemon's process stands still for a while."""
        self.loop.now_ns += pause
        self.late_ns += pause
        self.log("... of %s ms", pause / MS)

    def _kill_helper(self) -> None:
        helper = self._some_helper()
        helper.die()
        self.loop.after(self.short_ns(20), ("world",), partial(self.new_helper, helper.name))

    def _kill_between(self) -> None:
        if self.setup.is_durable and self.channel is not None:
            self.kill_daemon()

    def _kill_worker(self) -> None:
        workers = [worker for helper in self.helpers.values() for worker in helper.workers()]
        if workers:
            self.random.choice(workers).die()

    def new_helper(self, name: str) -> None:
        """The next process of a helper that has died."""
        if not self.helpers[name].is_alive:
            self.helpers[name] = SimHelper(self, name)

    def _silence(self, *, is_full: bool) -> None:
        helper = self._some_helper()
        helper.be_silent(True, is_full=is_full)
        self.loop.after(self.short_ns(100), ("world",), lambda: helper.be_silent(False))

    def _hang_helper(self) -> None:
        """It does nothing any more, until somebody kills it. By then the daemon must have noticed."""
        helper, late_ns, since_ns = self._some_helper(), self.late_ns, self.loop.now_ns
        config = self.config
        limits = config.limits
        allowed_ms = max(limits.helper_ms, limits.scrub_ms) + limits.helper_ms
        helper.be_silent(True)
        helper.is_hung = True

        def killed() -> None:
            if not helper.is_hung:
                return
            is_late = self.loop.now_ns - since_ns - (self.late_ns - late_ns) > allowed_ms * MS
            may_stay = not is_late or config is not self.config
            promise(not helper.is_alive or may_stay or helper.is_cut_off(), "the daemon keeps a helper that hangs")
            if helper.is_alive:
                helper.die()
                self.new_helper(helper.name)

        self.loop.after(int(self.random.choice((0.5, 2.0)) * allowed_ms * MS), ("world",), killed)

    def _intrude(self) -> None:
        """A process of the host that is neither helper nor worker."""
        if self.channel is None:
            return
        end = HostEnd(self, self.new_pid(), lambda: None)
        self.intruders.append(end)
        token = "not-the-token-of-a-lease"
        lease = self.random.choice([*self.daemon.host.lanes.orders, 1])  # it guesses well
        for message in self.random.choice(
            (
                (),
                (b"\x02" * 60,),
                (b"{}",),
                (control.encode(control.WorkerHello(lease=lease, lane=0, pid=1, token=token)),),
                (
                    control.encode(
                        control.HelperHello(
                            name=HELPER, pid=1, kernels=[control.KernelOffer(name="x", demand=14)], gpu_count=0
                        )
                    ),
                )
                if self.helper_is_served()
                else (),
            )
        ):  # fmt: skip
            end.send(message)
        self.channel.connect(end)
        if self.random.random() < 0.5:
            self.loop.after(self.short_ns(5), ("world",), lambda: end.close(is_death=True))

    def helper_is_served(self) -> bool:
        """True when an intruder cannot take the helper's place."""
        return self.helper.has_joined() and not self.helper.is_cut_off() and self.are_faults_on

    # -- a schedule -----------------------------------------------------------------------------------------------
    def step(self) -> bool:
        """One callback or action, judged."""
        loop, judge = self.loop, self.judge
        until_ns = loop.sleeps_past()
        if until_ns is not None and until_ns > loop.now_ns + MS and self.channel is not None:
            judge.before_sleep(until_ns)
        try:
            if not loop.step():
                return False
        except DaemonKilled:
            self.kill_daemon()
        if self.channel is not None:
            judge.after_step()
        return True

    def run(self) -> None:
        """Work under faults, heal, rest."""
        with self.lived():
            while self.loop.steps < MOST_STEPS and not all(r.is_done for r in self.requesters):
                self._strike()
                if not self.step():
                    break
            self.heal()
            self.rest()

    @contextlib.contextmanager
    def lived(self) -> Iterator[None]:
        """The modules that reach past their ports see this world."""
        worker_module.time = _HostTime(self.loop)  # type: ignore[attr-defined, assignment]
        recovery_module.close_all = lambda fds: None  # they are numbers of ours
        try:
            yield
        finally:
            worker_module.time = time  # type: ignore[attr-defined]
            recovery_module.close_all = close_all

    def heal(self) -> None:
        """The faults stop; all that wait are served."""
        self.log("the faults stop")
        self.are_faults_on = False
        self.may_lose_sessions = True
        self._reload(Terms.of(self.setup))
        for name, helper in self.helpers.items():
            helper.is_hung = False
            helper.be_silent(False)
            self.new_helper(name)
        for end in self.intruders:
            end.close(is_death=True)
        for requester in self.requesters:
            if requester.is_hostile:
                requester.die()
            else:
                requester.left = min(requester.left, 2)
                requester.wake()
        end_ns, end_steps = self.loop.now_ns + HEAL_NS, self.loop.steps + HEAL_STEPS
        while not all(r.is_done for r in self.requesters):
            is_stuck = self.loop.steps > end_steps or self.loop.now_ns > end_ns or not self.step()
            promise(not is_stuck, "starved:", *(str(r) for r in self.judge.unanswered()), self._who_waits())

    def _who_waits(self) -> str:
        return "; ".join(
            f"{r.name} (left {r.left}, session {'open' if r.session is not None else 'none'})"
            for r in self.requesters
            if not r.is_done
        )

    def rest(self) -> None:
        """Everybody has left; leases close, timers run out. Meanwhile the heart beats."""
        end_ns, end_steps = self.loop.now_ns + HEAL_NS, self.loop.steps + HEAL_STEPS + BEAT_STEPS
        while self.loop.steps < end_steps and self.loop.now_ns < end_ns and not self._is_at_rest() and self.step():
            pass
        promise(self.loop.steps < end_steps, "the node never comes to rest")
        self.judge.at_rest()

    def _is_at_rest(self) -> bool:
        """Nothing is left to happen but the heartbeat."""
        return self.loop.is_idle() and all(str(handle) == "Heartbeat._beat" for handle in self.loop.timers())
