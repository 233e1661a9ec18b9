"""The async requester: ``await requester.submit(...)`` from any number of tasks; answers arrive by ``add_reader``."""

from __future__ import annotations

import asyncio
import functools
import os
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from types import TracebackType
from typing import Any

from offpath.bindings.errors import OffpathError, PeerGone
from offpath.bindings.ports import IMM_CANCEL, IMM_SLOT_MASK, immediate
from offpath.bindings.wire import negotiating
from offpath.bindings.wire.signatures import KernelSignature
from offpath.host_helper.errors import RequesterShared, RequestFailed, RequestTimeout, UnknownKernel
from offpath.host_helper.negotiate import Tls
from offpath.host_helper.owner import Owner
from offpath.host_helper.request_arrays import Array, as_arrays
from offpath.host_helper.requester import news_wait_s
from offpath.host_helper.resume import Link, Return, Way, outcome_of
from offpath.host_helper.retries import RETRIES, may_retry
from offpath.host_helper.slots import DEFAULT_OPTIONS, Options, Result, SlotTable, Taker, daemon_gone
from offpath.host_helper.waiters import Answer, Stream, fail, wait


class AsyncRequester:
    """One session on the running loop: ``async with await AsyncRequester.open(...) as requester``."""

    def __init__(self, way: Way, link: Link) -> None:
        self._owner = Owner()
        self._way = way
        self._link = link
        self._slots: SlotTable[Answer | Stream] = SlotTable(link.session)
        self._returning: asyncio.Task[None] | None = None
        self._room: deque[asyncio.Future[None]] = deque()
        """Requests that wait for a slot, the first one at the left."""
        self._asking = asyncio.Lock()
        self._times_queried = 0
        self._gone: PeerGone | None = None
        self._resumed = 0
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(link.session.fileno(), self._readable)
        self._closed = False

    @property
    def welcome(self) -> negotiating.Welcome:
        """The parameters that the daemon granted."""
        return self._link.welcome

    @classmethod
    async def open(
        cls,
        address: str | os.PathLike[str] | None = None,
        *,
        tenant: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        tls: Tls | None = None,
        **options: Any,
    ) -> AsyncRequester:
        """Negotiate in a thread, then connect. Raises: as `offpath.host_helper.opening.open_session`."""
        way = Way(address, tenant=tenant, token_file=token_file, tls=tls, **options)
        return cls(way, await asyncio.get_running_loop().run_in_executor(None, way.first))

    async def is_emulated(self, kernel: str) -> bool | None:
        """See `Requester.is_emulated`."""
        negotiation = self._link.negotiation
        async with self._asking:  # one thread at a time reads the negotiation
            await self._loop.run_in_executor(None, negotiation.update)
        return negotiation.is_emulated(kernel)

    async def signature(self, kernel: str) -> KernelSignature | None:
        """See `Requester.signature`."""
        return (await self.described(kernel)).signature

    async def described(self, kernel: str) -> negotiating.Described:
        """The kernel's signature, how its requests share launches, and how long its sequences last. Raises: as
        `signature`."""
        await self._kernel_id(kernel)
        negotiation = self._link.negotiation
        async with self._asking:
            return await self._loop.run_in_executor(None, negotiation.describe, kernel)

    @property
    def is_connected(self) -> bool:
        """Whether its connection is there; False also while it is being resumed."""
        return self._gone is None and self._returning is None

    @property
    def is_lost(self) -> bool:
        """Whether the session is lost for good: open another requester."""
        return self._gone is not None

    async def kernels(self) -> dict[str, negotiating.KernelInfo]:
        """The kernels by the daemon's last list. Raises: PeerGone: the session is lost for good."""
        if self._gone is not None:
            raise self._gone
        negotiation = self._link.negotiation
        async with self._asking:
            await self._loop.run_in_executor(None, negotiation.update)
        return negotiation.kernels

    async def revision(self) -> tuple[int, int]:
        """Changes whenever kernels or their signatures may have changed: how often the session was resumed, and how
        often the daemon has sent its list since. Raises: as `kernels`."""
        await self.kernels()
        return self._resumed, self._link.negotiation.lists

    async def submit(
        self,
        kernel: str,
        arrays: Iterable[Array | None],
        *,
        timeout: float | None = None,
        options: Options = DEFAULT_OPTIONS,
        taker: Taker | None = None,
    ) -> Result:
        """Run ``kernel`` on ``arrays``. A RETRY_SAFE answer is retried, at most three times, unless the request is of a
        sequence. ``taker``: takes the result where it lies, and the returned one has no arrays.

        Requests that wait for a slot are sent in the order of their calls.
        Cancelling the awaiting task cancels the request at the daemon. So does the timeout of ``timeout`` seconds,
        which includes the wait for a free slot. Raises: RequestFailed, RequestTimeout, UnknownKernel, PayloadTooLarge,
        PeerGone, RequesterShared; and TypeError, ValueError, HeaderError as `Requester.submit`.
        """
        given = as_arrays(arrays)
        number = await self._kernel_id(kernel)
        deadline = None if timeout is None else self._loop.time() + timeout
        for attempt in range(RETRIES + 1):
            try:
                return await self._once(number, given, deadline, options, taker)
            except RequestTimeout:
                raise RequestTimeout(f"no answer within {timeout:g} s") from None
            except RequestFailed as failed:
                if not may_retry(failed, attempt, options):
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def stream(
        self,
        kernel: str,
        arrays: Iterable[Array | None],
        *,
        timeout: float | None = None,
        options: Options = DEFAULT_OPTIONS,
        taker: Taker | None = None,
    ) -> AsyncGenerator[Result, None]:
        """Run a kernel that streams, and yield its answers in order, as `Requester.stream` does. ``taker``: takes each
        answer where it lies, and the yielded ones have no arrays.

        Closing the iterator early cancels the request: by ``aclose``, by `contextlib.aclosing`, or some time after its
        loop was left. Raises: as `submit`. RequestFailed with STREAM_MISMATCH: the kernel does not stream.
        """
        given = as_arrays(arrays)
        number = await self._kernel_id(kernel)
        deadline = None if timeout is None else self._loop.time() + timeout
        for attempt in range(RETRIES + 1):
            stream = Stream(self._loop)
            slot = -1
            try:
                await self._room_in_slots(deadline)
                slot = self._fill(number, given, options, stream, taker, is_stream=True)
                while (result := await self._next(stream, slot, deadline)) is not None:
                    yield result
                return
            except RequestTimeout:
                raise RequestTimeout(f"no answer within {timeout:g} s") from None
            except RequestFailed as failed:
                if not may_retry(failed, attempt, options):
                    raise
            finally:
                self._abandon(stream, slot)

    async def _next(self, stream: Stream, slot: int, deadline: float | None) -> Result | None:
        """The next answer of a stream, once there is one and its connection is there. None: it has ended well."""
        while not stream.has_answer or self._returning is not None:
            if stream.failed is not None:
                raise stream.failed
            await wait(stream.waiting(), deadline)
        if deadline is not None and self._loop.time() >= deadline:
            raise RequestTimeout("no answer in time")
        outcome, has_more = self._take(stream, slot)
        if not isinstance(outcome, Result):
            raise outcome
        return outcome if has_more else None

    def _take(self, stream: Stream, slot: int) -> tuple[Result | OffpathError, bool]:
        """Take the answer of a stream, and make room for the next: the answer, and whether others follow."""
        stream.reset()
        _, outcome = self._slots.take(slot)
        if self._slots.is_stream(slot):
            self._ring(self._slots.next_of(slot))
            return outcome, True
        self._wake_first()
        return outcome, False

    def _abandon(self, stream: Stream, slot: int) -> None:
        """Cancel a stream that has not ended, and throw away the answer in its slot: only then its last one arrives."""
        if self._slots.waiters.get(slot) is not stream:
            return
        self._slots.abandon(slot)  # what the taker writes to may be another's when the answer comes
        stream.is_abandoned = True
        if self._closed or not self.is_connected:
            return  # after a resume, the next answer leads here again
        self._ring(immediate(IMM_CANCEL, slot))
        if stream.has_answer:
            self._take(stream, slot)

    async def _once(
        self, number: int, arrays: Sequence[Array], deadline: float | None, options: Options, taker: Taker | None
    ) -> Result:
        await self._room_in_slots(deadline)
        answer: Answer = self._loop.create_future()
        slot = self._fill(number, arrays, options, answer, taker)
        try:
            return await wait(answer, deadline)
        except (asyncio.CancelledError, RequestTimeout):
            if self._slots.waiters.get(slot) is answer and self._gone is None:
                self._slots.abandon(slot)  # what the taker writes to may be another's when the answer comes
                self._ring(immediate(IMM_CANCEL, slot))
            raise

    def _fill(
        self,
        number: int,
        arrays: Sequence[Array],
        options: Options,
        waiter: Answer | Stream,
        taker: Taker | None,
        *,
        is_stream: bool = False,
    ) -> int:
        """Send a request; there is room for it. Returns its slot."""
        try:
            slot = self._slots.fill(number, arrays, options, waiter, taker, is_stream=is_stream)
        finally:
            self._wake_first()  # there may be another free slot, or this one was not taken
        self._ring(slot)
        return slot

    def _has_room(self) -> bool:
        return self._returning is None and self._slots.has_room()

    async def _room_in_slots(self, deadline: float | None) -> None:
        """Wait for a free slot, behind those that wait already; the caller fills it at once, without an await between.
        Raises: PeerGone, RequestTimeout.
        """
        if self._gone is None and (self._room or not self._has_room()):
            room: asyncio.Future[None] = self._loop.create_future()
            self._room.append(room)
            try:
                await wait(room, deadline)
                while self._gone is None and not self._has_room():  # the connection broke after it was woken
                    self._room[0] = room = self._loop.create_future()
                    await wait(room, deadline)
            except BaseException:
                self._room.remove(room)
                self._wake_first()
                raise
            self._room.remove(room)
        if self._gone is not None:
            raise self._gone

    def _ring(self, imm: int) -> None:
        """The reader resumes a lost connection; so does this method if the doorbell fails first."""
        if self._returning is not None:
            return
        try:
            self._link.session.ring(imm)
        except PeerGone as gone:
            self._lost(gone)

    async def _kernel_id(self, name: str) -> int:
        """A lost connection is resumed first, because its welcome lists the kernels. Raises: RequesterShared."""
        self._owner.check_process()
        if asyncio.get_running_loop() is not self._loop:
            raise RequesterShared("this requester is of another event loop: open one per loop")
        queried: Link | None = None
        while (info := self._link.negotiation.kernels.get(name)) is None:
            if self._returning is not None:
                await asyncio.wait((self._returning,))
            elif self._gone is not None:
                raise self._gone
            elif queried is self._link:
                known = ", ".join(sorted(self._link.negotiation.kernels)) or "none"
                raise UnknownKernel(f"no helper serves {name!r}; served: {known}")
            else:
                queried = self._link
                await self._request_news()
                if self._returning is None and self._gone is None:
                    self._readable()  # detects a lost connection that the loop has not noticed yet
        return info.kernel_id

    async def _request_news(self) -> None:
        queried = self._times_queried
        async with self._asking:  # one thread at a time reads the negotiation, for all waiters
            if queried == self._times_queried:
                negotiation = self._link.negotiation
                await self._loop.run_in_executor(None, negotiation.update, news_wait_s(negotiation))
                self._times_queried += 1

    def _readable(self) -> None:
        try:
            imms = self._link.session.poll()
        except PeerGone as gone:
            self._lost(gone)
            return
        for imm in imms:
            slot = imm & IMM_SLOT_MASK
            if isinstance(stream := self._slots.waiters.get(slot), Stream):
                stream.arrived()
                if stream.is_abandoned:
                    self._abandon(stream, slot)
                continue
            waiter, outcome = self._slots.take(slot)
            if isinstance(waiter, asyncio.Future) and not waiter.done():
                if isinstance(outcome, Result):
                    waiter.set_result(outcome)
                else:
                    waiter.set_exception(outcome)
            self._wake_first()

    def _wake_first(self) -> None:
        """Wake the request that waits for the longest time, if it can be sent. It stays the first one until it has its
        slot: one that is submitted meanwhile waits behind it. `_fill` wakes the next one."""
        if self._room and not self._room[0].done() and self._has_room():
            self._room[0].set_result(None)

    def _lost(self, gone: PeerGone) -> None:
        """The connection broke: resume the session, or fail what is in flight."""
        if self._returning is None and self._gone is None:
            self._loop.remove_reader(self._link.session.fileno())
            self._returning = self._loop.create_task(self._come_back(gone))

    async def _come_back(self, gone: PeerGone) -> None:
        try:
            await self._try_to_come_back(gone)
        except Exception as fault:  # nothing awaits this task: fail the waiters here
            self._returning = None
            self._fail(PeerGone(f"{gone}; not resumed: {fault}"))

    async def _try_to_come_back(self, gone: PeerGone) -> None:
        in_thread = functools.partial(self._loop.run_in_executor, None)
        returning = await in_thread(Return, self._way, self._link, self._slots.unanswered())
        link: Link | None = None
        while link is None and not returning.why_not and not self._closed:
            link = await in_thread(returning.attempt)
            if link is None:
                await asyncio.sleep(returning.wait_s())
        self._returning = None
        if link is None:
            self._fail(PeerGone(f"{gone}; not resumed: {returning.why_not}"))
            return
        self._link = link
        if self._closed:
            return  # `close` awaits this task and closes the link
        self._resumed += 1
        states = [(one.request_id, one.state) for one in link.welcome.resumed]
        for waiter in self._slots.waiters.values():
            if isinstance(waiter, Stream):
                waiter.reset()  # its answer is rung again
        for waiter, state in self._slots.resumed(link.session, states):
            if (failed := outcome_of(state)) is not None:
                fail(waiter, failed)
        self._loop.add_reader(link.session.fileno(), self._readable)
        self._wake_first()

    def _fail(self, gone: PeerGone) -> None:
        """The daemon is lost: everything in flight may or may not have started."""
        self._gone = gone
        for waiter in self._slots.waiters.values():
            fail(waiter, daemon_gone(str(gone)))
        self._slots.waiters.clear()
        for room in self._room:
            if not room.done():
                room.set_exception(gone)

    async def close(self) -> None:
        """Close the session; requests in flight end. Idempotent. In a forked process it does nothing."""
        if self._closed or not self._owner.is_here:
            return
        self._closed = True
        if self._returning is not None:
            await self._returning
        elif self._gone is None:
            self._loop.remove_reader(self._link.session.fileno())
        if self._gone is None:
            self._fail(PeerGone("the session was closed here"))
        await self._loop.run_in_executor(None, self._link.session.close)
        await self._loop.run_in_executor(None, self._link.negotiation.close)

    async def __aenter__(self) -> AsyncRequester:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
