"""A request of the blocking requester that is in flight."""

from __future__ import annotations

import time
from typing import Protocol

from offpath.bindings.errors import OffpathError
from offpath.bindings.ports import IMM_CANCEL, immediate
from offpath.host_helper.errors import RequestTimeout
from offpath.host_helper.owner import Owner
from offpath.host_helper.slots import Result


class Sender(Protocol):
    """The requester of a request, as far as that needs it: see `offpath.host_helper.requester.Requester`."""

    @property
    def owner(self) -> Owner:
        """Whose turn it is."""

    @property
    def is_connected(self) -> bool:
        """Whether its connection is there."""

    def poll(self, timeout: float | None) -> int:
        """Read the answers that have arrived, waiting up to ``timeout`` s for the first."""

    def ring(self, imm: int) -> None:
        """Ring the doorbell."""

    def take(self, pending: Pending, slot: int) -> Result | OffpathError:
        """Take the answer of a stream."""

    def skip(self, pending: Pending, slot: int) -> None:
        """Cancel a stream, and throw away the answer in its slot."""


class Pending:
    """A request in flight. `result` waits for the answer; `cancel` cancels the request."""

    def __init__(self, requester: Sender, slot: int) -> None:
        self._requester = requester
        self._slot = slot
        self.outcome: Result | OffpathError | None = None
        self.has_answer = False
        """Of a stream: its slot has an answer that was not taken."""
        self.is_abandoned = False
        """Of a stream: its answers are thrown away."""

    @property
    def done(self) -> bool:
        """True once the answer has been read. `result` on any request, or `Requester.poll`, reads all that arrived."""
        return self.outcome is not None

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the answer.

        Args:
            timeout: seconds; None: no limit. On timeout the request is cancelled.

        Raises: RequestFailed: any end but COMPLETED. RequestTimeout: no answer within ``timeout``. RequesterShared.
        """
        try:
            with self._requester.owner:
                return self._result(None if timeout is None else time.monotonic() + timeout)
        except RequestTimeout:
            raise RequestTimeout(f"no answer within {timeout:g} s") from None

    def _result(self, deadline: float | None) -> Result:
        while self.outcome is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                self.cancel()
                raise RequestTimeout("no answer in time")
            self._requester.poll(left)
        if not isinstance(self.outcome, Result):
            raise self.outcome
        return self.outcome

    def next_answer(self, deadline: float | None) -> Result | None:
        """Wait for the next answer of a stream; None: it has ended well. Raises: as `result`."""
        requester = self._requester
        while self.outcome is None and not (self.has_answer and requester.is_connected):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise RequestTimeout("no answer in time")
            requester.poll(left)
        if self.outcome is None and deadline is not None and time.monotonic() >= deadline:
            raise RequestTimeout("no answer in time")
        outcome = self.outcome or requester.take(self, self._slot)
        if not isinstance(outcome, Result):
            raise outcome
        return outcome if self.outcome is None else None

    def abandon(self) -> None:
        """Cancel a stream that has not ended, and throw its answers away. Idempotent."""
        if self.outcome is None and not self.is_abandoned:
            self.is_abandoned = True
            self._requester.skip(self, self._slot)

    def cancel(self) -> None:
        """Request cancellation. The answer still arrives: CANCELLED, or the outcome if the request ended earlier.
        Raises: RequesterShared."""
        if self.outcome is None:
            with self._requester.owner:
                self._requester.ring(immediate(IMM_CANCEL, self._slot))
