"""The table of MIG geometry: profiles, legal starts, slices and memory of six GPU models.

Source: data/mig_profiles.json, which states its provenance. The GPU port reports the geometry, and shells pass it to
``sched`` as plain records. No other module reads the file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

from offpath.bindings.errors import DeviceError

MIB = 1 << 20


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
