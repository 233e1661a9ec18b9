"""Passes what helpers and workers report about lanes and instances on to leasing, renewal and limits."""

from __future__ import annotations

from collections.abc import Callable

from offpath.sched.jobs import events
from offpath.sched.jobs.leasing import Leasing
from offpath.sched.jobs.ledger import Ledger
from offpath.sched.jobs.limits import Limits
from offpath.sched.jobs.records import Tenant
from offpath.sched.jobs.renewal import Renewal
from offpath.sched.jobs.states import LeaseState


class Lanes:
    """Handles the events of lanes; ``route`` is the book's. An event of an older generation changes nothing."""

    def __init__(
        self, ledger: Ledger, leasing: Leasing, renewal: Renewal, limits: Limits, route: Callable[[Tenant, int], None]
    ) -> None:
        self._ledger = ledger
        self._leasing = leasing
        self._renewal = renewal
        self._limits = limits
        self._route = route

    def lane_loading(self, event: events.LaneLoading, now_ns: int) -> None:
        """A worker loads its models."""
        lease = self._ledger.lease_of(event.lease, event.generation)
        if lease is None:
            return
        is_first = self._leasing.lane_loading(lease, event.lane, now_ns)
        if is_first or self._renewal.lane_loading(lease, event.lane, now_ns):
            self._limits.watch(lease)

    def lane_ready(self, event: events.LaneReady, now_ns: int) -> None:
        """A lane may take jobs: the first time, or again."""
        lease = self._ledger.lease_of(event.lease, event.generation)
        if lease is None:
            return
        is_open = self._leasing.lane_ready(lease, event.lane, now_ns)
        if is_open:
            self._renewal.settle(lease, now_ns)  # the helper may have reloaded while the lease was opened
        if is_open or self._renewal.lane_ready(lease, event.lane, now_ns):
            self._route(self._ledger.tenants[lease.view.tenant], now_ns)

    def instance_failed(self, event: events.InstanceFailed, now_ns: int) -> None:
        """An instance could not be opened, or is gone."""
        lease = self._ledger.lease_of(event.lease, event.generation)
        if lease is not None and (lease.state is LeaseState.CREATING or lease.is_closing):
            self._leasing.instance_failed(lease, now_ns)

    def lane_scrubbed(self, event: events.LaneScrubbed, now_ns: int) -> None:
        """A worker confirms its scrub."""
        lease = self._ledger.lease_of(event.lease, event.generation)
        if lease is not None:
            self._leasing.lane_scrubbed(lease, event.lane)

    def instance_closed(self, event: events.InstanceClosed, now_ns: int) -> None:
        """An instance is closed, as ordered."""
        lease = self._ledger.lease_of(event.lease, event.generation)
        if lease is not None:
            self._leasing.instance_closed(lease, now_ns)
