"""The NVML session of migd, opened when it is first needed and again after the driver was gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from offpath.bindings.errors import DriverMismatch, DriverMissing
from offpath.bindings.nvml.session import Nvml


class Driver:
    """Gives out one session. Any thread may use it."""

    def __init__(self, make: Callable[[], Nvml]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._session: Nvml | None = None

    @contextmanager
    def session(self) -> Iterator[Nvml]:
        """The session. If the driver turns out to be missing, the next call opens a new one.

        Raises: DriverMissing, DriverMismatch, NvmlMissing, NvmlError.
        """
        with self._lock:
            if self._session is None:
                self._session = self._make()
            session = self._session
        try:
            yield session
        except (DriverMissing, DriverMismatch):
            self._drop(session)
            raise

    def close(self) -> None:
        """End the session. Idempotent."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def _drop(self, session: Nvml) -> None:
        with self._lock:
            if self._session is session:
                self._session = None
        session.close()
