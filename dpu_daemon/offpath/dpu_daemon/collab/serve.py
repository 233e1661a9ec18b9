"""Assembles and runs a collaboration controller: file, sockets, signals, readiness notification."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import uvloop

from offpath.bindings.errors import PlaceUnusable
from offpath.bindings.runtime import COLLAB_SOCKET, make_runtime_directory
from offpath.bindings.wire import collab_admin, control
from offpath.dpu_daemon.collab.answers import Answers
from offpath.dpu_daemon.collab.config import Loaded
from offpath.dpu_daemon.collab.devices import Devices
from offpath.dpu_daemon.collab.shell import CollabShell
from offpath.dpu_daemon.collab.store import StateFile
from offpath.dpu_daemon.collab.tokens import Tokens
from offpath.dpu_daemon.ingress.streams import prime
from offpath.dpu_daemon.listening.places import Places
from offpath.dpu_daemon.manager.inc.collector import settled
from offpath.dpu_daemon.operation.admin_socket import AdminHandlers, AdminSocket
from offpath.dpu_daemon.operation.serving import prepare, until_signal

if TYPE_CHECKING:
    from offpath.dpu_daemon.collab.gateways import Gateways
    from offpath.dpu_daemon.collab.http import HttpServer

_SPARE_FILES: Final = 256
"""Descriptors beside those of devices' connections."""


class HttpMissing(PlaceUnusable):
    """httptools is not installed for this Python."""


@dataclass(slots=True)
class Running:
    """A controller that serves. ``http``, ``gateways``: where devices reach it, as far as configured."""

    shell: CollabShell
    http: HttpServer | None = None
    gateways: Gateways | None = None

    @property
    def connections(self) -> int:
        """Of devices and gateways, now."""
        http = self.http.connections if self.http is not None else 0
        return http + (self.gateways.listener.connections if self.gateways is not None else 0)

    @property
    def places(self) -> str:
        """The addresses for devices, for people."""
        found = []
        if self.http is not None:
            host, port = self.http.address
            found.append(f"http{'s' if self.http.is_tls else ''}://{f'[{host}]' if ':' in host else host}:{port}")
        if self.gateways is not None:
            found.append(self.gateways.listener.address)
        return ", ".join(found)


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
    running = Running(shell)
    answers = Answers(shell, lambda: running.connections)
    handlers = AdminHandlers(
        lambda body: control.decode(collab_admin.TO_COLLAB, body), answers.to, lambda: config.operation.uids
    )
    places = Places()
    users = AdminSocket(handlers, os.path.join(directory, COLLAB_SOCKET), places=places)
    try:
        try:
            await users.start()
            places.open()
        except OSError as fault:
            raise PlaceUnusable(f"{fault.filename or directory}: {fault.strerror or fault}") from None
        _open(running, loaded, Devices(shell, Tokens(loaded.token_keys), config.devices))
        yield running
    finally:
        places.close()
        await users.close()
        if running.http is not None:
            await running.http.close()
        if running.gateways is not None:
            running.gateways.close()
        shell.close()


def _open(running: Running, loaded: Loaded, devices: Devices) -> None:
    """Raises: PlaceUnusable, HostChannelError."""
    config = loaded.config
    if config.http is not None:
        try:
            from offpath.dpu_daemon.collab.http import HttpServer
        except ImportError as fault:
            raise HttpMissing(f'[http] needs httptools ({fault}): pip install "offpath[collab]"') from None

        _allow_files(config.http.connections + _SPARE_FILES)
        running.http = HttpServer(config.http, devices, loaded.tls)
        running.http.start()
    if config.gateways is not None:
        from offpath.dpu_daemon.collab.gateways import Gateways

        running.gateways = Gateways(config.gateways, devices, loaded.gateway_key, loaded.gateways)
        running.gateways.start()


def _allow_files(count: int) -> None:
    """Raise this process's limit of descriptors as far as it may be raised; what accepts connections bears less."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def serve(loaded: Loaded, directory: str, ready: Callable[[Running], None]) -> None:
    """Run until SIGTERM or SIGINT; leases stay. Raises: PlaceUnusable: the file cannot be written."""
    notifier = prepare(loaded.config.operation.log)
    await prime()
    async with running_collab(loaded, directory) as running:
        shell = running.shell
        await until_signal(shell.run(), notifier, f"policy {shell.book.policy.name}", partial(ready, running))


def run(loaded: Loaded, directory: str, ready: Callable[[Running], None]) -> None:
    """`serve` on uvloop; blocks."""
    with settled():  # a million devices are permanent objects, which the collector would look at again and again
        uvloop.run(serve(loaded, directory, ready))
