"""The table of MIG geometry: profiles, legal starts, slices and memory of six GPU models.

Source: data/mig_profiles.json, which states its provenance. The GPU port reports the geometry, and shells pass it to
``sched`` as plain records. No other module reads the file.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from offpath.bindings.errors import DeviceError

MIB = 1 << 20
WHOLE = "whole"
"""The one profile of a GPU that is not divided. Gangs consist of such GPUs."""
_GB = re.compile(r"[0-9]+GB")
_SIZE_SLACK = 0.1
"""Drivers keep some of a GPU's memory; two sizes of one GPU differ by more than this part."""


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One profile of one model.

    ``memory_slices``: how many an instance occupies from its start. ``memory_bytes``: the memory of a real instance.
    ``starts``: the legal first memory slices.
    """

    name: str
    compute_slices: int
    memory_slices: int
    memory_bytes: int
    starts: tuple[int, ...]
    max_instances: int


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU model: its totals and its profiles, smallest first as in the table."""

    name: str
    compute_slices: int
    memory_slices: int
    profiles: tuple[MigProfile, ...]

    def profile(self, name: str) -> MigProfile:
        """Raises: DeviceError: the model has no such profile."""
        for profile in self.profiles:
            if profile.name == name:
                return profile
        known = ", ".join(p.name for p in self.profiles)
        raise DeviceError(f"{self.name} has no MIG profile {name!r}; it has {known}")


@cache
def gpu_models() -> dict[str, GpuModel]:
    """All models of the table by name, e.g. ``A100-40GB``."""
    raw = json.loads(resources.files(__package__).joinpath("data/mig_profiles.json").read_text("utf-8"))
    models = {}
    for name, gpu in raw["gpus"].items():
        profiles = tuple(
            MigProfile(p, v["compute_slices"], v["size"], v["memory_mib"] * MIB, tuple(v["starts"]), v["max_instances"])
            for p, v in gpu["profiles"].items()
        )
        models[name] = GpuModel(name, gpu["compute_slices"], gpu["memory_slices"], profiles)
    return models


def gpu_model(name: str) -> GpuModel:
    """Raises: DeviceError: the table has no such model."""
    try:
        return gpu_models()[name]
    except KeyError:
        raise DeviceError(f"no GPU model {name!r}; the table has {', '.join(gpu_models())}") from None


def is_named(reported: str, name: str, nbytes: int) -> bool:
    """True if the GPU that its driver reports as ``reported`` (with dashes for blanks) is the table's model ``name``.

    ``NVIDIA-A100-SXM4-40GB`` is an ``A100-40GB``. A name without a size, such as ``NVIDIA-H100-PCIe``, is the table's
    model of that family, or the one of them whose memory is about ``nbytes``. A MIG instance is no model: R is a
    percentage of a GPU.
    """
    if name not in gpu_models() or "MIG" in (words := reported.split("-")):
        return reported == name
    family, size = name.split("-")
    sizes = [word for word in words if _GB.fullmatch(word)]
    if family not in words:
        return False
    if sizes:
        return size in sizes
    alike = {
        each.name: each.profiles[-1].memory_bytes
        for each in gpu_models().values()
        if each.name.startswith(f"{family}-")
    }
    return len(alike) == 1 or abs(alike[name] - nbytes) <= _SIZE_SLACK * alike[name]
