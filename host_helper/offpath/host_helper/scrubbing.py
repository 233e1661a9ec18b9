"""Scrubs an instance in a process of its own: the supervisor forks, so it must never use a GPU's driver itself."""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import time
from typing import Final

from offpath.bindings.errors import DeviceError, OffpathError
from offpath.bindings.ports import Gpu

logger = logging.getLogger(__name__)
_PR_SET_PDEATHSIG: Final = 1
LIMIT_S: Final = 60.0
"""The longest scrub: the memory of a whole GPU, checked through PCIe, takes some 10 s."""
_END_S: Final = 5.0
_REPORT_BYTES: Final = 1024


def scrub(gpu: Gpu, instance: int, limit_s: float = LIMIT_S) -> int:
    """`Gpu.scrub_instance` in a child process; blocks for at most ``limit_s``. Returns the bytes verified as zero.

    Raises: DeviceError: the scrub failed, took longer, or no process could be made for it.
    """
    try:
        reading, writing = os.pipe2(os.O_CLOEXEC)
    except OSError as fault:
        raise DeviceError(f"no pipe for the scrub of {gpu.uuid}: {fault}") from fault
    try:
        child = _fork(gpu, instance, writing)
        os.close(writing)
        writing = -1
        report = _await(child, reading, limit_s)
    except OSError as fault:
        raise DeviceError(f"no process for the scrub of {gpu.uuid}: {fault}") from fault
    finally:
        for fd in (reading, writing):
            if fd >= 0:
                os.close(fd)
    word, _, rest = report.partition(" ")
    if word == "scrubbed" and rest.isdecimal():
        return int(rest)
    raise DeviceError(rest if word == "failed" else f"the scrub of {gpu.uuid} ended without a report")


def _fork(gpu: Gpu, instance: int, writing: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            report = f"scrubbed {gpu.scrub_instance(instance)}"
        except OffpathError as fault:
            report = f"failed {fault}"
        os.write(writing, report.encode("utf-8", "replace")[:_REPORT_BYTES])
    except BaseException:  # log everything; the supervisor's stack must never run in the child
        logger.exception("scrub of an instance of %s", gpu.uuid)
    finally:
        os._exit(0)


def _await(child: int, reading: int, limit_s: float) -> str:
    """The child's report, once the child has ended: until then it may hold the instance."""
    deadline = time.monotonic() + limit_s
    report = b""
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        if not poll.poll(left * 1e3):
            continue
        received = os.read(reading, _REPORT_BYTES)
        if not received:
            os.waitpid(child, 0)
            return report.decode("utf-8", "replace")
        report += received
    os.kill(child, signal.SIGKILL)
    _reap(child)
    raise DeviceError(f"the scrub took longer than {limit_s:g} s")


def _reap(child: int) -> None:
    """A process inside a driver that hangs does not end; the supervisor does not wait for it for ever."""
    deadline = time.monotonic() + _END_S
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            logger.error("process %d, which scrubbed, does not end", child)
            return
        time.sleep(0.01)
