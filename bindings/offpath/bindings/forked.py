"""Runs a function in a forked process: for a process that forks and must therefore never use a GPU's driver itself."""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final

from offpath.bindings.errors import DeviceError, OffpathError

logger = logging.getLogger(__name__)
_PR_SET_PDEATHSIG: Final = 1
_END_S: Final = 5.0
MOST_BYTES: Final = 65_536
DONE, FAILED = b"+", b"-"
"""What a child's result begins with; after `FAILED` follows the error's text."""


def call(function: Callable[[], str], what: str, limit_s: float) -> str:
    """``function`` in a child process, which has ended when this returns. Blocks for at most ``limit_s`` and, if the
    child hangs in a driver, 5 s more. The caller must have one thread.

    ``what`` names the call in errors. Raises: DeviceError: the function raised an `OffpathError` (with its text), ended
    without a result, returned more than 64 KiB, or took longer; or no process could be made.
    """
    try:
        reading, writing = os.pipe2(os.O_CLOEXEC)
    except OSError as fault:
        raise DeviceError(f"{what}: no pipe: {fault}") from fault
    try:
        child = _fork(function, what, writing)
        os.close(writing)
        writing = -1
        result = _await(child, reading, what, limit_s, time.monotonic() + limit_s)
    except OSError as fault:
        raise DeviceError(f"{what}: no process: {fault}") from fault
    finally:
        for fd in (reading, writing):
            if fd >= 0:
                os.close(fd)
    return _text(result, what)


def call_all(functions: Sequence[Callable[[], str]], what: str, limit_s: float) -> list[str | DeviceError]:
    """As `call`, each function in a child process of its own at the same time; ``limit_s`` is for all together. Returns
    for each, in order, what it returned or why it failed, when all have ended."""
    results: list[str | DeviceError] = []
    begun: list[tuple[int, int] | OSError] = []
    deadline = time.monotonic() + limit_s
    for function in functions:
        try:
            begun.append(begin(function, what))
        except OSError as fault:
            begun.append(fault)
    for each in begun:
        if isinstance(each, OSError):
            results.append(DeviceError(f"{what}: no process: {each}"))
            continue
        child, reading = each
        try:
            results.append(_text(_await(child, reading, what, limit_s, deadline), what))
        except DeviceError as fault:
            results.append(fault)
        except OSError as fault:
            results.append(DeviceError(f"{what}: {fault}"))
        finally:
            os.close(reading)
    return results


def _text(result: bytes, what: str) -> str:
    """What the child returned. Raises: DeviceError: it failed."""
    text = result[1:].decode("utf-8", "replace")
    if result[:1] == FAILED:
        raise DeviceError(text)
    if result[:1] != DONE:
        raise DeviceError(f"{what}: the process ended without a result")
    return text


def begin(function: Callable[[], str], what: str) -> tuple[int, int]:
    """Start ``function`` in a child process, and do not wait. Returns its pid, and a descriptor that reads the result
    until its end; see `DONE`. The caller must have one thread, reaps the child and closes the descriptor.

    Raises: OSError: no pipe or no process can be made.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        return _fork(function, what, writing), reading
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)


def _fork(function: Callable[[], str], what: str, writing: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            result = DONE + function().encode()
        except OffpathError as fault:
            result = FAILED + str(fault).encode("utf-8", "replace")[:1000]
        while result:
            result = result[os.write(writing, result) :]
    except BaseException:  # log everything; the caller's stack must never run in the child
        logger.exception("%s", what)
    finally:
        os._exit(0)


def _await(child: int, reading: int, what: str, limit_s: float, deadline: float) -> bytes:
    """What the child wrote, once the child has ended: until then it may hold the device. ``deadline``: when the limit
    ends."""
    result = b""
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0 and len(result) <= MOST_BYTES:
        if not poll.poll(left * 1e3):
            continue
        received = os.read(reading, MOST_BYTES)
        if not received:
            os.waitpid(child, 0)
            return result
        result += received
    os.kill(child, signal.SIGKILL)
    reap(child, what)
    if len(result) > MOST_BYTES:
        raise DeviceError(f"{what}: the result has more than {MOST_BYTES} bytes")
    raise DeviceError(f"{what}: it took longer than {limit_s:g} s")


def reap(child: int, what: str) -> int | None:
    """The status of a killed child. None: it has not ended within 5 s; a process inside a driver that hangs does not,
    so this does not wait for ever."""
    deadline = time.monotonic() + _END_S
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        if time.monotonic() > deadline:
            logger.error("%s: process %d does not end", what, child)
            return None
        time.sleep(0.01)
