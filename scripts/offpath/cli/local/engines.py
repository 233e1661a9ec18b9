"""The engines that `demo netpack` can run its jobs with: five servers with two GPUs below one leaf switch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from offpath.bindings.errors import EngineMissing
from offpath.cli.local.ray_cluster import RayCluster
from offpath.cli.local.slurm_cluster import SlurmCluster, unpacked

SERVERS: Final = 5
GPUS: Final = 2


@dataclass(frozen=True, slots=True)
class Started:
    """``table``: ``[engine]`` of the job manager. ``nodes``: names. ``leaf``: their switch at the engine."""

    table: dict[str, Any]
    nodes: tuple[str, ...]
    leaf: str


@contextlib.contextmanager
def _local(folder: str) -> Iterator[Started]:
    nodes = tuple(f"n{number}" for number in range(SERVERS))
    tables = [{"name": node, "gpus": GPUS, "switch": "s0"} for node in nodes]
    yield Started({"kind": "local", "folder": f"{folder}/engine", "poll_ms": 100, "node": tables}, nodes, "s0")


@contextlib.contextmanager
def _slurm(folder: str) -> Iterator[Started]:
    place = Path(folder) / "slurm"
    place.mkdir()
    cluster = SlurmCluster(place, SERVERS, leaves=lambda nodes: {"s0": nodes})
    try:
        cluster.open()
        table = {
            "kind": "slurm", "bin": str(cluster.programs), "conf": cluster.environment["SLURM_CONF"], "poll_ms": 300,
            "settle_s": 0.0,
        }  # fmt: skip
        yield Started(table, tuple(cluster.nodes), "s0")
    finally:
        cluster.close()


@contextlib.contextmanager
def _ray(folder: str) -> Iterator[Started]:
    place = Path(folder) / "ray"
    place.mkdir()
    cluster = RayCluster(place, SERVERS, leaves=lambda nodes: dict.fromkeys(nodes, "s0"))
    try:
        cluster.open()
        table = {
            "kind": "ray", "address": cluster.address, "python": str(cluster.programs / "python"),
            "token": str(cluster.token), "folder": f"{folder}/engine", "poll_ms": 300,
        }  # fmt: skip
        yield Started(table, tuple(cluster.nodes), "s0")
    finally:
        cluster.close()


ENGINES: Final[dict[str, Callable[[str], AbstractContextManager[Started]]]] = {
    "local": _local, "slurm": _slurm, "ray": _ray,
}  # fmt: skip
"""By name. Each starts what it needs in a folder, and ends it."""


def started(kind: str, folder: str) -> AbstractContextManager[Started]:
    """``kind``: of `ENGINES`. Raises: EngineMissing, EngineUnavailable: it cannot be installed or does not start."""
    return ENGINES[kind](folder)


def default() -> str:
    """Slurm where it can be unpacked, else ``local``."""
    try:
        unpacked()
    except EngineMissing:
        return "local"
    return "slurm"
