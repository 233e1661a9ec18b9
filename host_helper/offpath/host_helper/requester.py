"""The blocking requester: many requests in flight, no thread of its own.

with connect(tenant="vision", token_file="vision.token") as requester:
    result = requester.submit("classify", [images])
    print(result.array)
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterable
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from offpath.bindings import faults
from offpath.bindings.errors import OffpathError, PeerGone
from offpath.bindings.ports import IMM_CANCEL, IMM_CREDIT, IMM_SLOT_MASK, immediate
from offpath.bindings.wire import negotiating
from offpath.bindings.wire.signatures import KernelSignature
from offpath.host_helper.errors import RequestFailed, RequestTimeout, SlotsHeld, UnknownKernel
from offpath.host_helper.negotiate import Negotiation, Tls
from offpath.host_helper.owner import Owner
from offpath.host_helper.pending import Pending
from offpath.host_helper.request_arrays import Array, as_arrays
from offpath.host_helper.resume import Return, Way, outcome_of
from offpath.host_helper.retries import RETRIES, may_retry
from offpath.host_helper.slots import DEFAULT_OPTIONS, Options, Result, SlotTable, daemon_gone

_LONGEST_WAIT_S = 86_400.0
"""Longest single wait; a longer timeout, math.inf included, is split. poll(2) accepts at most 24 days."""


def news_wait_s(negotiation: Negotiation) -> float:
    """How long to wait for an unknown kernel: long while no helper has joined, short once kernels are listed."""
    return 1.0 if negotiation.kernels else 10.0


class Requester:
    """One session, for the process that opens it and one thread at a time: others get RequesterShared."""

    def __init__(
        self,
        address: str | os.PathLike[str] | None = None,
        *,
        tenant: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        tls: Tls | None = None,
        **options: Any,
    ) -> None:
        """Negotiate and connect; ``options`` as in `offpath.host_helper.opening.open_session`."""
        self._owner = Owner()
        self._way = Way(address, tenant=tenant, token_file=token_file, tls=tls, **options)
        self._link = self._way.first()
        self._slots: SlotTable[Pending] = SlotTable(self._link.session)
        self._lost: PeerGone | None = None
        self._return: Return | None = None
        self._gone: PeerGone | None = None
        self._closed = False

    @property
    def owner(self) -> Owner:
        """Who may use it."""
        return self._owner

    @property
    def welcome(self) -> negotiating.Welcome:
        """The parameters that the daemon granted."""
        return self._link.welcome

    def is_durable(self) -> bool:
        """Whether the session and its accepted requests outlive the daemon's process. True once the daemon's service
        manager has acknowledged the memory; False without a service manager, and briefly after the session is opened.
        """
        with self._owner:
            if not self._link.negotiation.is_durable:
                self._link.negotiation.update()
        return self._link.negotiation.is_durable

    def is_emulated(self, kernel: str) -> bool | None:
        """Whether answers of ``kernel`` come from an emulated GPU: the CPU of the helper's host computes them.

        None: not known, because no helper has offered the kernel since the daemon's process started.
        """
        with self._owner:
            self._link.negotiation.update()
        return self._link.negotiation.is_emulated(kernel)

    def signature(self, kernel: str) -> KernelSignature | None:
        """The inputs and outputs that ``kernel`` declares. None: it declares none, or no helper has offered it since
        the daemon's process started. Raises: UnknownKernel, PeerGone.
        """
        with self._owner:
            self._kernel_number(kernel, None)
            return self._link.negotiation.describe(kernel).signature

    def submit(
        self,
        kernel: str,
        arrays: Iterable[NDArray[Any] | None],
        *,
        timeout: float | None = None,
        options: Options = DEFAULT_OPTIONS,
    ) -> Result:
        """Run ``kernel`` on ``arrays`` and wait for its result. A RETRY_SAFE answer is retried, at most three times,
        unless the request is of a sequence.

        Args:
            timeout: seconds in all, including the wait for a free slot; None: no limit.

        Raises: RequestFailed, RequestTimeout, UnknownKernel, PayloadTooLarge, PeerGone, RequesterShared. TypeError:
        ``arrays`` is no list of arrays, or the wire has no code for a dtype. ValueError: text that UTF-8 cannot
        express. HeaderError: more than 80 arrays, or six dimensions. Nothing was sent then.
        """
        given = as_arrays(arrays)
        deadline = None if timeout is None else time.monotonic() + timeout
        for attempt in range(RETRIES + 1):
            try:
                with self._owner:
                    return self._begin(kernel, given, options, deadline)._result(deadline)
            except RequestTimeout:
                raise RequestTimeout(f"no answer within {timeout:g} s") from None
            except RequestFailed as failed:
                if not may_retry(failed, attempt, options):
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def stream(
        self,
        kernel: str,
        arrays: Iterable[NDArray[Any] | None],
        *,
        timeout: float | None = None,
        options: Options = DEFAULT_OPTIONS,
    ) -> Generator[Result, None, None]:
        """Run a kernel that streams, and yield its answers in order. The request begins with the first ``next``.
        Closing the iterator early, also by leaving its loop, cancels the request.

        While an answer is not taken, the next one waits, and the kernel with it. ``options.is_idempotent`` has no
        effect: a stream is never run again.

        Args:
            timeout: seconds in all, including the wait for a free slot and the caller's own time; None: no limit.

        Raises: as `submit`. RequestFailed with STREAM_MISMATCH: the kernel does not stream. After an error nothing
        follows; the answers before it are good. RETRY_SAFE is retried, as by `submit`. SlotsHeld, also of `submit` and
        `begin`: all slots have answers of streams that were not taken.
        """
        given = as_arrays(arrays)
        deadline = None if timeout is None else time.monotonic() + timeout
        for attempt in range(RETRIES + 1):
            try:
                with self._owner:
                    pending = self._begin(kernel, given, options, deadline, is_stream=True)
            except RequestTimeout:
                raise RequestTimeout(f"no answer within {timeout:g} s") from None
            try:
                while True:
                    try:
                        with self._owner:
                            result = pending.next_answer(deadline)
                    except RequestTimeout:
                        raise RequestTimeout(f"no answer within {timeout:g} s") from None
                    except RequestFailed as failed:
                        if not may_retry(failed, attempt, options):
                            raise
                        break
                    if result is None:
                        return
                    yield result
            finally:
                if self._owner.is_here:  # else a forked process lets go of its copy
                    with self._owner:
                        pending.abandon()

    def begin(
        self, kernel: str, arrays: Iterable[NDArray[Any] | None], *, options: Options = DEFAULT_OPTIONS
    ) -> Pending:
        """Start a request; blocks only while all slots are in flight. Raises: as `submit`, except for the outcome."""
        with self._owner:
            return self._begin(kernel, as_arrays(arrays), options, None)

    def _begin(
        self,
        kernel: str,
        arrays: tuple[Array, ...],
        options: Options,
        deadline: float | None,
        *,
        is_stream: bool = False,
    ) -> Pending:
        number = self._kernel_number(kernel, deadline)
        while self._gone is None and (self._lost is not None or not self._slots.has_room()):
            self._check_slots()
            self._poll_until(deadline)
        if self._gone is not None:
            raise self._gone
        pending = Pending(self, -1)
        pending._slot = slot = self._slots.fill(number, arrays, options, pending, is_stream=is_stream)
        if faults.armed:
            faults.hit("requester.filled")
        self.ring(slot)
        return pending

    def _check_slots(self) -> None:
        """Raises: SlotsHeld: waiting for a slot would never end."""
        waiters = self._slots.waiters.values()
        if self.is_connected and waiters and all(each.has_answer and not each.is_abandoned for each in waiters):
            raise SlotsHeld(
                f"all {len(waiters)} slots have answers of streams that were not taken: take them, close a stream, or "
                "connect with more slots"
            )

    def _kernel_number(self, name: str, deadline: float | None) -> int:
        """As `kernel_id`. A lost connection is resumed first, because its welcome lists the kernels."""
        while True:
            while self._gone is None and self._lost is not None:
                self._poll_until(deadline)
            if self._gone is not None:
                raise self._gone
            link = self._link
            try:
                return self.kernel_id(name)
            except UnknownKernel:
                self.poll()
                if self._link is link and self._lost is None:
                    raise

    def _poll_until(self, deadline: float | None) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise RequestTimeout("no slot became free")
        self.poll(left)

    def kernel_id(self, name: str) -> int:
        """The kernel's number. For an unknown name, reads the daemon's updates once. Raises: UnknownKernel."""
        negotiation = self._link.negotiation
        info = negotiation.kernels.get(name)
        if info is None:
            with self._owner:
                negotiation.update(news_wait_s(negotiation))
            info = negotiation.kernels.get(name)
        if info is None:
            known = ", ".join(sorted(negotiation.kernels)) or "none"
            raise UnknownKernel(f"no helper serves {name!r}; served: {known}")
        return info.kernel_id

    def fileno(self) -> int:
        """Readable when `poll` has something to read: for one loop of the caller's over many requesters. Another
        descriptor after a lost connection is resumed."""
        return self._link.session.fileno()

    def poll(self, timeout: float | None = 0.0) -> int:
        """Read the answers that have arrived, waiting up to ``timeout`` s for the first. Returns their number.

        Resumes a lost connection for as long as the daemon keeps the session. When resumption is no longer possible,
        all requests in flight end OUTCOME_UNKNOWN. Raises: PeerGone: the session is lost and nothing was in flight.
        RequesterShared.
        """
        with self._owner:
            return self._poll(timeout)

    def _poll(self, timeout: float | None) -> int:
        if self._lost is None and self._gone is None:
            try:
                imms = self._link.session.wait(None if timeout is None else min(timeout, _LONGEST_WAIT_S))
            except PeerGone as gone:
                self._lost = gone
            else:
                if faults.armed and imms:
                    faults.hit("requester.answer")
                for imm in imms:
                    self._answered(imm & IMM_SLOT_MASK)
                return len(imms)
        if self._lost is not None and self._gone is None:
            ended = self._come_back(self._lost, timeout)
            if ended is not None:
                return ended
        if self._gone is None:
            return 0
        if not self._slots.waiters:
            raise self._gone
        failed = daemon_gone(str(self._gone))
        for waiter in self._slots.waiters.values():
            waiter.outcome = failed
        count = len(self._slots.waiters)
        self._slots.waiters.clear()
        return count

    def _answered(self, slot: int) -> None:
        """Take an answer. One of a stream stays in its slot until its caller wants it."""
        if self._slots.is_stream(slot):
            pending = self._slots.waiters[slot]
            pending.has_answer = True
            if pending.is_abandoned:
                self.skip(pending, slot)
            return
        waiter, outcome = self._slots.take(slot)
        if waiter is not None:
            waiter.outcome = outcome

    @property
    def is_connected(self) -> bool:
        """Whether its connection is there; False also while it is being resumed."""
        return self._lost is None and self._gone is None

    def take(self, pending: Pending, slot: int) -> Result | OffpathError:
        """Take the answer of a stream, and make room for the next. The last one becomes the outcome."""
        pending.has_answer = False
        _, outcome = self._slots.take(slot)
        if self._slots.is_stream(slot):
            self.ring(self._slots.next_of(slot))
        else:
            pending.outcome = outcome
        return outcome

    def skip(self, pending: Pending, slot: int) -> None:
        """Cancel a stream, and throw away the answer in its slot: only then does its last answer arrive."""
        if self._closed or not self.is_connected:
            return  # after a resume, the next answer leads here again
        self.ring(immediate(IMM_CANCEL, slot))
        if pending.has_answer:
            self.take(pending, slot)

    def _come_back(self, lost: PeerGone, timeout: float | None) -> int | None:
        """Try to resume for up to ``timeout`` s. Returns the number of requests that ended by it; None: not resumed
        (yet).
        """
        if self._return is None:
            self._return = Return(self._way, self._link, self._slots.unanswered())
        returning = self._return
        end = None if timeout is None else time.monotonic() + timeout
        while not returning.why_not:
            link = returning.attempt()
            if link is not None:
                self._link, self._lost, self._return = link, None, None
                for pending in self._slots.waiters.values():
                    pending.has_answer = False  # it is rung again
                states = [(one.request_id, one.state) for one in link.welcome.resumed]
                ended = self._slots.resumed(link.session, states)
                for waiter, state in ended:
                    waiter.outcome = outcome_of(state)
                return len(ended)
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return None
            time.sleep(returning.wait_s() if left is None else min(left, returning.wait_s()))
        self._gone = PeerGone(f"{lost}; not resumed: {returning.why_not}")
        return None

    def ring(self, imm: int) -> None:
        """Ring the doorbell. `poll` detects a lost connection and resumes it."""
        if self._lost is not None:
            return
        try:
            self._link.session.ring(imm)
        except PeerGone as gone:
            self._lost = gone

    def return_credit(self, slot: int) -> None:
        """Return the credit of an answer that was read. Submitting into ``slot`` returns it too, at no cost."""
        with self._owner:
            self.ring(immediate(IMM_CREDIT, slot))

    def close(self) -> None:
        """Close the session; the daemon cancels the requests in flight. Idempotent. In a forked process it does
        nothing: the session is its opener's. Raises: RequesterShared: another thread is using it."""
        if not self._owner.is_here:
            return
        with self._owner:
            self._close()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            for pending in self._slots.waiters.values():
                if pending.has_answer:  # of a stream: its memory is about to be unmapped
                    pending.outcome = daemon_gone("the session was closed here")
            self._link.session.close()
            self._link.negotiation.close()

    def __enter__(self) -> Requester:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(address: str | os.PathLike[str] | None = None, **options: Any) -> Requester:
    """A blocking requester; see `Requester`. ``address`` None: the local daemon."""
    return Requester(address, **options)
