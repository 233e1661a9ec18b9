"""Wires migd together: socket, ledger, service, events, signals."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from offpath.bindings.errors import PlaceUnusable
from offpath.bindings.nvml.records import XidEvent
from offpath.bindings.nvml.session import Nvml
from offpath.bindings.runtime import make_runtime_directory
from offpath.bindings.sockets import SocketFile, listening_socket
from offpath.host_helper.migd import protocol
from offpath.host_helper.migd.config import MigdConfig
from offpath.host_helper.migd.driver import Driver
from offpath.host_helper.migd.ledger import Ledger, kernels_boot_id
from offpath.host_helper.migd.nodes import CapabilityNodes
from offpath.host_helper.migd.server import MigdServer
from offpath.host_helper.migd.service import MigService
from offpath.host_helper.migd.xid_watch import XidWatch

SOCKET: Final = "migd.sock"
LEDGER: Final = "ledger"
SYSTEM_DIRECTORY: Final = "/run/offpath-migd"


def runtime_directory(explicit: str | None = None) -> str:
    """The first of ``explicit``, ``$OFFPATH_MIGD_DIR`` and ``/run/offpath-migd``."""
    return explicit or os.environ.get("OFFPATH_MIGD_DIR") or SYSTEM_DIRECTORY


def run(
    config: MigdConfig, directory: str, ready: Callable[[str], None],
    *, nodes: CapabilityNodes | None = None, gpu_path: str = "",
) -> None:  # fmt: skip
    """Serve until SIGTERM or SIGINT, in the main thread. ``ready`` gets the socket's path.

    Raises: PlaceUnusable: socket or ledger cannot be made, or another migd runs. RegionError: the directory is not
        this user's own.
    """
    path = os.path.join(directory, SOCKET)
    try:
        os.makedirs(directory, mode=0o755, exist_ok=True)  # the group of the socket must reach it
        make_runtime_directory(directory)
        listener = listening_socket(path, socket.SOCK_SEQPACKET)
    except OSError as fault:
        raise PlaceUnusable(f"{path}: {fault.strerror or fault}") from None
    file = SocketFile(path, is_own=True)
    driver = Driver(partial(Nvml, gpu_path))
    try:
        # Only now: the socket makes this the one migd that uses the ledger.
        ledger = Ledger(os.path.join(directory, LEDGER), kernels_boot_id())
        now_ns = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
        service = MigService(config, driver, ledger, nodes or CapabilityNodes(), now_ns, time.sleep)
        service.settle()
        _open_to_group(path, config.gid)
        _serve(config, service, driver, listener, lambda: ready(path))
    finally:
        listener.close()
        file.remove()
        driver.close()


def _serve(
    config: MigdConfig, service: MigService, driver: Driver, listener: socket.socket, ready: Callable[[], None]
) -> None:
    server = MigdServer(config, service, listener)
    before = {number: signal.signal(number, lambda *_: server.stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    events = XidWatch(driver, service.managed, partial(_pass_on, service, server))
    try:
        ready()
        server.run()
    finally:
        events.close()
        for number, handler in before.items():
            signal.signal(number, handler)
        server.close()


def _pass_on(service: MigService, server: MigdServer, event: XidEvent) -> None:
    entry = service.owner(event.gpu, event.gpu_instance)
    numbers = [-1 if each is None else each for each in (event.gpu_instance, event.compute_instance)]
    message = protocol.Xid(
        gpu=event.gpu, xid=event.xid, gpu_instance=numbers[0], compute_instance=numbers[1],
        handle=entry.handle if entry else "",
    )  # fmt: skip
    server.publish(message, entry.uid if entry else None)


def _open_to_group(path: str, gid: int) -> None:
    """Mode 0660. Raises: PlaceUnusable: this process may not give the socket to that group."""
    try:
        if gid >= 0:
            os.chown(path, -1, gid)
        os.chmod(path, 0o660)
    except OSError as fault:
        reason = "CAP_CHOWN is missing" if fault.errno == errno.EPERM else fault.strerror or str(fault)
        raise PlaceUnusable(f"{path}: cannot be given to group {gid}: {reason}") from None
