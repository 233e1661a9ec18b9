"""Replaces the workers of a helper that has reloaded its kernels, lane by lane, without touching its leases.

From `KernelsReloaded` on no job is placed on a lane whose worker runs the former code. What is on such a lane ends
there. A lane without a job is ordered to be replaced at once, the others when their job has left. A lane whose new
worker is ready takes jobs again. So the answers of requests that are submitted after a reload come from the new code
only, and no worker meets a kernel that its code does not have.
"""

from __future__ import annotations

from offpath.sched.gpu.policy import Placement
from offpath.sched.jobs.commands import RenewLane
from offpath.sched.jobs.helpers import Helper
from offpath.sched.jobs.leasing import Leasing
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.records import Lease
from offpath.sched.jobs.states import LeaseState


class Renewal:
    """Renews lanes of the ledger's leases. A lane that is awaited is in no policy's list of free ones."""

    def __init__(self, ledger: Ledger, leasing: Leasing) -> None:
        self._ledger = ledger
        self._leasing = leasing

    def reloaded(self, helper: Helper, now_ns: int) -> None:
        """The helper's workers run former code, those included that are being started. Leases that close are left as
        they are: no further job runs there."""
        gpus = {gpu.gpu for gpu in helper.gpus}
        for lease in self._ledger.leases.values():
            if lease.view.gpu in gpus and lease.state in (LeaseState.CREATING, LeaseState.WARM):
                lease.stale.update(lane for lane in range(lease.view.lanes) if lane not in lease.lost)
                self.settle(lease, now_ns)

    def settle(self, lease: Lease, now_ns: int) -> None:
        """Replace the workers of all stale lanes of a WARM lease that hold no job."""
        if lease.state is not LeaseState.WARM:
            return
        busy = {job.placement.lane for job in lease.jobs.values() if job.placement is not None}
        for lane in sorted(lease.stale - busy - lease.renewing.keys()):
            self._renew(lease, lane, now_ns)

    def freed(self, lease: Lease, lane: int, now_ns: int) -> None:
        """A job has left a stale lane."""
        if lease.state is LeaseState.WARM and lane not in lease.lost:
            self._renew(lease, lane, now_ns)

    def lane_loading(self, lease: Lease, lane: int, now_ns: int) -> bool:
        """True if the new worker of this lane loads: from now on the limit on loading counts."""
        if lane not in lease.renewing or lane in lease.loading:
            return False
        lease.loading.add(lane)
        lease.renewing[lane] = now_ns
        return True

    def lane_ready(self, lease: Lease, lane: int, now_ns: int) -> bool:
        """True if the lane takes jobs again: its new worker is ready, and the helper has not reloaded since."""
        if lane not in lease.renewing or lease.state not in (LeaseState.WARM, LeaseState.DRAINING):
            return False
        del lease.renewing[lane]
        lease.ready.add(lane)
        if lease.state is LeaseState.DRAINING:
            return False
        if lane in lease.stale:
            self._renew(lease, lane, now_ns)
            return False
        if lease.is_gang:
            lease.free_lanes.append(lane)
        else:
            self._ledger.policy.release(Placement(lease.view.lease, lane, False), 0, now_ns)
        if not lease.jobs:
            self._leasing.went_idle(lease, now_ns)
        return True

    def _renew(self, lease: Lease, lane: int, now_ns: int) -> None:
        if not lease.is_gang:
            self._ledger.policy.lane_paused(lease.view.lease, lane)
        elif lane in lease.free_lanes:
            lease.free_lanes.remove(lane)
        lease.stale.discard(lane)
        lease.ready.discard(lane)
        lease.loading.discard(lane)
        lease.renewing[lane] = now_ns
        lease.renewals[lane] = lease.renewals.get(lane, 0) + 1
        self._ledger.out.append(self.renewing(lease, lane))
        if open_ns := self._ledger.settings.open_ns:
            self._ledger.watch(lease, now_ns + open_ns)

    def renewing(self, lease: Lease, lane: int) -> RenewLane:
        """The command that replaces the lane's worker; a shell that lost it may issue it again."""
        view = lease.view
        return RenewLane(view.lease, lane, lease.generation, self._leasing.helper_of(lease), lease.renewals[lane])
