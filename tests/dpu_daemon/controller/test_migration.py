"""Trees that move while jobs run: released first, then acquired, counted, and no rank waits meanwhile."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from statistics import median

import pytest

from offpath.bindings.wire import ina_admin
from offpath.cli.local.ina_cluster import InaCluster
from offpath.cli.local.switches import Switches
from offpath.sched.topology import imported

from ...sizes import sized
from ...support.evidence import keep
from ...support.ina_ranks import FakeJob
from ...support.processes import until
from ...support.sample_policies import install

WORDS = "leaf-spine:2x1x2"
TOPOLOGY = imported.regular(WORDS)
HOSTS, SWITCHES = TOPOLOGY.names[: TOPOLOGY.hosts], TOPOLOGY.names[TOPOLOGY.hosts :]
ROUNDS = sized(quick=2, fast=2, slow=5, full=50)
LONGEST_S = 1.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[InaCluster]:
    """Two leaves under two spines; the builder gives all jobs one root, and another when their number changes."""
    folder = tempfile.mkdtemp(prefix="offpath-m-")
    try:
        install(f"{folder}/site")
        with Switches(f"{folder}/switches", leaves=len(SWITCHES) - 1) as switches:
            where = {
                name: (switches.addresses[own], switches.controls[own].address)
                for name, own in zip(SWITCHES, switches.names, strict=True)
            }
            policy = {"tree_builder": "plugin:turning", "plugin_ms": 2_000}
            with InaCluster(
                f"{folder}/cluster", where, hosts=HOSTS, topology=WORDS, policy=policy,
                environment={"PYTHONPATH": f"{folder}/site"},
            ) as started:  # fmt: skip
                yield started
                assert started.status().counters["plugin_faults"] == 0
                for name in started.processes:
                    assert "Traceback" not in started.log(name), started.log(name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def root_of(cluster: InaCluster, job: str) -> str:
    with cluster.client() as client:
        return client.query(ina_admin.JobRequest(job=job), ina_admin.InaJob).job.root


def test_a_tree_moves_and_comes_back_with_each_job_that_comes_and_goes(cluster: InaCluster) -> None:
    folders = [cluster.state_files(host) for host in HOSTS for _ in range(2)]
    with FakeJob("stays", folders) as stays:
        cluster.granted(["stays"])
        roots = [root_of(cluster, "stays")]
        for number in range(ROUNDS):
            guest = f"guest{number}"
            with FakeJob(guest, folders):
                cluster.granted(["stays", guest])
                roots.append(root_of(cluster, "stays"))
            with cluster.client() as client:
                client.query(ina_admin.CancelRequest(job=guest), ina_admin.InaJob)
            until(lambda wanted=2 * (number + 1): cluster.status().migrations == wanted)
            roots.append(root_of(cluster, "stays"))
        status = cluster.status()
    assert len({*roots[::2]}) == len({*roots[1::2]}) == 1
    assert {*roots} == {*SWITCHES[-2:]}
    assert len(status.downtime_ms) == min(64, status.migrations) == min(64, 2 * ROUNDS)
    assert min(status.downtime_ms) > 0
    assert stays.longest_s < LONGEST_S, "a rank waited for somebody"
    assert [stamp for stamp, _ in stays.applied] == sorted({stamp for stamp, _ in stays.applied})
    grants = [has for _, has in stays.applied]
    assert not any(one and other for one, other in pairwise(grants)), "acquired before released"
    keep(
        "ina-migrations.txt",
        f"{status.migrations} migrations of a running job, steps of 5 ms: ms without a tree, median "
        f"{median(status.downtime_ms):.1f}, least {min(status.downtime_ms):.1f}, most {max(status.downtime_ms):.1f}; "
        f"longest step {1e3 * stays.longest_s:.1f} ms",
    )
