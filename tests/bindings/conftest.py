"""What the boundary's tests share: children that are always reaped, bounded waits, and no descriptor left behind."""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator

import pytest

from ..support.processes import BOUND_S


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def _no_descriptor_is_left_behind() -> Iterator[None]:
    """Every test of this folder ends with as many descriptors as it began with."""
    before = open_fds()
    yield
    if open_fds() != before:
        gc.collect()  # a mapping held by a traceback is no leak
    assert open_fds() == before


def _readable(fd: int, timeout_s: float = BOUND_S) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(timeout_s * 1e3))


def _until(claim: Callable[[], bool], timeout_s: float = BOUND_S) -> bool:
    end = time.monotonic() + timeout_s
    while not claim():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


@pytest.fixture
def readable() -> Callable[..., bool]:
    """``readable(fd, timeout_s)``: did ``fd`` become readable within the bound?"""
    return _readable


@pytest.fixture
def until() -> Callable[..., bool]:
    """``until(claim)``: did the claim come true within the bound?"""
    return _until


@pytest.fixture
def count_fds() -> Callable[[], int]:
    """How many descriptors this process has open."""
    return open_fds


class Child:
    """A forked process; its pidfd is ours."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self.code: int | None = None

    def kill(self) -> None:
        """SIGKILL, then reap."""
        if self.code is None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            self.wait()

    def wait(self, bound_s: float = BOUND_S) -> int:
        """Exit code (negative: the signal) within the bound."""
        if self.code is None:
            assert _readable(self._pidfd, bound_s), f"child {self.pid} still runs"
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def close(self) -> None:
        if self._pidfd >= 0:
            self.kill()
            os.close(self._pidfd)
            self._pidfd = -1


class Children:
    """Starts children, and kills whatever is left at the end of the test."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._grandchildren: list[int] = []

    def fork(self, body: Callable[[], object]) -> Child:
        """Run ``body`` in a forked process, which ends with 0, or with 1 and a traceback."""
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: forking beside threads; `body` starts none
            pid = os.fork()
        if pid == 0:
            code = 1
            try:
                body()
                code = 0
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)
        self._children.append(child := Child(pid))
        return child

    def adopt(self, pid: int) -> None:
        """Kill this grandchild too."""
        self._grandchildren.append(os.pidfd_open(pid))

    def close(self) -> None:
        for child in self._children:
            child.close()
        for pidfd in self._grandchildren:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            gone = _readable(pidfd)
            os.close(pidfd)
            assert gone


@pytest.fixture
def children() -> Iterator[Children]:
    made = Children()
    try:
        yield made
    finally:
        made.close()
