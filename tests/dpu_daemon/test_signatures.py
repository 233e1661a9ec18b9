"""Signatures on their way from a helper through the daemon to requesters, and the rate of questions."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from offpath.bindings.errors import ControlError, PeerGone, ProtocolError
from offpath.bindings.wire import control, fields, negotiating
from offpath.bindings.wire.signatures import KernelSignature, TensorSpec, parts
from offpath.dpu_daemon.hosts.offers import take_detail
from offpath.dpu_daemon.ingress.describing import BURST, PER_SECOND, Describing
from offpath.host_helper import Requester
from offpath.host_helper.aio import AsyncRequester
from offpath.host_helper.errors import UnknownKernel
from offpath.host_helper.signatures import signature

from ..support.cluster import TIMEOUT, Cluster
from ..support.clusters import NARROW, Make
from ..support.fakehost import FakeHost, offer
from ..support.processes import until


def declared(name: str, model: str | None = None, version: int = 1) -> KernelSignature:
    made = signature(name, {"x": ("fp32", [-1])}, {"y": ("fp32", [-1])}, model, version, ())
    assert made is not None
    return made


OFFERS = [control.KernelOffer(name="echo", demand=14), control.KernelOffer(name="plain", demand=14)]
ECHO = declared("echo", model="m", version=2)
MORE = ECHO.model_copy(update={"has_more": True})


def wide(name: str, tensors: int) -> list[KernelSignature]:
    """The messages of a signature with so many inputs."""
    spec = TensorSpec(name="x", dtype="bool", shape=[])
    inputs = [spec.model_copy(update={"name": f"x{n}"}) for n in range(tensors)]
    return parts(declared(name).model_copy(update={"inputs": inputs}))


@pytest.fixture
def cluster(make_cluster: Make) -> Cluster:
    return make_cluster({"ada": NARROW})


@pytest.fixture
def fake(cluster: Cluster) -> Iterator[FakeHost]:
    with FakeHost(cluster) as host_:
        yield host_


def test_a_requester_reads_what_a_helper_declares(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": NARROW})
    cluster.start_helper()
    with cluster.connect("ada") as ada:
        assert ada.signature("scale") == KernelSignature(
            name="scale", model="scaling", model_version=2, labels=["stable"],
            inputs=[TensorSpec(name="x", dtype="float32", shape=[-1, 3])],
            outputs=[TensorSpec(name="y", dtype="float32", shape=[-1, 3])],
        )  # fmt: skip
        assert ada.signature("echo") is None
        with pytest.raises(UnknownKernel):
            ada.signature("nope")
        assert ada.submit("scale", [np.ones((2, 3), np.float32)], timeout=TIMEOUT).array.tolist() == [[2.0] * 3] * 2


async def test_what_is_known_of_a_kernel_says_how_its_requests_share_launches_and_how_long_sequences_last(
    make_cluster: Make,
) -> None:
    cluster = make_cluster({"ada": NARROW}, limits={"sequence_idle_ms": 7_000})
    batches = {"demand": 14, "max_batch": 16, "max_queue_delay_us": 2_500, "preferred_batch_sizes": [8, 4]}
    cluster.start_helper(needs={"sum": batches})
    token_file = cluster.folder / "ada.token"
    sizes = {"slots": 1, "payload_bytes": 4096, "result_bytes": 4096}
    async with await AsyncRequester.open(cluster.address, tenant="ada", token_file=token_file, **sizes) as ada:
        assert await ada.described("sum") == negotiating.Described(
            name="sum",
            batches=negotiating.KernelBatches(
                max_batch=16, max_queue_delay_us=2_500, preferred_batch_sizes=[4, 8]
            ),
        )  # fmt: skip
        of_sequences = await ada.described("accumulate")
        assert (of_sequences.batches, of_sequences.sequence_idle_ms) == (None, 7_000)
        plain = await ada.described("scale")
        assert (plain.batches, plain.sequence_idle_ms, plain.signature is None) == (None, 0, False)


async def test_so_does_an_asynchronous_one(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": NARROW})
    cluster.start_helper()
    token_file = cluster.folder / "ada.token"
    sizes = {"slots": 1, "payload_bytes": 4096, "result_bytes": 4096}
    async with await AsyncRequester.open(cluster.address, tenant="ada", token_file=token_file, **sizes) as ada:
        assert set(await ada.kernels()) >= {"scale", "echo"}
        found, none, again = await asyncio.gather(*map(ada.signature, ("scale", "echo", "scale")))
        assert (found, none) == (again, None)
        assert found is not None
        assert found.model == "scaling"
        with pytest.raises(UnknownKernel):
            await ada.signature("nope")


def ask(requester: Requester, times: int) -> None:
    for _ in range(times):
        requester._link.negotiation.describe("echo")


def joined(fake: FakeHost, *more: Any, **announced: int) -> None:
    """Join with two kernels and what is said of them. The daemon may hang up after any message."""
    fake.send(control.HelperHello(name="fake", pid=os.getpid(), gpu_count=1, kernels=OFFERS, **announced))
    with contextlib.suppress(PeerGone):
        for each in (*more, offer()):
            fake.send(each)


def test_a_helper_joins_once_all_it_announced_is_there(cluster: Cluster, fake: FakeHost) -> None:
    joined(fake, signature_count=1)
    with cluster.connect("ada") as ada:
        assert ada._link.negotiation.kernels == {}
        fake.send(ECHO)
        assert isinstance(fake.hear(), control.HostWelcome)
        assert ada.signature("echo") == ECHO
        assert ada.signature("plain") is None


def test_a_signature_of_many_tensors_comes_in_parts(cluster: Cluster, fake: FakeHost) -> None:
    *some, last = wide("echo", 80)
    assert len(some) == 6
    joined(fake, *some, declared("plain"), signature_count=2)
    with cluster.connect("ada") as ada:
        assert ada._link.negotiation.kernels == {}, "a part is missing"
        fake.send(last)
        assert isinstance(fake.hear(), control.HostWelcome)
        whole = ada.signature("echo")
    assert whole is not None
    assert [each.name for each in whole.inputs] == [f"x{n}" for n in range(80)]
    assert (len(whole.outputs), whole.has_more) == (1, False)


def test_all_kernels_of_a_helper_declare_4096_tensors_at_most() -> None:
    offers = [control.KernelOffer(name=f"k{n}", demand=14) for n in range(27)]
    found: dict[str, KernelSignature] = {}
    for number in range(25):
        signature_ = KernelSignature(name=f"k{number}", model="m", inputs=[], outputs=[])
        specs = [TensorSpec(name=f"t{n}", dtype="bool", shape=[]) for n in range(80)]
        take_detail(signature_.model_copy(update={"inputs": specs, "outputs": specs}), offers, {}, found)
    take_detail(declared("k25"), offers, {}, found)
    full = KernelSignature(name="k26", model="m", inputs=specs, outputs=specs[:15])
    with pytest.raises(ProtocolError, match="k26 is beyond the 4096 tensors that a helper may declare"):
        take_detail(full, offers, {}, found)


def test_a_reload_changes_what_is_declared(cluster: Cluster, fake: FakeHost) -> None:
    joined(fake, ECHO, signature_count=1)
    assert isinstance(fake.hear(), control.HostWelcome)
    with cluster.connect("ada") as ada:
        other = declared("plain", model="m", version=3)
        fake.send(control.KernelsReloaded(revision=1, kernels=OFFERS, signature_count=1))
        assert ada.signature("echo") == ECHO  # the reload is not complete
        fake.send(other)
        assert isinstance(fake.hear(), control.HostKernels)
        assert (ada.signature("echo"), ada.signature("plain")) == (None, other)


@pytest.mark.parametrize(
    ("messages", "announced", "why"),
    [
        ([ECHO, ECHO], 2, "was described before"),
        ([declared("third")], 1, "is not among the helper's kernels"),
        ([ECHO.model_copy(update={"inputs": 2 * ECHO.inputs})], 1, "has two tensors or labels of one name"),
        ([MORE, MORE], 1, "has two tensors or labels of one name"),
        ([MORE, declared("echo", model="other")], 1, "has parts that differ"),
        ([MORE.model_copy(update={"inputs": [], "outputs": []})], 1, "has a part without tensors"),
        ([*wide("echo", 81)], 1, "has more than 80 inputs or outputs"),
    ],
)
def test_a_helper_that_describes_wrongly_is_cut_off(
    cluster: Cluster, fake: FakeHost, messages: list[Any], announced: int, why: str
) -> None:
    joined(fake, *messages, signature_count=announced)
    assert fake.hear() is None
    until(lambda: why in cluster.daemon.errors)


def test_signatures_without_a_reload_are_refused(cluster: Cluster, fake: FakeHost) -> None:
    joined(fake, ECHO, signature_count=1)
    assert isinstance(fake.hear(), control.HostWelcome)
    fake.send(ECHO)
    assert fake.hear() is None
    until(lambda: "kernel_signature: echo is described without a reload" in cluster.daemon.errors)


def test_the_declaration_of_the_last_connected_helper_counts(cluster: Cluster, fake: FakeHost) -> None:
    joined(fake, ECHO, signature_count=1)
    assert isinstance(fake.hear(), control.HostWelcome)
    with cluster.connect("ada") as ada:
        for name, declares in (("a", declared("echo", version=2)), ("b", None)):
            with FakeHost(cluster) as another:
                kernels = [OFFERS[0]]
                gpus: dict[str, Any] = {"gpu_count": 0, "kernels": kernels, "pid": 1, "name": name}
                another.send(control.HelperHello(signature_count=1 if declares else 0, **gpus))
                if declares:
                    another.send(declares)
                assert isinstance(another.hear(), control.HostWelcome)
                assert ada.signature("echo") == declares
            until(lambda: ada.signature("echo") == ECHO)


def test_a_connection_asks_within_a_rate() -> None:
    now_s = 0.0
    describing = Describing(lambda name: negotiating.Described(name=name), lambda: now_s)
    question = negotiating.Describe(name="echo")
    for _ in range(BURST):
        assert describing.answer(question) == negotiating.Described(name="echo", signature=None)
    with pytest.raises(ControlError, match="describe_rate"):
        describing.answer(question)
    now_s = 2.0
    for _ in range(2 * PER_SECOND - 1):
        describing.answer(question)
    with pytest.raises(ControlError, match="describe_rate"):
        describing.answer(question)
    assert BURST >= fields.MAX_KERNELS


def test_who_asks_more_loses_its_session_and_no_other(cluster: Cluster) -> None:
    with cluster.connect("ada", slots=1) as ada, cluster.connect("ada", slots=1) as other:
        with pytest.raises(PeerGone):
            ask(ada, 4 * BURST)
        assert other._link.negotiation.describe("echo").signature is None
