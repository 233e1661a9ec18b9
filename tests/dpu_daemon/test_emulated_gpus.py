"""Who computes is never left open: operators and requesters learn whether a GPU is emulated, for each helper anew."""

from __future__ import annotations

import asyncio
import os
import signal

import numpy as np

from offpath.bindings.wire import admin, control
from offpath.cli.admin_client import AdminClient
from offpath.host_helper import AsyncRequester

from ..support.cluster import TIMEOUT, Cluster, pids_of
from ..support.clusters import Make
from ..support.fakehost import FakeHost, offer
from ..support.processes import until


def join(fake: FakeHost, **emulated: bool) -> None:
    """A helper with the kernel echo on these GPUs."""
    kernels = [control.KernelOffer(name="echo", demand=14)]
    fake.send(control.HelperHello(name="fake", pid=os.getpid(), kernels=kernels, gpu_count=len(emulated)))
    for uuid, is_emulated in emulated.items():
        fake.send(offer(uuid, is_emulated=is_emulated))
    assert isinstance(fake.hear(), control.HostWelcome)


def status(cluster: Cluster) -> admin.Status:
    with AdminClient(str(cluster.run_folder)) as client:
        return client.query(admin.StatusRequest(), admin.Status)


def shown(cluster: Cluster) -> dict[str, bool | None]:
    return {gpu.gpu: gpu.is_emulated for gpu in status(cluster).gpus}


def test_an_open_session_and_the_operator_follow_from_helper_to_helper(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}})
    with cluster.connect("ada") as ada:
        assert ada.is_emulated("echo") is None
        with FakeHost(cluster) as fake:
            join(fake, real=False)
            until(lambda: ada.is_emulated("echo") is False)
            assert shown(cluster) == {"fake/real": False}
            assert ada.is_emulated("other") is None
        until(lambda: not status(cluster).has_helper)
        with FakeHost(cluster) as fake:
            join(fake, real=False, cheap=True)  # an answer may come from either
            until(lambda: ada.is_emulated("echo") is True)
            assert shown(cluster) == {"fake/real": False, "fake/cheap": True}
            with cluster.connect("ada") as late:
                assert {kernel.name: kernel.is_emulated for kernel in late.welcome.kernels} == {"echo": True}
        until(lambda: "joined: 2 GPUs (1 EMULATED), kernels echo" in cluster.daemon.errors)


def test_a_restarted_daemon_claims_nothing_until_a_helper_is_there(make_cluster: Make) -> None:
    """The journal does not record it, and the next helper may have other GPUs."""
    durability = {"resume_ttl_s": 60, "adopt_ms": 500, "journal_mib": 1}
    cluster = make_cluster({"ada": {}}, keep={"starts": 0}, durability=durability)
    with FakeHost(cluster) as fake:
        join(fake, cheap=True)
    until(lambda: not status(cluster).has_helper)
    os.kill(pids_of(cluster.daemon)[0], signal.SIGKILL)
    assert cluster.daemon.hear()["lineage"] == cluster.lineage
    with cluster.connect("ada") as ada:
        assert [kernel.name for kernel in ada.welcome.kernels] == ["echo"]
        assert ada.is_emulated("echo") is None
        with FakeHost(cluster) as fake:
            join(fake, cheap=True)
            until(lambda: ada.is_emulated("echo") is True)


def test_the_async_requester_learns_it_while_requests_are_in_flight(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}})
    cluster.start_helper()
    token = str(cluster.folder / "ada.token")

    async def ask() -> bool | None:
        sizes = {"payload_bytes": 4096, "result_bytes": 4096}
        async with await AsyncRequester.open(cluster.address, tenant="ada", token_file=token, **sizes) as requester:
            answer = asyncio.ensure_future(requester.submit("echo", [np.ones(1)], timeout=TIMEOUT))
            found = await requester.is_emulated("echo")
            await answer
            return found

    assert asyncio.run(ask()) is True
