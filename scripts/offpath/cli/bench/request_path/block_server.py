"""Serves blocks of one build's setting 4 to `--against`: a command is a JSON line on stdin, its block one on stdout.

It runs in the other checkout's interpreter, so daemon, helper and requester are that build's. Only `offpath.cli` is
this checkout's: see `BOOT`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import asdict
from typing import IO, Any, Final

import numpy as np
import orjson

import offpath.cli
from offpath.bindings.errors import OffpathError, PeerGone
from offpath.cli.bench.measure import Block, Cores, machine, pin
from offpath.cli.bench.request_path.backend import Payload
from offpath.cli.bench.request_path.product import Offpath, Options
from offpath.cli.local.child import end_with_parent, environment

_BOUND_S: Final = 20.0
BOOT: Final = (
    "import sys, offpath.cli; offpath.cli.__path__ = [sys.argv[1]]; "
    "from offpath.cli.bench.request_path.block_server import main; main()"
)
"""Takes the benchmark's own modules from the folder that is the argument, and everything else from the interpreter."""


def main() -> None:
    """Serve until stdin ends, or says null."""
    end_with_parent()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the build itself prints is no answer
    wanted = orjson.loads(sys.stdin.buffer.readline())
    cores = Cores(**wanted["cores"])
    pin(cores.host)
    backend = Offpath(wanted["name"], cores, daemon_on_host=False, options=Options(wanted["spin_us"]))
    try:
        _answer(answers, {"python": described()})
        payloads: dict[int, Payload] = {}
        for line in sys.stdin.buffer:
            command = orjson.loads(line)
            if command is None:
                break
            nbytes, count, in_flight, kernel_ms = command
            if nbytes not in payloads:
                payloads[nbytes] = np.random.default_rng(1).integers(0, 255, nbytes, np.uint8)
            block = backend.block(payloads[nbytes], count, in_flight, kernel_ms)
            block.stages.clear()  # not compared
            _answer(answers, asdict(block))
    finally:
        backend.close()


def described() -> str:
    """This interpreter, for the report."""
    here = machine()
    return f"{here['python']} ({'optimised' if here['python_is_optimised'] else 'not optimised'})"


def _answer(answers: IO[bytes], message: dict[str, Any]) -> None:
    answers.write(orjson.dumps(message) + b"\n")
    answers.flush()


class Build:
    """Setting 4 of the build that the interpreter ``python`` has; implements `Backend`."""

    def __init__(self, name: str, python: str, cores: Cores, spin_us: int) -> None:
        """Raises: OffpathError: the interpreter or its build does not start."""
        self.name = name
        command = [python, "-P", "-c", BOOT, os.path.dirname(os.path.abspath(offpath.cli.__file__))]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
        except OSError as fault:
            raise OffpathError(f"{python}: {fault.strerror}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to: IO[bytes] = self._process.stdin
        self._from: IO[bytes] = self._process.stdout
        try:
            self.python = str(self._query({"name": name, "cores": asdict(cores), "spin_us": spin_us})["python"])
        except OffpathError:
            self.close()
            raise

    def realtime_pids(self) -> list[int]:
        """None: builds are compared at normal priority."""
        return []

    def block(self, payload: Payload, count: int, in_flight: int, kernel_ms: int) -> Block:
        """See `Backend.block`; the server has bytes of its own, as many as ``payload``."""
        return Block(**self._query([payload.nbytes, count, in_flight, kernel_ms]))

    def _query(self, message: Any) -> dict[str, Any]:
        try:
            self._to.write(orjson.dumps(message) + b"\n")
            self._to.flush()
        except BrokenPipeError:
            raise PeerGone(f"the build {self.name!r} ended; its last lines are above") from None
        line = self._from.readline()
        if not line:
            raise PeerGone(f"the build {self.name!r} ended; its last lines are above")
        found: dict[str, Any] = orjson.loads(line)
        return found

    def close(self) -> None:
        """End the server, which ends its daemon and helper."""
        with contextlib.suppress(BrokenPipeError):
            self._to.write(b"null\n")  # a later fork of this process may hold the pipe open
            self._to.close()
        try:
            self._process.wait(_BOUND_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._from.close()
