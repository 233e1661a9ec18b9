"""Checks kernel, clocks, processors and packages: what the daemon needs on every machine."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import os
import platform
import time
from collections.abc import Callable, Iterator
from typing import Final

from offpath.bindings import faults
from offpath.bindings.build import check_build
from offpath.bindings.errors import OffpathError
from offpath.bindings.memory.region import PAGE, populates_pages, sealed_memfd
from offpath.bindings.memory.slots import slot_stride
from offpath.dpu_daemon.doctor.findings import Finding, Severity, ok

_GOOD_QUEUE: Final = 64
_TIME_ERROR: Final = 5
_TIMEX_BYTES: Final = 512  # struct timex is 208; modes = 0 reads only
_STEPS: Final = 1000
_MAX_APART_NS: Final = 1_000_000_000


def check_machine() -> Iterator[Finding]:
    """Checks that need no configuration."""
    yield ok("page-size", f"{PAGE} bytes; a slot of 1 byte takes {slot_stride(1)}")
    yield from _kernel()
    yield from _clock()
    cpus = len(os.sched_getaffinity(0))
    if cpus < 2:
        yield Finding(
            "cpu", Severity.WARNING, "one processor: daemon, helper and requesters take turns on it",
            "give this machine, or this process, a second one",
        )  # fmt: skip
    else:
        yield ok("cpu", f"{cpus} processors")
    for name, need in (("uvloop", Severity.ERROR), ("zmq", Severity.NOTE), ("prometheus_client", Severity.WARNING)):
        try:
            importlib.import_module(name)
            yield ok("package", f"{name} is installed")
        except ImportError as fault:
            yield Finding("package", need, f"{name} cannot be imported: {fault}", "pip install 'offpath[daemon]'")
    yield check_build()
    if faults.armed:
        yield Finding(
            "fault-points", Severity.ERROR, f"armed: {', '.join(sorted(faults.armed))}; processes fail deliberately",
            "unset OFFPATH_FAULTS",
        )  # fmt: skip


def _kernel() -> Iterator[Finding]:
    release = platform.release()
    able: list[tuple[str, Severity, Callable[[], None], str]] = [
        ("sealed memfds", Severity.ERROR, lambda: os.close(sealed_memfd("offpath-doctor", PAGE)), "Linux 3.17"),
        ("pidfds", Severity.ERROR, lambda: os.close(os.pidfd_open(os.getpid())), "Linux 5.3"),
        ("MADV_POPULATE_WRITE", Severity.NOTE, _populate, "Linux 5.14: memory is prefaulted more slowly without it"),
    ]
    for name, severity, attempt, since in able:
        try:
            attempt()
            yield ok("kernel", f"{release} has {name}")
        except (OSError, OffpathError) as fault:
            yield Finding("kernel", severity, f"{release} has no {name}: {fault}", f"since {since}")
    with contextlib.suppress(OSError, ValueError), open("/proc/sys/net/unix/max_dgram_qlen") as file:
        queue = int(file.read())
        if queue < _GOOD_QUEUE:
            yield Finding(
                "notify-queue", Severity.NOTE,
                f"a service manager's socket holds {queue} messages: storing a burst of new sessions takes longer",
                "sysctl net.unix.max_dgram_qlen=512 (systemd sets that)",
            )  # fmt: skip
        else:
            yield ok("notify-queue", f"{queue} messages")


def _populate() -> None:
    if not populates_pages():
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def _clock() -> Iterator[Finding]:
    found = clock_faults()
    for what in found:
        yield Finding("clock", Severity.ERROR, what, "no deadline can be kept: look at the hypervisor's clock source")
    if not found:
        yield ok("clock", "CLOCK_MONOTONIC and CLOCK_BOOTTIME advance together")
    synchronised = is_synchronised()
    if synchronised is False:
        yield Finding(
            "clock-sync", Severity.WARNING, "the kernel reports that the wall clock is not synchronised",
            "run an NTP client; decisions do not depend on it, but certificates and logs do",
        )  # fmt: skip
    elif synchronised:
        yield ok("clock-sync", "the wall clock is synchronised")


def clock_faults() -> list[str]:
    """Faults of the clocks that deadlines depend on; empty: none."""
    found = []
    last = first = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    boot_first = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    for _ in range(_STEPS):
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        if now < last:
            found.append(f"CLOCK_MONOTONIC went back by {last - now} ns")
            break
        last = now
    if last == first:
        found.append("CLOCK_MONOTONIC does not advance")
    boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    if boot < first - _MAX_APART_NS:
        found.append("CLOCK_BOOTTIME is behind CLOCK_MONOTONIC")
    if abs((boot - boot_first) - (last - first)) > _MAX_APART_NS:
        found.append("CLOCK_BOOTTIME and CLOCK_MONOTONIC drift apart")
    return found


def is_synchronised() -> bool | None:
    """Whether NTP or similar disciplines the wall clock; None: the kernel does not report it."""
    libc = ctypes.CDLL(None, use_errno=True)
    state = int(libc.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))
    return None if state < 0 else state != _TIME_ERROR
