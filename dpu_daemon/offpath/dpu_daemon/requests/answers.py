"""Turns workers' results into answers: checks each result, fetches it if it is large, and writes the answer.

On the request path: no task, no log line.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from offpath.bindings import faults
from offpath.bindings.errors import HostMessageError
from offpath.bindings.native import pack_answer
from offpath.bindings.ports import CopyCompletion
from offpath.bindings.wire import host
from offpath.dpu_daemon.requests.batch_answers import BatchAnswers
from offpath.dpu_daemon.requests.book_loop import BookLoop
from offpath.dpu_daemon.requests.codes import REASON, RESULT_REASON, STATUS
from offpath.dpu_daemon.requests.copies import Copies
from offpath.dpu_daemon.requests.inflight import JobRef, LaneConnection, Workers
from offpath.dpu_daemon.requests.request_stats import DETAIL_BYTES, RequestStats
from offpath.dpu_daemon.requests.results import as_text, check_alive, too_large
from offpath.dpu_daemon.requests.streams import Streams
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.states import EndReason, JobState

_WITH_RESULT: Final = (JobState.COMPLETED, JobState.FAILED)
_WITHOUT_RESULT: Final = (EndReason.KERNEL_OVERRAN, EndReason.COPY_FAILED)
"""A job may expire or overrun just as its result arrives; its answer must not carry the result."""
_Copied = tuple[JobRef, LaneConnection, host.Result]
"""A result that is being copied out of a lane."""


class Answers:
    """Jobs from acceptance to answer. Handles `Answer`. Counts ``expired_running``."""

    def __init__(self, book_loop: BookLoop, copies: Copies, workers: Workers, counters: Counter[str]) -> None:
        self.refs: dict[int, JobRef] = {}
        """Jobs without an answer."""
        self.leaving: dict[int, JobRef] = {}
        """After a restart: answered jobs that are still running."""
        self.ended: Counter[JobState] = Counter()
        self.stats = RequestStats()
        self._book_loop = book_loop
        self._ledger = book_loop.book.ledger
        self._copies = copies
        self._workers = workers
        self._counters = counters
        self.held: dict[int, commands.Answer] = {}
        """Answers that wait for their slot: a result is being copied into it, or one of a stream was not taken yet."""
        self.unwritten: dict[int, commands.Answer] = {}
        """After a restart: decided answers whose result only the worker may still have."""
        self._batches = BatchAnswers(self, book_loop, copies, workers)
        self.streams = Streams(self, book_loop, workers, counters)
        self._unproven: dict[LaneConnection, tuple[JobRef, host.Result]] = {}
        """Fetched results that need a pong: only it proves that the worker lived during the copy."""
        book_loop.on(commands.Answer, self.write)

    def track(self, ref: JobRef) -> None:
        """Add a new job, which has no answer yet."""
        self.refs[ref.job] = ref

    # -- from workers -------------------------------------------------------------------------------------------------
    def arrived(self, link: LaneConnection, result: host.Result) -> None:
        """Handle a worker's result. A result for a job that the lane does not hold is a worker fault.

        Raises: HostMessageError: the result is invalid for its job; the worker is then dropped.
        """
        if faults.armed:
            faults.hit("daemon.result")
        if link.resent:
            self._resent(link, result)
            return
        ref = link.ref
        if ref is None or ref.job != result.job or result.generation != link.generation:
            raise HostMessageError("foreign_job", str(result.job))
        if ref.fetching is link or link in self._unproven or (ref.waiting is not None and ref.waiting[0] is link):
            raise HostMessageError("second_result", str(result.job))
        if result.finished_ns < result.started_ns:
            raise HostMessageError("times", f"started {result.started_ns}, finished {result.finished_ns}")
        if link.batch is not None and result.status != host.RESULT_MORE:
            self._batches.noted(link.batch, result)
        self.take(ref, link, result)

    def take(self, ref: JobRef, link: LaneConnection, result: host.Result) -> None:
        """Handle the result of a launch; ``ref``: its job, or a member of its batch. Raises: HostMessageError."""
        if result.status == host.RESULT_MORE:
            self.streams.arrived(ref, link, result)
        elif link.batch is not None and link.batch.leader == result.job:
            self._batches.take(link.batch, link, result)
        elif ref.stream is not None and not ref.is_answered and not ref.session.is_closed:
            result, reason = self.streams.last(ref, ref.stream, link, result)
            self._decided(ref, result, reason)
        else:
            self._take(ref, link, result)

    def _take(self, ref: JobRef, link: LaneConnection, result: host.Result) -> None:
        if ref.is_answered or ref.session.is_closed:
            self._finished(ref, result, RESULT_REASON[result.status])
            return
        if result.status != host.RESULT_OK:
            ref.detail = result.inline[:DETAIL_BYTES]
        fabric = ref.session.fabric
        if result.result_bytes > fabric.result_bytes:
            text = result.inline
            if result.status == host.RESULT_OK:
                text = too_large(result.result_bytes, fabric.result_bytes)
                result = result._replace(status=host.RESULT_TOO_LARGE)
            result = as_text(ref, result, text)
        elif not result.is_inline and result.result_bytes > link.result_bytes:
            raise HostMessageError("result_bytes", f"{result.result_bytes} > {link.result_bytes}")
        if ref.fetching is not None:  # the result of an earlier attempt is still being copied into the same slot
            ref.waiting = link, result
            return
        if result.is_inline or ref.job in self.unwritten:
            self._decided(ref, result, RESULT_REASON[result.status])
        else:
            self.fetch(ref, link, result)

    def _decided(self, ref: JobRef, result: host.Result, reason: EndReason) -> None:
        """The result needs no copy. If the former process decided on the answer, it had fetched a large one already."""
        ref.result = result
        unwritten = self.unwritten.pop(ref.job, None)
        if unwritten is not None:
            self.write(unwritten)
        else:
            self._finished(ref, result, reason)

    def _resent(self, link: LaneConnection, result: host.Result) -> None:
        """A reattached worker repeats its last result; usually the former process has answered it already."""
        if result.job != link.resent or result.finished_ns < result.started_ns:
            raise HostMessageError("foreign_job", str(result.job))
        link.resent = 0
        # Before `take`: a launch that follows from this result must not look like one that was lost.
        self._workers.lane_is_back(link)
        if result.generation != link.generation or not self._workers.holds(link) or self._batches.take_again(result):
            return
        ref = self.refs.get(result.job) or self.leaving.get(result.job)
        if link.batch is not None and link.batch.leader == result.job and result.status != host.RESULT_MORE:
            self._batches.take(link.batch, link, result)
        elif ref is not None:
            self.take(ref, link, result)

    def give_up_unwritten(self) -> None:
        """No worker holds these results: answer that the jobs ran with an unknown outcome."""
        for answer in list(self.unwritten.values()):
            del self.unwritten[answer.job]
            self.write(
                commands.Answer(
                    answer.job, answer.session, JobState.OUTCOME_UNKNOWN, EndReason.DAEMON_RESTARTED, 0, answer.lease,
                    answer.generation, answer.stages,
                )
            )  # fmt: skip

    def fetch(self, ref: JobRef, link: LaneConnection, result: host.Result) -> None:
        """Copy a large result from the lane to the requester's memory before the lane is freed."""
        assert link.memory is not None
        fabric = ref.session.fabric
        ref.fetching = link
        copied = ref, link, result
        done = self._copies.post(
            link.memory, link.landing_bytes, fabric.answers, fabric.result_offset(ref.slot), result.result_bytes,
            self._landed, copied, link.lease,
        )  # fmt: skip
        if done is not None:
            self._copied(copied, done)

    def _landed(self, copied: _Copied, done: CopyCompletion) -> None:
        if done.error is not None:
            self._workers.copy_failed(copied[1], done.error)
        self._copied(copied, done)

    def _copied(self, copied: _Copied, done: CopyCompletion) -> None:
        """The copy of a large result to its requester's memory has ended, with or without an error."""
        ref, link, result = copied
        ref.fetching = None
        waiting, ref.waiting = ref.waiting, None
        held = self.held.pop(ref.job, None)
        if held is not None:
            self.write(held)  # cancelled or expired while its result was copied
        if done.error is not None:  # the requester's memory does not hold the result
            self._ended(ref, link, result, EndReason.COPY_FAILED)
        elif not check_alive(self._workers, link, ref.job):
            if self._workers.holds(link):
                self._unproven[link] = ref, result
        else:
            self._ended(ref, link, result, RESULT_REASON[result.status])
        if waiting is not None and self._workers.holds(waiting[0]):
            self.take(ref, *waiting)

    def proven(self, link: LaneConnection, number: int) -> None:
        """The worker's pong came after its result was fetched. Raises: HostMessageError: there was no such ping."""
        if self._batches.proven(link, number):
            return
        ref, result = self._unproven.get(link, (None, None))
        if ref is None or result is None or ref.job != number:
            raise HostMessageError("foreign_job", str(number))
        del self._unproven[link]
        self._ended(ref, link, result, RESULT_REASON[result.status])

    def forget(self, link: LaneConnection) -> None:
        """The worker is gone: discard its unproven result."""
        self._unproven.pop(link, None)
        self._batches.forget(link)

    def _ended(self, ref: JobRef, link: LaneConnection, result: host.Result, reason: EndReason) -> None:
        """The lane's part is done. If its worker died meanwhile, the book knows, and the result is discarded."""
        if not self._workers.holds(link):
            return
        if result.status == host.RESULT_MORE:
            self.streams.fetched(ref, link, result, reason)
            return
        ref.result = result
        self._finished(ref, result, reason)

    def _finished(self, ref: JobRef, result: host.Result, reason: EndReason) -> None:
        """The times are from the worker's clock, on another machine: the book uses only their difference."""
        if ref.is_answered or ref.session.is_closed:
            ref.result = None
        self._book_loop.dispatch(
            events.ResultArrived(result.job, result.generation, reason, result.started_ns, result.finished_ns)
        )

    # -- to requesters ------------------------------------------------------------------------------------------------
    def write(self, command: commands.Answer, *, is_delivered: bool = True) -> None:
        """Write the answer to the requester's memory, and ring, once nothing else is in the slot or comes there.
        ``is_delivered`` False: the requester's session ends, and what is in the slot stays."""
        ref = self.refs[command.job]
        stream = ref.stream
        is_delivered = is_delivered and not ref.session.is_closed
        is_in_slot = stream is not None and self.streams.request_ended(ref, stream) and is_delivered
        if is_in_slot or ref.fetching is not None:
            self.held[command.job] = command
            return
        if faults.armed:
            faults.hit("daemon.answer")
        del self.refs[command.job]  # a second answer for the job raises here
        if self._workers.awaited and command.job in self._ledger.leaving:
            self.leaving[command.job] = ref
        ref.is_answered = True
        session = ref.session
        result = ref.result
        ref.result = None
        self.ended[command.state] += 1
        if command.state is JobState.EXPIRED and self._ledger.is_still_running(command.job):
            self._counters["expired_running"] += 1
        status, reason = STATUS[command.state], REASON[command.reason]
        self.stats.answered(ref, command, status, reason, self._book_loop.now_ns())
        if is_delivered:
            tensors, inline, nbytes = b"", b"", 0
            if result is not None and command.state in _WITH_RESULT and command.reason not in _WITHOUT_RESULT:
                tensors, inline, nbytes = result.tensors, result.inline, result.result_bytes
            gpu = self._workers.gpu_index(command.lease)
            answer = pack_answer(
                ref.header.request_id, status, reason, command.retry_after_ms, command.lease, gpu, command.generation,
                nbytes, command.stages, tensors, 0, (stream.written or 0) if stream is not None else 0, *ref.batch,
            )  # fmt: skip
            session.fabric.write_answer(ref.slot, answer, inline, nbytes)
            if faults.armed:
                faults.hit("daemon.written")
            session.ring(ref.slot)
            if command.retry_after_ms:
                session.on_wait(command.retry_after_ms)
