"""Running a daemon: sockets in the runtime directory, signals, ready line, statistics at the end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable

import uvloop

from offpath.bindings.loopback.channel import LoopbackChannelListener
from offpath.bindings.runtime import FABRIC_SOCKET, HOST_SOCKET, NEGOTIATE_SOCKET, make_runtime_directory
from offpath.dpu_daemon.config import DaemonConfig, Sources
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.negotiation import Endpoints, Negotiator
from offpath.dpu_daemon.reload import Reloader

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def running_daemon(config: DaemonConfig, directory: str) -> AsyncIterator[tuple[Daemon, Negotiator]]:
    """A daemon that serves for as long as the block runs. Raises: RegionError, OSError: sockets cannot be made."""
    make_runtime_directory(directory)
    channel = LoopbackChannelListener(os.path.join(directory, HOST_SOCKET), config.allowed_host_uids())
    daemon = Daemon(config, channel)
    try:
        endpoints = Endpoints(os.path.join(directory, NEGOTIATE_SOCKET), os.path.join(directory, FABRIC_SOCKET))
        negotiator = Negotiator(daemon, config, endpoints)
        try:
            await negotiator.start()
            yield daemon, negotiator
        finally:
            await negotiator.close()
    finally:
        daemon.close()


async def serve(
    config: DaemonConfig, directory: str, ready: Callable[[Daemon], None], sources: Sources | None = None
) -> dict[str, int]:
    """Serve until SIGTERM or SIGINT; returns the closing statistics. SIGHUP reads ``sources`` again, if given."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running_daemon(config, directory) as (daemon, negotiator), asyncio.TaskGroup() as reloads:
        if sources is not None:
            reloader = Reloader(daemon, negotiator, sources)
            loop.add_signal_handler(signal.SIGHUP, lambda: reloads.create_task(reloader.reload()))
        gc.collect()
        gc.freeze()  # what start-up made stays; a full collection then walks requests only
        ready(daemon)
        await stop.wait()
        return daemon.statistics()


def run(
    config: DaemonConfig, directory: str, ready: Callable[[Daemon], None], sources: Sources | None = None
) -> dict[str, int]:
    """`serve` on uvloop; blocks."""
    return uvloop.run(serve(config, directory, ready, sources))
