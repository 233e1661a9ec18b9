"""The lanes: instances that the helper was asked for, and their workers.

On the request path (a launch, a result): no task, no log line.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final, Literal, Protocol

from pydantic import BaseModel

from offpath.bindings.errors import OffpathError, PeerGone, ProtocolError, RegionError
from offpath.bindings.ports import HostConnection, MemoryExport
from offpath.bindings.wire import control, host
from offpath.dpu_daemon.hosts.handshakes import close_all
from offpath.dpu_daemon.hosts.helper_link import Order
from offpath.dpu_daemon.requests.book_loop import BookLoop
from offpath.dpu_daemon.requests.copies import Copies
from offpath.dpu_daemon.requests.inflight import LaneConnection
from offpath.dpu_daemon.requests.pacing import Pacing
from offpath.sched.jobs import commands, events

logger = logging.getLogger(__name__)
_LAST_WORDS: Final = 4
"""A worker has at most a result and a scrub on its way."""


class WorkerReports(Protocol):
    """Who takes what workers report of jobs."""

    def arrived(self, link: LaneConnection, result: host.Result) -> None:
        """A result. Raises: HostMessageError: it makes no sense for its job."""

    def proven(self, link: LaneConnection, number: int) -> None:
        """The worker answered `Lanes.ask_proof`. Raises: HostMessageError: nobody had asked it."""

    def forget(self, link: LaneConnection) -> None:
        """The worker is gone."""


class Returning(Protocol):
    """After a restart: the helper and the workers that are expected back."""

    @property
    def helper(self) -> str:
        """The helper's incarnation; empty: none is expected."""

    def seen(self) -> None:
        """A sign of life of one that may be among them."""

    def lane_missing(self, key: tuple[int, int]) -> None:
        """The lane's worker will not come back."""

    def lane_is_back(self, link: LaneConnection) -> None:
        """The worker is back and has sent what it had to send."""


class HelperEnd(Protocol):
    """The way to the helper."""

    def to_helper(self, message: BaseModel) -> None:
        """Send it, if there is a helper."""


