"""Gangs end to end: a request that needs several whole GPUs, from offer to answer, with losses on the way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpath.bindings import mig
from offpath.bindings.wire import admin, control, fields
from offpath.bindings.wire.codes import Reason, Status
from offpath.cli.admin_client import AdminClient
from offpath.host_helper import Options, RequestFailed
from offpath.sched.gpu import geometry
from offpath.sched.jobs import gangs

from ..host_helper.migd.rig import Migd
from ..support.cluster import TIMEOUT, Cluster, said
from ..support.clusters import Make, path_array
from ..support.fakehost import FakeHost
from ..support.gpu_machine import Machine
from ..support.processes import until
from .test_resume import DURABLE, kill_daemon

WIDE = {"max_share": 400, "max_demand": 400}
H100 = "H100-80GB"
THREE = ",".join([H100] * 3)
NOTHING = [np.zeros(1)]
Boot = Callable[..., Machine]


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Boot]:
    """``boot(**settings)``: a machine of three whole H100."""
    made: list[Machine] = []

    def start(**settings: str) -> Machine:
        values = {"mig": "off", "models": THREE, "slice_bytes": str(16 << 20), **settings}
        made.append(Machine(tmp_path / "machine", **values))
        return made[-1]

    yield start
    for each in made:
        each.close()


def gang(requester: Any, share: int) -> Any:
    """What a worker has that runs a job with R = ``share``."""
    options = Options(demand=share, is_idempotent=True)
    return said(requester.submit("share", [np.array([1 << 20])], options=options, timeout=TIMEOUT))


def status(cluster: Cluster) -> admin.Status:
    with AdminClient(str(cluster.run_folder)) as client:
        return client.query(admin.StatusRequest(), admin.Status)


def leases(cluster: Cluster) -> list[admin.LeaseLine]:
    with AdminClient(str(cluster.run_folder)) as client:
        return client.query(admin.LeasesRequest(after=0, limit=16), admin.Leases).leases


@pytest.mark.gpu
def test_a_gang_has_its_gpus_alone_and_the_next_tenant_gets_them_after_a_scrub(boot: Boot, make_cluster: Make) -> None:
    boot(nvlinks="0-2:4")
    cluster = make_cluster({"ada": WIDE, "bob": WIDE}, leasing={"reclaim_after_ms": 1, "min_hold_ms": 1})
    cluster.start_helper(emulate=[], gpus="cuda")
    with cluster.connect("ada") as ada, cluster.connect("bob") as bob:
        pair = gang(ada, 200)
        assert len(set(pair["gpus"])) == 2
        assert pair["devices"] == pair["gpus"]
        assert [gpu.held_share for gpu in status(cluster).gpus] == [100, 0, 100], "those with NVLink between them"
        assert not pair["mps"]
        (lease,) = leases(cluster)
        assert [lease.gpu, *lease.others] == [f"helper/{uuid}" for uuid in pair["gpus"]]
        assert (lease.alpha, lease.profile) == (200, "whole")
        single = gang(bob, 100)
        assert single["gpus"][0] not in pair["gpus"]
        assert len(single["devices"]) == 1
        assert len(set(gang(bob, 300)["devices"])) == 3, "the other leases were taken back"
        with pytest.raises(RequestFailed) as failed:
            gang(bob, 400)
        assert (failed.value.status, failed.value.reason) == (Status.REJECTED, Reason.GANG_UNSUPPORTED)
        for share in (150, 1_700):
            with pytest.raises(RequestFailed) as failed:
                gang(bob, share)
            assert failed.value.reason is Reason.BAD_DEMAND
    assert cluster.statistics()["leases_opened"] >= 3


@pytest.mark.gpu
def test_a_kernel_that_states_a_gang_gets_it_and_a_gpu_of_it_that_is_lost_ends_it(
    boot: Boot, make_cluster: Make, tmp_path: Path
) -> None:
    machine = boot()
    migd = Migd(machine, tmp_path / "migd", gpu="all=whole")
    cluster = make_cluster(
        {"ada": WIDE}, leasing={"keep_warm_ms": 60_000, "lanes": 1}, keep={"starts": 0}, durability=DURABLE
    )
    try:
        needs = {"share": {"demand": 200}, "mark": {"demand": 200}}
        cluster.start_helper(emulate=[], gpus="migd", migd=migd.path, needs=needs, mps="off")
        with cluster.connect("ada") as ada:
            share = said(ada.submit("share", [np.array([1 << 20])], timeout=TIMEOUT))
            assert len(share["devices"]) == 2
            path = cluster.folder / "mark"
            running = ada.begin("mark", path_array(path))
            until(lambda: path.exists() and path.read_text())
            machine.post_xid(79, gpu=1)  # its second one
            with pytest.raises(RequestFailed) as failed:
                running.result(TIMEOUT)
            assert (failed.value.status, failed.value.reason) == (Status.OUTCOME_UNKNOWN, Reason.WORKER_LOST)
            rest = gang(ada, 200)
            assert len(set(rest["devices"]) | set(share["devices"])) == 3
        kill_daemon(cluster)
        until(lambda: [each.lost_gpus for each in status(cluster).helpers] == [1])
        (lease,) = leases(cluster)
        assert [lease.gpu, *lease.others] == [f"helper/{uuid}" for uuid in rest["gpus"]], "the next daemon keeps it"
        with cluster.connect("ada") as ada:
            assert gang(ada, 200)["pid"] == rest["pid"]
    finally:
        cluster.close()
        migd.close()


def whole(uuid: str, *linked: tuple[str, int]) -> control.GpuOffer:
    profile = control.ProfileInfo(
        name="whole", compute_slices=1, memory_slices=1, memory_bytes=80 << 30, starts=[0], max_instances=1
    )
    links = [control.GpuLink(uuid=other, links=count) for other, count in linked]
    return control.GpuOffer(
        uuid=uuid, model=H100, is_emulated=True, compute_slices=1, memory_slices=1, profiles=[profile], linked=links
    )


def test_helpers_and_book_name_a_whole_gpu_alike() -> None:
    assert geometry.WHOLE == mig.WHOLE
    assert gangs.MOST_GPUS == fields.MAX_GPUS


def test_an_instance_as_large_as_its_gpu_is_no_whole_gpu(make_cluster: Make) -> None:
    """CUDA lets a process use one MIG instance, so that several cannot form a gang."""
    cluster = make_cluster({"ada": WIDE})
    with FakeHost(cluster) as fake, cluster.connect("ada", slots=1) as ada:
        cut = [offer.model_copy(update={"profiles": [renamed(offer.profiles[0])]}) for offer in map(whole, "ab")]
        join(fake, *cut)
        assert isinstance(fake.hear(), control.HostWelcome)
        ada._link.negotiation.update(1.0)
        with pytest.raises(RequestFailed) as failed:
            ada.submit("pair", NOTHING, timeout=TIMEOUT)
        assert failed.value.reason is Reason.GANG_UNSUPPORTED


def renamed(profile: control.ProfileInfo) -> control.ProfileInfo:
    return profile.model_copy(update={"name": "7g.80gb"})


def join(fake: FakeHost, *offers: control.GpuOffer) -> None:
    pair = control.KernelOffer(name="pair", demand=200)
    fake.send(control.HelperHello(name="fake", pid=1, gpu_count=len(offers), kernels=[pair]))
    for offer in offers:
        fake.send(offer)


def test_a_gang_is_ordered_on_the_gpus_with_the_most_links(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": WIDE})
    with FakeHost(cluster) as fake, cluster.connect("ada", slots=2) as ada:
        join(fake, whole("a", ("b", 2)), whole("b", ("a", 2), ("d", 4)), whole("c"), whole("d", ("b", 4)))
        assert isinstance(fake.hear(), control.HostWelcome)
        ada._link.negotiation.update(1.0)
        waiting = ada.begin("pair", NOTHING)
        order = fake.hear()
        assert (order.kind, order.gpu, order.others, order.profile) == ("open_instance", "b", ["d"], "whole")
        fake.send(control.GpuLost(uuid="d", detail="Xid 79"))
        other = fake.hear()
        assert (other.gpu, other.others, other.scrub_first) == ("a", ["b"], True), "b was in the lost gang"
        fake.send(control.GpuLost(uuid="a", detail="Xid 79"))
        last = fake.hear()
        assert (last.gpu, last.others) == ("b", ["c"])
        fake.send(control.GpuLost(uuid="c", detail="Xid 79"))
        with pytest.raises(RequestFailed) as failed:
            waiting.result(TIMEOUT)
        assert (failed.value.status, failed.value.reason) == (Status.CANCELLED, Reason.GANG_UNSUPPORTED)
        assert status(cluster).leases == 0


@pytest.mark.parametrize("links", [(("b", 1), ("b", 2)), (("a", 1),)], ids=["twice", "to itself"])
def test_an_offer_whose_links_make_no_sense_is_refused(make_cluster: Make, links: tuple[tuple[str, int], ...]) -> None:
    cluster = make_cluster({"ada": WIDE})
    with FakeHost(cluster) as fake:
        join(fake, whole("a", *links), whole("b"))
        assert fake.hear() is None
        until(lambda: re.search("names a link twice, or one to itself", cluster.daemon.errors))
