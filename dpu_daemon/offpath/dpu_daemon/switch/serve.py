"""Runs a switch process: sockets, signals, shutdown."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

from offpath.dpu_daemon.operation import logs
from offpath.dpu_daemon.switch.control import ControlServer
from offpath.dpu_daemon.switch.switch import Switch


async def serve(
    name: str, listen: str, control: str, ready: Callable[[str, str], None], *, capacity: int = 1, by_rank: bool = True,
    events: str | None = None, log: str = "text",
) -> dict[str, Any]:  # fmt: skip
    """Serve until SIGTERM or SIGINT; returns the final statistics. ``ready`` gets the two addresses.

    Raises: FabricAddressError, PlaceUnusable.
    """
    logs.set_up(log)
    stop = asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(logs.loop_fault)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    switch = Switch(name, capacity, by_rank=by_rank, events=events)
    server = ControlServer(switch)
    try:
        listens = switch.start(listen)
        ready(listens, await server.start(control))
        await stop.wait()
        return switch.statistics()
    finally:
        await server.close()
        await switch.close()


def run(*arguments: Any, **settings: Any) -> dict[str, Any]:
    """Blocking `serve`. Does not use uvloop: if a peer closes with sent bytes unread (EPOLLERR), libuv stops watching
    the socket without notifying its reader, and the loss would go unnoticed."""
    return asyncio.run(serve(*arguments, **settings))
