"""Helpers with more kernels than one message of the host channel has room for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from offpath.bindings.errors import PeerGone, ProtocolError
from offpath.bindings.wire import admin, control, fields
from offpath.bindings.wire.frames import frame
from offpath.cli.admin_client import AdminClient
from offpath.dpu_daemon.hosts.host import MAX_GPUS
from offpath.dpu_daemon.hosts.offers import take_detail
from offpath.host_helper.kernels import KernelTable

from ..support.cluster import TIMEOUT, Cluster
from ..support.clusters import NARROW, Make
from ..support.fakehost import FakeHost, offer
from ..support.processes import until

NAMES = [f"{'k' * 60}{number}" for number in range(fields.MAX_OFFERED)]


@pytest.fixture
def cluster(make_cluster: Make) -> Cluster:
    return make_cluster({"ada": NARROW})


@pytest.fixture
def fake(cluster: Cluster) -> Iterator[FakeHost]:
    with FakeHost(cluster) as host_:
        yield host_


def offers(names: list[str]) -> list[control.KernelOffer]:
    return [control.KernelOffer(name=name, demand=14) for name in names]


def hello(names: list[str], more: int) -> control.HelperHello:
    return control.HelperHello(name="fake", pid=os.getpid(), gpu_count=1, kernels=offers(names), more_kernels=more)


def numbers(fake: FakeHost) -> dict[str, int]:
    """Those of the HostKernels that come now."""
    found: dict[str, int] = {}
    while True:
        message = fake.hear()
        assert isinstance(message, control.HostKernels)
        found |= message.kernel_ids
        if not message.has_more:
            return found


def status(cluster: Cluster) -> admin.HelperLine:
    with AdminClient(str(cluster.run_folder)) as client:
        (line,) = client.query(admin.StatusRequest(), admin.Status).helpers
    return line


def test_a_helper_with_as_many_kernels_as_it_may_have_joins_and_reloads(cluster: Cluster, fake: FakeHost) -> None:
    fake.send(hello(NAMES[:32], 224))
    fake.send(offer())
    for at in range(32, 256, 32):
        fake.send(control.MoreKernels(kernels=offers(NAMES[at : at + 32])))
    welcome = fake.hear()
    assert isinstance(welcome, control.HostWelcome)
    assert numbers(fake) == {name: number for number, name in enumerate(NAMES, 1)}
    assert (status(cluster).kernels, status(cluster).kernel_count) == (NAMES[:32], 256)
    with cluster.connect("ada") as ada:
        assert {each.name for each in ada.welcome.kernels} == set(NAMES)
    fake.send(control.KernelsReloaded(revision=1, kernels=offers(NAMES[:30]), more_kernels=10))
    fake.send(control.MoreKernels(kernels=offers(NAMES[100:110])))
    assert numbers(fake) == {name: NAMES.index(name) + 1 for name in (*NAMES[:30], *NAMES[100:110])}
    assert status(cluster).kernel_count == 40


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        (
            [hello(["a"], 1), control.MoreKernels(kernels=offers(["b", "c"]))],
            "more_kernels: 1 more than were announced",
        ),
        ([hello(["a"], 1), control.MoreKernels(kernels=offers(["a"]))], "more_kernels: two kernels of one name"),
        ([hello(["a"], 0), control.MoreKernels(kernels=offers(["b"]))], "more_kernels: 1 more than were announced"),
    ],
)
def test_kernels_that_were_not_announced_are_refused(
    cluster: Cluster, fake: FakeHost, messages: list[Any], why: str
) -> None:
    with contextlib.suppress(PeerGone):
        for each in messages:
            fake.send(each)
    assert fake.hear() is None
    until(lambda: why in cluster.daemon.errors)


def test_further_kernels_need_a_reload_once_a_helper_has_joined(cluster: Cluster, fake: FakeHost) -> None:
    fake.join()
    fake.send(control.MoreKernels(kernels=offers(["more"])))
    assert fake.hear() is None
    until(lambda: "more_kernels: there is no reload" in cluster.daemon.errors)


def joins(fake: FakeHost, name: str, names: list[str]) -> Any:
    """The helper ``name`` with these kernels; what the daemon says to it first."""
    more = len(names) - fields.MAX_LISTED
    fake.send(hello(names[: fields.MAX_LISTED], max(0, more)).model_copy(update={"name": name}))
    fake.send(offer())
    for at in range(fields.MAX_LISTED, len(names), fields.MAX_LISTED):
        fake.send(control.MoreKernels(kernels=offers(names[at : at + fields.MAX_LISTED])))
    return fake.hear()


def test_helpers_serve_no_more_names_than_a_welcome_lists(cluster: Cluster, fake: FakeHost) -> None:
    """One that joins or reloads with more is told, and sessions open all the same; a name of both counts once."""
    assert isinstance(joins(fake, "first", NAMES[:130]), control.HostWelcome)
    numbers(fake)
    why = "kernels: its 127 names and the 130 of other helpers are more than 256"
    with FakeHost(cluster) as second:
        told = joins(second, "second", [*NAMES[129:], "more"])
        assert (told, second.hear()) == (control.Closing(code="refused", detail=why), None)
    with FakeHost(cluster) as second:
        assert isinstance(joins(second, "second", NAMES[129:]), control.HostWelcome)
        numbers(second)
        with cluster.connect("ada") as ada:
            assert len(ada.welcome.kernels) == fields.MAX_KERNELS
        second.send(control.KernelsReloaded(revision=1, kernels=offers(NAMES[129:130]), more_kernels=127))
        for at in range(130, 226, 32):
            second.send(control.MoreKernels(kernels=offers(NAMES[at : at + 32])))
        second.send(control.MoreKernels(kernels=offers([*NAMES[226:], "more"])))
        assert (second.hear(), second.hear()) == (control.Closing(code="refused", detail=why), None)
    with cluster.connect("ada", slots=1) as ada:
        assert len(ada.welcome.kernels) == fields.MAX_KERNELS
    assert status(cluster).kernel_count == 130


def test_the_longest_status_fits_its_frame() -> None:
    most, long = (1 << 32) - 1, "n" * 64
    helpers = [
        admin.HelperLine(
            name="n" * 32, generation=(1 << 64) - 1, kernels=[long] * fields.MAX_LISTED, kernel_count=most, gpus=most,
            leases=most, lost_gpus=most,
        )
    ] * fields.MAX_HELPERS  # fmt: skip
    gpu = admin.GpuLine(gpu=f"{'n' * 32}/{long}", model=long, is_emulated=False, compute_slices=7, held_share=most)
    whole = admin.Status(
        release=long, lineage=long, pid=most, uptime_ms=(1 << 64) - 1, is_draining=False, is_last_good=False,
        drain_ms=most, has_helper=False, helpers=helpers, gpus=[gpu] * MAX_GPUS, kernels=[long] * fields.MAX_KERNELS,
        tenants=most, sessions=most, leases=most, unanswered=most, queued=most, leaving=most,
    )  # fmt: skip
    assert frame(control.encode(whole))


def test_all_kernels_of_a_helper_name_1024_gpu_models_at_most() -> None:
    models = [control.ModelDemand(model=f"m{n}", demand=14) for n in range(32)]
    known, found = offers(NAMES[:33]), dict[str, control.KernelNeeds]()
    for name in NAMES[:32]:
        take_detail(control.KernelNeeds(name=name, models=models), known, found, {})
    with pytest.raises(ProtocolError, match="k32 is beyond the 1024 GPU models that a helper's kernels may name"):
        take_detail(control.KernelNeeds(name=NAMES[32], models=models[:1]), known, found, {})


def test_a_helper_registers_256_kernels_and_not_one_more() -> None:
    table = KernelTable()
    for name in NAMES:
        table.kernel(name)(bool)
    with pytest.raises(ValueError, match="kernel 'one-more': a helper offers 256 kernels at most"):
        table.kernel("one-more")(bool)
    table = KernelTable()
    for name in NAMES[:32]:
        table.kernel(name, demand={f"m{n}": 14 for n in range(16)})(bool)
    with pytest.raises(ValueError, match="the kernels of a helper name 512 GPU models at most"):
        table.kernel("more", demand={"A100-40GB": 14})(bool)


def test_each_kernel_of_a_real_helper_is_called_by_its_number(cluster: Cluster) -> None:
    cluster.start_helper(many=100)
    with cluster.connect("ada") as ada:
        for number in (0, 31, 32, 63, 99):
            got = ada.submit(f"many-{number}", [np.array([1])], timeout=TIMEOUT).array
            assert got.tolist() == [number + 1]
