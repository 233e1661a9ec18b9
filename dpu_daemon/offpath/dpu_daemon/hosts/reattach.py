"""Reattaches the helpers and the workers that the book knows after a daemon restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set
from typing import Protocol

from offpath.dpu_daemon.config import DurabilityTable
from offpath.dpu_daemon.hosts.ended_sequences import EndedSequences
from offpath.dpu_daemon.hosts.helper_link import HelperLink, Order
from offpath.dpu_daemon.hosts.offers import kernel_of
from offpath.dpu_daemon.hosts.patience import Patience
from offpath.dpu_daemon.requests.book_loop import BookLoop
from offpath.dpu_daemon.requests.inflight import LaneConnection
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.helpers import Helper
from offpath.sched.jobs.records import Lease
from offpath.sched.jobs.states import LeaseState

logger = logging.getLogger(__name__)


class Orders(Protocol):
    """The interface to the lanes, to restore them to the book's state."""

    awaited: set[tuple[int, int]]
    orders: dict[int, Order]

    def expect(self, command: commands.OpenLease) -> Order:
        """Let the lease's workers connect from now on."""

    def open_lease(self, command: commands.OpenLease) -> None:
        """Order the instance from the helper."""

    def close_lease(self, command: commands.CloseLease) -> None:
        """Have the helper close the instance."""

    def scrub_lane(self, command: commands.ScrubLane) -> None:
        """Have a worker scrub its lane."""

    def kill_lane(self, command: commands.KillLane) -> None:
        """Have the helper kill a worker."""

    def renew_lane(self, command: commands.RenewLane) -> None:
        """Have the helper replace a worker."""

    def drop_helper(self, number: int) -> None:
        """Disconnect every worker of the helper, forget every order."""


