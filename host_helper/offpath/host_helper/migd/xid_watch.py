"""A thread that waits for Xid events and passes them on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from offpath.bindings.errors import DeviceError
from offpath.bindings.nvml.events import XidEvents
from offpath.bindings.nvml.records import XidEvent
from offpath.host_helper.migd.driver import Driver

logger = logging.getLogger(__name__)
_WAIT_MS: Final = 500
_AGAIN_S: Final = 5.0


class XidWatch:
    """Runs from construction until `close`. ``gpus``: those to watch now. After an error of NVML it begins again."""

    def __init__(self, driver: Driver, gpus: Callable[[], list[str]], receive: Callable[[XidEvent], None]) -> None:
        self._driver = driver
        self._gpus = gpus
        self._receive = receive
        self._stop = threading.Event()
        self._last_fault = ""
        self._thread = threading.Thread(target=self._run, name="migd-xid", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; waits for the thread."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._watch()
            except DeviceError as fault:
                if str(fault) != self._last_fault:
                    logger.warning("migd: Xid events are not received: %s", fault)
                self._last_fault = str(fault)
                self._stop.wait(_AGAIN_S)

    def _watch(self) -> None:
        gpus = self._gpus()
        with self._driver.session() as nvml:
            events = XidEvents(nvml, gpus)
            try:
                while not self._stop.is_set():
                    event = events.wait(_WAIT_MS)
                    self._last_fault = ""
                    if event is not None:
                        self._receive(event)
            finally:
                events.close()
