"""Streams: requests with several answers, one after the other in their slot.

An answer is written when the one before was taken, so bytes that a requester reads never change. The worker gets one
reply to each of its answers: to go on, or to stop. The book knows nothing of this: it sees one launch and one result.
On the request path: no task, no log line.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final, Protocol

from offpath.bindings import faults
from offpath.bindings.errors import DoorbellError, HostMessageError
from offpath.bindings.native import pack_answer
from offpath.bindings.ports import NEXT_NUMBER_MASK
from offpath.bindings.wire import host
from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.header import FLAG_MORE, unpack_tensors
from offpath.dpu_daemon.requests.book_loop import BookLoop
from offpath.dpu_daemon.requests.codes import RESULT_REASON
from offpath.dpu_daemon.requests.inflight import JobRef, LaneConnection, Stream, Workers
from offpath.dpu_daemon.requests.request_stats import DETAIL_BYTES
from offpath.sched.jobs import commands
from offpath.sched.jobs.stages import stages
from offpath.sched.jobs.states import EndReason

_COMPLETED: Final = int(Status.COMPLETED)
_NONE: Final = int(Reason.NONE)


class Owner(Protocol):
    """The answers of all requests, of which these are a part."""

    held: dict[int, commands.Answer]
    unwritten: dict[int, commands.Answer]

    def fetch(self, ref: JobRef, link: LaneConnection, result: host.Result) -> None:
        """Copy a result out of the lane; it then goes to `Streams.fetched`."""

    def write(self, command: commands.Answer, *, is_delivered: bool = True) -> None:
        """Write a request's last answer, unless nobody takes it."""