class Reattachment:
    """Waits for the helpers and the workers of the former process; does nothing if there was no former process."""

    def __init__(
        self,
        book_loop: BookLoop,
        orders: Orders,
        ended: EndedSequences,
        durability: DurabilityTable,
        copies_in_flight: Callable[[], Set[tuple[int, int]]],
        on_given_up: Callable[[], None],
    ) -> None:
        """``copies_in_flight`` returns job and attempt of each payload that is being copied; ``on_given_up`` is called
        when the wait is over."""
        self._book = book_loop.book
        self._dispatch = book_loop.dispatch
        self._orders = orders
        self._ended = ended
        self._durability = durability
        self._copies_in_flight = copies_in_flight
        self._on_given_up = on_given_up
        self.helpers: dict[str, Helper] = {}
        """The awaited helpers, by name."""
        self._loop = asyncio.get_running_loop()
        self._patience: Patience | None = None
        self.on_lane_back: Callable[[LaneConnection], None] = lambda link: None

    def restore(self) -> None:
        """Resume a former process's book: expect its helpers and its workers to reattach."""
        leasing, leases = self._book.leasing, self._book.ledger.leases
        for number, lease in leases.items():
            self._orders.expect(leasing.opening(lease))
            if not lease.is_closing:
                here = set(range(lease.view.lanes)) - lease.lost - lease.renewing.keys()
                self._orders.awaited |= {(number, lane) for lane in here}
        self.helpers = {helper.name: helper for helper in self._book.ledger.helpers.connected}
        each_s, most_s = self._durability.adopt_ms / 1e3, self._durability.adopt_max_ms / 1e3
        self._patience = Patience(self._loop.time(), each_s, most_s)
        self._look()

    def seen(self) -> None:
        """A sign that a helper or a worker is reattaching: a connection, a hello, an offer."""
        if self._patience is not None and (self.helpers or self._orders.awaited):
            self._patience.seen(self._loop.time())

    def _look(self) -> None:
        if self._patience is None:
            return
        wait_s = self._patience.next_look_s(self._loop.time())
        if wait_s is None:
            self._patience = None
            self._stop_waiting()
        else:
            self._loop.call_later(wait_s, self._look)

    def awaits(self, number: int) -> bool:
        """True if the helper of this number is awaited."""
        return any(helper.number == number for helper in self.helpers.values())

    def come_back(self, helper: HelperLink) -> list[int] | None:
        """The leases that the helper keeps, if it is an awaited one. None: it is another, or another process of its
        name, which holds none of this daemon's leases. It may have reloaded its kernels since."""
        awaited = self.helpers.get(helper.name)
        if awaited is None:
            return None
        numbers = {kernel.name: kernel.kernel for kernel in awaited.kernels}
        is_same = set(awaited.kernels) == {
            kernel_of(offer, helper.needs.get(offer.name), numbers.get(offer.name, 0)) for offer in helper.hello.kernels
        }
        incarnation = awaited.origin or "unknown"
        hello = helper.hello
        is_same = hello.revision > awaited.revision or (is_same and hello.revision == awaited.revision)
        if not is_same or helper.hello.incarnation != incarnation or tuple(helper.gpus) != awaited.gpus:
            self._forget_helper(awaited)
            return None
        del self.helpers[helper.name]
        helper.number = awaited.number
        held = {(one.lease, one.generation) for one in helper.held}
        return [number for number, lease in self._leases_of(helper.number) if (number, lease.generation) in held]

    def _leases_of(self, number: int) -> list[tuple[int, Lease]]:
        """The leases that the helper of this number holds."""
        leases = self._book.ledger.leases.items()
        return [(lease, held) for lease, held in leases if self._book.leasing.helper_of(held) == number]

    def reconcile(self, helper: HelperLink, kept: set[int]) -> None:
        """Repeat the orders that may not have arrived; report leases and lanes that did not survive."""
        book, dispatch, orders = self._book, self._dispatch, self._orders
        leases = self._leases_of(helper.number)
        logger.info(
            "helper %s reattached with %d of %d leases",
            helper.name,
            len(kept),
            len(leases),
            extra={"code": "helper_back"},
        )
        alive = {
            (one.lease, lane): renewal
            for one in helper.held
            for lane, renewal in zip(one.lanes, one.renewals or [0] * len(one.lanes), strict=True)
        }
        for number, lease in leases:
            if lease.is_closing:
                orders.close_lease(book.leasing.closing(lease))
                continue
            lanes = [(number, lane) for lane in range(lease.view.lanes)]
            if number not in kept and lease.state is LeaseState.CREATING:
                self._orders.awaited.difference_update(lanes)
                if lease.ready:  # that instance is gone; the book must not count lanes of two instances
                    del orders.orders[number]
                    dispatch(events.InstanceFailed(number, lease.generation))
                else:
                    orders.open_lease(book.leasing.opening(lease))
            else:
                for key in lanes:
                    if key[1] in lease.renewing:
                        self._renew_again(key, lease, alive.get(key))
                    elif key in alive and key[1] in lease.lost:  # the order to kill it may not have arrived
                        orders.kill_lane(commands.KillLane(*key, lease.generation, helper.number))
                    elif key not in alive and key in self._orders.awaited:
                        self.lane_missing(key)
        dispatch(events.Tick())

    def _renew_again(self, key: tuple[int, int], lease: Lease, renewal: int | None) -> None:
        """The lane's worker is being replaced; the order may not have arrived. ``renewal``: of the helper's worker;
        None: it has none."""
        if renewal is None:
            self.lane_missing(key)
        elif renewal != lease.renewals[key[1]]:
            self._orders.renew_lane(self._book.renewal.renewing(lease, key[1]))

    def lane_missing(self, key: tuple[int, int]) -> None:
        """The lane's worker will not reattach."""
        self._orders.awaited.discard(key)
        lease = self._book.ledger.leases.get(key[0])
        if lease is not None:
            self._dispatch(events.WorkerLost(*key, lease.generation))
            self._end_dead_copies(lease)

    def _end_dead_copies(self, lease: Lease) -> None:
        """Fail the lost lanes' copies that died with the former process, not those that this process posted."""
        for job, attempt in sorted(lease.orphaned_copies - self._copies_in_flight()):
            self._dispatch(events.CopyDone(job, attempt, error=True))

    def _stop_waiting(self) -> None:
        """Count the helpers and workers that have not reattached as lost."""
        for helper in list(self.helpers.values()):
            self._forget_helper(helper)
        for key in sorted(self._orders.awaited):
            self.lane_missing(key)
        self._on_given_up()

    def _forget_helper(self, helper: Helper) -> None:
        """The helper, which the book knows, will not reattach."""
        del self.helpers[helper.name]
        self._orders.drop_helper(helper.number)
        self._dispatch(events.HelperLost(helper.number))

    def lane_is_back(self, link: LaneConnection) -> None:
        """The worker has reattached and sent its pending result."""
        self._orders.awaited.discard((link.lease, link.lane))
        lease = self._book.ledger.leases.get(link.lease)
        if lease is not None:
            self._end_dead_copies(lease)
        self._ended.back(link)
        self.on_lane_back(link)

    def scrub_again(self, link: LaneConnection) -> None:
        """A worker has reattached: if its lane is to be scrubbed and is not, request the scrub again. Not of a worker
        that is to be killed: the generator of its stream still uses the lane."""
        lease = self._book.ledger.leases.get(link.lease)
        if lease is not None and lease.state is LeaseState.SCRUBBING and link.lane not in lease.scrubbed | lease.lost:
            self._orders.scrub_lane(commands.ScrubLane(link.lease, link.lane, link.generation))
