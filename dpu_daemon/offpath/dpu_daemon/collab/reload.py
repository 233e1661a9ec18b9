"""SIGHUP: reads the configuration again and applies all of it or none of it.

A file that cannot be used, or that changes what a running controller cannot change, is refused: all faults are logged,
the refusal is counted, and the configuration in force stays. Leases, rounds and connections stay in any case.
"""

from __future__ import annotations

import asyncio
import logging

from offpath.bindings.errors import HostChannelError
from offpath.dpu_daemon.collab.config import Loaded, check_reload, load
from offpath.dpu_daemon.collab.running import Running
from offpath.dpu_daemon.collab.tokens import Tokens
from offpath.dpu_daemon.config import ConfigError
from offpath.dpu_daemon.durability.notify import Notifier
from offpath.dpu_daemon.operation import logs
from offpath.dpu_daemon.operation.reading import Reading

logger = logging.getLogger(__name__)


class Reloader:
    """``path``: of the configuration; ``loaded``: in force, the first one. ``generation`` counts them. ``hung_up``: set
    by SIGHUP; signals that come during a reload are one further reload."""

    def __init__(
        self, running: Running, path: str, loaded: Loaded, notifier: Notifier, hung_up: asyncio.Event
    ) -> None:  # fmt: skip
        self._running, self._path, self._loaded, self._notifier = running, path, loaded, notifier
        self._reading = Reading(path)
        self._hung_up = hung_up
        self.generation = 1

    async def run(self) -> None:
        """Reload after each SIGHUP, without end."""
        while True:
            await self._hung_up.wait()
            self._hung_up.clear()
            self._notifier.reloading()
            await self.reload()
            self._notifier.ready(f"policy {self._running.shell.book.policy.name}, configuration {self.generation}")

    async def reload(self) -> bool:
        """True if a new configuration is in force."""
        counts = self._running.shell.counts
        try:
            found = await self._reading.run(self._read)
            self._apply(found)
        except (ConfigError, HostChannelError) as fault:
            counts.reloads_refused += 1
            logger.warning(
                "configuration %d stays in force: %s", self.generation, fault, extra={"code": "config_refused"}
            )
            return False
        counts.reloads += 1
        self.generation += 1
        logger.warning("configuration %d is in force", self.generation, extra={"code": "config_changed"})
        return True

    def _read(self) -> Loaded:
        """Raises: ConfigError: also for settings that need a restart."""
        found = load(self._path)
        check_reload(self._path, self._loaded, found)
        return found

    def _apply(self, found: Loaded) -> None:
        """Raises: HostChannelError: the gateways' list, before anything has changed."""
        running, config = self._running, found.config
        tokens = Tokens(found.token_keys)  # what may fail comes first
        if running.gateways is not None:
            running.gateways.reload(found.gateways)
        if running.http is not None and config.http is not None:
            running.http.reload(config.http, found.tls)
        running.devices.reload(tokens, config.devices)
        running.shell.reload(config)
        logs.set_up(config.operation.log)
        self._loaded = found
