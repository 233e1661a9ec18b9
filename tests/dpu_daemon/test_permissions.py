"""Which kernels a tenant may call: its configuration says so, at once after a reload."""

from __future__ import annotations

import pytest

from offpath.bindings.wire import control
from offpath.bindings.wire.codes import Reason, Status
from offpath.host_helper import Requester, RequestFailed

from ..support.cluster import TIMEOUT
from ..support.clusters import Make, seconds
from ..support.fakehost import FakeHost


def ending(requester: Requester, kernel: str) -> tuple[Status, Reason]:
    with pytest.raises(RequestFailed) as failed:
        requester.submit(kernel, seconds(0), timeout=TIMEOUT)
    return failed.value.status, failed.value.reason


def test_a_kernel_that_is_not_permitted_never_runs(make_cluster: Make) -> None:
    """Neither before nor after a reload; other tenants are not concerned, nor are kernels that come later."""
    cluster = make_cluster({"ada": {"kernels": ["echo", "not-yet-there"]}, "bob": {}, "cyd": {"kernels": []}})
    refused = (Status.REJECTED, Reason.KERNEL_NOT_PERMITTED)
    cluster.start_helper()
    with cluster.connect("ada") as ada, cluster.connect("bob") as bob, cluster.connect("cyd") as cyd:
        ada.submit("echo", seconds(0), timeout=TIMEOUT)
        bob.submit("sum", seconds(0), timeout=TIMEOUT)
        assert [ending(ada, "sum"), ending(cyd, "echo")] == [refused, refused]
        ada_, bob_, cyd_ = cluster.config["tenant"]
        ada_["kernels"], bob_["kernels"] = ["sum"], ["echo"]
        del cyd_["kernels"]
        assert cluster.reload()
        assert [ending(ada, "echo"), ending(bob, "sum")] == [refused, refused]
        ada.submit("sum", seconds(0), timeout=TIMEOUT)
        cyd.submit("sum", seconds(0), timeout=TIMEOUT)


def test_a_reload_ends_what_is_queued_and_leaves_what_runs(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}})
    kernels = [control.KernelOffer(name=name, demand=100) for name in ("echo", "sum")]
    with FakeHost(cluster) as fake:
        fake.join(kernels=kernels)
        with cluster.connect("ada") as ada:
            queued, other = ada.begin("echo", seconds(0)), ada.begin("sum", seconds(0))
            assert isinstance(fake.hear(), control.OpenInstance)  # and nobody makes it
            cluster.config["tenant"][0]["kernels"] = ["sum"]
            assert cluster.reload()
            with pytest.raises(RequestFailed) as failed:
                queued.result(TIMEOUT)
            assert (failed.value.status, failed.value.reason) == (Status.CANCELLED, Reason.KERNEL_NOT_PERMITTED)
            other.cancel()


@pytest.mark.parametrize("kernels", [[""], ["two words"], ["k" * 65], "echo", [7], ["a"] * 257, [["a"]]])
def test_a_list_of_kernels_that_is_none_changes_nothing(make_cluster: Make, kernels: object) -> None:
    cluster = make_cluster({"ada": {}})
    cluster.config["tenant"][0]["kernels"] = kernels
    assert not cluster.reload()
    assert "tenant.0.kernels" in cluster.daemon.errors
