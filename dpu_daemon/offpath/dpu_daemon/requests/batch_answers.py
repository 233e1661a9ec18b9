"""Splits the result of a batch: each member gets its rows of every tensor, in its own slot.

On the request path: no task, no log line. A result in a lane is fetched by scatter copies before the lane is freed.
"""

from __future__ import annotations

from typing import Protocol

from offpath.bindings.errors import HostMessageError
from offpath.bindings.ports import CopyCompletion
from offpath.bindings.wire import host
from offpath.bindings.wire.header import Tensor
from offpath.dpu_daemon.requests import stacking
from offpath.dpu_daemon.requests.book_loop import BookLoop
from offpath.dpu_daemon.requests.codes import RESULT_REASON
from offpath.dpu_daemon.requests.copies import Copies
from offpath.dpu_daemon.requests.inflight import JobRef, LaneBatch, LaneConnection, Member, Workers
from offpath.dpu_daemon.requests.results import as_text, check_alive, too_large
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.states import EndReason, JobState


class Owner(Protocol):
    """The answers of all launches, of which these are a part."""

    refs: dict[int, JobRef]
    held: dict[int, commands.Answer]
    unwritten: dict[int, commands.Answer]

    def take(self, ref: JobRef, link: LaneConnection, result: host.Result) -> None:
        """Handle a result that waited."""

    def write(self, command: commands.Answer) -> None:
        """Write an answer."""


class _Split:
    """A batch's result on its way to its members: what each gets, and how many copies are in flight."""

    __slots__ = ("failed", "has_failed", "left", "link", "own", "reason", "result", "results", "rows", "was_fetched")

    def __init__(self, link: LaneConnection, result: host.Result, rows: int) -> None:
        self.link = link
        self.result = result
        self.rows = rows
        self.reason = RESULT_REASON[result.status]
        self.results: list[tuple[JobRef, host.Result]] = []
        self.failed: list[tuple[int, EndReason]] = []
        self.left = 1  # until all copies are posted
        self.own: dict[JobRef, int] = {}
        """Copies in flight for each member."""
        self.has_failed = self.was_fetched = False


