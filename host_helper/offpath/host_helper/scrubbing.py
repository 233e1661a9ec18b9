"""Scrubs an instance in a process of its own: the supervisor forks, so it must never use a GPU's driver itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from offpath.bindings import forked
from offpath.bindings.errors import OffpathError
from offpath.bindings.ports import Gpu
from offpath.host_helper.gangs import Part, parts_of

LIMIT_S: Final = 60.0
"""The longest scrub: the memory of a whole GPU, read back through PCIe, takes some 10 s."""


def scrub(gpu: Gpu, instance: int, limit_s: float = LIMIT_S) -> int:
    """`Gpu.scrub_instance` in a child process, of a gang's GPUs at the same time, each in its own; blocks for at most
    ``limit_s``. Returns the bytes verified as zero.

    Raises: DeviceError: a scrub failed, took longer, or no process could be made for it.
    """
    results = scrub_parts(parts_of(gpu, instance), limit_s)
    for result in results:
        if isinstance(result, OffpathError):
            raise result
    return sum([result for result in results if isinstance(result, int)])


def scrub_parts(parts: Sequence[Part], limit_s: float = LIMIT_S) -> list[int | OffpathError]:
    """As `scrub`, of instances of any leases at the same time. Returns for each the bytes, or why it failed."""
    scrubs = [partial(_scrub_one, gpu, instance) for gpu, instance in parts]
    results = forked.call_all(scrubs, f"scrub of {', '.join(gpu.uuid for gpu, _ in parts)}", limit_s)
    return [int(result) if isinstance(result, str) else result for result in results]


def _scrub_one(gpu: Gpu, instance: int) -> str:
    return str(gpu.scrub_instance(instance))
