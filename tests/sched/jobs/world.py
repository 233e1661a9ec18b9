"""A world around the job book: requesters, a copy engine, a helper and its workers, all of them fallible; seeded.

One seed is one run: `drive(seed)` draws tenants, settings and at most `STEPS` events, then lets the world come to
rest. No clock and no I/O; the book's own shells are daemon and simulator, this is the third.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from offpath.sched.jobs import events
from offpath.sched.jobs.commands import Command, Copy, CopyBatch, EndSession, Launch
from offpath.sched.jobs.settings import MS, BookSettings, TenantSpec
from offpath.sched.jobs.states import EndReason

from ..gpus import MIB, a30, a100
from . import batch_worlds, gang_worlds, sequence_worlds
from .shadow import Shadow
from .shadow_records import ShadowLease, Violation, promise
from .world_setup import TENANTS, draw_limits, draw_pins, draw_setup, draw_tenants, with_priorities

STEPS = 200
KERNELS = tuple(
    events.Kernel(number, share, f"kernel-{number}") for number, share in ((1, 14), (2, 30), (3, 57), (4, 100))
)
SHARES = (0, 0, 0, 5, 10, 14, 14, 20, 28, 42, 50, 57, 100)
REST_STEPS = 20_000
REPEATABLE = (
    events.CopyDone, events.ResultArrived, events.LaunchFailed, events.LaneReady, events.LaneScrubbed,
    events.InstanceClosed, events.InstanceFailed, events.WorkerLost,
)  # fmt: skip
Record = tuple[events.Event, int, tuple[Command, ...]]


class World:
    """Draws the next event from what is possible now, and hands it to book and shadow."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.setup = draw_setup(self.random)
        self.offers = Random(f"{seed} kernels")
        self.is_fickle = self.offers.random() < 0.5
        """Helpers serve other kernels than those before them."""
        if self.is_fickle:
            self.setup = replace(self.setup, settings=self._with_a_limit(self.setup.settings))
        self.needs = Random(f"{seed} needs")
        self.is_picky = self.needs.random() < 0.4
        """Kernels state memory and models, each helper's its own."""
        self.is_mixed = self.is_picky and self.needs.random() < 0.5
        """The GPUs are of two models. Without pins: one on the only GPU of a model would keep jobs waiting forever."""
        self.gangs = Random(f"{seed} gangs")
        self.is_whole = not self.is_mixed and self.gangs.random() < 0.15
        """The GPUs are whole. Without pins, which name profiles."""
        self.stacks = Random(f"{seed} stacks")
        self.is_batching = self.stacks.random() < 0.4
        """Kernels batch, each helper's in its own way."""
        self.orders = Random(f"{seed} sequences")
        self.is_sequential = self.orders.random() < 0.35
        """A kernel takes sequences."""
        if self.is_sequential:
            settings = sequence_worlds.settings(self.orders, self.setup.settings)
            if Random(f"{seed} lingers").random() < 0.3:  # else an answered kernel seldom runs on for that long
                settings = replace(settings, linger_ns=MS // 50, kernel_ns=0)
            self.setup = replace(self.setup, settings=settings)
        if self.is_mixed or self.is_whole:
            self.setup = replace(self.setup, pins=())
        self.setup = replace(self.setup, tenants=self._with_rights(self.setup.tenants))
        self.numbers = {kernel.kernel: kernel.kernel for kernel in KERNELS}
        self.last_number = len(KERNELS)
        self.book = self.setup.book()
        self.shadow = Shadow(self.setup.tenants, self.setup.settings)
        self.now_ns = self.random.choice((0, 0, 1, 10**18))
        self.log: list[Record] = []
        self.implied: set[int] = set()
        self.copies: list[Copy | CopyBatch] = []
        self.launches: list[Launch] = []
        self.dead_launches: list[Launch] = []
        self.old: list[events.Event] = []
        self.sessions: dict[int, int] = {}
        self.ending: list[int] = []
        self.next_job = self.next_session = self.next_helper = self.next_revision = 1
        self.fault = self.random.choice((0.0, 0.3, 1.0, 1.0, 3.0))
        self.hurry = self.random.choice((1, 1, 10, 50))
        if self.is_sequential:
            self.fault *= self.orders.choice((0.1, 1.0))  # or they would not become long
        self._choices: list[tuple[float, Callable[[], events.Event | None]]] = [
            (28.0 if self.is_batching or self.is_sequential else 14.0, self._submit),
            (2.0, self._open_session),
            (0.5, self._close_session),
            (2.0, self._cancel),
            (6.0, self._credit),
            (14.0, self._copy_done),
            (10.0, self._result),
            (24.0 if self.is_batching or self.is_sequential else 6.0, self._lane_ready),
            (6.0, self._scrubbed),
            (6.0, self._closed),
            (3.0, self._join),
            (5.0, self._deadline),
            (6.0, self._deadline_of_one_that_waits),
            (2.0, self._let_pass),
            (0.2, self._drain),
            (2.0, self._drain_no_more),
            (3.0, self._end_session),
            (self.random.choice((0.0, 0.3, 2.0)), self._reload),
            (self.needs.choice((0.0, 0.5, 2.0)), self._reload_kernels),
            (0.6 * self.fault, self._lose_helper),
            (0.4 * self.fault, self._lose_gpu),
            (0.7 * self.fault, self._instance_failed),
            (1.0 * self.fault, self._lose_worker),
            ((2.0 if self.is_batching else 0.7) * self.fault, self._launch_failed),
            (2.0 * self.fault, self._copy_error),
            (2.0 * self.fault, self._stale),
            (1.5 * self.fault, self._unasked),
        ]

    # -- running ----------------------------------------------------------------------------------------------------
    def run(self, steps: int = STEPS) -> None:
        """Draw and hand over ``steps`` events, then come to rest, then replay."""
        if self.random.random() < 0.7:
            self.step(self._join_now())
        self.run_some(steps - len(self.log))
        self.rest()
        self.replay()

    def run_some(self, steps: int) -> None:
        """Draw and hand over until ``steps`` more events happened."""
        weights = [weight for weight, _ in self._choices]
        steps += len(self.log)
        while len(self.log) < steps:
            ((_, draw),) = self.random.choices(self._choices, weights)
            if self.random.random() < 0.6:
                self.now_ns += int(self.random.expovariate(1.0) * MS / self.hurry)
            event = draw()
            if event is not None:
                self._step_on_time(event)

    def _step_on_time(self, event: events.Event) -> None:
        """What is due comes first; `replay` leaves these ticks out, as a shell does that is late."""
        next_ns = self.book.next_deadline_ns()
        if next_ns is not None and next_ns <= self.now_ns:
            # Before a loss the tick is not the same as none: alone it may launch on what is about to be lost, and the
            # book that sees both at once does not (`test_limits` says so by hand). So a replay keeps it.
            if not isinstance(event, events.HelperLost | events.WorkerLost | events.GpuLost):
                self.implied.add(len(self.log))
            self.step(events.Tick())
        self.step(event)

    def step(self, event: events.Event) -> tuple[Command, ...]:
        """One event, judged."""
        self.shadow.before(event, self.now_ns)
        commands = self.book.handle(event, self.now_ns)
        self.log.append((event, self.now_ns, commands))
        self.shadow.judge(commands)
        self.shadow.after(self.book)
        for command in commands:
            if isinstance(command, Copy | CopyBatch):
                self.copies.append(command)
            elif isinstance(command, Launch):
                self.launches.append(command)
            elif isinstance(command, EndSession):
                self.ending.append(command.session)
        self._notice_deaths()
        if isinstance(event, REPEATABLE):
            self.old = [*self.old[-40:], event]
        return commands

    def _notice_deaths(self) -> None:
        """A kernel ends with its worker; what it would have said may still come, late."""
        gone = [one for one in self.launches if not self._is_running(one)]
        if gone:
            self.launches = [one for one in self.launches if one not in gone]
            self.dead_launches = [*self.dead_launches[-20:], *gone]

    def _is_running(self, launch: Launch) -> bool:
        lease = self.shadow.leases.get(launch.lease)
        occupant = lease.lanes.get(launch.lane) if lease is not None else None
        return occupant is not None and (occupant.job.event.job, occupant.phase) == (launch.job, "running")

    def rest(self) -> None:
        """No further request, no further fault: every job gets its answer, every lease that is not pinned closes."""
        if self.shadow.helper and (self.shadow.stranded() or self.shadow.has_lost_gpus):
            self._step_on_time(events.HelperLost(self.shadow.helper))
        if not self.shadow.helper:
            self.step(self._join_now(is_whole=True))
        limit_ns = self.now_ns + 1_000_000 * MS
        for _ in range(REST_STEPS):
            if not self._serve_one() and not self._sleep(limit_ns):
                break
        shadow, book = self.shadow, self.book
        promise(not shadow.live, f"jobs {[(j.event, j.phase) for j in shadow.live.values()]} never get an answer")
        for session in list(shadow.sessions):
            self.step(events.SessionClosed(session))
        ledger = book.ledger
        promise(not (ledger.jobs or ledger.leaving or ledger.sessions or ledger.backlogged), "the book ends empty")
        promise(not (ledger.departing or shadow.removed), f"{shadow.removed} never leave")
        left = [lease.opened for lease in shadow.leases.values() if not ledger.leases[lease.opened.lease].is_pinned]
        promise(not left, f"idle leases {left} never close")

    def _serve_one(self) -> bool:
        for draw in (self._copy_done, self._result, self._lane_ready, self._scrubbed, self._closed, self._end_session):
            event = draw()
            if event is not None:
                self._step_on_time(event)
                return True
        return False

    def _sleep(self, limit_ns: int) -> bool:
        next_ns = self.book.next_deadline_ns()
        if next_ns is None or next_ns > limit_ns:
            return False
        spins = all(isinstance(event, events.Tick) and when == next_ns for event, when, _ in self.log[-3:])
        promise(not spins, "the book asks to be called again and again")
        self.now_ns = max(self.now_ns, next_ns)
        self.step(events.Tick())
        return True

    def replay(self) -> None:
        """A fresh book gives the same commands, record by record, and needs no tick before another event."""
        book = self.setup.book()
        due: tuple[Command, ...] = ()
        for number, (event, now_ns, commands) in enumerate(self.log):
            if number in self.implied:
                due = commands
                continue
            promise(book.handle(event, now_ns) == due + commands, f"record {number} replays differently")
            due = ()

    # -- requesters -------------------------------------------------------------------------------------------------
    def _number(self, of: str) -> int:
        number: int = getattr(self, f"next_{of}")
        setattr(self, f"next_{of}", number + 1)
        return number

    def _open_session(self) -> events.Event | None:
        if len(self.sessions) >= 6:
            return None
        session = self._number("session")
        credits = self.random.choice((1, 4, 16))
        self.sessions[session] = credits
        return events.SessionOpened(session, self.random.choice(sorted(self.shadow.tenants)), credits)

    def _close_session(self) -> events.Event | None:
        if not self.sessions:
            return None
        session = self.random.choice(list(self.sessions))
        del self.sessions[session]
        return events.SessionClosed(session)

    def _end_session(self) -> events.Event | None:
        """The shell does as it was told, sooner or later."""
        while self.ending:
            session = self.ending.pop(0)
            if self.sessions.pop(session, None) is not None:
                return events.SessionClosed(session)
        return None

    def _reload(self) -> events.Event:
        """Another configuration: tenants come and go, rights, pins and pauses change; lanes and sizes stay."""
        random = self.random
        names = tuple(name for name in TENANTS if random.random() < 0.75) or TENANTS[:1]
        pins = draw_pins(random, names)
        settings = replace(
            self.shadow.settings,
            max_jobs=random.choice((6, 20, 1_000)),
            keep_warm_ns=random.choice((0, 5, 50, 500, 2_000)) * MS,
            grow_after_ns=random.choice((0, 1, 20)) * MS,
            retry_open_ns=random.choice((1, 50, 1_000)) * MS,
            **draw_limits(random),
        )
        settings = with_priorities(settings)
        if self.is_fickle:
            settings = self._with_a_limit(settings)
        tenants = self._with_rights(draw_tenants(random, names, pins))
        return events.ConfigChanged(tenants, settings, () if self.is_mixed or self.is_whole else pins)

    def _with_rights(self, tenants: tuple[TenantSpec, ...]) -> tuple[TenantSpec, ...]:
        """Some may call some kernels only, and some may have gangs."""
        if self.is_sequential:
            tenants = sequence_worlds.tenants(self.orders, tenants)
        if self.is_whole:
            tenants = gang_worlds.tenants(self.gangs, tenants)
        if not self.is_picky:
            return tenants
        names = [kernel.name for kernel in KERNELS]
        drawn = [tuple(self.needs.sample(names, self.needs.choice((0, 2, 3)))) for _ in tenants]
        return tuple(
            replace(spec, kernels=kernels if self.needs.random() < 0.3 else None)
            for spec, kernels in zip(tenants, drawn, strict=True)
        )

    def _with_a_limit(self, settings: BookSettings) -> BookSettings:
        return replace(settings, kernel_gone_ns=self.offers.choice((0, 1, 5, 100, 2_000)) * MS)

    def _submit(self) -> events.Event | None:
        random = self.random
        shadow = self.shadow
        open_ = [one for one, credits in self.sessions.items() if len(shadow.uncredited[one]) < credits]
        if not open_:
            return self._open_session()
        session = random.choice(open_)
        if self.is_batching:
            session = batch_worlds.session(self.stacks, open_, session)
        if self.is_sequential:
            session = sequence_worlds.session(self.orders, open_, session)
        is_odd = random.random() < 0.06
        last = shadow.last_id[session]
        kernel = random.choice((1, 1, 2, 3, 4))
        shares = gang_worlds.SHARES if self.is_whole else SHARES
        share, payload, request = random.choice(shares), random.choice((0, 1, MIB)), last + random.choice((1, 1, 1, 3))
        if is_odd:
            kernel, share, payload, request = random.choice(
                (
                    (99, 14, 0, last + 1),
                    (1, random.choice((101, 199, 250)), 0, last + 1),
                    (1, random.choice((200, 800)), 0, last + 1),
                    (1, 14, 2_000 * MIB, last + 1),
                    (1, 14, 0, random.choice((last, max(0, last - 1)))),
                )
            )
        deadline = 0
        if random.random() < 0.35:
            deadline = max(1, self.now_ns + random.choice((-1, 0, 1, MS, 5 * MS, 50 * MS, 1_000 * MS)))
        submitted = events.JobSubmitted(
            self._number("job"), session, request, self.numbers.get(kernel, kernel), share,
            random.choice((0, 0, 1, 7)), deadline, payload, random.random() < 0.3, credit=self._credited(),
        )  # fmt: skip
        if self.is_sequential and self.orders.random() < 0.6:
            return sequence_worlds.followed(self.orders, submitted, self.numbers[sequence_worlds.KERNEL], shadow)
        return batch_worlds.stacked(self.stacks, submitted, self.numbers[1]) if self.is_batching else submitted

    def _credited(self) -> int:
        """A job whose answer the requester takes by using its slot again: mostly an answered one, sometimes any."""
        credit = self._credit() if self.random.random() < 0.3 else None
        return credit.job if credit is not None else 0

    def _cancel(self) -> events.Event | None:
        if self.random.random() < 0.2:
            return events.CancelRequested(self.random.randrange(1, self.next_job + 1))
        live = list(self.shadow.live)
        waiting = [number for number, job in self.shadow.live.items() if job.phase == "waiting"]
        placed = waiting or [number for number, job in self.shadow.live.items() if job.phase != "queued"]
        if placed and self.random.random() < 0.5:  # most wait in queues; what is on a lane is where it gets difficult
            live = placed
        return events.CancelRequested(self.random.choice(live)) if live else None

    def _credit(self) -> events.CreditReturned | None:
        if self.random.random() < 0.1:
            return events.CreditReturned(self.random.randrange(1, self.next_job + 1))
        answered = [job for jobs in self.shadow.uncredited.values() for job in jobs if job not in self.shadow.live]
        return events.CreditReturned(self.random.choice(sorted(answered))) if answered else None

    # -- copy engine and workers ------------------------------------------------------------------------------------
    def _copy_done(self, *, error: bool = False) -> events.Event | None:
        """Copies may end in any order, also long after their job or lease is gone."""
        if not self.copies:
            return None
        copy = self.copies.pop(self.random.randrange(len(self.copies)))
        return events.CopyDone(copy.job, copy.attempt, error)

    def _copy_error(self) -> events.Event | None:
        return self._copy_done(error=True)

    def _result(self) -> events.Event | None:
        if not self.launches:
            return None
        launch = self.random.choice(self.launches)
        faults = EndReason.KERNEL_RAISED, EndReason.RESULT_TOO_LARGE, EndReason.PAYLOAD_CHECKSUM
        reason = self.random.choice((EndReason.NONE,) * 6 + faults)
        started = self.random.choice((self.now_ns, max(0, self.now_ns - 100), 0))
        result = events.ResultArrived(launch.job, launch.generation, reason, started, max(started, self.now_ns - 10))
        lane = self.shadow.leases[launch.lease].lanes[launch.lane]
        return batch_worlds.result(self.stacks, result, [job.event.job for job in lane.members])

    def _launch_failed(self) -> events.Event | None:
        if not self.launches:
            return None
        answered = [one for one in self.launches if self._is_answered(one)]
        if answered and len(self.log) % 2:  # as a restarted daemon finds out
            launch = self.random.choice(answered)
            return events.NeverLaunched(launch.job, launch.attempt)
        launch = self.random.choice(self.launches)
        return events.LaunchFailed(launch.job, launch.attempt)

    def _is_answered(self, launch: Launch) -> bool:
        return launch.job not in self.shadow.live and not self.shadow.jobs[launch.job].stack

    # -- helper -----------------------------------------------------------------------------------------------------
    def _join(self) -> events.Event | None:
        return None if self.shadow.helper else self._join_now()

    def _join_now(self, *, is_whole: bool = False) -> events.Event:
        make = a30 if self.random.random() < 0.15 else a100
        gpus = (make("gpu-0"), make("gpu-1"))
        if self.is_mixed:
            gpus = (make("gpu-0"), a30("gpu-1"))
        if self.is_whole:
            gpus = gang_worlds.gpus(self.gangs)
        return events.HelperJoined(self._number("helper"), gpus, self._served(is_whole))

    def _served(self, is_whole: bool) -> tuple[events.Kernel, ...]:
        """What the next helper serves, under the numbers the shell gives: a forgotten name gets a new one."""
        kernels = self.shadow.offered_kernels
        kernels.forget_overdue(self.shadow.settings.kernel_gone_ns, self.now_ns)
        serves_all = is_whole or not self.is_fickle or self.offers.random() < 0.4
        served = KERNELS if serves_all else self.offers.sample(KERNELS, self.offers.choice((1, 2, 3)))
        for kernel in served:
            if self.numbers[kernel.kernel] in kernels.forgotten:
                self.last_number += 1
                self.numbers[kernel.kernel] = self.last_number
        return tuple(replace(self._drawn(kernel), kernel=self.numbers[kernel.kernel]) for kernel in served)

    def _drawn(self, kernel: events.Kernel) -> events.Kernel:
        """The kernel with the memory, models, batches and sequences that this helper states."""
        if self.is_batching:
            kernel = batch_worlds.kernel(self.stacks, kernel)
        if self.is_sequential:
            kernel = sequence_worlds.kernel(self.orders, kernel)
        if not self.is_picky:
            return kernel
        others = self.needs.choice((10, 50, 100))
        models = self.needs.choice(
            ((), (), (("A100-40GB", kernel.share), ("A30-24GB", others)), (("A30-24GB", kernel.share),))
        )
        memory = self.needs.choice((0, 1, 2_000, 4_800, 9_000, 19_000, 39_000, 50_000)) * MIB
        return replace(kernel, share=min((each for _, each in models), default=kernel.share), models=models,
                       memory_bytes=memory)  # fmt: skip

    def _reload_kernels(self) -> events.Event | None:
        """The helper serves what another would, from new code."""
        if not self.shadow.helper:
            return None
        return events.KernelsReloaded(self.shadow.helper, self._served(is_whole=False), self._number("revision"))

    def _lose_helper(self) -> events.Event | None:
        if self.random.random() < 0.2:
            return events.HelperLost(max(0, self.next_helper - 2))
        return events.HelperLost(self.shadow.helper) if self.shadow.helper else None

    def _lose_gpu(self) -> events.Event | None:
        """One of the helper's, or once more, or of a helper that is gone."""
        helper = self.shadow.helper - (self.random.random() < 0.2)
        return events.GpuLost(helper, self.random.choice(("gpu-0", "gpu-1"))) if self.shadow.helper else None

    def _lease(self, fits: Callable[[ShadowLease], bool]) -> ShadowLease | None:
        found = [lease for lease in self.shadow.leases.values() if fits(lease)]
        return self.random.choice(found) if found else None

    def _lane_ready(self) -> events.Event | None:
        lease = self._lease(lambda one: bool(one.awaited) and not one.closing)
        if lease is None:
            return None
        lane = self.random.choice(sorted(lease.awaited))
        if lane not in lease.loading and self.random.random() < 0.7:
            return events.LaneLoading(lease.opened.lease, lane, lease.opened.generation)
        return events.LaneReady(lease.opened.lease, lane, lease.opened.generation)

    def _instance_failed(self) -> events.Event | None:
        lease = self._lease(lambda one: len(one.ready) < one.opened.lanes and not one.closing)
        return events.InstanceFailed(lease.opened.lease, lease.opened.generation) if lease is not None else None

    def _lose_worker(self) -> events.Event | None:
        lease = self._lease(lambda one: len(one.lost) < one.opened.lanes)
        if lease is None:
            return None
        lane = self.random.choice(sorted(set(range(lease.opened.lanes)) - lease.lost))
        return events.WorkerLost(lease.opened.lease, lane, lease.opened.generation)

    def _scrubbed(self) -> events.Event | None:
        lease = self._lease(lambda one: bool(one.asked - one.scrubbed - one.lost))
        if lease is None:
            return None
        lane = self.random.choice(sorted(lease.asked - lease.scrubbed - lease.lost))
        return events.LaneScrubbed(lease.opened.lease, lane, lease.opened.generation)

    def _closed(self) -> events.Event | None:
        lease = self._lease(lambda one: one.closing is not None)
        return events.InstanceClosed(lease.opened.lease, lease.opened.generation) if lease is not None else None

    # -- what should change nothing ---------------------------------------------------------------------------------
    def _changes_nothing(self, event: events.Event) -> None:
        old = self.old
        promise(self.step(event) == (), f"{event} means nothing and changed something")
        self.old = old

    def _stale(self) -> events.Event | None:
        """Said before, said again; or said of a launch whose worker was gone."""
        self.step(events.Tick())
        if self.dead_launches and self.random.random() < 0.5:
            launch = self.random.choice(self.dead_launches)
            reason = self.random.choice((EndReason.NONE, EndReason.KERNEL_RAISED))
            event: events.Event = events.ResultArrived(launch.job, launch.generation, reason, 1, 2)
            if self.random.random() < 0.3:
                event = events.LaunchFailed(launch.job, launch.attempt)
            self._changes_nothing(event)
        elif self.old and not self._is_awaited(old := self.random.choice(self.old)):
            self._changes_nothing(old)
        return None

    def _is_awaited(self, event: events.Event) -> bool:
        """Of a worker that was replaced: the shell, which tells workers apart by their channels, passes it on to
        nobody."""
        if not isinstance(event, events.LaneReady):
            return False
        lease = self.shadow.leases.get(event.lease)
        return lease is not None and event.lane in lease.renewing

    def _unasked(self) -> events.Event | None:
        """Confirmations nobody asked for, other generations, other attempts, unknown names."""
        self.step(events.Tick())
        lease = self._lease(lambda one: True)
        if lease is not None:
            number, generation = lease.opened.lease, lease.opened.generation
            other = generation + self.random.choice((-1, 1))
            lane = self.random.randrange(lease.opened.lanes)
            said: list[events.Event] = [
                events.LaneLoading(number, lane, other),
                events.LaneLoading(number, lease.opened.lanes + 3, generation),
                events.LaneReady(number, lane, other),
                events.LaneReady(number, lease.opened.lanes + 3, generation),
                events.InstanceFailed(number, other),
                events.WorkerLost(number, lane, other),
                events.LaneScrubbed(number, lane, other),
                events.InstanceClosed(number, other),
            ]
            if lane not in lease.asked:
                said.append(events.LaneScrubbed(number, lane, generation))
            if lease.closing is None:
                said.append(events.InstanceClosed(number, generation))
            said += [events.ResultArrived(one.job, one.generation + 1, EndReason.NONE, 1, 2) for one in self.launches]
            said += [events.LaunchFailed(one.job, one.attempt + 9) for one in self.launches]
            said += [events.CopyDone(one.job, one.attempt + 9) for one in self.copies]
            self._changes_nothing(self.random.choice(said))
        return None

    # -- time -------------------------------------------------------------------------------------------------------
    def _deadline(self) -> events.Event | None:
        next_ns = self.book.next_deadline_ns()
        if next_ns is None:
            return None
        self.now_ns = max(self.now_ns, next_ns)
        return events.Tick()

    def _deadline_of_one_that_waits(self) -> events.Event | None:
        """A copied request waits for share so seldom that a time drawn without a look would hardly meet it."""
        for job in self.shadow.live.values():
            if job.phase == "waiting" and job.event.deadline_ns:
                self.now_ns = max(self.now_ns, job.event.deadline_ns)
                return events.Tick()
        return None

    def _drain(self) -> events.Event:
        return events.Drain(True)

    def _drain_no_more(self) -> events.Event | None:
        return events.Drain(False) if self.shadow.is_draining else None

    def _let_pass(self) -> events.Event:
        self.now_ns += self.random.choice((1, 20, 300, 10_000)) * MS
        return events.Tick()


def drive(seed: int) -> World:
    """One run. Raises: Violation: naming seed and step, so that it can be had again."""
    world = World(seed)
    try:
        world.run()
    except Exception as error:
        tail = "\n".join(f"  {now_ns} {event}\n    -> {list(commands)}" for event, now_ns, commands in world.log[-12:])
        kind = "" if isinstance(error, Violation) else f"{type(error).__name__}: "
        raise Violation(f"seed {seed}, step {len(world.log)}: {kind}{error}\n{tail}") from error
    return world
