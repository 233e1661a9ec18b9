"""The twelve checks: their numbers, names, time limits and modules."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from offpath.cli.gpu_check.figures import Figures, Setting


@dataclass(frozen=True, slots=True)
class Check:
    """``run`` is ``module.function(setting, figures)``. ``limit_s`` bounds it in the full size."""

    number: int
    name: str
    module: str
    function: str
    limit_s: float
    needs_device: bool = True

    def load(self) -> Callable[[Setting, Figures], None]:
        """Import its module."""
        found: Callable[[Setting, Figures], None] = getattr(
            importlib.import_module(f"offpath.cli.gpu_check.{self.module}"), self.function
        )
        return found


CHECKS: Final = {
    check.number: check
    for check in (
        Check(1, "inventory", "inventory", "inventory", 30, needs_device=False),
        Check(2, "whole GPU through a worker", "whole", "whole", 90),
        Check(3, "fork rules", "forks", "forks", 40),
        Check(4, "attributes and flush", "inventory", "attributes", 30),
        Check(5, "dma-buf export", "export", "export", 40),
        Check(6, "tensors without a copy", "tensors", "tensors", 90),
        Check(7, "scrub", "memory", "scrubs", 60),
        Check(8, "residue of a killed process", "memory", "residue", 60),
        Check(9, "launch through a worker", "launches", "launch", 70),
        Check(10, "empty kernels and host functions", "launches", "empty_kernels", 60),
        Check(11, "MPS", "mps", "mps", 110),
        Check(12, "codes of recorded calls", "codes", "codes", 60),
    )
}
