"""Resumes a session after its connection was lost: the daemon restarted, or the link broke.

The slots and the requests and answers in them remain; the negotiation and the doorbells are new.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, repeat
from typing import Any, Final

from offpath.bindings.errors import (
    ControlError,
    DaemonNotTrusted,
    DeviceError,
    NegotiationRefused,
    OptionRefused,
    PeerGone,
    RegionError,
    TicketRefused,
)
from offpath.bindings.ports import RequesterSession
from offpath.bindings.wire import negotiating
from offpath.bindings.wire.codes import Reason, Status
from offpath.host_helper.errors import RequestFailed
from offpath.host_helper.negotiate import Negotiation, check_timeout
from offpath.host_helper.opening import open_session

_PAUSE_S: Final = 0.02
_VERBS_PAUSE_S: Final = (0.1, 5.0)
"""Least and greatest pause where an attempt costs both sides a queue pair."""
_NOBODY_S: Final = 3.0
"""How long the daemon's socket may be missing: under a service manager it stays open even while the daemon starts."""
_PACED: Final = "sessions_too_soon"
_STAYS: Final = ("daemon_restarts", "")


@dataclass(slots=True)
class Link:
    """The parts of a session that are lost with its connection."""

    negotiation: Negotiation
    welcome: negotiating.Welcome
    session: RequesterSession


class Way:
    """The parameters that opened a session, to open it again."""

    def __init__(self, address: str | os.PathLike[str] | None, *, timeout_s: float = 10.0, **options: Any) -> None:
        """Raises: OptionRefused: a bad ``timeout_s``."""
        check_timeout(timeout_s)
        self._address = address
        self._options = {"timeout_s": timeout_s, **options}
        self._timeout_s = timeout_s

    def first(self) -> Link:
        """Open a new session. If the tenant connects too often, retry within ``timeout_s``. Raises: as `open`."""
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                return self.open()
            except NegotiationRefused as refused:
                wait_s = refused.retry_after_ms / 1e3
                if refused.code != _PACED or time.monotonic() + wait_s > until:
                    raise
                time.sleep(wait_s)

    def open(self, resume: negotiating.Resume | None = None) -> Link:
        """Raises: as `offpath.host_helper.opening.open_session`."""
        return Link(*open_session(self._address, resume=resume, **self._options))


class Return:
    """The attempts to resume after one loss. ``unanswered``: the ids of the requests in flight, and how many
    answers of each were taken.

    Call `attempt` until it returns a link, or until `why_not` gives the reason why resumption is impossible.
    """

    def __init__(self, way: Way, lost: Link, unanswered: list[tuple[int, int]]) -> None:
        lost.negotiation.update()
        closing = lost.negotiation.closing
        lost.negotiation.abandon()
        lost.session.close()
        welcome = lost.welcome
        self._way = way
        self._resume = negotiating.Resume(
            session=welcome.session, lineage=welcome.lineage, token=welcome.resume_token,
            unanswered=[request for request, _ in unanswered],
            taken=[taken for _, taken in unanswered] if any(taken for _, taken in unanswered) else [],
        )  # fmt: skip
        now = time.monotonic()
        self._until = now + welcome.resume_ttl_s
        self._nobody_until = now + _NOBODY_S
        self._next = now
        self._pauses = _pauses(welcome.fabric.carrier)
        self.why_not = ""
        if closing is not None and closing.code not in _STAYS:
            self.why_not = f"{closing.code}: {closing.detail}"
        elif not welcome.resume_ttl_s:
            self.why_not = "the daemon does not keep sessions"

    def wait_s(self) -> float:
        """Seconds until the next attempt."""
        return max(0.0, self._next - time.monotonic())

    def attempt(self) -> Link | None:
        """Try once; None: not yet, or never (`why_not`)."""
        try:
            return self._way.open(self._resume)
        except NegotiationRefused as refused:
            if not refused.retry_after_ms:
                self.why_not = str(refused)
            self._next = time.monotonic() + max(next(self._pauses), refused.retry_after_ms / 1e3)
        except (PeerGone, TicketRefused) as gone:
            now = time.monotonic()
            is_missing = isinstance(gone.__cause__ or gone.__context__, (ConnectionRefusedError, FileNotFoundError))
            if now >= self._until or (is_missing and now >= self._nobody_until):
                self.why_not = str(gone)
            if not is_missing:
                self._nobody_until = now + _NOBODY_S
            self._next = now + next(self._pauses)
        except DeviceError as fault:  # this port, or the path to the daemon's: may recover
            if time.monotonic() >= self._until:
                self.why_not = str(fault)
            self._next = time.monotonic() + next(self._pauses)
        except (ControlError, RegionError, DaemonNotTrusted, OptionRefused) as broken:
            self.why_not = str(broken)
        return None


def _pauses(carrier: str) -> Iterator[float]:
    """Pauses between attempts, in s. Growing pauses have jitter, so that clients that failed together do not retry
    together.
    """
    if carrier != "verbs":
        yield from repeat(_PAUSE_S)
    least, most = _VERBS_PAUSE_S
    for doubled in count():
        yield random.uniform(least, min(most, least * 2 ** min(doubled, 10)))


def outcome_of(state: str) -> RequestFailed | None:
    """The outcome of a resumed request whose answer will not be rung; None: it will be."""
    if state == "retry_safe":
        return RequestFailed(Status.RETRY_SAFE, Reason.DAEMON_RESTARTED, 0, "it had not reached the daemon")
    if state == "unknown":
        return RequestFailed(Status.OUTCOME_UNKNOWN, Reason.DAEMON_RESTARTED, 0, "its answer is lost")
    return None
