"""Running a daemon: sockets in the runtime directory, signals, ready line, statistics at the end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable

import uvloop

from offpath.bindings.loopback.channel import LoopbackChannelListener
from offpath.bindings.runtime import make_runtime_directory
from offpath.dpu_daemon.config import DaemonConfig
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.inherited import LISTENING, Inherited, take_inherited
from offpath.dpu_daemon.negotiation import Endpoints, Negotiator
from offpath.dpu_daemon.notify import Notifier, close_all, watchdog_interval_s
from offpath.dpu_daemon.selfcheck import SelfCheck, feed_watchdog

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def running_daemon(
    config: DaemonConfig, directory: str, inherited: Inherited | None = None, notifier: Notifier | None = None
) -> AsyncIterator[tuple[Daemon, Negotiator]]:
    """A daemon that serves for as long as the block runs; it uses up what is ``inherited``.

    Raises: RegionError, OSError: sockets cannot be made.
    """
    inherited, notifier = inherited or Inherited(), notifier or Notifier()
    make_runtime_directory(directory)
    channel_path, channel_socket = _listens(inherited, "host", directory)
    channel = LoopbackChannelListener(channel_path, config.allowed_host_uids(), channel_socket)
    daemon = Daemon(config, channel, notifier)
    try:
        _drop_stored(inherited, notifier)
        negotiate_path, negotiate_socket = _listens(inherited, "negotiate", directory)
        fabric_path, fabric_socket = _listens(inherited, "fabric", directory)
        endpoints = Endpoints(
            negotiate_path, fabric_path, negotiate_socket=negotiate_socket, fabric_socket=fabric_socket
        )
        negotiator = Negotiator(daemon, config, endpoints)
        try:
            await negotiator.start()
            inherited.close_unused()
            yield daemon, negotiator
        finally:
            await negotiator.close()
    finally:
        daemon.close()


def _listens(inherited: Inherited, name: str, directory: str) -> tuple[str, socket.socket | None]:
    """Where peers find the socket (where it was made, else where we make it), and the one that was handed down."""
    sock = inherited.listening.pop(name, None)
    return (sock.getsockname() if sock is not None else os.path.join(directory, LISTENING[name][0])), sock


def _drop_stored(inherited: Inherited, notifier: Notifier) -> None:
    """What nobody knows any more is kept no longer."""
    while inherited.stored:
        name, fds = inherited.stored.popitem()
        logger.warning("%d stored descriptors called %s belong to nothing; they are dropped", len(fds), name)
        notifier.forget(name)
        close_all(fds)


async def serve(
    config: DaemonConfig,
    directory: str,
    ready: Callable[[Daemon], None],
    inherited: Inherited | None = None,
    notifier: Notifier | None = None,
) -> dict[str, int]:
    """Serve until SIGTERM or SIGINT; returns the closing statistics.

    The notifier hears READY when everything listens, STOPPING at the end, and WATCHDOG between as long as the daemon's
    check of itself finds no fault.
    """
    notifier = notifier or Notifier()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    interval_s = watchdog_interval_s()
    async with running_daemon(config, directory, inherited, notifier) as (daemon, negotiator):
        gc.collect()
        gc.freeze()  # what start-up made stays; a full collection then walks requests only
        notifier.ready(f"lineage {daemon.lineage}")
        ready(daemon)
        async with asyncio.TaskGroup() as tasks:
            feeding: asyncio.Task[None] | None = None
            if interval_s is not None:
                check = SelfCheck(daemon, negotiator)
                feeding = tasks.create_task(feed_watchdog(notifier, interval_s, check), name="feed-watchdog")
            await stop.wait()
            if feeding is not None:
                feeding.cancel()
        notifier.stopping()
        return daemon.statistics()


def run(config: DaemonConfig, directory: str, ready: Callable[[Daemon], None]) -> dict[str, int]:
    """`serve` on uvloop, with what a service manager handed down; blocks. Raises: HandoverError: it makes no sense."""
    return uvloop.run(serve(config, directory, ready, take_inherited(), Notifier.from_environment()))
