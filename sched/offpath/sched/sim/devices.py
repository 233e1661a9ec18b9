"""Models the time that a GPU takes to create, warm up, scrub and destroy an instance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MS: Final = 10**6


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """Times in ns: to create an instance, to warm up a worker on it, to scrub a GiB, to destroy it."""

    name: str
    create_ns: int
    warm_ns: int
    scrub_ns_per_gib: int
    destroy_ns: int


PAPER: Final = DeviceModel("paper", 0, 0, 0, 0)
"""The paper's model: all times are 0."""
