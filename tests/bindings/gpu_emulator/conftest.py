"""What the tests of the GPU emulator share: NVML of an emulated machine, and processes that use CUDA on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pynvml
import pytest

from ...support.gpu_emulator import emulator, load, machine

Nvml = Callable[..., Any]


@pytest.fixture
def nvml() -> Iterator[Nvml]:
    """``nvml(**settings)``: a machine, NVML opened on it, and its first GPU."""
    with ExitStack() as stack:

        def begin(**settings: str | int) -> Any:
            load("libnvidia-ml.so.1")
            stack.enter_context(machine(**settings))
            pynvml.nvmlInit()
            stack.callback(pynvml.nvmlShutdown)
            return pynvml.nvmlDeviceGetHandleByIndex(0)

        yield begin


class CudaProcess:
    """A process that uses CUDA (cuda_main.py), with variables of its own in its environment."""

    def __init__(self, **variables: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("cuda_main.py"), emulator()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **variables},
        )  # fmt: skip

    def answer(self, code: str) -> dict[str, Any]:
        """Runs code there: ``{"result": …}``, or ``{"code": …}`` of the call that failed."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, self.end()
        answered: dict[str, Any] = json.loads(line)
        return answered

    def do(self, code: str) -> Any:
        """Runs code there that must not fail; what it left in ``result``."""
        answered = self.answer(code)
        assert "result" in answered, answered
        return answered["result"]

    def fails(self, code: str) -> int:
        """Runs code there of which a call must fail; its code."""
        return int(self.answer(code)["code"])

    def end(self) -> str:
        """Ends it; what it wrote to stderr."""
        if self.process.poll() is None:
            assert self.process.stdin
            self.process.stdin.close()
        self.process.wait(timeout=30)
        assert self.process.stderr
        return self.process.stderr.read()

    def kill(self) -> None:
        """SIGKILL, and waits for its end."""
        self.process.kill()
        self.process.wait(timeout=30)

    def close(self) -> None:
        """Ends it, however it is."""
        self.process.kill()
        self.process.wait(timeout=30)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe
            with suppress(BrokenPipeError):
                pipe.close()


Cuda = Callable[..., CudaProcess]


@pytest.fixture
def cuda() -> Iterator[Cuda]:
    """``cuda(CUDA_VISIBLE_DEVICES=…)``: a process on the machine of `nvml`."""
    made: list[CudaProcess] = []

    def begin(**variables: str) -> CudaProcess:
        made.append(CudaProcess(**variables))
        return made[-1]

    yield begin
    for each in made:
        each.close()
