"""The engines that a demonstration or test can start on this machine: nodes with two GPUs each, below leaf switches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from offpath.bindings.errors import EngineMissing
from offpath.cli.local.ray_cluster import RayCluster
from offpath.cli.local.slurm_cluster import SlurmCluster, unpacked

GPUS: Final = 2
Leaves = Mapping[str, int]
"""How many nodes are below each leaf switch."""


@dataclass(frozen=True, slots=True)
class Started:
    """``table``: ``[engine]`` of the job manager. ``leaves``: the nodes below each leaf switch, by name."""

    table: dict[str, Any]
    leaves: dict[str, tuple[str, ...]]

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, leaf by leaf."""
        return tuple(node for nodes in self.leaves.values() for node in nodes)


def _dealt(nodes: Sequence[str], leaves: Leaves) -> dict[str, tuple[str, ...]]:
    """The nodes, in their order, over the leaves."""
    rest = iter(nodes)
    return {leaf: tuple(next(rest) for _ in range(count)) for leaf, count in leaves.items()}


@contextlib.contextmanager
def _local(folder: str, leaves: Leaves) -> Iterator[Started]:
    dealt = _dealt([f"n{number}" for number in range(sum(leaves.values()))], leaves)
    tables = [{"name": node, "gpus": GPUS, "switch": leaf} for leaf, nodes in dealt.items() for node in nodes]
    yield Started({"kind": "local", "folder": f"{folder}/engine", "poll_ms": 100, "node": tables}, dealt)


@contextlib.contextmanager
def _slurm(folder: str, leaves: Leaves) -> Iterator[Started]:
    place = Path(folder) / "slurm"
    place.mkdir()
    cluster = SlurmCluster(place, sum(leaves.values()), leaves=lambda nodes: _dealt(nodes, leaves))
    try:
        cluster.open()
        table = {
            "kind": "slurm", "bin": str(cluster.programs), "conf": cluster.environment["SLURM_CONF"], "poll_ms": 300,
            "settle_s": 0.0,
        }  # fmt: skip
        yield Started(table, _dealt(cluster.nodes, leaves))
    finally:
        cluster.close()


@contextlib.contextmanager
def _ray(folder: str, leaves: Leaves) -> Iterator[Started]:
    place = Path(folder) / "ray"
    place.mkdir()
    cluster = RayCluster(
        place, sum(leaves.values()),
        leaves=lambda nodes: {node: leaf for leaf, below in _dealt(nodes, leaves).items() for node in below},
    )  # fmt: skip
    try:
        cluster.open()
        table = {
            "kind": "ray", "address": cluster.address, "python": str(cluster.programs / "python"),
            "token": str(cluster.token), "folder": f"{folder}/engine", "poll_ms": 300,
        }  # fmt: skip
        yield Started(table, _dealt(cluster.nodes, leaves))
    finally:
        cluster.close()


ENGINES: Final[dict[str, Callable[[str, Leaves], AbstractContextManager[Started]]]] = {
    "local": _local, "slurm": _slurm, "ray": _ray,
}  # fmt: skip
"""By name. Each starts what it needs in a folder, and ends it."""


def started(kind: str, folder: str, leaves: Leaves) -> AbstractContextManager[Started]:
    """``kind``: of `ENGINES`. Raises: EngineMissing, EngineUnavailable: it cannot be installed or does not start."""
    return ENGINES[kind](folder, leaves)


def default() -> str:
    """Slurm where it can be unpacked, else ``local``."""
    try:
        unpacked()
    except EngineMissing:
        return "local"
    return "slurm"
