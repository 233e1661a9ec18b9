"""Moves requests into lanes: copies each payload into its lane's memory, then signals the worker.

On the request path: no task, no log line.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from offpath.bindings import faults
from offpath.bindings.ports import CopyCompletion
from offpath.bindings.wire import host
from offpath.bindings.wire.header import FLAG_PARAMETERS
from offpath.dpu_daemon.hosts.batches import Batches
from offpath.dpu_daemon.hosts.ended_sequences import EndedSequences
from offpath.dpu_daemon.hosts.lanes import Lanes
from offpath.dpu_daemon.requests.book_loop import BookLoop
from offpath.dpu_daemon.requests.copies import Copies
from offpath.dpu_daemon.requests.inflight import JobRef, LaneConnection
from offpath.sched.jobs import commands, events

logger = logging.getLogger(__name__)


class Payloads:
    """Handles `Copy` and `Launch`."""

    def __init__(
        self, book_loop: BookLoop, copies: Copies, refs: Mapping[int, JobRef], lanes: Lanes, ended: EndedSequences
    ) -> None:
        """``refs`` are the jobs without an answer."""
        self._book_loop = book_loop
        self._copies = copies
        self._engine = copies.engine
        self._refs = refs
        self._lanes = lanes
        self._links = lanes.links
        self._awaited = lanes.awaited
        self._spinner = book_loop.spinner
        self.batches = Batches(book_loop, copies, refs, lanes)
        self._ended = ended
        self._jobs = book_loop.book.ledger.jobs
        book_loop.on(commands.Copy, self._copy)
        book_loop.on(commands.Launch, self._launch)

    def _copy(self, command: commands.Copy) -> None:
        ref = self._refs[command.job]
        link = self._links.get((command.lease, command.lane))
        if (command.lease, command.lane) in self._awaited:
            return  # posted when its worker has reattached and sent its pending result
        if link is None or link.memory is None:  # every Copy must end in a CopyDone, or the lease never drains
            self._book_loop.defer(events.CopyDone(command.job, command.attempt, error=True))
            return
        if self._lanes.orders[command.lease].command.tenant != ref.session.tenant:
            # The book never plans it. An engine whose workers copy would give this worker the session's memory.
            logger.critical("job %d of %s was bound to a lease of another tenant", ref.job, ref.session.tenant)
            self._book_loop.defer(events.CopyDone(command.job, command.attempt, error=True))
            return
        link.ref, link.batch = ref, None
        fabric = ref.session.fabric
        token = self._copies.take_token()
        done = self._engine.post(
            token, fabric.slots, fabric.payload_offset(ref.slot), link.memory, 0, ref.header.payload_bytes
        )
        if done is None:
            self._copies.started(token, link.lease, self._landed, (ref, command.attempt, link))
        else:
            if self._engine.keeps_back:
                self._lanes.flush_soon()
            self._book_loop.defer(events.CopyDone(command.job, command.attempt, done.error is not None))

    def _landed(self, copied: tuple[JobRef, int, LaneConnection], done: CopyCompletion) -> None:
        ref, attempt, link = copied
        if done.error is not None:  # report an unreachable lane as lost before the failed copy
            self._lanes.copy_failed(link, done.error)
        self._book_loop.dispatch(events.CopyDone(ref.job, attempt, done.error is not None))

    def in_flight(self) -> set[tuple[int, int]]:
        """The payloads that are being copied, as (job, attempt)."""
        single = {(ref.job, attempt) for ref, attempt, _ in self._copies.contexts(self._landed)}
        return single | self.batches.in_flight()

    def _launch(self, command: commands.Launch) -> None:
        link = self._links.get((command.lease, command.lane))
        if link is None or link.batch is None:
            header = self._refs[command.job].header
            sequence = self._jobs[command.job].sequence_state if header.sequence_id else 0
            message = host.pack_launch(
                command.job, command.generation, command.kernel, command.share, header.flags, header.payload_crc,
                header.payload_bytes, header.tensors, sequence, header.sequence_id,
            )  # fmt: skip
            if self._ended.unsent:
                self._ended.flush((command.lease, command.lane, command.generation))
        else:
            message = host.pack_launch(
                command.job, command.generation, command.kernel, command.share,
                FLAG_PARAMETERS if link.batch.rows_of else 0, 0, link.batch.payload_bytes, link.batch.packed,
                rows=link.batch.rows_of,
            )  # fmt: skip
        if (command.lease, command.lane) in self._awaited:
            return  # sent when its worker has reattached and reports that it never received it
        if faults.armed:
            faults.hit("daemon.launch")
        if link is None or not self._lanes.to_worker(link, message):
            self._book_loop.defer(events.LaunchFailed(command.job, command.attempt))
        if faults.armed:
            faults.hit("daemon.launched")
        if self._spinner.spin_ns:
            self._expect_end(command)

    def _expect_end(self, command: commands.Launch) -> None:
        """Have the loop awake when the kernel ends, as far as its last runs tell."""
        now_ns = self._book_loop.now_ns()
        run_ns = self._book_loop.book.expected_run_ns(command.job, now_ns)
        if run_ns > self._spinner.spin_ns:
            self._spinner.expect(now_ns + run_ns)
