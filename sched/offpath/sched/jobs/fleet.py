"""Handles what is reported of helpers as a whole: joins, reloads of kernels, the loss of a helper or of a GPU."""

from __future__ import annotations

from collections.abc import Callable

from offpath.sched.jobs import events
from offpath.sched.jobs.batches import Batches
from offpath.sched.jobs.kernels import Kernels
from offpath.sched.jobs.leasing import Leasing
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.records import Job, Lease, Tenant
from offpath.sched.jobs.reload import Reload
from offpath.sched.jobs.renewal import Renewal
from offpath.sched.jobs.sequences import Sequences
from offpath.sched.jobs.states import EndReason


class Fleet:
    """Passes the events of helpers on to leasing, kernels, renewal and batches. The callbacks are the book's."""

    def __init__(
        self,
        ledger: Ledger,
        leasing: Leasing,
        renewal: Renewal,
        kernels: Kernels,
        reload: Reload,
        batches: Batches,
        sequences: Sequences,
        route: Callable[[Tenant, int], None],
        lose: Callable[[Job, EndReason, int], None],
    ) -> None:
        """``route`` places the queued jobs that can be placed; ``lose`` ends or requeues a job whose lane is gone."""
        self._ledger = ledger
        self._leasing = leasing
        self._renewal = renewal
        self._kernels = kernels
        self._reload = reload
        self._batches = batches
        self._sequences = sequences
        self._route = route
        self._lose = lose

    def helper_joined(self, event: events.HelperJoined, now_ns: int) -> None:
        """A helper offers GPUs and kernels."""
        self._leasing.helper_joined(event)
        self._kernels.renew_demands()
        self._reload.end_queued(now_ns)  # queued jobs may not fit any of these GPUs
        self._kernels.joined(event.kernels, now_ns)
        self._batches.kernels_changed(now_ns)
        self._leasing.round(now_ns)

    def kernels_reloaded(self, event: events.KernelsReloaded, now_ns: int) -> None:
        """A helper serves other kernels, from new code."""
        helper = self._ledger.helpers.reloaded(event)
        if helper is None:
            return
        gpus = {gpu.gpu for gpu in helper.gpus}
        for lease in [lease for lease in self._ledger.leases.values() if lease.view.gpu in gpus]:
            self._sequences.lease_ends(lease, now_ns)  # the new workers do not have the state
        self._renewal.reloaded(helper, now_ns)  # before any job is placed: the former code may lack its kernel
        self._kernels.renew_demands()
        self._reload.end_queued(now_ns)
        self._kernels.joined(event.kernels, now_ns)
        self._batches.kernels_changed(now_ns)
        for tenant in list(self._ledger.backlogged.values()):
            self._route(tenant, now_ns)  # lanes of other helpers may fit what its jobs need now
        self._leasing.round(now_ns)

    def helper_lost(self, event: events.HelperLost, now_ns: int) -> None:
        """A helper's instances are gone."""
        gone = self._ledger.helpers.lost(event.helper, self._leasing.lease_bytes)
        if gone is None:
            return
        leases = self._leasing.helper_lost(gone)
        self._states_lost(leases, now_ns)
        self._kernels.lost(now_ns)
        self._batches.kernels_changed(now_ns)
        self._leases_lost(leases, EndReason.HELPER_LOST, now_ns)

    def gpu_lost(self, event: events.GpuLost, now_ns: int) -> None:
        """The instances on a GPU are gone."""
        helper = self._ledger.helpers.connection(event.helper)
        if helper is None or event.gpu not in [gpu.gpu for gpu in helper.usable_gpus]:
            return
        leases = self._leasing.gpu_lost(helper, event.gpu)
        self._states_lost(leases, now_ns)
        self._leases_lost(leases, EndReason.WORKER_LOST, now_ns)
        self._reload.end_queued(now_ns)  # queued jobs may not fit any GPU that is left
        self._leasing.round(now_ns)

    def _states_lost(self, leases: list[Lease], now_ns: int) -> None:
        """Before anything is placed: no head may wait for a lane that is gone."""
        for lease in leases:
            self._sequences.lease_lost(lease, now_ns)

    def _leases_lost(self, leases: list[Lease], reason: EndReason, now_ns: int) -> None:
        for lease in leases:
            for job in list(lease.jobs.values()):
                self._lose(job, reason, now_ns)
            lease.jobs.clear()
