"""SIGHUP: reads the configuration sources again and applies all of the new configuration or none of it.

A separate thread reads, parses and checks the sources within a time limit, because a file may be large, slow or
malicious. Any failure refuses the reload: all faults are logged, the refusal is counted, and the configuration in force
stays. Changing a setting that needs a restart is also a fault.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from functools import partial

from offpath.dpu_daemon.config import (
    ConfigError,
    DaemonConfig,
    Loaded,
    Sources,
    TenantTable,
    lastgood,
    server_context,
)
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.ingress.admission import credentials
from offpath.dpu_daemon.ingress.negotiation import Negotiator
from offpath.dpu_daemon.operation.reading import Reading
from offpath.dpu_daemon.policy.plugins import PluginError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Read:
    """Everything that can be prepared without changing the daemon."""

    loaded: Loaded
    known: dict[str, tuple[TenantTable, str | None]]
    tls: ssl.SSLContext | None


class Reloader:
    """Counts ``reloads`` and ``reloads_failed``; `ConfigInForce.generation` numbers the configuration in force.

    ``directory``: where the configuration in force is saved, if a restart can continue the journal.
    """

    def __init__(self, daemon: Daemon, negotiator: Negotiator, sources: Sources, directory: str | None = None) -> None:
        self._daemon = daemon
        self._negotiator = negotiator
        self._sources = sources
        self._directory = directory if daemon.requests.book_loop.journal is not None else None
        self._turn = asyncio.Lock()
        self._reading = Reading(sources.file)

    async def reload(self) -> bool:
        """Runs one reload at a time. True if a new configuration is in force."""
        async with self._turn:
            counters = self._daemon.counters
            try:
                await self._try()
            except asyncio.CancelledError:
                self._daemon.plugin.drop()
                raise
            except (ConfigError, PluginError, OSError) as fault:
                self._daemon.plugin.drop()
                counters["reloads_failed"] += 1
                logger.warning(
                    "configuration %d stays in force: %s",
                    self._daemon.settings.generation,
                    fault,
                    extra={"code": "config_refused"},
                )
                return False
            await self.keep()  # before success is reported: from then on a crash must not restore an older one
            counters["reloads"] += 1
            logger.warning(
                "configuration %d is in force", self._daemon.settings.generation, extra={"code": "config_changed"}
            )
            return True

    async def keep(self) -> None:
        """Save the configuration in force as the last good one. Failures are logged."""
        if self._directory is None:
            return
        write = partial(lastgood.keep, self._directory, self._daemon.identity.lineage, self._daemon.settings.config)
        try:
            await asyncio.get_running_loop().run_in_executor(None, write)
        except OSError as fault:
            logger.warning(
                "could not save the active configuration for a restart: %s",
                fault,
                extra={"code": "config_not_kept"},
            )

    async def _try(self) -> None:
        """Completes everything that can fail before the first change. Raises: ConfigError, PluginError, OSError."""
        read = await self._reading.run(partial(_read, self._sources, self._daemon.settings.config))
        loaded, config = read.loaded, read.loaded.config
        await self._daemon.plugin.prepare(config)
        self._negotiator.set_modes(config)
        if read.tls is not None:
            self._negotiator.renew_tls(read.tls)
        self._negotiator.reload(config, read.known)
        self._daemon.reconfigure(config)
        for warning in loaded.warnings:
            logger.warning("%s: %s", warning.path, warning.text, extra={"code": "config_warning"})


def _read(sources: Sources, in_force: DaemonConfig) -> _Read:
    """Raises: ConfigError: also for settings that need a restart."""
    loaded = sources.read()
    sources.check_reload(in_force, loaded)
    config = loaded.config
    return _Read(loaded, credentials(config), server_context(config.tls) if config.tls is not None else None)