class Lanes:
    """Owns the orders and the lanes' workers. Handles `OpenLease`, `CloseLease`, `ScrubLane` and `KillLane`. Counts
    ``leases_opened``, ``leases_closed``, ``workers_killed`` and ``scrubbed_bytes``.

    `attach` comes before everything else. Implements `offpath.dpu_daemon.requests.answers.Workers` and
    `offpath.dpu_daemon.hosts.reattach.Orders`.
    """

    def __init__(
        self,
        book_loop: BookLoop,
        copies: Copies,
        pacing: Pacing,
        counters: Counter[str],
        mint: Callable[[int, int], str],
        copy_engine: Literal["loopback", "verbs", "doca"],
    ) -> None:
        """``mint`` gives the token of a lease and its generation, ``copy_engine`` is the name that workers get."""
        self.orders: dict[int, Order] = {}
        self.links: dict[tuple[int, int], LaneConnection] = {}
        """The connected workers, by lease and lane."""
        self.awaited: set[tuple[int, int]] = set()
        """After a restart: lanes whose workers are expected back."""
        self.gpu_names: list[str] = []
        """In the helper's order."""
        self._book_loop = book_loop
        self._ledger = book_loop.book.ledger
        self._copies = copies
        self._engine = copies.engine
        self._pacing = pacing
        self._counters = counters
        self._mint = mint
        self._copy_engine = copy_engine
        self._loop = asyncio.get_running_loop()
        self._reports: WorkerReports
        self._returning: Returning
        self._helper: HelperEnd
        book_loop.on(commands.OpenLease, self._to_open)
        book_loop.on(commands.CloseLease, self._to_close)
        book_loop.on(commands.ScrubLane, self.scrub_lane)
        book_loop.on(commands.KillLane, self.kill_lane)

    def attach(self, reports: WorkerReports, returning: Returning, helper: HelperEnd) -> None:
        """Those that need the lanes themselves."""
        self._reports = reports
        self._returning = returning
        self._helper = helper

    # -- orders ---------------------------------------------------------------------------------------------------
    def _to_open(self, command: commands.OpenLease) -> None:
        self._counters["leases_opened"] += 1
        logger.info(
            "lease %d: %s gets %s at %d of %s", command.lease, command.tenant, command.profile, command.start,
            command.gpu,
            extra={"code": "lease_opens"},
        )  # fmt: skip
        self.open_lease(command)

    def open_lease(self, command: commands.OpenLease) -> None:
        """Ask the helper for the instance; its workers prove themselves with a fresh token."""
        lease = self._ledger.lease_of(command.lease, command.generation)
        if lease is None or lease.is_closing:
            return  # forgotten with its helper, or given up, before it could be ordered
        if former := self._copies.leases() - self.orders.keys():
            # Copies into lanes of a lost helper: its memory may be ours to give.
            # (For those into a lease that drains, the book waits.)
            self._copies.when_landed(former, partial(self.open_lease, command))
            return
        if self._returning.helper:
            return  # given when the helper is back
        order = self.expect(command)
        self._helper.to_helper(
            control.OpenInstance(
                lease=command.lease, generation=command.generation, tenant=command.tenant, gpu=command.gpu,
                profile=command.profile, start=command.start, lanes=command.lanes,
                landing_bytes=command.landing_bytes, result_bytes=command.result_bytes,
                scrub_first=command.scrub_first, token=order.token, copy_engine=self._copy_engine,
            )
        )  # fmt: skip

    def expect(self, command: commands.OpenLease) -> Order:
        """The lease's workers may connect from here on."""
        token = self._mint(command.lease, command.generation)
        index = self.gpu_names.index(command.gpu) if command.gpu in self.gpu_names else 0
        self.orders[command.lease] = order = Order(command, token, index)
        return order

    def _to_close(self, command: commands.CloseLease) -> None:
        self._counters["leases_closed"] += 1
        logger.info("lease %d closes", command.lease, extra={"code": "lease_closes"})
        self.close_lease(command)

    def close_lease(self, command: commands.CloseLease) -> None:
        """Ask the helper to end the lease's workers and instance. Their channels closing is no loss from here on."""
        self._drop_lanes(command.lease)
        if command.lease in self.orders:
            self.orders[command.lease].is_closing = True
        self._helper.to_helper(
            control.CloseInstance(lease=command.lease, generation=command.generation, scrub=command.scrub)
        )

    def scrub_lane(self, command: commands.ScrubLane) -> None:
        """Ask the worker."""
        if (command.lease, command.lane) in self.awaited:
            return  # asked when its worker is back
        link = self.links.get((command.lease, command.lane))
        if link is None or not self.to_worker(
            link, control.encode(control.ScrubLane(lease=command.lease, lane=command.lane))
        ):
            self._book_loop.dispatch(events.WorkerLost(command.lease, command.lane, command.generation))

    def kill_lane(self, command: commands.KillLane) -> None:
        """Have the helper kill the worker; that its channel then closes is news to nobody."""
        self._counters["workers_killed"] += 1
        logger.warning(
            "ordering the helper to kill the worker of lease %d lane %d",
            command.lease,
            command.lane,
            extra={"code": "worker_killed"},
        )
        self._helper.to_helper(
            control.KillWorker(lease=command.lease, lane=command.lane, generation=command.generation)
        )

    def end_order(self, lease: int) -> None:
        """The instance is gone, or there never was one."""
        self._drop_lanes(lease)
        self.orders.pop(lease, None)

    def gpu_index(self, lease: int) -> int:
        """The GPU of a lease as the answer header names it, counted in the helper's order."""
        order = self.orders.get(lease)
        return order.gpu_index if order is not None else 0

    def is_changing(self) -> bool:
        """An instance is being opened or closed."""
        return any(
            order.is_closing or any((lease, lane) not in self.links for lane in range(order.command.lanes))
            for lease, order in self.orders.items()
        )

    # -- workers --------------------------------------------------------------------------------------------------
    def is_closing(self, hello: control.WorkerHello) -> bool:
        """The worker's lease closes: `close_lease` closed its channel, and the helper has not killed it yet."""
        order = self.orders.get(hello.lease)
        return order is not None and order.is_closing and secrets.compare_digest(order.token, hello.token)

    def expects(self, hello: control.WorkerHello) -> bool:
        """The worker proves that it is one of a lease that was ordered, and its lane is free."""
        order = self.orders.get(hello.lease)
        key = (hello.lease, hello.lane)
        return not (
            order is None
            or not secrets.compare_digest(order.token, hello.token)
            or hello.lane >= order.command.lanes
            or key in self.links
            or self._is_lost(hello)
        )

    def _is_lost(self, hello: control.WorkerHello) -> bool:
        """The book has given this lane up: a worker that was dropped may not come back to it."""
        lease = self._ledger.leases.get(hello.lease)
        return lease is None or hello.lane in lease.lost

    def admit(self, connection: HostConnection, hello: control.WorkerHello) -> None:
        """The connection of a worker that is expected is watched from here on."""
        generation = self.orders[hello.lease].command.generation
        link = LaneConnection(hello.lease, hello.lane, generation, connection)
        self.links[hello.lease, hello.lane] = link
        link.last_job, link.resent = hello.last_job, hello.last_job if hello.has_result else 0
        self._loop.add_reader(connection.fileno(), self._lane_offer, link)
        if connection.death_fileno() >= 0:
            self._loop.add_reader(connection.death_fileno(), self.worker_gone, link, "its process ended")
        self._invite(link)

    def _invite(self, link: LaneConnection) -> None:
        """Tell the worker what it needs to let the copy engine in, if it needs anything."""
        try:
            link.invitation = self._engine.invite()
        except OffpathError as fault:
            self.worker_gone(link, str(fault))
            return
        if link.invitation is None:
            return
        invite = control.InviteLane(
            lease=link.lease, lane=link.lane, generation=link.generation, invitation=link.invitation.descriptor
        )
        if not self.to_worker(link, control.encode(invite)):
            self.worker_gone(link, "it does not take its invitation")

    def _lane_offer(self, link: LaneConnection) -> None:
        """The lane's export, with its descriptor; afterwards the worker is on the fast path."""
        try:
            received = link.connection.receive()
            if received is None:
                return
            self._returning.seen()
            body, fds = received
            try:
                ready = control.decode(control.HOST_TO_DAEMON, body)
                if not isinstance(ready, control.LaneReady):
                    raise ProtocolError("lane_ready", f"{ready.kind} came instead")
            except ProtocolError:
                close_all(fds)
                raise
            wanted = self.orders[link.lease].command
            if ready.landing_bytes < wanted.landing_bytes or ready.result_bytes < wanted.result_bytes:
                close_all(fds)
                raise ProtocolError("lane_size", f"{ready.landing_bytes}+{ready.result_bytes}")
            memory = self._engine.import_memory(MemoryExport(ready.export, fds), link.invitation)
            if memory.nbytes < ready.landing_bytes + ready.result_bytes:
                memory.close()
                raise RegionError("the exported range is smaller than it says")
        except OffpathError as fault:
            self.worker_gone(link, str(fault))
            return
        link.memory, link.landing_bytes, link.result_bytes = memory, ready.landing_bytes, ready.result_bytes
        self._loop.remove_reader(link.connection.fileno())
        self._loop.add_reader(link.connection.fileno(), self._from_worker, link)
        if (link.lease, link.lane) in self.awaited and not link.resent:
            # Before the book may send it anything new: that would look as if it never arrived.
            self._returning.lane_is_back(link)
        self._book_loop.dispatch(events.LaneReady(link.lease, link.lane, link.generation))

    def _from_worker(self, link: LaneConnection) -> None:
        try:
            message = link.connection.receive_message()
            if message is None:
                return
            if message[0] == host.KIND_RESULT:
                since_ns = self._book_loop.now_ns()
                ref = link.ref
                self._reports.arrived(link, host.parse_result(message))
                if ref is not None:
                    self._pacing.of(ref.session.tenant).charge(since_ns)
                return
            said = control.decode(control.HOST_TO_DAEMON, message)
            if isinstance(said, control.Pong):
                self._reports.proven(link, said.number)
                return
            if not isinstance(said, control.LaneScrubbed):
                raise ProtocolError("out_of_turn", said.kind)
        except (PeerGone, ProtocolError) as fault:
            self.worker_gone(link, str(fault))
            return
        self._counters["scrubbed_bytes"] += said.scrubbed_bytes
        self._book_loop.dispatch(events.LaneScrubbed(link.lease, link.lane, link.generation))

    def to_worker(self, link: LaneConnection, message: bytes) -> bool:
        """Send it. False: it surely did not arrive."""
        try:
            return link.connection.send(message)
        except PeerGone:
            return False

    def request_proof(self, link: LaneConnection, number: int) -> bool:
        """Have a worker say that it lives; its answer, if it can give one, goes to `WorkerReports.proven`."""
        return self.to_worker(link, control.encode(control.Ping(number=number)))

    def lane_is_back(self, link: LaneConnection) -> None:
        """A worker that was expected back has sent what it had to send."""
        self._returning.lane_is_back(link)

    def holds(self, link: LaneConnection) -> bool:
        """True while the lane's worker is connected."""
        return self.links.get((link.lease, link.lane)) is link

    # -- their end ------------------------------------------------------------------------------------------------
    def on_worker_died(self, died: control.WorkerDied) -> None:
        """One with a channel that sees its end is told of by that, after its last words. Elsewhere the helper's word is
        the proof: it is the worker's parent."""
        key = died.lease, died.lane
        link = self.links.get(key)
        if link is not None:
            if link.connection.death_fileno() < 0 and link.generation == died.generation:
                self._drain_messages(link)
            return
        if key in self.awaited and self._ledger.lease_of(died.lease, died.generation) is not None:
            self._returning.lane_missing(key)
        else:
            self._book_loop.dispatch(events.WorkerLost(died.lease, died.lane, died.generation))

    def _drain_messages(self, link: LaneConnection) -> None:
        """Its process ended: what it said before counts, as far as it has come; then it is lost."""
        waiting = self._from_worker if link.memory is not None else self._lane_offer
        for _ in range(_LAST_WORDS):
            waiting(link)
            if not self.holds(link) or link.connection.has_ended():
                break
        self.worker_gone(link, "its process ended")

    def worker_gone(self, link: LaneConnection, why: str) -> None:
        """Its process ended, its channel broke, or it broke the rules."""
        if self.links.get((link.lease, link.lane)) is not link:
            return
        logger.warning("worker of lease %d lane %d lost: %s", link.lease, link.lane, why, extra={"code": "worker_lost"})
        self._close_lane(link)
        if (link.lease, link.lane) in self.awaited:  # it was back, and left before its lane was
            self._returning.lane_missing((link.lease, link.lane))
            return
        self._book_loop.dispatch(events.WorkerLost(link.lease, link.lane, link.generation))

    def copy_failed(self, link: LaneConnection, why: str) -> None:
        """A copy into or out of this lane ended in an error. If none can succeed any more, or its worker has ended, the
        lane is lost; so it is where nothing could say yet that it ended: its job may then run elsewhere."""
        if link.memory is not None and not self._engine.reaches(link.memory):
            self.worker_gone(link, f"its memory cannot be reached: {why}")
        elif link.connection.death_fileno() < 0 or link.connection.has_ended():
            self.worker_gone(link, f"it may have ended: {why}")

    def dismiss_workers(self) -> None:
        """Their helper ends them: one that is not told would come back for its lane, and be turned away."""
        closing = control.encode(control.Closing(code="helper_ends", detail="its helper ends"))
        for link in self.links.values():
            self.to_worker(link, closing)

    def drop_all(self) -> None:
        """The helper is gone, and all that it had with it."""
        self.close()
        self.orders.clear()

    def _drop_lanes(self, lease: int) -> None:
        for link in [link for link in self.links.values() if link.lease == lease]:
            self._close_lane(link)

    def _close_lane(self, link: LaneConnection) -> None:
        self.links.pop((link.lease, link.lane), None)
        unwatch(link.connection)
        link.connection.close()
        self._reports.forget(link)
        if link.invitation is not None:
            link.invitation.close()
        if link.memory is not None:
            link.memory.close()

    def close(self) -> None:
        """Hang up on every worker."""
        for link in list(self.links.values()):
            self._close_lane(link)


def unwatch(connection: HostConnection) -> None:
    """The loop looks at it no more."""
    loop = asyncio.get_running_loop()
    loop.remove_reader(connection.fileno())
    if connection.death_fileno() >= 0:
        loop.remove_reader(connection.death_fileno())
