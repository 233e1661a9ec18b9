"""The twelve checks: their numbers, names, time limits and modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_PACKAGE: Final = "offpath.cli.gpu_check"


@dataclass(frozen=True, slots=True)
class Check:
    """``module.function(setting, figures)``, for at most ``limit_s``. ``needs_device``: it uses CUDA."""

    number: int
    name: str
    module: str
    function: str
    limit_s: float
    needs_device: bool = True


CHECKS: Final = {
    check.number: check
    for check in (
        Check(1, "inventory", f"{_PACKAGE}.inventory", "inventory", 30, needs_device=False),
        Check(2, "whole GPU through a worker", f"{_PACKAGE}.whole", "whole", 90),
        Check(3, "fork rules", f"{_PACKAGE}.forks", "forks", 40),
        Check(4, "attributes and flush", f"{_PACKAGE}.inventory", "attributes", 30),
        Check(5, "dma-buf export", f"{_PACKAGE}.export", "export", 40),
        Check(6, "tensors without a copy", f"{_PACKAGE}.tensors", "tensors", 90),
        Check(7, "scrub", f"{_PACKAGE}.memory", "scrubs", 60),
        Check(8, "residue of a killed process", f"{_PACKAGE}.memory", "residue", 60),
        Check(9, "launch through a worker", f"{_PACKAGE}.launches", "launch", 70),
        Check(10, "empty kernels and host functions", f"{_PACKAGE}.launches", "empty_kernels", 80),
        Check(11, "MPS", f"{_PACKAGE}.mps", "mps", 110),
        Check(12, "codes of recorded calls", f"{_PACKAGE}.codes", "codes", 60),
    )
}
