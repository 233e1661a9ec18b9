"""What the tests of the GPU emulator share: NVML of an emulated machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pynvml
import pytest

from ...support.gpu_emulator import load, machine

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
