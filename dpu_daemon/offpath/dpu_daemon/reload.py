"""SIGHUP: read the same sources again; all of it comes into force, or nothing.

What is wrong is logged, every fault of it, and counted; the configuration in force stays. What a running daemon cannot
change is a fault that says so.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from offpath.dpu_daemon.admission import credentials
from offpath.dpu_daemon.config import ConfigError, DaemonConfig, Fault, Sources, config_error, server_context
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.negotiation import Negotiator
from offpath.dpu_daemon.plugins import PluginError

logger = logging.getLogger(__name__)
NEEDS_RESTART: Final = (
    "leasing.lanes", "leasing.landing_bytes", "leasing.result_bytes", "tls.listen", "datapath.fabric",
    "datapath.copy_engine", "datapath.host_channel", "rdma.device", "rdma.netdev", "rdma.near", "rdma.seal",
    "doca.device", "doca.path", "doca.representor", "doca.comch_name", "zmq.bind", "zmq.key_file", "zmq.domain",
    "ina.controller", "ina.server_key_file", "ina.key_file", "ina.host",
    "operation.metrics_listen", "durability.journal_mib", "host_uids",
)  # fmt: skip
"""Lanes and sizes: sessions and leases were cut to them. The others are held by open files and sockets."""


class Reloader:
    """Counts ``reloads`` and ``reloads_failed``; `Daemon.config_generation` is the number of the one in force."""

    def __init__(self, daemon: Daemon, negotiator: Negotiator, sources: Sources) -> None:
        self._daemon = daemon
        self._negotiator = negotiator
        self._sources = sources
        self._turn = asyncio.Lock()

    async def reload(self) -> bool:
        """One reload at a time. True when another configuration is in force."""
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
                logger.warning("configuration %d stays in force: %s", self._daemon.config_generation, fault)
                return False
            counters["reloads"] += 1
            logger.warning("configuration %d is in force", self._daemon.config_generation)
            return True

    async def _try(self) -> None:
        """Everything that can fail comes before the first change. Raises: ConfigError, PluginError, OSError."""
        loaded = self._sources.read()
        config = loaded.config
        faults = list(restart_faults(self._daemon.config, config))
        if faults:
            raise config_error(self._sources.file, faults, loaded.origins)
        known = credentials(config)
        await self._daemon.plugin.prepare(config)
        self._negotiator.set_modes(config)
        if config.tls is not None:
            await self._negotiator.renew_tls(server_context(config.tls))
        self._negotiator.reload(config, known)
        self._daemon.reconfigure(config)
        for warning in loaded.warnings:
            logger.warning("%s: %s", warning.path, warning.text)


def restart_faults(before: DaemonConfig, after: DaemonConfig) -> list[Fault]:
    """Keys whose value differs although a running daemon cannot change it."""
    return [
        Fault(path, f"needs a restart: {_value(before, path)!r} is in force")
        for path in NEEDS_RESTART
        if _value(before, path) != _value(after, path)
    ]


def _value(config: DaemonConfig, path: str) -> object:
    value: object = config
    for name in path.split("."):
        value = getattr(value, name, None)
    return value
