"""Base of indexed policies: leases by tenant and room, GPUs by the instances that may be created on them.

Two indices find the first match in logarithmic time: `Rooms`, one per tenant over its leases (bit r: r percent are
free), and one `FirstFit` over all GPUs (one bit per kind of instance that has a legal place now). A position is (GPU in
the order it joined, start of the instance), encoded as one number.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from offpath.sched.errors import IllegalPlacement
from offpath.sched.gpu.firstfit import FirstFit
from offpath.sched.gpu.geometry import GpuGeometry, GpuSpec, Kind, Profile, kind_of, take_all
from offpath.sched.gpu.policy import (
    Demand,
    DemandKind,
    LeasePlan,
    LeaseView,
    Obstacle,
    Opening,
    Placement,
    PolicyState,
    Refusal,
    Unblocker,
    WarmState,
    share_in,
)
from offpath.sched.gpu.rooms import Rooms, Warm

STARTS: Final = 32
"""Positions per GPU, more than any GPU has starts."""
ALL_ROOMS: Final = (1 << 101) - 1
NO_LEASE: Final = Refusal((Obstacle.NO_LEASE,), (Unblocker.LEASE_OPENS,))
LANES: Final = Refusal((Obstacle.LANES,), (Unblocker.JOB_ENDS, Unblocker.LEASE_OPENS))
DEMAND: Final = Refusal((Obstacle.DEMAND,), (Unblocker.LEASE_OPENS,))
NO_GPU: Final = Refusal((Obstacle.NO_GPU,), (Unblocker.HELPER_JOINS,))
NO_PROFILE: Final = Refusal((Obstacle.NO_PROFILE,), (Unblocker.HELPER_JOINS, Unblocker.CONFIGURATION))
GEOMETRY: Final = Refusal((Obstacle.GEOMETRY, Obstacle.TENANT_CLASH), (Unblocker.LEASE_CLOSES, Unblocker.HELPER_JOINS))
NOW: Final = Opening()
_CACHED: Final = 4096
_MOST_BITS: Final = 512
"""Bits given to kinds of instances, of present and former GPUs, after which the present ones are numbered anew."""


@dataclass(slots=True)
class Gpu:
    """One GPU, its slot (the order it joined), and its kinds of instances, smallest first, with their bits."""

    slot: int
    geometry: GpuGeometry
    kinds: list[tuple[int, Profile]]
    table: int
    """Number of its table of possible instances, as reported by its helper."""
    level: int = 100
    """Percent of its compute slices that are free."""


class IndexedPolicy:
    """Base class that maintains the indices; subclasses choose. Implements all of `Policy` except `place` and
    `plan`."""

    name: ClassVar[str] = ""

    def __init__(self) -> None:
        self.gpus: dict[str, Gpu] = {}
        self.by_slot: dict[int, Gpu] = {}
        self.free = FirstFit()
        self.leases: dict[int, Warm] = {}
        self.rooms: dict[str, Rooms] = {}
        self.at: dict[int, Warm] = {}
        """Open or planned leases by position."""
        self._held: dict[str, int] = {}
        self._open: dict[str, int] = {}
        self._joined = 0
        self._kinds: dict[Kind, int] = {}
        """The bits of the kinds that present GPUs have."""
        self._gpus_with: Counter[Kind] = Counter()
        self._next_bit = self._next_table = 0
        self._masks: dict[tuple[DemandKind, int, str | None], int] = {}
        self.lease_bytes = 0
        """Value of the last plan."""
        self._tables: dict[tuple[str, str, int, int, tuple[Profile, ...]], int] = {}
        self._legal: OrderedDict[tuple[int, tuple[tuple[str, int], ...]], int] = OrderedDict()

    # -- state ----------------------------------------------------------------------------------------------------
    def state(self) -> PolicyState:
        """See `Policy.state`."""
        gpus = tuple((gpu.geometry.spec, gpu.slot) for gpu in self.gpus.values())
        leases = tuple(
            WarmState(warm.view, tuple(warm.free_lanes), warm.placed_share, warm.is_open)
            for warm in self.leases.values()
        )
        return PolicyState(gpus, leases, self._joined, self.lease_bytes)

    def restore(self, state: PolicyState) -> None:
        """See `Policy.restore`."""
        for spec, slot in state.gpus:
            self._add(spec, slot)
        self._joined = state.joined
        self.lease_bytes = state.lease_bytes
        for held in state.leases:
            for name in held.view.gpus:
                gpu = self.gpus.get(name)
                if gpu is None or gpu.geometry.spec.profile(held.view.profile) is None:
                    raise IllegalPlacement(f"lease {held.view.lease} on {name}, which offers no such profile")
            self.lease_planned(held.view)
            warm = self.leases[held.view.lease]
            warm.free_lanes = list(held.free_lanes)
            warm.placed_share = held.placed_share
            if held.is_open:
                self._set_open(warm, True)

    # -- GPUs -----------------------------------------------------------------------------------------------------
    def gpu_added(self, spec: GpuSpec) -> None:
        """See `Policy.gpu_added`."""
        self._add(spec, self._joined)
        self._joined += 1

    def _add(self, spec: GpuSpec, slot: int) -> None:
        if spec.memory_slices > STARTS:
            raise IllegalPlacement(f"{spec.gpu}: {spec.memory_slices} slices; {STARTS} at most")
        gpu = Gpu(slot, GpuGeometry(spec), [], 0)
        self._number(gpu)
        self.gpus[spec.gpu] = self.by_slot[slot] = gpu
        self._look(gpu)

    def _number(self, gpu: Gpu) -> None:
        """Assign bits to its kinds of instances."""
        spec = gpu.geometry.spec
        offered = sorted(self.offered(spec), key=lambda p: (p.compute_slices, p.memory_slices, "+" in p.name))
        gpu.kinds = [(self._bit(kind_of(spec, profile)), profile) for profile in offered]
        self._masks.clear()
        table = spec.model, spec.helper, spec.compute_slices, spec.memory_slices, spec.profiles  # names are not unique
        if table not in self._tables:
            self._next_table += 1
            self._tables[table] = self._next_table
        gpu.table = self._tables[table]

    def _bit(self, kind: Kind) -> int:
        """The bit of the kind, which one more GPU has."""
        self._gpus_with[kind] += 1
        bit = self._kinds.get(kind)
        if bit is None:
            bit = self._kinds[kind] = self._next_bit
            self._next_bit += 1
        return bit

    def _unnumber(self, gone: Gpu) -> None:
        """Forget the kinds that no other GPU has, and what was derived from their bits."""
        for _, profile in gone.kinds:
            kind = kind_of(gone.geometry.spec, profile)
            self._gpus_with[kind] -= 1
            if not self._gpus_with[kind]:
                del self._gpus_with[kind], self._kinds[kind]
        if not any(other.table == gone.table for other in self.gpus.values()):
            self._tables = {table: number for table, number in self._tables.items() if number != gone.table}
        self._masks.clear()

    def offered(self, spec: GpuSpec) -> list[Profile]:
        """The instances that this policy creates."""
        return list(spec.profiles)

    def gpu_removed(self, gpu: str) -> None:
        """See `Policy.gpu_removed`."""
        gone = self.gpus.pop(gpu, None)
        if gone is not None:
            del self.by_slot[gone.slot]
            self.free.put(gone.slot, 0)
            self.refiled(gone.slot, gone.level, gone.level, 0)
            self._unnumber(gone)
        if not self.gpus or self._next_bit > _MOST_BITS:  # else memory would grow with each helper with other GPUs
            for memory in (self._kinds, self._masks, self._tables, self._legal, self._gpus_with):
                memory.clear()
            self._next_bit = 0
            for other in self.gpus.values():
                self._number(other)
                self._look(other)

    def _look(self, gpu: Gpu) -> None:
        """Update the index after a change of the GPU's instances."""
        held = tuple(sorted((h.profile.name, h.start) for h in gpu.geometry.held.values()))
        key = (gpu.table, held)
        bits = self._legal.get(key)
        if bits is None:
            bits = sum(1 << bit for bit, profile in gpu.kinds if gpu.geometry.first_start(profile) is not None)
            self._legal[key] = bits
            if len(self._legal) > _CACHED:
                self._legal.popitem(last=False)
        self.free.put(gpu.slot, bits)
        taken = sum(h.profile.compute_slices for h in gpu.geometry.held.values())
        level = 100 * (gpu.geometry.spec.compute_slices - taken) // gpu.geometry.spec.compute_slices
        self.refiled(gpu.slot, gpu.level, level, bits)
        gpu.level = level

    def refiled(self, slot: int, before: int, level: int, bits: int) -> None:
        """The GPU's legal places changed to ``bits``, and its free part from ``before`` to ``level`` percent. Also
        called for a GPU that leaves, with no bits."""

    # -- leases ---------------------------------------------------------------------------------------------------
    def lease_planned(self, lease: LeaseView) -> None:
        """See `Policy.lease_planned`."""
        gpus = [self.gpus[gpu] for gpu in lease.gpus]
        take_all([gpu.geometry for gpu in gpus], lease.lease, lease.profile, lease.start)
        for gpu in gpus:
            self._look(gpu)
        warm = Warm(lease, gpus[0].slot * STARTS + lease.start)
        self.leases[lease.lease] = self.at[warm.position] = warm
        self._held[lease.tenant] = self._held.get(lease.tenant, 0) + 1
        rooms = self.rooms.get(lease.tenant)
        if rooms is None:
            rooms = self.rooms[lease.tenant] = Rooms()
        rooms.add(warm)

    def lease_opened(self, lease: int) -> None:
        """See `Policy.lease_opened`."""
        warm = self.leases[lease]
        warm.free_lanes = list(range(warm.view.lanes - 1, -1, -1))
        self._set_open(warm, True)

    def lease_draining(self, lease: int) -> None:
        """See `Policy.lease_draining`."""
        self._set_open(self.leases[lease], False)

    def lane_paused(self, lease: int, lane: int) -> None:
        """See `Policy.lane_paused`."""
        warm = self.leases[lease]
        if lane in warm.free_lanes:
            warm.free_lanes.remove(lane)
            self.rooms[warm.view.tenant].changed(warm)

    def lane_taken(self, lease: int, lane: int, share: int, now_ns: int) -> None:
        """See `Policy.lane_taken`."""
        warm = self.leases[lease]
        warm.free_lanes.remove(lane)
        warm.placed_share += share
        self.rooms[warm.view.tenant].changed(warm)

    def _set_open(self, warm: Warm, is_open: bool) -> None:
        if warm.is_open is not is_open:
            warm.is_open = is_open
            tenant = warm.view.tenant
            self._open[tenant] = self._open.get(tenant, 0) + (1 if is_open else -1)
        self.rooms[warm.view.tenant].changed(warm)

    def lease_lost(self, lease: int) -> None:
        """See `Policy.lease_lost`."""
        self.lease_draining(lease)
        warm = self.leases.pop(lease)
        self.at.pop(warm.position)
        tenant = warm.view.tenant
        self.rooms[tenant].remove(warm)
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
            self._open.pop(tenant, None)
            self.rooms.pop(tenant, None)
        for name in warm.view.gpus:
            gpu = self.gpus.get(name)
            if gpu is not None:
                gpu.geometry.give_back(lease)
                self._look(gpu)

    # -- lanes ----------------------------------------------------------------------------------------------------
    def first_room(self, demand: Demand) -> Warm | None:
        """The tenant's first open lease with a free lane and room for the demand."""
        rooms = self.rooms.get(demand.tenant)
        return self.first_in(rooms, self.room_mask(demand), demand) if rooms is not None else None

    def room_mask(self, demand: Demand) -> int:
        """The sufficient amounts of room, one bit per percent."""
        return ALL_ROOMS >> demand.share << demand.share

    def first_in(self, rooms: Rooms, mask: int, demand: Demand) -> Warm | None:
        """The first lease in the index with such room that also has the memory and the model."""
        position = rooms.first(mask)
        while position is not None:
            warm = self.at[position]
            if self.suits(demand, warm) and (not demand.models or warm.room() >= share_in(demand, warm.view)):
                return warm
            position = rooms.first(mask, position + 1)
        return None

    def suits(self, demand: Demand, warm: Warm) -> bool:
        """True if a lane of the lease can hold the demand: by fraction, payload, memory and the GPU's model."""
        return share_in(demand, warm.view) > 0

    def take(self, warm: Warm, share: int) -> Placement:
        """Take a lane of the lease and its share, for a job that may start as soon as it is copied."""
        warm.placed_share += share
        lane = warm.free_lanes.pop()
        self.rooms[warm.view.tenant].changed(warm)
        return Placement(warm.view.lease, lane, False)

    def seat(self, demand: Demand, lease: int, lane: int, now_ns: int) -> Placement | None:
        """Take a lane chosen outside this policy; None if it is not free or not suitable for this job."""
        warm = self.leases.get(lease)
        if warm is None or not warm.is_open or lane not in warm.free_lanes or warm.view.tenant != demand.tenant:
            return None
        if not self.suits(demand, warm):
            return None
        share = share_in(demand, warm.view)
        warm.free_lanes.remove(lane)
        warm.free_lanes.append(lane)
        is_prefetch = warm.placed_share + share > warm.view.alpha
        return replace(self.take(warm, share), is_prefetch=is_prefetch)

    def release(self, placement: Placement, share: int, now_ns: int) -> None:
        """See `Policy.release`."""
        warm = self.leases.get(placement.lease)
        if warm is not None:
            warm.placed_share -= share
            warm.free_lanes.append(placement.lane)
            self.rooms[warm.view.tenant].changed(warm)

    def has_open_lease(self, tenant: str) -> bool:
        """True if jobs may be placed on a lease of the tenant."""
        return bool(self._open.get(tenant))

    def refused(self, demand: Demand) -> Refusal:
        """Why the tenant has no lane for the demand."""
        if not self.has_open_lease(demand.tenant):
            return NO_LEASE
        return LANES if self.rooms[demand.tenant].first(ALL_ROOMS) is None else DEMAND

    # -- places for instances -------------------------------------------------------------------------------------
    def mask(self, demand: Demand, wanted: str | None) -> int:
        """Mask of the kinds of instances that hold the demand and, in total, `lease_bytes` of lanes; those with media
        engines ("+me") only if ``wanted``."""
        key = (demand.kind, self.lease_bytes, wanted)
        mask = self._masks.get(key)
        if mask is None:
            fitting = [
                (kind, bit)
                for kind, bit in self._kinds.items()
                if 0 < demand.share_on(kind[0]) <= kind[2]
                and kind[3] >= self.lease_bytes
                and kind[4] >= demand.memory_bytes
                and (not demand.helpers or kind[5] in demand.helpers)
            ]
            named = [bit for kind, bit in fitting if kind[1] == wanted]
            mask = sum(1 << bit for bit in named or [bit for kind, bit in fitting if "+" not in kind[1]])
            if len(self._masks) > _CACHED:
                self._masks.clear()
            self._masks[key] = mask
        return mask

    def cut(self, gpu: Gpu, mask: int, opening: Opening = NOW) -> LeasePlan | None:
        """The smallest instance of ``mask`` that may be created on this GPU, at its lowest start."""
        spec = gpu.geometry.spec
        for bit, profile in gpu.kinds:
            if mask >> bit & 1:
                start = gpu.geometry.first_start(profile, opening.assume_free, opening.reserved)
                if start is not None:
                    return LeasePlan(spec.gpu, profile.name, start, spec.alpha(profile))
        return None

    def first_cut(self, mask: int, opening: Opening) -> LeasePlan | None:
        """Plan on the first GPU with a legal place. The index ignores ``assume_free`` and ``reserved``; the few GPUs
        they concern are checked one by one."""
        leaving = [self.leases[lease].view for lease in opening.assume_free if lease in self.leases]
        touched = {self.gpus[name].slot for view in leaving for name in view.gpus if name in self.gpus}
        touched |= {self.gpus[name].slot for name, _ in opening.reserved if name in self.gpus}
        slot = self.free.first(mask)
        while slot is not None and slot in touched:
            slot = self.free.first(mask, slot + 1)
        for other in sorted(touched):
            if slot is not None and other > slot:
                break
            plan = self.cut(self.by_slot[other], mask, opening)
            if plan is not None:
                return plan
        return self.cut(self.by_slot[slot], mask) if slot is not None else None

    def vetted(self, plan: LeasePlan, mask: int, opening: Opening) -> LeasePlan | None:
        """Check an instance chosen outside this policy and set its actual fraction; None if it is not in ``mask`` or
        may not be created there."""
        gpu = self.gpus.get(plan.gpu)
        profile = gpu.geometry.spec.profile(plan.profile) if gpu is not None else None
        if gpu is None or profile is None or not any(p is profile and mask >> bit & 1 for bit, p in gpu.kinds):
            return None
        slices = range(plan.start, plan.start + profile.memory_slices)
        if not gpu.geometry.allows(profile, plan.start, opening.assume_free):
            return None
        if any((plan.gpu, number) in opening.reserved for number in slices):
            return None
        return LeasePlan(plan.gpu, plan.profile, plan.start, gpu.geometry.spec.alpha(profile))

    def refusal(self, mask: int) -> Refusal:
        """Why no instance can be created."""
        if not self.gpus:
            return NO_GPU
        return GEOMETRY if mask else NO_PROFILE
