"""Moves batches into lanes: each member's tensors go to its rows of the lane's, by scatter copies of the copy engine.

On the request path: no task, no log line. The daemon reads descriptors only, never a payload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from offpath.bindings.ports import CopyCompletion, Memory
from offpath.bindings.wire import host
from offpath.bindings.wire.header import pack_tensors, unpack_tensors
from offpath.dpu_daemon.hosts.lanes import Lanes
from offpath.dpu_daemon.requests import stacking
from offpath.dpu_daemon.requests.book_loop import BookLoop
from offpath.dpu_daemon.requests.copies import Copies
from offpath.dpu_daemon.requests.inflight import JobRef, LaneBatch, LaneConnection, Member
from offpath.sched.jobs import commands, events


class _Flight:
    """The copies of one batch: CopyDone follows the last of them."""

    __slots__ = ("attempt", "has_failed", "job", "left", "link")

    def __init__(self, command: commands.CopyBatch, link: LaneConnection) -> None:
        self.job = command.job
        self.attempt = command.attempt
        self.link = link
        self.left = 1  # until all are posted
        self.has_failed = False


class Batches:
    """Handles `CopyBatch`."""

    def __init__(self, book_loop: BookLoop, copies: Copies, refs: Mapping[int, JobRef], lanes: Lanes) -> None:
        """``refs`` are the jobs without an answer."""
        self._book_loop = book_loop
        self._copies = copies
        self._refs = refs
        self._lanes = lanes
        book_loop.on(commands.CopyBatch, self._copy)

    def _copy(self, command: commands.CopyBatch) -> None:
        key = command.lease, command.lane
        if key in self._lanes.awaited:
            return  # posted when its worker has reattached and sent its pending result
        link = self._lanes.links.get(key)
        batch = lane_batch(command.members, command.rows, self._refs)
        if link is None or link.memory is None or batch is None or not self._may_copy(command, batch, link):
            self._book_loop.defer(events.CopyDone(command.job, command.attempt, error=True))
            return
        link.ref, link.batch = self._refs.get(command.job), batch
        flight = _Flight(command, link)
        self._post(batch, flight)
        if self._copies.engine.keeps_back:
            self._lanes.flush_soon()
        self._ended(flight, self._book_loop.defer)

    def _may_copy(self, command: commands.CopyBatch, batch: LaneBatch, link: LaneConnection) -> bool:
        """False: the book never plans it. An engine whose workers copy would give this worker a session's memory."""
        tenant = self._lanes.orders[command.lease].command.tenant
        sessions = [member.ref.session.tenant for member in batch.members if member.ref is not None]
        is_known = bool(batch.tensors) and all(each == tenant for each in sessions)
        return is_known and batch.payload_bytes <= link.landing_bytes

    def _post(self, batch: LaneBatch, flight: _Flight) -> None:
        memory = flight.link.memory
        assert memory is not None
        for source, part in parts_of(batch):
            flight.left += 1
            done = self._copies.post(
                source, part.source, memory, part.target, part.nbytes, self._landed, flight, flight.link.lease
            )
            if done is not None:
                flight.left -= 1
                flight.has_failed |= done.error is not None

    def _landed(self, flight: _Flight, done: CopyCompletion) -> None:
        if done.error is not None:  # report an unreachable lane as lost before the failed copy
            flight.has_failed = True
            self._lanes.copy_failed(flight.link, done.error)
        self._ended(flight, self._book_loop.dispatch)

    def _ended(self, flight: _Flight, report: Callable[[events.Event], None]) -> None:
        flight.left -= 1
        if not flight.left:
            report(events.CopyDone(flight.job, flight.attempt, flight.has_failed))

    def in_flight(self) -> set[tuple[int, int]]:
        """The batches that are being copied, as (leader, attempt)."""
        return {(flight.job, flight.attempt) for flight in self._copies.contexts(self._landed)}


def lane_batch(members: Sequence[tuple[int, int]], rows: int, refs: Mapping[int, JobRef]) -> LaneBatch | None:
    """The batch of these jobs, each with its first row. A job that has its answer, or whose header is lost, keeps
    its rows. None: the tensors of two do not stack. Without tensors: no header is known."""
    found: list[Member] = []
    shape: stacking.Shape = ()
    lengths: list[int] = []
    rows_of: list[int] = []
    for (job, first_row), (_, next_row) in zip(members, [*members[1:], (0, rows)], strict=True):
        ref = refs.get(job)
        found.append(Member(job, ref, first_row, next_row - first_row))
        if ref is None or ref.is_spoilt:
            continue
        own, own_parameters = stacking.tensors_of(ref.header)
        mine = stacking.shape_of(own)
        if any(tensor.dims[:1] != (next_row - first_row,) for tensor in own) or mine != (shape or mine):
            return None  # the book's stacks are digests: two shapes of one digest must not meet in a lane
        if rows_of and (own_parameters is None) != (not lengths):
            return None
        shape = mine
        rows_of.append(next_row - first_row)
        if own_parameters is not None:
            lengths.append(own_parameters.nbytes)
    tensors = stacking.laid_out(shape, rows)
    parameters = stacking.parameters_behind(tensors, lengths) if lengths else None
    if parameters is not None:
        tensors = (*tensors, parameters)
    return LaneBatch(
        members[0][0], tuple(found), rows, tensors, pack_tensors(tensors), stacking.end_of(tensors), parameters,
        host.pack_rows(rows_of) if lengths else b"",
    )  # fmt: skip


def parts_of(batch: LaneBatch) -> Iterator[tuple[Memory, stacking.Part]]:
    """The copies of a batch: from which memory, and where to in the lane. Tensor by tensor, so that the last one ends
    where the payload does."""
    for number, whole in enumerate(batch.tensors):
        passed = 0
        for member in batch.members:
            ref = member.ref
            if ref is None or ref.is_spoilt:
                continue  # it has its answer: its rows are closed up, or discarded
            own = unpack_tensors(ref.header.tensors, ref.header.payload_bytes)[number]
            if whole is batch.parameters:
                part = stacking.Part(own.offset, whole.offset + passed, own.nbytes)
                passed += own.nbytes
            else:
                (part,) = stacking.scattered((own,), (whole,), member.first_row)
            if ref.session.is_closed:
                continue  # as above
            fabric = ref.session.fabric
            at = fabric.payload_offset(ref.slot) + part.source
            yield fabric.slots, stacking.Part(at, part.target, part.nbytes)