class Streams:
    """The answers of streams, without the last ones, which end the requests. Counts ``stream_answers``."""

    def __init__(self, owner: Owner, book_loop: BookLoop, workers: Workers, counters: Counter[str]) -> None:
        self._owner = owner
        self._ledger = book_loop.book.ledger
        self._now_ns = book_loop.now_ns
        self._loop = asyncio.get_running_loop()
        self._workers = workers
        self._counters = counters

    # -- from workers -------------------------------------------------------------------------------------------------
    def arrived(self, ref: JobRef, link: LaneConnection, result: host.Result) -> None:
        """An answer that is not the last. Raises: HostMessageError: no stream, or not its next answer.
        HeaderError: its tensors break a rule."""
        if ref.is_answered or ref.session.is_closed:
            self._reply(link, result.job, result.number, is_stop=True)
            return
        if ref.stream is None and ref.is_spoilt:  # its header, which had the flag, was overwritten before a restart
            ref.stream = Stream()
            ref.stream.failed = EndReason.DAEMON_RESTARTED
        stream = ref.stream
        if stream is None or link.batch is not None:
            raise HostMessageError("no_stream", str(result.job))
        if stream.link is link:
            raise HostMessageError("second_result", str(result.job))
        if stream.stopped is link:  # or it could go on for ever, in the place of its end
            raise HostMessageError("stopped", str(result.job))
        unpack_tensors(result.tensors, result.result_bytes)  # a requester that cannot read it could not take it
        is_restored, stream.is_restored = stream.is_restored, False
        is_repeated = is_restored and result.number == stream.written
        if stream.written is None:  # a restart while its header was being written: it is this one, or the one before
            stream.written = result.number - 1
        stream.link, stream.number = link, result.number
        if stream.failed is not None or ref.job in self._owner.held or ref.job in self._owner.unwritten:
            self._stop(ref, stream)
        elif is_repeated:
            if stream.is_taken:
                self._go_on(ref, stream)
        elif result.number != stream.written + 1:
            if is_restored:  # the number came from the requester's memory, or from the requester
                stream.failed = EndReason.DAEMON_RESTARTED
                self._stop(ref, stream)
                return
            raise HostMessageError("answer_number", f"{result.number} after {stream.written}")
        elif result.result_bytes > ref.session.fabric.result_bytes:
            text = f"an answer of {result.result_bytes} bytes; the session allows {ref.session.fabric.result_bytes}"
            stream.failed, stream.text = EndReason.RESULT_TOO_LARGE, text.encode()
            self._stop(ref, stream)
        elif not result.is_inline and result.result_bytes > link.result_bytes:
            raise HostMessageError("result_bytes", f"{result.result_bytes} > {link.result_bytes}")
        elif not stream.is_taken:  # only after a restart: it is not known yet whether the one before was taken
            stream.waiting = result
        else:
            self._bring(ref, stream, link, result)

    @staticmethod
    def last(ref: JobRef, stream: Stream, link: LaneConnection, result: host.Result) -> tuple[host.Result, EndReason]:
        """The stream's last result as its requester gets it, and how the request ends. Raises: HostMessageError: an
        answer has no reply yet, or a good result has bytes or follows other answers than were written."""
        if stream.link is link:
            raise HostMessageError("second_result", str(result.job))
        if not result.is_inline or (result.status == host.RESULT_OK and (result.result_bytes or result.tensors)):
            raise HostMessageError("last_answer", f"{result.result_bytes} bytes at the end of a stream")
        is_restored, stream.is_restored = stream.is_restored, False
        if result.status == host.RESULT_OK and is_restored and result.number != stream.written:
            stream.failed = EndReason.DAEMON_RESTARTED  # the number came from the requester
        elif result.status == host.RESULT_OK and result.number != stream.written:
            raise HostMessageError("answer_number", f"the end after {result.number} answers; written {stream.written}")
        reason = RESULT_REASON[result.status]
        if stream.failed is not None:
            reason, text = stream.failed, stream.text
            result = result._replace(inline=text)
        if reason is not EndReason.NONE:
            ref.detail = result.inline[:DETAIL_BYTES]
            text = result.inline[: ref.session.fabric.result_bytes]  # the next slot's answer follows in memory
            result = result._replace(result_bytes=len(text), tensors=b"", inline=text)
        return result, reason

    def _bring(self, ref: JobRef, stream: Stream, link: LaneConnection, result: host.Result) -> None:
        if result.is_inline:
            self._write(ref, stream, link, result)
        else:
            stream.is_coming = True
            self._owner.fetch(ref, link, result)

    def fetched(self, ref: JobRef, link: LaneConnection, result: host.Result, reason: EndReason) -> None:
        """The answer lies in the requester's memory, unless ``reason`` says why not."""
        stream = ref.stream
        assert stream is not None
        stream.is_coming = False
        if ref.is_answered or ref.session.is_closed:
            self._stop(ref, stream)
        elif reason is not EndReason.NONE:
            stream.failed = reason
            self._stop(ref, stream)
        else:
            self._write(ref, stream, link, result)

    # -- to requesters ------------------------------------------------------------------------------------------------
    def _write(self, ref: JobRef, stream: Stream, link: LaneConnection, result: host.Result) -> None:
        if faults.armed:
            faults.hit("daemon.answer")
        job = self._ledger.jobs[ref.job]
        stream.written, stream.is_taken = result.number, False
        self._counters["stream_answers"] += 1
        spent = stages(job, self._now_ns(), result.started_ns, result.finished_ns)
        answer = pack_answer(
            ref.header.request_id, _COMPLETED, _NONE, 0, link.lease, self._workers.gpu_index(link.lease),
            link.generation, result.result_bytes, spent, result.tensors, FLAG_MORE, result.number,
        )  # fmt: skip
        ref.session.fabric.write_answer(ref.slot, answer, result.inline, result.result_bytes)
        if faults.armed:
            faults.hit("daemon.written")
        ref.session.ring(ref.slot)

    def took(self, ref: JobRef, number: int) -> None:
        """The requester took an answer. Raises: DoorbellError: it is not the one in its slot."""
        stream = ref.stream
        if stream is None or stream.is_taken or number != (stream.written or 0) & NEXT_NUMBER_MASK:
            raise DoorbellError("answer_number", str(number))
        self._taken(ref, stream)

    def resumed(self, ref: JobRef, taken: int) -> None:
        """The requester is back, and had taken so many answers. (If it lies, it gets answers again or loses some.)"""
        stream = ref.stream
        assert stream is not None
        is_known = stream.written is not None
        if not is_known:
            stream.written = taken
        if not is_known or (not stream.is_taken and taken == stream.written):
            self._taken(ref, stream)

    def _taken(self, ref: JobRef, stream: Stream) -> None:
        """The slot has room: for the last answer, for one that waits, or for the next."""
        stream.is_taken = True
        held = self._owner.held.pop(ref.job, None)
        waiting, stream.waiting = stream.waiting, None
        if held is not None:
            self._owner.write(held)
        elif waiting is None:
            self._go_on(ref, stream)
        elif stream.link is not None and self._workers.holds(stream.link):
            self._bring(ref, stream, stream.link, waiting)

    def request_ended(self, ref: JobRef, stream: Stream) -> bool:
        """The request has ended: stop its worker. True: its last answer waits until the one in the slot is taken."""
        stream.waiting = None
        if not stream.is_coming:
            self._stop(ref, stream)
        return not stream.is_free

    def session_ends(self, refs: list[JobRef]) -> None:
        """Nobody will take the answers of these requests. Their last ones are not written: a requester that is
        not notified yet that its session ends may be reading what is in the slot."""
        for ref in refs:
            is_kept = ref.stream is not None and not ref.stream.is_free
            if is_kept and (held := self._owner.held.pop(ref.job, None)) is not None:
                self._owner.write(held, is_delivered=False)

    # -- to workers ---------------------------------------------------------------------------------------------------
    def _go_on(self, ref: JobRef, stream: Stream) -> None:
        link, stream.link = stream.link, None
        if link is not None:
            self._reply(link, ref.job, stream.number, is_stop=False)

    def _stop(self, ref: JobRef, stream: Stream) -> None:
        link, stream.link = stream.link, None
        if link is not None:
            stream.stopped = link
            self._reply(link, ref.job, stream.number, is_stop=True)

    def _reply(self, link: LaneConnection, job: int, number: int, *, is_stop: bool) -> None:
        if not self._workers.holds(link):
            return
        if not self._workers.to_worker(link, host.pack_proceed(job, link.generation, number, is_stop)):
            # Deferred: the book may be handling an event.
            self._loop.call_soon(self._workers.worker_gone, link, "it did not accept the reply to an answer")
