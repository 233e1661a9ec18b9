"""A real Slurm of four nodes, and a job manager on it."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from offpath.cli.local.job_manager import JobManager
from offpath.cli.local.slurm_cluster import SlurmCluster


@contextlib.contextmanager
def slurm_cluster() -> Iterator[SlurmCluster]:
    """Below a short path: sockets are in it. SlurmdTimeout is 5 s: with Slurm's default of 300 s a job that is launched
    while its slurmd is killed can stand for as long."""
    folder = Path(tempfile.mkdtemp(prefix="offpath-s-"))
    cluster = SlurmCluster(folder)
    try:
        cluster.open()
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def manager_on(slurm: SlurmCluster, folder: Path) -> Iterator[JobManager]:
    """``settle_s`` is as for a Slurm that may be killed. It must log no traceback."""
    engine = {
        "kind": "slurm", "bin": str(slurm.programs), "conf": slurm.environment["SLURM_CONF"], "poll_ms": 300,
        "settle_s": 6.0,
    }  # fmt: skip
    network = {"link_gbps": 100, "oversubscription": 4, "switch_memory_mib": 5}
    tables = {"engine": engine, "network": network, "policy": {"batch_ms": 200}}
    with JobManager(str(folder), tables) as made:
        yield made
        assert "Traceback" not in made.log