class BatchAnswers:
    """The part of `Answers` for launches with several jobs."""

    def __init__(self, answers: Owner, book_loop: BookLoop, copies: Copies, workers: Workers) -> None:
        self._answers = answers
        self._book_loop = book_loop
        self._ledger = book_loop.book.ledger
        self._copies = copies
        self._workers = workers
        self._unproven: dict[LaneConnection, _Split] = {}
        """Fetched results that need a pong, as in `Answers`."""

    @staticmethod
    def noted(batch: LaneBatch, result: host.Result) -> None:
        """A worker reports the end of the batch. Raises: HostMessageError: it has before."""
        if batch.has_result:
            raise HostMessageError("second_result", str(result.job))
        batch.has_result = True

    def take(self, batch: LaneBatch, link: LaneConnection, result: host.Result) -> None:
        """Handle the result of the lane's batch. Raises: HostMessageError: it is invalid."""
        if not result.is_inline and result.result_bytes > link.result_bytes:
            raise HostMessageError("result_bytes", f"{result.result_bytes} > {link.result_bytes}")
        live = [(each, ref) for each in batch.members if (ref := each.ref) is not None and not _is_gone(ref)]
        busy = next((ref for _, ref in live if ref.fetching is not None), None)
        if busy is not None:  # the result of an earlier attempt is still being copied into its slot
            busy.waiting = link, result
            return
        split = _Split(link, result, batch.rows)
        tensors = None
        if result.status == host.RESULT_OK:
            tensors = stacking.result_tensors(result.tensors, result.result_bytes, batch.rows)
            if tensors is None:
                split.reason = EndReason.RESULT_NOT_SPLIT
        for member, ref in live:
            if tensors is None:
                text = result.inline if result.status != host.RESULT_OK else _not_split(batch.rows)
                split.results.append((ref, as_text(ref, result, text)))
            else:
                self._give(split, member, ref, tensors)
        self._landed_one(split)

    def _give(self, split: _Split, member: Member, ref: JobRef, tensors: tuple[Tensor, ...]) -> None:
        """Give a member its rows; post the copies if they are in the lane."""
        link, result, fabric = split.link, split.result, ref.session.fabric
        share = stacking.share_of(tensors, member.first_row, member.rows)
        if share.nbytes > fabric.result_bytes:
            text = too_large(share.nbytes, fabric.result_bytes)
            split.failed.append((ref.job, EndReason.RESULT_TOO_LARGE))
            split.results.append((ref, as_text(ref, result, text)))
            return
        inline = share.cut(result.inline) if result.is_inline else b""
        split.results.append((ref, _own(result, share, inline)))
        if result.is_inline:
            return
        assert link.memory is not None
        ref.fetching, split.was_fetched = link, True
        split.own[ref] = 1  # until its copies are posted
        for part in share.parts:
            split.left += 1
            split.own[ref] += 1
            done = self._copies.post(
                link.memory, link.landing_bytes + part.source, fabric.answers,
                fabric.result_offset(ref.slot) + part.target, part.nbytes, self._landed, (split, ref), link.lease,
            )  # fmt: skip
            if done is not None:
                split.left -= 1
                split.own[ref] -= 1
                split.has_failed |= done.error is not None
        self._landed_for(split, ref)

    def _landed(self, copied: tuple[_Split, JobRef], done: CopyCompletion) -> None:
        split, ref = copied
        if done.error is not None:
            split.has_failed = True
            self._workers.copy_failed(split.link, done.error)
        self._landed_for(split, ref)
        self._landed_one(split)

    def _landed_for(self, split: _Split, ref: JobRef) -> None:
        """A copy of this member has ended. After its last one nothing lands in its slot any more."""
        split.own[ref] -= 1
        if split.own[ref]:
            return
        ref.fetching = None
        waiting, ref.waiting = ref.waiting, None
        held = self._answers.held.pop(ref.job, None)
        if held is not None:
            self._answers.write(held)  # cancelled or expired while its rows were copied
        if waiting is not None and self._workers.holds(waiting[0]):
            self._answers.take(ref, *waiting)

    def _landed_one(self, split: _Split) -> None:
        split.left -= 1
        if split.left:
            return
        link = split.link
        if split.has_failed:  # the requesters' memory does not hold the result
            split.reason, split.failed = EndReason.COPY_FAILED, []
            self._ended(split)
        elif split.was_fetched and not check_alive(self._workers, link, split.result.job):
            if self._workers.holds(link):
                self._unproven[link] = split
        else:
            self._ended(split)

    def proven(self, link: LaneConnection, number: int) -> bool:
        """The worker's pong came after its batch's result was fetched. False: no such pong is awaited."""
        split = self._unproven.get(link)
        if split is None or split.result.job != number:
            return False
        del self._unproven[link]
        self._ended(split)
        return True

    def forget(self, link: LaneConnection) -> None:
        """The worker is gone: discard its unproven result."""
        self._unproven.pop(link, None)

    def _ended(self, split: _Split) -> None:
        """The lane's part is done. If its worker died meanwhile, the book knows, and the result is discarded."""
        if not self._workers.holds(split.link):
            return
        for ref, result in split.results:
            ref.result = None if _is_gone(ref) else result
            ref.batch = split.rows, _number(split.results[0][0])
        result, failed = split.result, tuple(split.failed)
        times = result.started_ns, result.finished_ns
        if failed:
            event: events.Event = events.BatchResult(result.job, result.generation, split.reason, *times, failed)
        else:
            event = events.ResultArrived(result.job, result.generation, split.reason, *times)
        self._book_loop.dispatch(event)

    def take_again(self, result: host.Result) -> bool:
        """A reattached worker repeats the result of a batch that the former process has split. Its members' answers may
        not be written. False: the launch had one job."""
        former = [job for job in self._ledger.jobs.values() if job.led_by == result.job]
        tensors: tuple[Tensor, ...] | None = None
        rows = max((job.first_row + job.rows for job in former), default=0)
        if result.status == host.RESULT_OK:
            tensors = stacking.result_tensors(result.tensors, result.result_bytes, rows, is_least=True)
        number = 0
        for job in former:
            unwritten = self._answers.unwritten.pop(job.job, None)
            if unwritten is None:
                continue
            ref = self._answers.refs[job.job]
            number = number or _number(ref)
            ref.batch = (tensors[0].dims[0] if tensors else rows), number
            if tensors is None or unwritten.state is not JobState.COMPLETED:
                ref.result = as_text(ref, result, result.inline if result.status != host.RESULT_OK else b"")
            else:
                share = stacking.share_of(tensors, job.first_row, job.rows)
                ref.result = _own(result, share, share.cut(result.inline) if result.is_inline else b"")
            self._answers.write(unwritten)
        return bool(former)


def _number(first: JobRef) -> int:
    """Of a batch, for its requesters, from a request in it: a job's number would show how many others there are."""
    return (first.session.number << 40 | first.header.request_id & ((1 << 40) - 1)) & ((1 << 64) - 1)


def _is_gone(ref: JobRef) -> bool:
    return ref.is_answered or ref.session.is_closed


def _not_split(rows: int) -> bytes:
    most = stacking.MOST_TENSORS
    return (
        f"the kernel ran on {rows} rows of several requests; each of its at most {most} results must have as many"
    ).encode()


def _own(result: host.Result, share: stacking.Share, inline: bytes) -> host.Result:
    return result._replace(result_bytes=share.nbytes, tensors=share.tensors, inline=inline)
