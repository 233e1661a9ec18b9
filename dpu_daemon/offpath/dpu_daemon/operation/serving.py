"""Runs the work of a server process until a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from offpath.dpu_daemon.durability.notify import Notifier
from offpath.dpu_daemon.operation import logs


def prepare(log: str) -> Notifier:
    """Set up the log and the event loop's report of faults. Call it in the running loop, first of all."""
    logs.set_up(log)
    asyncio.get_running_loop().set_exception_handler(logs.loop_fault)
    return Notifier.from_environment()


async def until_signal(
    work: Coroutine[Any, Any, None], notifier: Notifier, state: str, ready: Callable[[], None]
) -> None:
    """Run ``work``; SIGTERM and SIGINT cancel it. The service manager learns of both ends; ``state``: for its status.
    Raises: what ``work`` does."""
    loop = asyncio.get_running_loop()
    working = loop.create_task(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, working.cancel)
    notifier.ready(state)
    ready()
    try:
        await working
    except asyncio.CancelledError:
        pass
    finally:
        notifier.stopping()
