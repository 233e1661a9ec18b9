"""A process's share of a device under MPS: the environment that asks for it, and the check that it is in force."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Final

from offpath.bindings import forked
from offpath.bindings.cuda.context import MULTIPROCESSORS, Context
from offpath.bindings.cuda.driver import VISIBLE_VARIABLE, load
from offpath.bindings.errors import DeviceError, MpsNotInForce

PIPES: Final = "CUDA_MPS_PIPE_DIRECTORY"
LOGS: Final = "CUDA_MPS_LOG_DIRECTORY"
PERCENTAGE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
LIMIT: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
NO_PIPES: Final = "/dev/null"
"""A pipe directory in which no daemon can be: CUDA then runs without MPS."""
_SLACK: Final = 8
"""A GPU enables multiprocessors in groups. NVIDIA does not document their size; an eighth of the device is allowed."""
_COUNT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class MpsShare:
    """``pipes``, ``logs``: the control daemon's directories. ``percentage``: of the device's multiprocessors, 1 to 100.
    ``limit_mib``: the most device memory of the process. ``multiprocessors``: of the device without MPS."""

    pipes: str
    logs: str
    percentage: int
    limit_mib: int
    multiprocessors: int

    def enter(self) -> None:
        """Set this process's environment. Must come before anything that uses CUDA."""
        os.environ[PIPES] = self.pipes
        os.environ[LOGS] = self.logs
        os.environ[PERCENTAGE] = str(self.percentage)
        os.environ[LIMIT] = f"0={self.limit_mib}M"

    def check(self, context: Context) -> None:
        """CUDA runs without MPS, and reports nothing, if it does not find the daemon. Raises: MpsNotInForce: it does,
        or the process has another share of the multiprocessors."""
        if not context.is_under_mps:
            raise MpsNotInForce(f"{context.uuid}: CUDA runs without MPS: no control daemon answers at {self.pipes}")
        wanted = self.multiprocessors * self.percentage / 100
        slack = max(2, math.ceil(self.multiprocessors / _SLACK))
        if abs(context.multiprocessors - wanted) > slack:
            raise MpsNotInForce(
                f"{context.uuid}: {context.multiprocessors} of {self.multiprocessors} multiprocessors are enabled,"
                f" not {self.percentage} %"
            )


def count_multiprocessors(uuid: str) -> int:
    """The multiprocessors of a GPU or MIG instance without MPS. A child process counts them, so that the caller may
    fork later. Blocks for seconds at most. Raises: DeviceError."""
    text = forked.call(lambda: _count(uuid), f"count the multiprocessors of {uuid}", _COUNT_S)
    if not text.isdigit() or int(text) < 1:
        raise DeviceError(f"{uuid} has {text[:16]!r} multiprocessors")
    return int(text)


def _count(uuid: str) -> str:
    os.environ[VISIBLE_VARIABLE] = uuid
    os.environ[PIPES] = NO_PIPES
    driver = load()
    driver.call("cuInit", 0)
    return str(driver.attribute(driver.call("cuDeviceGet", 0), MULTIPROCESSORS))
