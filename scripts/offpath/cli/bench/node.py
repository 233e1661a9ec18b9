"""A daemon as a user starts it, with or without a service manager, with a helper and a requester."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections import deque
from types import TracebackType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offpath.bindings.errors import OffpathError
from offpath.bindings.runtime import JOURNAL
from offpath.cli.bench.kernels import register_kernel
from offpath.cli.bench.measure import children, end, fork
from offpath.cli.local.child import COMMAND_LINE, start
from offpath.host_helper.helper import Helper
from offpath.host_helper.requester import Requester

_BOUND_S: Final = 30.0
_MIB: Final = 1 << 20
_READY: Final = b"offpathd ready"


class Node:
    """Ends everything with its block. ``ready_s``: from the spawn to the daemon's ready line."""

    def __init__(
        self, *, is_kept: bool = False, has_helper: bool = True, journal_mib: int = 32, spin_us: int = 0
    ) -> None:
        self._directory = tempfile.mkdtemp(prefix="offpath-bench-")
        self._runtime = os.path.join(self._directory, "run")
        self._token = os.path.join(self._directory, "token")
        self._is_kept = is_kept
        self._helper = 0
        self.requester: Requester | None = None
        descriptor = os.open(self._token, os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(descriptor, os.urandom(16).hex().encode())
        os.close(descriptor)
        config = os.path.join(self._directory, "offpathd.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(f"[durability]\njournal_mib = {journal_mib}\n[datapath]\nspin_us = {spin_us}\n")
            file.write("[[tenant]]\nname = 'bench'\n")
            file.write(f"token_file = '{self._token}'\n")
        words = ["daemon", "run", "--config", config, "--runtime-dir", self._runtime]
        words += ["--keep", "--watchdog-s", "0", "--starts", "0"] if is_kept else []
        begun = time.monotonic()
        self._daemon = start(COMMAND_LINE, *words, stderr=subprocess.PIPE, pipesize=_MIB)
        try:
            self._wait_ready()
            self.ready_s = time.monotonic() - begun
            if has_helper:
                self._helper = fork(None, lambda: _serve(os.path.join(self._runtime, "host.sock")))
                self.requester = self._connect()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def daemon_pid(self) -> int:
        """The daemon's, not its service manager's."""
        return children(self._daemon.pid)[0] if self._is_kept else self._daemon.pid

    @property
    def journal(self) -> str:
        """Path of the journal."""
        return os.path.join(self._runtime, JOURNAL)

    def submit_many(self, payload: NDArray[Any], count: int) -> None:
        """``count`` requests, 16 in flight."""
        assert self.requester is not None
        flying: deque[Any] = deque()
        for _ in range(count):
            if len(flying) == 16:
                flying.popleft().result(_BOUND_S)
            flying.append(self.requester.begin("k0", [payload]))
        while flying:
            flying.popleft().result(_BOUND_S)

    def latencies_us(self, payload: NDArray[Any], count: int) -> list[float]:
        """Of ``count`` requests, one after the other."""
        assert self.requester is not None
        taken = []
        for _ in range(count):
            begun = time.perf_counter_ns()
            self.requester.submit("k0", [payload], timeout=_BOUND_S)
            taken.append((time.perf_counter_ns() - begun) / 1e3)
        return taken

    def kill_and_submit(self, payload: NDArray[Any]) -> tuple[float, float]:
        """SIGKILL the daemon. Returns the time, and the seconds until a request submitted at once is answered."""
        assert self.requester is not None
        pid = self.daemon_pid
        begun = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        self.requester.submit("k0", [payload], timeout=_BOUND_S)
        return begun, time.monotonic() - begun

    def close(self) -> None:
        """End requester, helper and daemon, and remove the files. Idempotent."""
        if self.requester is not None:
            self.requester.close()
            self.requester = None
        if self._helper:
            end(self._helper, signal.SIGTERM)
            self._helper = 0
        if self._daemon.poll() is None:
            self._daemon.terminate()
            try:
                self._daemon.wait(_BOUND_S)
            except subprocess.TimeoutExpired:
                self._daemon.kill()
                self._daemon.wait(_BOUND_S)
        assert self._daemon.stderr is not None
        self._daemon.stderr.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _wait_ready(self) -> None:
        assert self._daemon.stderr is not None
        deadline = time.monotonic() + _BOUND_S
        line = b""
        while _READY not in line:
            ready, _, _ = select.select([self._daemon.stderr], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._daemon.stderr.fileno(), 65536) if ready else b""
            if not data:
                raise OffpathError(f"the daemon is not ready: {line.decode('utf-8', 'replace')[-2000:]}")
            line += data

    def _connect(self) -> Requester:
        address = f"unix:{os.path.join(self._runtime, 'negotiate.sock')}"
        requester = Requester(
            address, tenant="bench", token_file=self._token, slots=16, payload_bytes=64 << 10, result_bytes=4096
        )
        deadline = time.monotonic() + _BOUND_S
        while True:
            try:
                requester.submit("k0", [np.zeros(64, np.uint8)], timeout=_BOUND_S)
                return requester
            except OffpathError:  # the helper has not joined yet
                if time.monotonic() > deadline:
                    requester.close()
                    raise
                time.sleep(0.02)


def _serve(channel: str) -> None:
    helper = Helper()
    register_kernel(helper, 0)
    helper.run(channel, emulate=["A100-40GB"])
