"""Scrubs an instance in a process of its own: the supervisor forks, so it must never use a GPU's driver itself."""

from __future__ import annotations

from functools import partial
from typing import Final

from offpath.bindings import forked
from offpath.bindings.ports import Gpu
from offpath.host_helper.gangs import parts_of

LIMIT_S: Final = 60.0
"""The longest scrub: the memory of a whole GPU, read back through PCIe, takes some 10 s."""


def scrub(gpu: Gpu, instance: int, limit_s: float = LIMIT_S) -> int:
    """`Gpu.scrub_instance` in a child process, of a gang's GPUs at the same time, each in its own; blocks for at most
    ``limit_s``. Returns the bytes verified as zero.

    Raises: DeviceError: a scrub failed, took longer, or no process could be made for it.
    """
    scrubs = [partial(_scrub_one, each, number) for each, number in parts_of(gpu, instance)]
    return sum(map(int, forked.call_all(scrubs, f"scrub of {gpu.uuid}", limit_s)))


def _scrub_one(gpu: Gpu, instance: int) -> str:
    return str(gpu.scrub_instance(instance))
