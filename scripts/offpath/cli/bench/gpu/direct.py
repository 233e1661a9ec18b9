"""A kernel that takes a known time, launched and awaited directly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from offpath.cli.bench.gpu.device import Device
from offpath.cli.bench.gpu.kernels import SPIN
from offpath.cli.bench.gpu.serving import median
from offpath.cli.bench.gpu.setting import Setting

BAR: Final = 1.10
"""Most that a request with a kernel of 4 ms may take, over a direct launch."""
_MS: Final = 1_000_000
_WARM: Final = 20


def direct_us(setting: Setting, counts: Mapping[int, int], *, is_spinning: bool = False) -> dict[str, float]:
    """Median time of a launch and its wait. ``counts``: milliseconds of the kernel -> how often."""
    device = Device(setting, is_spinning=is_spinning)
    found = {}
    for kernel_ms, count in counts.items():
        kernel = device.kernel(SPIN, kernel_ms * _MS)
        taken = [device.timed(kernel.launch) * 1e6 for _ in range(count + min(count, _WARM))]
        found[str(kernel_ms)] = median(taken[-count:])
    return found
