"""The policy port (docs/design.md, Policies): routes a job to a warm lease, and plans the next lease.

A policy is single-threaded and deterministic in the order of calls, owns its indices, and never sees payload or
sessions. It is notified of every change of leases and GPUs and of every job that leaves a lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from offpath.sched.gpu.geometry import GpuSpec, Slice
from offpath.sched.record import record


class Obstacle(Enum):
    """A typed reason why a job cannot be placed now."""

    NO_LEASE = "the tenant holds no warm lease"
    LANES = "every lease that is large enough has all lanes busy"
    DEMAND = "the demand exceeds every lease the tenant holds"
    MEMORY = "the payload does not fit a lane"
    GEOMETRY = "no GPU has a legal place for the profile now"
    TENANT_CLASH = "the capacity that would do is held by other tenants"
    NO_GPU = "no helper offers a GPU"
    NO_PROFILE = "no GPU has a profile this large"
    QUOTA = "the tenant holds its whole share"
    OPENING_FAILED = "a worker of the lease dies at its start"


class Unblocker(Enum):
    """An event that could remove an obstacle."""

    JOB_ENDS = "a job of the tenant ends"
    LEASE_OPENS = "a lease opens"
    LEASE_CLOSES = "a lease of some tenant closes"
    HELPER_JOINS = "a helper joins"
    CONFIGURATION = "the configuration changes"
    TIME = "time passes"
    DRAIN_ENDS = "the drain ends"
    OTHER_REQUEST = "the requester asks for something else"
    SAME_REQUEST = "the requester submits it again"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a job cannot be placed now, and what could change that."""

    obstacles: tuple[Obstacle, ...]
    unblocked_by: tuple[Unblocker, ...]


ModelShares = tuple[tuple[str, int], ...]
"""GPU models, each with R in percent of it."""
HelperNames = tuple[str, ...]
"""Names of helpers, sorted."""
DemandKind = tuple[int, int, ModelShares, HelperNames]


@record
class Placement:
    """A lane of a lease; ``is_prefetch``: its share is in use, so the job is copied now and launched later."""

    lease: int
    lane: int
    is_prefetch: bool


@record
class Demand:
    """A job as policies see it: no payload, no session. ``share`` is R in percent of a GPU, or the least of ``models``.
    100·n: it needs a gang of n whole GPUs; the job book plans and routes those, and policies see none.

    ``models``: the GPU models that it runs on, each with R in percent of that model; empty: all, with ``share``.
    ``memory_bytes``: device memory that its worker needs in all, including the lane's buffers; 0: not known.
    ``helpers``: the only helpers whose GPUs can run it; empty: all can.
    """

    job: int
    tenant: str
    share: int
    payload_bytes: int
    models: ModelShares = ()
    memory_bytes: int = 0
    helpers: HelperNames = ()

    @property
    def is_restricted(self) -> bool:
        """True if more than its share and payload decide which instances it fits."""
        return bool(self.models or self.memory_bytes or self.helpers or self.share > 100)

    @property
    def kind(self) -> DemandKind:
        """Jobs of one kind fit the same instances. Ordered by R."""
        return self.share, self.memory_bytes, self.models, self.helpers

    def share_on(self, model: str) -> int:
        """R on a GPU of this model; 0: it does not run there."""
        if not self.models:
            return self.share
        return next((share for name, share in self.models if name == model), 0)


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A lease as policies see it; ``alpha`` in percent of its GPU, which is of ``model`` and of the helper ``helper``.
    ``lane_bytes``: the part of the instance's memory that each lane's worker may use, buffers included. ``others``: the
    further GPUs of a gang's lease, on which it holds the same profile at the same start; a policy takes their slices
    too, and no job is ever placed there by it."""

    lease: int
    tenant: str
    gpu: str
    profile: str
    start: int
    alpha: int
    lanes: int
    landing_bytes: int
    model: str = ""
    lane_bytes: int = 0
    helper: str = ""
    others: tuple[str, ...] = ()

    @property
    def gpus(self) -> tuple[str, ...]:
        """All its GPUs."""
        return (self.gpu, *self.others)


def runs_on(demand: Demand, spec: GpuSpec) -> bool:
    """True if the GPU is of a model that the demand accepts, and its helper serves the job's kernel."""
    return demand.share_on(spec.model) > 0 and (not demand.helpers or spec.helper in demand.helpers)


def share_in(demand: Demand, view: LeaseView) -> int:
    """R of the demand on the lease's GPU; 0: no lane of the lease can ever hold it."""
    share = demand.share_on(view.model) if demand.models else demand.share
    is_held = share <= view.alpha and demand.payload_bytes <= view.landing_bytes
    is_served = not demand.helpers or view.helper in demand.helpers
    if share > 100 or view.others:  # a gang's jobs have all its GPUs, so that one runs at a time
        is_served = is_served and len(view.others) > 0 and share == view.alpha
    return share if is_held and is_served and demand.memory_bytes <= view.lane_bytes else 0


