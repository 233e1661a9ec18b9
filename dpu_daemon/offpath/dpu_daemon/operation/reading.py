"""Reads a configuration beside the event loop, within a time limit: a file may be large, slow or malicious."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from offpath.bindings.errors import OffpathError
from offpath.dpu_daemon.config import ConfigError

READ_S: Final = 30.0
"""Time limit. A thread that exceeds it is abandoned; `Reading.run` refuses further work until it ends."""
_T = TypeVar("_T")


class Reading:
    """``file``: named in errors."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[[], _T]) -> _T:
        """The result of ``work``, run in its own thread: if it hangs, neither the loop nor the process's end waits.
        Raises: ConfigError: for any failure."""
        if self._thread is not None and self._thread.is_alive():
            raise ConfigError(f"{self._file}: an earlier reload is still reading the sources")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_T] = loop.create_future()

        def succeeded(result: _T) -> None:
            if not done.done():
                done.set_result(result)

        def failed(fault: ConfigError) -> None:
            if not done.done():
                done.set_exception(fault)

        def run() -> None:
            try:
                report = partial(succeeded, work())
            except (OffpathError, OSError) as known:
                report = partial(failed, ConfigError(str(known), getattr(known, "faults", ())))
            except Exception as unknown:  # of any kind: a bad file must not end the process
                report = partial(failed, ConfigError(f"{self._file}: {type(unknown).__name__}: {unknown}"))
            if not loop.is_closed():
                loop.call_soon_threadsafe(report)

        self._thread = threading.Thread(target=run, name="offpath-reload", daemon=True)
        self._thread.start()
        try:
            async with asyncio.timeout(READ_S):
                return await done
        except TimeoutError:
            raise ConfigError(f"{self._file}: not read within {READ_S:g} s") from None
