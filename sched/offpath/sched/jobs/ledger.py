"""State shared by routing and leasing: tenants, sessions, jobs, leases, timers and pending commands. No decisions."""

from __future__ import annotations

from offpath.sched.gpu.policy import DecisionPort, Placement, Policy
from offpath.sched.gpu.registry import decision_port
from offpath.sched.jobs.commands import Command
from offpath.sched.jobs.helpers import Helpers, KnownKernel
from offpath.sched.jobs.records import Job, Lease, Session, Tenant
from offpath.sched.jobs.sequence import Sequence
from offpath.sched.jobs.settings import BookSettings, PinnedLease, TenantSpec
from offpath.sched.jobs.states import FIRST_TERMINAL
from offpath.sched.jobs.timers import Key, Timers


class Ledger:
    """Tables of the job book. ``out`` collects the commands of the current event."""

    def __init__(
        self,
        tenants: tuple[TenantSpec, ...],
        pins: tuple[PinnedLease, ...],
        policy: Policy,
        settings: BookSettings,
        first_generation: int,
    ) -> None:
        self.settings = settings
        self.pins = pins
        self.tenants = {spec.name: Tenant(spec) for spec in tenants}
        self.sessions: dict[int, Session] = {}
        self.jobs: dict[int, Job] = {}
        self.leaving: dict[int, Job] = {}
        """Answered jobs on a lane that still copies or runs; their credit may have returned already."""
        self.leases: dict[int, Lease] = {}
        self.helpers = Helpers()
        self.kernels = self.helpers.kernels
        """Kernels of connected helpers, and of former ones until they are forgotten: jobs for these are accepted."""
        self.known: dict[int, KnownKernel] = {}
        """Every kernel that is not forgotten."""
        self.last_kernel = 0
        """The largest kernel number ever used."""
        self.backlogged: dict[str, Tenant] = {}
        self.departing: dict[str, Tenant] = {}
        """Removed tenants that still hold resources."""
        self.sequences: dict[int, Sequence] = {}
        self.unanswered = 0
        self.last_job = 0
        self.last_session = 0
        self.is_draining = False
        self.generation = first_generation
        self.out: list[Command] = []
        self.timers = Timers(self._is_live)
        self.decisions: DecisionPort = decision_port(self.out.append)
        self.decide_by(policy)

    def decide_by(self, policy: Policy) -> None:
        """Use this policy from now on."""
        self.policy = policy
        self.decisions.attach(policy)

    def next_generation(self) -> int:
        """Return the next generation. Generations only rise; a stale one launches nothing."""
        self.generation += 1
        return self.generation

    def lease_of(self, lease: int, generation: int) -> Lease | None:
        """Return the lease, or None if the event names an older generation or a lease that is gone."""
        held = self.leases.get(lease)
        return held if held is not None and held.generation == generation else None

    def may_call(self, tenant: Tenant, kernel: int) -> bool:
        """True if the tenant may call the kernel, or if the kernel is not known."""
        permitted = tenant.spec.kernels
        return permitted is None or kernel not in self.known or self.known[kernel].name in permitted

    def is_still_running(self, job: int) -> bool:
        """True if the job was answered but its kernel still occupies its lane."""
        held = self.leaving.get(job)
        return held is not None and held.is_running

    def pause_lane(self, lease: Lease, lane: int) -> None:
        """No job may be placed on the lane, which holds none, until `free_lane` returns it with a share of 0."""
        if not lease.is_gang:
            self.policy.lane_paused(lease.view.lease, lane)
        elif lane in lease.free_lanes:
            lease.free_lanes.remove(lane)

    def take_lane(self, lease: Lease, lane: int, share: int, now_ns: int) -> None:
        """A job takes this free lane, which the policy did not choose, until `free_lane` returns it with its share."""
        if lease.is_gang:
            lease.free_lanes.remove(lane)
        else:
            self.policy.lane_taken(lease.view.lease, lane, share, now_ns)

    def free_lane(self, lease: Lease, placement: Placement, share: int, now_ns: int) -> None:
        """Jobs may be placed on the lane. ``share``: what the policy counts for its last job."""
        if lease.is_gang:
            lease.free_lanes.append(placement.lane)
        else:
            self.policy.release(placement, share, now_ns)

    def watch(self, lease: Lease, when_ns: int) -> None:
        """Check the lease at ``when_ns`` at the latest; one timer covers all limits on it."""
        if not lease.watch_ns or when_ns < lease.watch_ns:
            lease.watch_ns = when_ns
            self.timers.arm(when_ns, ("watch", lease.view.lease))

    def gone_for_good_ns(self, known: KnownKernel) -> int:
        """Time at which the kernel is forgotten; 0 for never: it is served, or there is no limit."""
        limit_ns = self.settings.kernel_gone_ns
        return known.gone_ns + limit_ns if limit_ns and not known.is_served else 0

    def sequence_due_ns(self, sequence: Sequence) -> int:
        """Time at which an idle sequence ends; 0: it is not idle."""
        return sequence.idle_since_ns + self.settings.sequence_idle_ns if sequence.idle_since_ns else 0

    def _is_live(self, key: Key, when_ns: int) -> bool:
        kind, who = key
        if kind == "job":
            assert isinstance(who, int)
            job = self.jobs.get(who)
            return job is not None and job.state < FIRST_TERMINAL and job.deadline_ns == when_ns
        if kind == "idle":
            assert isinstance(who, int)
            return who in self.leases
        if kind == "watch":
            assert isinstance(who, int)
            return who in self.leases and self.leases[who].watch_ns == when_ns
        if kind == "kernel":
            assert isinstance(who, int)
            return who in self.known and self.gone_for_good_ns(self.known[who]) == when_ns
        if kind == "sequence":
            assert isinstance(who, int)
            return who in self.sequences and self.sequence_due_ns(self.sequences[who]) == when_ns
        if kind == "leave":
            assert isinstance(who, str)
            return who in self.departing
        if kind == "ripe":
            assert isinstance(who, str)
            return who in self.tenants and self.tenants[who].ripe_timer_ns == when_ns
        return True
