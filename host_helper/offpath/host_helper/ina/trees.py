"""The trees that a rank is attached to, by epoch: joins, keeps, leaves and polls them as the machine requires."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterable
from typing import Final

from offpath.bindings.errors import OffpathError
from offpath.bindings.ina.port import InaFabric, TreeEvent, TreeLost, TreeSession
from offpath.sched.ina.protocol.records import EpochRecord, Operation

AGAIN_S: Final = 1.0
"""Pause after a failed attempt to join: the switch may have been restarted, and gets the permission again."""


class Trees:
    """``fabric`` None: there are no trees to join. `wake` and `wait` may be called concurrently with other
    calls; everything else from one thread at a time.
    """

    def __init__(self, fabric: InaFabric | None, rank: int) -> None:
        self._fabric = fabric
        self._rank = rank
        self._sessions: dict[int, TreeSession] = {}
        self._not_before: dict[int, float] = {}
        self._active: TreeSession | None = None
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def follow(self, wanted: Iterable[EpochRecord]) -> None:
        """Attach to exactly these epochs' trees."""
        epochs = {each.stamp: each for each in wanted}
        for stamp in [stamp for stamp in self._sessions if stamp not in epochs]:
            self._close(stamp)
        self._not_before = {stamp: at for stamp, at in self._not_before.items() if stamp in epochs}
        if self._fabric is None:
            return
        for stamp, epoch in epochs.items():
            if stamp in self._sessions or time.monotonic() < self._not_before.get(stamp, 0.0):
                continue
            assert epoch.grant is not None
            self._not_before[stamp] = time.monotonic() + AGAIN_S
            try:
                session = self._fabric.attach(
                    epoch.grant.attach[self._rank], job=epoch.job, incarnation=epoch.incarnation, stamp=stamp,
                    rank=self._rank, ranks=len(epoch.grant.attach), token=epoch.grant.token,
                )  # fmt: skip
            except OffpathError:  # an invalid address: the controller's input is not trusted
                continue
            self._sessions[stamp] = session

    def start(self, operation: Operation, source: memoryview, target: memoryview, *, is_last: bool) -> bool:
        """Start an operation; ``is_last``: of its step. False: the tree was just lost, which `poll` reports."""
        session = self._sessions.get(operation.stamp)
        if session is None or session.fileno() < 0:
            return False
        session.start(operation.index, operation.dtype, source, target, is_last=is_last)
        self._active = session
        return True

    def poll(self, timeout_s: float) -> list[tuple[int, TreeEvent]]:
        """Events within ``timeout_s``, by stamp; returns at once after an event, or after `wake`."""
        active = self._active
        found = self._read_events(skip=active)
        if active is not None and active.fileno() >= 0:
            if (event := active.poll(0.0 if found else timeout_s)) is not None:
                found.append((self._stamp(active), event))
                self._active = None
            return found
        if not found and timeout_s:
            self.wait(timeout_s)
            found = self._read_events()
        return found

    def wait(self, timeout_s: float) -> None:
        """Wait until `poll` may return something, or until `wake`. May be called concurrently with other calls."""
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        for session in tuple(self._sessions.values()):
            if (fd := session.fileno()) >= 0:
                poller.register(fd, select.POLLIN)
        for fd, _ in poller.poll(timeout_s * 1e3):
            if fd == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)

    def wake(self) -> None:
        """Make `poll` return soon."""
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def drop(self, stamp: int) -> None:
        """Detach from a lost tree."""
        if stamp in self._sessions:
            self._close(stamp)

    def close(self) -> None:
        """Leave all trees. Idempotent."""
        for stamp in list(self._sessions):
            self._close(stamp)
        if self._wake >= 0:
            wake, self._wake = self._wake, -1
            os.close(wake)

    # -- inside ---------------------------------------------------------------------------------------------------
    def _read_events(self, skip: TreeSession | None = None) -> list[tuple[int, TreeEvent]]:
        found = []
        for stamp, session in list(self._sessions.items()):
            if session is skip and session.fileno() >= 0:
                continue
            while (event := session.poll(0.0)) is not None:
                found.append((stamp, event))
                if isinstance(event, TreeLost):
                    self._close(stamp)
                    break
        return found

    def _stamp(self, session: TreeSession) -> int:
        return next(stamp for stamp, each in self._sessions.items() if each is session)

    def _close(self, stamp: int) -> None:
        session = self._sessions.pop(stamp)
        if session is self._active:
            self._active = None
        session.close()