@dataclass(frozen=True, slots=True)
class LeasePlan:
    """An instance that may be created now; ``others``: the further GPUs of a gang."""

    gpu: str
    profile: str
    start: int
    alpha: int
    others: tuple[str, ...] = ()

    @property
    def gpus(self) -> tuple[str, ...]:
        """All its GPUs."""
        return (self.gpu, *self.others)


@dataclass(frozen=True, slots=True)
class WarmState:
    """State of a planned or open lease in a policy: its free lanes (taken from the end), the share placed on it,
    whether jobs may be placed, and, for policies that use it, the time each lane was taken."""

    view: LeaseView
    free_lanes: tuple[int, ...]
    placed_share: int
    is_open: bool
    started: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyState:
    """GPUs with the order they joined in, leases, the number of GPUs that ever joined, and the ``lease_bytes`` of the
    last `Policy.plan`, for policies that check between two plans what could be opened. ``advised_by``: the policy whose
    plug-in is being queried, if any."""

    gpus: tuple[tuple[GpuSpec, int], ...]
    leases: tuple[WarmState, ...]
    joined: int
    lease_bytes: int = 0
    advised_by: str = ""


@record
class Opening:
    """Requirements of the next lease: ``lease_bytes`` for all lanes, its tenant's ``profile`` if set. The leases
    ``assume_free`` count as gone; the ``reserved`` slices must not be used."""

    lease_bytes: int = 0
    profile: str | None = None
    assume_free: frozenset[int] = frozenset()
    reserved: frozenset[Slice] = frozenset()

    @property
    def is_supposed(self) -> bool:
        """True if the plan depends on more than the current state."""
        return bool(self.assume_free or self.reserved)


class DecisionPort(Protocol):
    """Access of a job book to policies that decide elsewhere, such as in another process. The book uses only this
    interface and `Policy`."""

    def attach(self, policy: Policy) -> None:
        """``policy`` decides from now on; one that decides elsewhere uses this port."""

    def start(self, policy: Policy) -> None:
        """``policy`` may now decide elsewhere: send it the state."""

    def begin_event(self) -> None:
        """An event starts. The decisions that it needs share one time budget."""

    def forecaster(self, policy: Policy) -> Policy:
        """Whose plans a forecast looks at: several for one job, so never one that decides elsewhere."""

    def decider_changed(self) -> None:
        """Waiting jobs were refused by another decider than the present one."""

    def take_decider_change(self) -> bool:
        """Return whether `decider_changed` was called since the last call, and clear that."""


class Policy(Protocol):
    """Interface between the job book and a policy. No call blocks, and none raises because of a tenant's fault."""

    @property
    def name(self) -> str:
        """Its name in configurations and journals; a class may declare it as a ``ClassVar``."""

    def state(self) -> PolicyState:
        """Return everything that decisions depend on, as a value for `restore`."""

    def restore(self, state: PolicyState) -> None:
        """Load ``state`` into a new policy, which then decides like the saved one. Raises: SchedError: invalid
        state."""

    def gpu_added(self, spec: GpuSpec) -> None:
        """A helper offers the GPU, which holds no instance."""

    def gpu_removed(self, gpu: str) -> None:
        """The GPU's helper is gone; its leases were reported lost before."""

    def lease_planned(self, lease: LeaseView) -> None:
        """The lease's slices are taken from now on. Raises: IllegalPlacement."""

    def lease_opened(self, lease: int) -> None:
        """Jobs may be placed on the lease."""

    def lease_draining(self, lease: int) -> None:
        """No further job may be placed on the lease; its slices stay taken."""

    def lane_paused(self, lease: int, lane: int) -> None:
        """No job may be placed on the lane until `release` returns it with a share of 0. It holds no job; it may be
        paused already."""

    def lane_taken(self, lease: int, lane: int, share: int, now_ns: int) -> None:
        """A job that is bound to this free lane, because the worker there has its state, takes it: count the share, as
        `place` does. The sum on the lease may exceed α. `release` returns the lane with this share."""

    def lease_lost(self, lease: int) -> None:
        """The lease is gone; its slices are free."""

    def place(self, demand: Demand, now_ns: int) -> Placement | Refusal:
        """Route to a warm lease of the job's tenant; a Placement takes the lane and counts the share."""

    def release(self, placement: Placement, share: int, now_ns: int) -> None:
        """The lane is free again."""

    def plan(self, demand: Demand, now_ns: int, opening: Opening) -> LeasePlan | Refusal:
        """Select the place of the next lease for this demand; takes nothing."""
