"""Assembles and runs a collaboration controller: file, sockets, signals, readiness notification."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from functools import partial

import uvloop

from offpath.bindings.errors import PlaceUnusable
from offpath.bindings.runtime import COLLAB_SOCKET, make_runtime_directory
from offpath.bindings.wire import collab_admin, control
from offpath.dpu_daemon.collab.answers import Answers
from offpath.dpu_daemon.collab.config import Loaded
from offpath.dpu_daemon.collab.devices import Devices
from offpath.dpu_daemon.collab.reload import Reloader
from offpath.dpu_daemon.collab.running import Running
from offpath.dpu_daemon.collab.shell import CollabShell
from offpath.dpu_daemon.collab.store import StateFile
from offpath.dpu_daemon.collab.tokens import Tokens
from offpath.dpu_daemon.ingress.streams import prime
from offpath.dpu_daemon.listening.places import Places
from offpath.dpu_daemon.manager.inc.collector import settled
from offpath.dpu_daemon.operation.admin_socket import AdminHandlers, AdminSocket
from offpath.dpu_daemon.operation.serving import prepare, until_signal


class HttpMissing(PlaceUnusable):
    """httptools is not installed for this Python."""


@contextlib.asynccontextmanager
async def running_collab(loaded: Loaded, directory: str) -> AsyncIterator[Running]:
    """A controller whose sockets are open for as long as the block runs.

    Raises: RegionError, PlaceUnusable: the directory, a socket, an address or the file is unusable. HostChannelError:
    pyzmq or the gateways' keys cannot be used.
    """
    config = loaded.config
    try:
        make_runtime_directory(directory)
    except OSError as fault:
        raise PlaceUnusable(f"{directory}: {fault.strerror or fault}") from None
    shell = CollabShell(config, StateFile(config.operation.state))
    running = Running(shell, Devices(shell, Tokens(loaded.token_keys), config.devices))
    answers = Answers(shell, lambda: running.connections)
    handlers = AdminHandlers(
        lambda body: control.decode(collab_admin.TO_COLLAB, body), answers.to, lambda: shell.config.operation.uids
    )
    places = Places()

    def count(what: str) -> None:
        if what == "descriptors_exhausted":
            shell.counts.exhausted()

    users = AdminSocket(handlers, os.path.join(directory, COLLAB_SOCKET), count=count, places=places)
    try:
        try:
            await users.start()
            places.open()
        except OSError as fault:
            raise PlaceUnusable(f"{fault.filename or directory}: {fault.strerror or fault}") from None
        async with _metrics(running, config.operation.metrics_listen):
            _open(running, loaded)
            running.is_open = True
            try:
                yield running
            finally:
                running.is_open = False
    finally:
        places.close()
        await users.close()
        if running.http is not None:
            await running.http.close()
        if running.gateways is not None:
            running.gateways.close()
        shell.close()


@contextlib.asynccontextmanager
async def _metrics(running: Running, listen: str) -> AsyncIterator[None]:
    """Serve the metrics, if ``listen`` is not empty. Raises: ConfigError: the address is in use or not local."""
    if not listen:
        yield
        return
    from offpath.dpu_daemon.collab.metrics import pages  # prometheus_client: not needed without metrics
    from offpath.dpu_daemon.operation.metrics_http import MetricsServer

    server = MetricsServer(listen, pages(running))
    await server.start()
    try:
        yield
    finally:
        await server.close()


def _open(running: Running, loaded: Loaded) -> None:
    """Raises: PlaceUnusable, HostChannelError."""
    config, devices = loaded.config, running.devices
    if config.http is not None:
        try:
            from offpath.dpu_daemon.collab.http import HttpServer
        except ImportError as fault:
            raise HttpMissing(f'[http] needs httptools ({fault}): pip install "offpath[collab]"') from None

        running.http = HttpServer(config.http, devices, loaded.tls, running.shell.counts.exhausted)
        running.http.start()
    if config.gateways is not None:
        from offpath.dpu_daemon.collab.gateways import Gateways

        running.gateways = Gateways(config.gateways, devices, loaded.gateway_key, loaded.gateways)
        running.gateways.start()


async def serve(loaded: Loaded, directory: str, ready: Callable[[Running], None], path: str) -> None:
    """Run until SIGTERM or SIGINT; leases stay. SIGHUP reads ``path`` again. Raises: PlaceUnusable: the file cannot be
    written."""
    notifier = prepare(loaded.config.operation.log)
    hung_up = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up.set)  # else an early one ends the process
    await prime()
    async with running_collab(loaded, directory) as running:
        shell = running.shell
        reloader = Reloader(running, path, loaded, notifier, hung_up)
        work = shell.run(reloader.run())
        await until_signal(work, notifier, f"policy {shell.book.policy.name}", partial(ready, running))


def run(loaded: Loaded, directory: str, ready: Callable[[Running], None], path: str) -> None:
    """`serve` on uvloop; blocks."""
    with settled():  # a million devices are permanent objects, which the collector would look at again and again
        uvloop.run(serve(loaded, directory, ready, path))
