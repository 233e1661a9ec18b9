"""A harness with a job book behind it: what the book's specifications say events with, and write commands with.

Times in ms of virtual time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from offpath.sched.gpu.greedy import GreedyFirstFit
from offpath.sched.jobs import events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.commands import Answer, Command, OpenLease
from offpath.sched.jobs.settings import MS, BookSettings, PinnedLease, TenantSpec
from offpath.sched.jobs.states import EndReason, JobState, LeaseState

from ..gpus import MIB, a100

SETTINGS = BookSettings(
    lanes=2, landing_bytes=MIB, result_bytes=MIB, keep_warm_ns=1_000 * MS, grow_after_ns=20 * MS,
    reclaim_after_ns=100 * MS, min_hold_ns=200 * MS, retry_open_ns=500 * MS,
)  # fmt: skip
TENANTS = (TenantSpec("ada"), TenantSpec("bob"), TenantSpec("cyd"))
KERNELS = (events.Kernel(1, 14), events.Kernel(2, 50), events.Kernel(3, 100))
ADA, BOB, CYD = 1, 2, 3
SMALL, HALF, WHOLE = 1, 2, 3


class BookHarness:
    """A book with a session per tenant; ``at`` and the calls below say when in ms."""

    def __init__(
        self,
        tenants: tuple[TenantSpec, ...] = TENANTS,
        settings: BookSettings = SETTINGS,
        pins: tuple[PinnedLease, ...] = (),
        *,
        is_joined: bool = True,
    ) -> None:
        self.book = JobBook(tenants, GreedyFirstFit(), settings, pins)
        self.ids: dict[int, int] = {}
        for number, spec in enumerate(tenants, start=1):
            assert self.send(0, events.SessionOpened(number, spec.name, 64)) == ()
        if is_joined:
            self.joined = self.send(0, events.HelperJoined(1, (a100(),), KERNELS))

    def send(self, at_ms: float, event: events.Event) -> tuple[Command, ...]:
        return self.book.handle(event, int(at_ms * MS))

    def tick(self, at_ms: float) -> tuple[Command, ...]:
        return self.send(at_ms, events.Tick())

    def submit(
        self,
        at_ms: float,
        job: int,
        session: int = ADA,
        kernel: int = SMALL,
        share: int = 0,
        *,
        priority: int = 0,
        by_ms: float = 0,
        payload: int = 100,
        idempotent: bool = False,
        request: int = 0,
    ) -> tuple[Command, ...]:
        self.ids[session] = request or self.ids.get(session, 0) + 1
        submitted = events.JobSubmitted(
            job, session, self.ids[session], kernel, share, priority, int(by_ms * MS), payload, idempotent
        )
        return self.send(at_ms, submitted)

    def warm(self, at_ms: float, *leases: int, lanes: int = 2) -> tuple[Command, ...]:
        out: tuple[Command, ...] = ()
        for lease in leases:
            for lane in range(lanes):
                out += self.send(at_ms, events.LaneReady(lease, lane, lease))
        return out

    def result(
        self, at_ms: float, job: int, generation: int, reason: EndReason = EndReason.NONE
    ) -> tuple[Command, ...]:
        return self.send(at_ms, events.ResultArrived(job, generation, reason, int(at_ms * MS), int(at_ms * MS)))

    def run(
        self, at_ms: float, job: int, session: int = ADA, kernel: int = SMALL, **how: object
    ) -> tuple[Command, ...]:
        """Submit onto a warm lease and copy."""
        out = self.submit(at_ms, job, session, kernel, **how)  # type: ignore[arg-type]
        return out + self.send(at_ms, events.CopyDone(job, 0))

    def state(self, lease: int) -> LeaseState:
        return self.book.ledger.leases[lease].state


def opened(lease: int, tenant: str, profile: str, start: int, *, helper: int = 1, dirty: bool = False) -> OpenLease:
    return OpenLease(lease, lease, helper, tenant, "gpu-0", profile, start, 2, MIB, MIB, dirty)


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """Equals ``answer`` with any stages of the same total whose parts add up to it: which part is how long, `shadow`
    judges in every world and `test_book` says by hand."""

    answer: Answer

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Answer):
            return NotImplemented
        *parts, total = other.stages
        return total == sum(parts) and replace(other, stages=(0, 0, 0, 0, 0, total)) == self.answer

    __hash__ = None  # type: ignore[assignment]


def ended(
    job: int,
    state: JobState,
    reason: EndReason,
    after_ms: float,
    *,
    session: int = ADA,
    lease: int = 0,
    retry_ms: int = 0,
) -> Ended:
    """An answer whose stages add up to ``after_ms``; on a lease its generation is its number in these tests."""
    stages = 0, 0, 0, 0, 0, int(after_ms * MS)
    return Ended(Answer(job, session, state, reason, retry_ms, lease, lease, stages))
