"""Memory and GPU models of kernels, by real processes and by helpers that lie."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

from offpath.bindings.wire import admin, control
from offpath.bindings.wire.codes import Reason, Status
from offpath.cli.admin_client import AdminClient
from offpath.host_helper import Options, Requester, RequestFailed

from ..support.cluster import TIMEOUT, Cluster, pids_of, said
from ..support.clusters import Make, seconds
from ..support.fakehost import FakeHost, offer

GIB = 1 << 30


@pytest.fixture
def cluster(make_cluster: Make) -> Cluster:
    return make_cluster({"ada": {}})


ECHO = [control.KernelOffer(name="echo", demand=14)]


def place(requester: Requester, **options: Any) -> tuple[str, str]:
    """GPU and profile of the instance that ran ``where``."""
    ran = said(requester.submit("where", seconds(0), options=Options(**options), timeout=TIMEOUT))
    return ran["gpu"], ran["profile"]


def refused(requester: Requester, kernel: str) -> Reason:
    with pytest.raises(RequestFailed) as failed:
        requester.submit(kernel, seconds(0), timeout=TIMEOUT)
    assert failed.value.status is Status.REJECTED
    return failed.value.reason


def explanation(cluster: Cluster, requester: Requester) -> str:
    with AdminClient(str(cluster.run_folder)) as client:
        asked = admin.ExplainRequest(session=requester.welcome.session, request_id=1)
        return " ".join(hold.text for hold in client.query(asked, admin.Explanation).holds)


def test_a_kernel_runs_where_its_memory_is_or_learns_what_is_lacking(make_cluster: Make) -> None:
    """R = 14 fits every profile. The emulated memory is far less than the real one, which counts."""
    cluster = make_cluster({"ada": {}}, leasing={"keep_warm_ms": 60_000, "max_lanes": 8})
    needs = {"where": {"memory": "18GiB"}, "sum": {"memory": "41GiB"}, "describe": {"demand": {"H100-80GB": 14}}}
    cluster.start_helper(needs={name: {"demand": 14, **each} for name, each in needs.items()})
    with cluster.connect("ada") as ada:
        ada.submit("echo", seconds(0), timeout=TIMEOUT)
        assert place(ada) == ("GPU-0", "3g.20gb"), "not the small instance that is warm"
    with cluster.connect("ada") as ada:
        assert refused(ada, "sum") is Reason.NO_INSTANCE_MEMORY
        text = explanation(cluster, ada)
        assert f"14 % with {41 * GIB + (8 << 20)} bytes of memory" in text
        assert "(7g.40gb of A100-40GB)" in text
    with cluster.connect("ada") as ada:
        assert refused(ada, "describe") is Reason.NO_GPU_MODEL
        assert explanation(cluster, ada) == "it needs 14 % of H100-80GB; the GPUs here are A100-40GB"


def test_r_is_that_of_the_gpu_s_model(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}})
    cluster.start_helper(
        emulate=["A30-24GB", "A100-40GB"],
        needs={"where": {"demand": {"A100-40GB": 40}}, "echo": {"demand": {"A30-24GB": 60}}},
    )
    with cluster.connect("ada") as ada:
        assert place(ada) == ("GPU-1", "3g.20gb")
        assert place(ada, demand=14) == ("GPU-1", "3g.20gb"), "the lease that is there"
        kernels = {kernel.name: kernel.demand for kernel in ada.welcome.kernels}
        assert (kernels["where"], kernels["echo"]) == (40, 60)
        ada.submit("echo", seconds(0), timeout=TIMEOUT)
        with AdminClient(str(cluster.run_folder)) as client:
            leases = client.query(admin.LeasesRequest(), admin.Leases).leases
        assert {(lease.gpu, lease.profile) for lease in leases} == {
            ("helper/GPU-1", "3g.20gb"),
            ("helper/GPU-0", "4g.24gb"),
        }


def test_a_restarted_daemon_knows_its_helper_s_kernels_again(make_cluster: Make) -> None:
    """Memory and models are part of the journal: the same helper keeps its leases, and the rule stays."""
    cluster = make_cluster(
        {"ada": {}}, keep={"starts": 0}, durability={"journal_mib": 1, "resume_ttl_s": 20},
        leasing={"keep_warm_ms": 60_000},
    )  # fmt: skip
    cluster.start_helper(needs={"where": {"demand": {"A100-40GB": 14}, "memory": "18GiB"}})
    with cluster.connect("ada") as ada:
        first = said(ada.submit("where", seconds(0), timeout=TIMEOUT))
    os.kill(pids_of(cluster.daemon)[0], signal.SIGKILL)
    assert cluster.daemon.hear()["lineage"] == cluster.lineage
    with cluster.connect("ada") as ada:
        again = said(ada.submit("where", seconds(0), timeout=TIMEOUT))
    assert [again[key] for key in ("pid", "lease", "profile")] == [first[key] for key in ("pid", "lease", "profile")]


# -- helpers that lie --------------------------------------------------------------------------------------------------
def about(name: str = "echo", **needs: Any) -> control.KernelNeeds:
    return control.KernelNeeds(name=name, **needs)


TWICE = [control.ModelDemand(model="A100-40GB", demand=14)] * 2


@pytest.mark.parametrize(
    "messages",
    [
        [about("other")], [about(), about()], [about(models=TWICE)],
        [about(max_batch=8, preferred_batch_sizes=[4, 2])], [about(max_batch=8, preferred_batch_sizes=[9])],
        [about(max_batch=2, sequences=True)],
    ],
    ids=[
        "a kernel that it does not serve", "a kernel twice", "a model twice", "sizes that fall", "a size too large",
        "batches of sequences",
    ],
)  # fmt: skip
def test_needs_that_cannot_be_lose_their_helper(cluster: Cluster, messages: list[control.KernelNeeds]) -> None:
    with FakeHost(cluster) as fake:
        fake.send(control.HelperHello(name="fake", pid=os.getpid(), kernels=ECHO, gpu_count=1, needs_count=2))
        for message in messages:
            fake.send(message)
        assert fake.hear() is None


def test_needs_that_were_not_announced_lose_their_helper(cluster: Cluster) -> None:
    with FakeHost(cluster) as fake:
        fake.join()
        fake.send(about(memory_bytes=GIB))
        assert fake.hear() is None


def test_the_most_that_a_message_can_say_is_served(cluster: Cluster) -> None:
    """A kernel of 2⁵⁰ bytes fits nothing, and the daemon's sums hold."""
    with FakeHost(cluster) as fake:
        fake.send(control.HelperHello(name="fake", pid=os.getpid(), kernels=ECHO, gpu_count=1, needs_count=1))
        fake.send(offer())
        models = [control.ModelDemand(model="A100-40GB", demand=100)]
        fake.send(about(memory_bytes=1 << 50, models=models))
        assert isinstance(fake.hear(), control.HostWelcome)
        with cluster.connect("ada") as ada:
            assert refused(ada, "echo") is Reason.NO_INSTANCE_MEMORY
            assert np.array_equal([ada.welcome.kernels[0].demand], [100]), "the table's R, not the hello's"
