"""Scrubs an instance in a process of its own: the supervisor forks, so it must never use a GPU's driver itself."""

from __future__ import annotations

from typing import Final

from offpath.bindings import forked
from offpath.bindings.ports import Gpu

LIMIT_S: Final = 60.0
"""The longest scrub: the memory of a whole GPU, read back through PCIe, takes some 10 s."""


def scrub(gpu: Gpu, instance: int, limit_s: float = LIMIT_S) -> int:
    """`Gpu.scrub_instance` in a child process; blocks for at most ``limit_s``. Returns the bytes verified as zero.

    Raises: DeviceError: the scrub failed, took longer, or no process could be made for it.
    """
    return int(forked.call(lambda: str(gpu.scrub_instance(instance)), f"scrub of {gpu.uuid}", limit_s))
