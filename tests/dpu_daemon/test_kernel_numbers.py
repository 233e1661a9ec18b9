"""A kernel's number is never given to another name: not after a kill -9, nor after the name was forgotten."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from offpath.bindings.wire import admin, control, fields
from offpath.bindings.wire.codes import Reason, Status
from offpath.cli.admin_client import AdminClient
from offpath.host_helper import Requester, RequestFailed

from ..support.cluster import TIMEOUT, Cluster, pids_of
from ..support.clusters import Make, seconds
from ..support.fakehost import FakeHost
from ..support.processes import until

DURABLE = {"resume_ttl_s": 60, "adopt_ms": 500, "journal_mib": 1}


@pytest.fixture
def kept(make_cluster: Make) -> Callable[..., Cluster]:
    def make(**tables: Any) -> Cluster:
        return make_cluster({"ada": {}}, keep={"starts": 0}, durability=DURABLE, **tables)

    return make


def offer(name: str) -> list[control.KernelOffer]:
    return [control.KernelOffer(name=name, demand=14)]


def joined(cluster: Cluster, name: str) -> int:
    """A helper comes with one kernel and leaves again; the kernel's number."""
    with FakeHost(cluster) as fake:
        number = fake.join(kernels=offer(name)).kernel_ids[name]
    until(lambda: not status(cluster).has_helper)
    return number


def status(cluster: Cluster) -> admin.Status:
    with AdminClient(str(cluster.run_folder)) as client:
        return client.query(admin.StatusRequest(), admin.Status)


def kill_kept(cluster: Cluster) -> None:
    """kill -9 under the service manager; returns when the next life of the same lineage is there."""
    os.kill(pids_of(cluster.daemon)[0], signal.SIGKILL)
    assert cluster.daemon.hear()["lineage"] == cluster.lineage


def explained(cluster: Cluster, requester: Requester) -> admin.Explanation:
    with AdminClient(str(cluster.run_folder)) as client:
        asked = admin.ExplainRequest(session=requester.welcome.session, request_id=1)
        return client.query(asked, admin.Explanation)


def queued_for_the_second(cluster: Cluster, requester: Requester) -> Any:
    """The first helper (number 1), the second with a request in its queue (number 2), the first again, kill -9."""
    with FakeHost(cluster) as fake:
        assert fake.join(kernels=offer("second")).kernel_ids == {"second": 2}
        assert requester.kernel_id("second") == 2
        pending = requester.begin("second", seconds(7))
        until(lambda: status(cluster).queued == 1)
    until(lambda: not status(cluster).has_helper)
    assert joined(cluster, "first") == 1
    kill_kept(cluster)
    return pending


def test_a_request_is_not_run_by_another_kernel_after_a_kill_and_ends_with_a_reason(
    kept: Callable[..., Cluster],
) -> None:
    cluster = kept(limits={"kernel_gone_ms": 600_000})
    assert joined(cluster, "first") == 1
    with cluster.connect("ada") as requester:
        pending = queued_for_the_second(cluster, requester)
        cluster.start_helper()
        with cluster.connect("ada") as other:
            assert other.kernel_id("echo") > 2
            assert other.submit("echo", seconds(5), timeout=TIMEOUT).array.item() == 5
        assert not pending.done
        (hold,) = explained(cluster, requester).holds
        assert (hold.cause, "second" in hold.text) == ("kernel", True)
        cluster.config["limits"] = {"kernel_gone_ms": 1}
        assert cluster.reload()
        with pytest.raises(RequestFailed) as failed:
            pending.result(TIMEOUT)
        assert (failed.value.status, failed.value.reason) == (Status.CANCELLED, Reason.KERNEL_GONE)


def test_more_names_over_a_life_than_a_welcome_lists_are_learnt_and_no_number_is_given_twice(
    make_cluster: Make,
) -> None:
    """Also across a kill -9, a wrapped journal ring, and back to a name that was forgotten."""
    cluster = make_cluster({"ada": {}}, keep={"starts": 0}, durability=DURABLE, limits={"kernel_gone_ms": 600_000})
    given: dict[int, str] = {}
    for n in range(3 * fields.MAX_KERNELS // 32):
        with FakeHost(cluster) as fake:
            names = [f"{'k' * 56}{n:03}{i:03}" for i in range(32)]
            ids = fake.join(kernels=[control.KernelOffer(name=name, demand=14) for name in names]).kernel_ids
        until(lambda: not status(cluster).has_helper)
        assert not given.keys() & ids.values()
        given.update((number, name) for name, number in ids.items())
        if n % 8 == 4:
            kill_kept(cluster)
    assert len(given) == 3 * fields.MAX_KERNELS
    assert joined(cluster, given[1]) == len(given) + 1, "its name was forgotten, its number is not its any more"
    assert joined(cluster, given[len(given)]) == len(given), "a name that is not forgotten keeps its number"
    with cluster.connect("ada", slots=1) as requester:
        assert len(requester.welcome.kernels) == fields.MAX_KERNELS
    assert len(status(cluster).kernels) == fields.MAX_KERNELS


def test_a_helper_that_comes_back_with_other_kernels_is_another_helper(kept: Callable[..., Cluster]) -> None:
    """Its incarnation is what it says; what it serves decides which numbers may be used."""
    cluster = kept()
    with FakeHost(cluster) as fake:
        fake.join(kernels=offer("first"), incarnation="same")
        kill_kept(cluster)
        with FakeHost(cluster) as back:
            assert back.join(kernels=offer("second"), incarnation="same").kernel_ids == {"second": 2}
            kill_kept(cluster)
            with FakeHost(cluster) as again:
                assert again.join(kernels=offer("third"), incarnation="same").kernel_ids == {"third": 3}
