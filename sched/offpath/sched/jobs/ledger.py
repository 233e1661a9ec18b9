"""The state that routing and leasing share: who is who, what is held, what was said. No decisions here."""

from __future__ import annotations

from offpath.sched.gpu.policy import Policy
from offpath.sched.jobs import events
from offpath.sched.jobs.commands import Command
from offpath.sched.jobs.records import BookSettings, Job, Lease, PinnedLease, Session, Tenant, TenantSpec
from offpath.sched.jobs.states import FIRST_TERMINAL
from offpath.sched.jobs.timers import Key, Timers


class Ledger:
    """Tables of the job book. ``out`` collects the commands of the event in hand."""

    def __init__(
        self,
        tenants: tuple[TenantSpec, ...],
        pins: tuple[PinnedLease, ...],
        policy: Policy,
        settings: BookSettings,
        first_generation: int,
    ) -> None:
        self.settings = settings
        self.policy = policy
        self.pins = pins
        self.tenants = {spec.name: Tenant(spec) for spec in tenants}
        self.sessions: dict[int, Session] = {}
        self.jobs: dict[int, Job] = {}
        self.leaving: dict[int, Job] = {}
        """Answered jobs whose lane still copies or runs; their credit may be back already."""
        self.leases: dict[int, Lease] = {}
        self.kernels: dict[int, events.Kernel] = {}
        self.needy: dict[str, Tenant] = {}
        self.unanswered = 0
        self.last_job = 0
        self.last_session = 0
        self.is_draining = False
        self.generation = first_generation
        self.out: list[Command] = []
        self.timers = Timers(self._is_live)

    def next_generation(self) -> int:
        """Generations only rise; a stale one launches nothing."""
        self.generation += 1
        return self.generation

    def lease_of(self, lease: int, generation: int) -> Lease | None:
        """The lease, unless the event speaks of an older generation or of one that is gone."""
        held = self.leases.get(lease)
        return held if held is not None and held.generation == generation else None

    def _is_live(self, key: Key, when_ns: int) -> bool:
        kind, who = key
        if kind == "job":
            assert isinstance(who, int)
            job = self.jobs.get(who)
            return job is not None and job.state < FIRST_TERMINAL and job.deadline_ns == when_ns
        if kind == "idle":
            assert isinstance(who, int)
            return who in self.leases
        return True
