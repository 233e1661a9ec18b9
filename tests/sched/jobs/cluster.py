"""A faultless helper in virtual time: copies at once, kernels and leases take as long as told. For long runs."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable

from offpath.sched.gpu.geometry import GpuSpec
from offpath.sched.gpu.greedy import GreedyFirstFit
from offpath.sched.jobs import events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.commands import Answer, CloseLease, Copy, Launch, OpenLease, ScrubLane
from offpath.sched.jobs.settings import MS, BookSettings, PinnedLease, TenantSpec
from offpath.sched.jobs.states import EndReason, JobState


class Cluster:
    """A book, its helper, one session per tenant, and a clock that jumps from event to event."""

    def __init__(
        self,
        tenants: tuple[TenantSpec, ...],
        gpus: tuple[GpuSpec, ...],
        settings: BookSettings | None = None,
        pins: tuple[PinnedLease, ...] = (),
        create_ns: int = 5 * MS,
    ) -> None:
        self.book = JobBook(tenants, GreedyFirstFit(), settings, pins)
        self.now_ns = 0
        self.create_ns = create_ns
        self.kernel_ns: dict[int, int] = {}
        self.answers: list[tuple[int, Answer]] = []
        self.opened: list[tuple[int, OpenLease]] = []
        self.submitted: dict[int, tuple[str, int, int]] = {}
        self.on_answer: Callable[[str, int], None] = lambda tenant, share: None
        self._due: list[tuple[int, int, events.Event]] = []
        self._order = itertools.count()
        self._jobs = itertools.count(1)
        self._sessions = {spec.name: number for number, spec in enumerate(tenants, start=1)}
        for spec in tenants:
            self._handle(events.SessionOpened(self._sessions[spec.name], spec.name, 1 << 20))
        kernels = tuple(events.Kernel(share, share) for share in range(1, 101))
        self._handle(events.HelperJoined(1, gpus, kernels))

    def submit(self, tenant: str, share: int, *, kernel_ns: int, deadline_ns: int = 0) -> int:
        """One job of that demand, now."""
        job = next(self._jobs)
        self.kernel_ns[job] = kernel_ns
        self.submitted[job] = (tenant, share, self.now_ns)
        self._handle(events.JobSubmitted(job, self._sessions[tenant], job, share, 0, 0, deadline_ns, 0, False))
        return job

    def keep_busy(self, tenant: str, share: int, *, depth: int, kernel_ns: int) -> None:
        """``depth`` jobs in the book at all times."""
        was = self.on_answer

        def again(whose: str, demand: int) -> None:
            if (whose, demand) == (tenant, share):
                self.submit(tenant, share, kernel_ns=kernel_ns)
            else:
                was(whose, demand)

        self.on_answer = again
        for _ in range(depth):
            self.submit(tenant, share, kernel_ns=kernel_ns)

    def run(self, until_ns: int, *, every_ns: int = 0, look: Callable[[], None] = lambda: None) -> None:
        """Let everything due until then happen; ``look`` is called each ``every_ns``."""
        looked = self.now_ns
        while True:
            next_ns = self.book.next_deadline_ns()
            when = min(self._due[0][0] if self._due else until_ns, until_ns if next_ns is None else next_ns)
            while every_ns and looked + every_ns <= min(when, until_ns):
                looked += every_ns
                look()
            if when >= until_ns:
                self.now_ns = until_ns
                return
            self.now_ns = max(self.now_ns, when)
            if self._due and self._due[0][0] <= self.now_ns:
                self._handle(heapq.heappop(self._due)[2])
            else:
                self._handle(events.Tick())

    def fail(self, lease: OpenLease) -> None:
        """The helper could not make that instance after all."""
        self._due = [due for due in self._due if getattr(due[2], "lease", 0) != lease.lease]
        heapq.heapify(self._due)
        self._handle(events.InstanceFailed(lease.lease, lease.generation))

    def held_share(self) -> dict[str, int]:
        """Σ α of each tenant's leases."""
        return {name: tenant.held_share for name, tenant in self.book.ledger.tenants.items()}

    def completed(self) -> Counter[str]:
        """Jobs done per tenant."""
        return Counter(self.submitted[a.job][0] for _, a in self.answers if a.state is JobState.COMPLETED)

    def answer_of(self, job: int) -> tuple[int, Answer] | None:
        """When it was answered, and how."""
        return next(((when, answer) for when, answer in self.answers if answer.job == job), None)

    def _later(self, delay_ns: int, event: events.Event) -> None:
        heapq.heappush(self._due, (self.now_ns + delay_ns, next(self._order), event))

    def _handle(self, event: events.Event) -> None:
        ended = []
        for command in self.book.handle(event, self.now_ns):
            match command:
                case Copy():
                    self._later(0, events.CopyDone(command.job, command.attempt))
                case Launch():
                    end_ns = self.now_ns + self.kernel_ns[command.job]
                    done = events.ResultArrived(command.job, command.generation, EndReason.NONE, self.now_ns, end_ns)
                    self._later(self.kernel_ns[command.job], done)
                case OpenLease():
                    self.opened.append((self.now_ns, command))
                    for lane in range(command.lanes):
                        self._later(self.create_ns, events.LaneReady(command.lease, lane, command.generation))
                case ScrubLane():
                    self._later(MS, events.LaneScrubbed(command.lease, command.lane, command.generation))
                case CloseLease():
                    self._later(MS, events.InstanceClosed(command.lease, command.generation))
                case Answer():
                    self.answers.append((self.now_ns, command))
                    ended.append(command.job)
        for job in ended:
            self._handle(events.CreditReturned(job))
            self.on_answer(*self.submitted[job][:2])
