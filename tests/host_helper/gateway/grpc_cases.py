"""The protocol over gRPC, with messages of our own, on a real node."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from offpath.bindings.wire import admin
from offpath.cli.admin_client import AdminClient
from offpath.host_helper.gateway import grpc_health
from offpath.host_helper.gateway.grpc_methods import METHODS, STREAM
from offpath.host_helper.gateway.messages import SERVICE, classes

from ...support.certificates import Authority
from ...support.cluster import Cluster
from .conftest import Open
from .rig import ROWS, Rig, until

Messages = Any


class Stub:
    """Calls of one tenant."""

    def __init__(self, channel: grpc.aio.Channel, token: str | None) -> None:
        self._channel = channel
        self.metadata = (("authorization", f"Bearer {token}"),) if token is not None else ()

    async def call(self, method_name: str, /, timeout: float | None = 20.0, **fields: Any) -> Any:
        request = fields.pop("request", None) or getattr(classes(), f"{method_name}Request")(**fields)
        method = self._channel.unary_unary(
            f"/{SERVICE}/{method_name}", lambda message: message.SerializeToString(),
            getattr(classes(), f"{method_name}Response").FromString,
        )  # fmt: skip
        return await method(request, timeout=timeout, metadata=self.metadata)

    def stream(self, requests: AsyncIterator[Any]) -> Any:
        method = self._channel.stream_stream(
            f"/{SERVICE}/{STREAM}", lambda message: message.SerializeToString(),
            classes().ModelStreamInferResponse.FromString,
        )  # fmt: skip
        return method(requests, timeout=20.0, metadata=self.metadata)


@pytest.fixture
async def gateway(open_gateway: Open) -> Rig:
    return await open_gateway(grpc="127.0.0.1:0", http="")


@pytest.fixture
async def channel(gateway: Rig) -> AsyncIterator[grpc.aio.Channel]:
    assert gateway.gateway.grpc is not None
    async with grpc.aio.insecure_channel(gateway.gateway.grpc.address) as opened:
        yield opened


@pytest.fixture
def ada(channel: grpc.aio.Channel) -> Stub:
    return Stub(channel, Rig.token("ada"))


def request(array: Any = ROWS, name: str = "x", datatype: str = "FP32", model: str = "scaling", **fields: Any) -> Any:
    made = classes().ModelInferRequest(model_name=model, **fields)
    made.inputs.add(name=name, datatype=datatype, shape=array.shape)
    made.raw_input_contents.append(array.tobytes())
    return made


async def refused(answer: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await answer
    return error.value.code().name, error.value.details()


async def test_what_there_is(ada: Stub) -> None:
    assert (await ada.call("ServerLive")).live
    assert (await ada.call("ServerReady")).ready
    assert (await ada.call("ServerMetadata")).name == "offpath"
    assert (await ada.call("ModelReady", name="scaling")).ready
    assert not (await ada.call("ModelReady", name="nope")).ready
    metadata = await ada.call("ModelMetadata", name="scaling", version="stable")
    assert (metadata.versions, metadata.inputs[0].datatype, list(metadata.inputs[0].shape)) == (["2"], "FP32", [-1, 3])
    config = (await ada.call("ModelConfig", name="scaling")).config
    assert (config.name, config.input[0].data_type, list(config.output[0].dims)) == ("scaling", 11, [-1, 3])
    assert [each.name for each in (await ada.call("RepositoryIndex")).models] == [
        "accumulate",
        "count",
        "identity",
        "lying",
        "napping",
        "recount",
        "scaling",
    ]


async def test_tensors_as_bytes_and_as_numbers(ada: Stub) -> None:
    answer = await ada.call("ModelInfer", request=request(id="r1"))
    assert (answer.id, answer.model_name, answer.model_version) == ("r1", "scaling", "2")
    assert (answer.outputs[0].name, list(answer.outputs[0].shape)) == ("y", [2, 3])
    assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [0, 2, 4, 6, 8, 10]
    made = classes().ModelInferRequest(model_name="scaling")
    made.inputs.add(name="x", datatype="FP32", shape=[1, 3]).contents.fp32_contents.extend([1, 2, 3])
    answer = await ada.call("ModelInfer", request=made)
    assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [2, 4, 6]


async def test_a_wrong_request_is_told_what_is_wrong(ada: Stub) -> None:
    call = ada.call
    assert await refused(call("ModelInfer", request=request(model="nope"))) == (
        "NOT_FOUND", "Request for unknown model: 'nope' is not found",
    )  # fmt: skip
    assert await refused(call("ModelInfer", request=request(datatype="INT32"))) == (
        "INVALID_ARGUMENT", "inference input 'x' data-type is 'INT32', but model 'scaling' expects 'FP32'",
    )  # fmt: skip
    assert (await refused(call("ModelInfer", request=request(np.zeros((1, 4), np.float32)))))[0] == "INVALID_ARGUMENT"
    made = request()
    made.raw_input_contents.append(b"more")
    assert (await refused(call("ModelInfer", request=made)))[0] == "INVALID_ARGUMENT"
    made = request()
    del made.raw_input_contents[:]
    made.inputs[0].parameters["shared_memory_region"].string_param = "zz"
    made.inputs[0].parameters["shared_memory_byte_size"].int64_param = 24
    assert await refused(call("ModelInfer", request=made)) == (
        "NOT_FOUND", "Unable to find shared memory region: 'zz'",
    )  # fmt: skip
    assert (await refused(call("RepositoryModelLoad", model_name="scaling")))[0] == "UNAVAILABLE"
    assert (await refused(call("CudaSharedMemoryRegister", name="x")))[0] == "UNIMPLEMENTED"
    assert (await refused(call("SystemSharedMemoryRegister", name="x", key="/nokey", byte_size=1)))[0] == "INTERNAL"
    await call("CudaSharedMemoryUnregister")
    await call("SystemSharedMemoryUnregister")


async def test_a_region_in_use_is_unregistered_when_its_requests_have_ended(open_gateway: Open, tmp_path: Path) -> None:
    gateway = await open_gateway({"uids": [os.getuid()]}, grpc="127.0.0.1:0", http="")
    assert gateway.gateway.grpc is not None
    regions = gateway.gateway.tenants.by_name["ada"].regions
    place = Path(f"/dev/shm/offpath-test-in-use-{os.getpid()}")
    place.write_bytes(bytes(8))
    try:
        async with grpc.aio.insecure_channel(gateway.gateway.grpc.address) as channel:
            call = Stub(channel, Rig.token("ada")).call
            given = {"name": "r", "key": place.name, "byte_size": 8}
            await call("SystemSharedMemoryRegister", **given)
            held = regions.borrow("r")
            await call("SystemSharedMemoryUnregister", name="r")
            assert list((await call("SystemSharedMemoryStatus")).regions) == ["r"]
            assert (await refused(call("SystemSharedMemoryRegister", **given)))[0] == "ALREADY_EXISTS"
            regions.give_back(held)
            assert list((await call("SystemSharedMemoryStatus")).regions) == []
            await call("SystemSharedMemoryRegister", **given)
    finally:
        place.unlink()


async def test_a_deadline_ends_the_request(ada: Stub, gateway: Rig) -> None:
    nap = request(np.array([60.0]), "seconds", "FP64", "napping")
    assert (await refused(ada.call("ModelInfer", request=nap, timeout=0.2)))[0] == "DEADLINE_EXCEEDED"
    tenant = gateway.gateway.tenants.by_name["ada"]
    for _ in range(1000):
        if not tenant._pending:
            return
        await asyncio.sleep(0.01)
    pytest.fail("the request goes on")


@pytest.mark.parametrize("token", [None, "", "x", Rig.token("ada") + "x"])
async def test_without_a_token_nothing_is_told(channel: grpc.aio.Channel, token: str | None) -> None:
    unknown = Stub(channel, token)
    for name in METHODS:
        if name in ("ServerLive", "ServerReady"):
            await unknown.call(name)
        elif name != STREAM:
            assert await refused(unknown.call(name)) == ("UNAUTHENTICATED", "no valid bearer token"), name

    async def none() -> AsyncIterator[Any]:
        return
        yield

    assert (await refused(unknown.stream(none()).read()))[0] == "UNAUTHENTICATED"


async def test_without_a_token_no_message_is_read(channel: grpc.aio.Channel) -> None:
    method = channel.unary_unary(f"/{SERVICE}/ModelInfer")  # sends bytes as they are
    for token, code in ((None, "UNAUTHENTICATED"), (Rig.token("ada"), "INVALID_ARGUMENT")):
        unknown = Stub(channel, token)
        answer = method(b"\xff" * (1 << 20), timeout=20.0, metadata=unknown.metadata)
        assert (await refused(answer))[0] == code, "INVALID_ARGUMENT: what was read is no message"


@pytest.mark.parametrize(
    ("names", "is_ada"),
    [
        ({"uris": ["offpath://tenant/ada"]}, True),
        ({"uris": ["offpath://tenant/ada"], "email": "offpath://tenant/bob"}, True),
        ({}, False),
        ({"email": "offpath://tenant/ada"}, False),
        ({"uris": ["offpath://tenant/ada", "offpath://tenant/bob"]}, False),
        ({"uris": ["offpath://tenant/ada\0b"]}, False),
    ],
)
async def test_only_a_uri_of_a_certificate_names_a_tenant(
    open_gateway: Open, tmp_path: Path, names: dict[str, Any], is_ada: bool
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("localhost", is_server=True)
    tls = {"cert_file": certificate, "key_file": key, "client_ca_file": authority.ca_file}
    served = (await open_gateway(grpc="127.0.0.1:0", http="", tls=tls)).gateway.grpc
    assert served is not None
    chain, own = authority.issue("ada", *names.get("uris", ()), email=names.get("email", ""))
    credentials = grpc.ssl_channel_credentials(
        Path(authority.ca_file).read_bytes(), Path(own).read_bytes(), Path(chain).read_bytes()
    )
    async with grpc.aio.secure_channel(served.address, credentials) as channel:
        answer = Stub(channel, None).call("ServerMetadata")
        if is_ada:
            assert (await answer).name == "offpath"
        else:
            assert (await refused(answer))[0] == "UNAUTHENTICATED"


async def test_a_stream_ends_when_its_token_is_revoked(ada: Stub, gateway: Rig) -> None:
    is_revoked = asyncio.Event()

    async def requests() -> AsyncIterator[Any]:
        yield request(id="before")
        await is_revoked.wait()
        yield request(id="after")

    call = ada.stream(requests())
    assert (await call.read()).infer_response.id == "before"
    gateway.revoke("ada")
    is_revoked.set()
    assert await refused(call.read()) == ("UNAUTHENTICATED", "no valid bearer token")


async def test_a_stream_that_is_cancelled_ends_its_requests(ada: Stub, gateway: Rig) -> None:
    async def requests() -> AsyncIterator[Any]:
        for _ in range(200):  # more than are answered at once
            yield request(np.array([30.0]), "seconds", "FP64", "napping")

    call = ada.stream(requests())
    tenant = gateway.gateway.tenants.by_name["ada"]
    await until(lambda: tenant._pending > 8)
    assert tenant._pending <= 64
    call.cancel()
    await until(lambda: tenant._pending == 0)
    assert (await ada.call("ServerMetadata")).name == "offpath"


def counting(answers: int, pause_s: float = 0.0, fails_at: int = 0, size: int = 3, **fields: Any) -> Any:
    wish = np.array([answers, size, pause_s, fails_at], np.float64)
    return request(wish, "wish", "FP64", "count", **fields)


async def once(made: Any) -> AsyncIterator[Any]:
    yield made


def number(answer: Any) -> int:
    (value,) = set(np.frombuffer(answer.infer_response.raw_output_contents[0], np.float64).tolist())
    return int(value)


def is_final(answer: Any) -> bool:
    assert "triton_final_response" in answer.infer_response.parameters
    final: bool = answer.infer_response.parameters["triton_final_response"].bool_param
    return final


async def test_a_model_that_streams_gives_all_its_answers_and_an_empty_last_one_if_wanted(ada: Stub) -> None:
    answers = [answer async for answer in ada.stream(once(counting(5, id="r1")))]
    assert [number(answer) for answer in answers] == [1, 2, 3, 4, 5]
    assert {answer.infer_response.id for answer in answers} == {"r1"}
    assert not any(map(is_final, answers))

    wants_end = counting(2, id="r2")
    wants_end.parameters["triton_enable_empty_final_response"].bool_param = True
    *answers, last = [answer async for answer in ada.stream(once(wants_end))]
    assert [number(answer) for answer in answers] == [1, 2]
    assert not any(map(is_final, answers))
    assert (is_final(last), last.infer_response.id, len(last.infer_response.outputs)) == (True, "r2", 0)

    assert [answer async for answer in ada.stream(once(counting(0)))] == []


async def test_an_error_ends_the_answers_of_its_request_only(ada: Stub) -> None:
    async def requests() -> AsyncIterator[Any]:
        yield counting(9, fails_at=3, id="bad")
        yield counting(4, id="good")

    found: dict[str, list[Any]] = {"bad": [], "good": []}
    async for answer in ada.stream(requests()):
        version = "" if answer.error_message else "1"
        assert (answer.infer_response.model_name, answer.infer_response.model_version) == ("count", version)
        assert is_final(answer) == bool(answer.error_message)
        found[answer.infer_response.id].append(answer.error_message or number(answer))
    assert found["good"] == [1, 2, 3, 4]
    assert found["bad"][:2] == [1, 2]
    assert "answer 3" in found["bad"][2]
    assert len(found["bad"]) == 3


async def test_a_cancelled_stream_of_answers_ends_its_request(ada: Stub, gateway: Rig) -> None:
    call = ada.stream(once(counting(1 << 30)))
    assert number(await call.read()) == 1
    call.cancel()
    tenant = gateway.gateway.tenants.by_name["ada"]
    await until(lambda: tenant._pending == 0)
    assert [number(answer) async for answer in ada.stream(once(counting(2)))] == [1, 2]


async def test_streams_that_are_cancelled_at_any_moment_give_their_slots_back(ada: Stub, gateway: Rig) -> None:
    tenant = gateway.gateway.tenants.by_name["ada"]
    for n in range(150):
        call = ada.stream(once(counting(1 << 30)))
        assert number(await call.read()) == 1
        await asyncio.sleep(0.0005 * (n % 5))
        call.cancel()
    requester = tenant._requester
    assert requester is not None
    await until(lambda: tenant._pending == 0 and not requester._slots.waiters)


async def test_a_client_that_takes_no_answers_holds_its_request_back(ada: Stub, gateway: Rig, cluster: Cluster) -> None:
    call = ada.stream(once(counting(1 << 30, size=20_000)))
    assert number(await call.read()) == 1
    given, before = 1, 0
    with AdminClient(str(cluster.run_folder)) as operator:
        for _ in range(20):  # what gRPC and the network hold fills up
            await asyncio.sleep(0.5)
            before, given = (
                given,
                operator.query(admin.StatisticsRequest(), admin.Statistics).counters["stream_answers"],
            )
            if given == before:
                break
    assert given == before, "the kernel waits"
    tenant = gateway.gateway.tenants.by_name["ada"]
    assert tenant._pending == 1
    call.cancel()
    await until(lambda: tenant._pending == 0)


async def test_a_model_that_streams_answers_no_single_request(ada: Stub) -> None:
    assert await refused(ada.call("ModelInfer", request=counting(1))) == (
        "UNIMPLEMENTED", "ModelInfer RPC doesn't support models with decoupled transaction policy",
    )  # fmt: skip
    for model in ("count", "scaling"):
        config = (await ada.call("ModelConfig", name=model)).config
        assert config.model_transaction_policy.decoupled == (model == "count")


async def test_a_stream_answers_each_of_its_requests(ada: Stub) -> None:
    async def requests() -> AsyncIterator[Any]:
        for n in range(100):
            made = request(ROWS + n, id=str(n)) if n != 50 else request(model="nope", id="50")
            made.parameters["triton_enable_empty_final_response"].bool_param = bool(n % 2)
            yield made

    found: dict[str, Any] = {}
    async for answer in ada.stream(requests()):
        if answer.error_message:
            assert answer.error_message == "Request for unknown model: 'nope' is not found"
            assert answer.infer_response.id == "50"
        else:
            assert answer.infer_response.parameters["triton_final_response"].bool_param
            numbers = np.frombuffer(answer.infer_response.raw_output_contents[0], np.float32)
            found[answer.infer_response.id] = numbers[1]
    assert found == {str(n): 2 * (n + 1) for n in range(100) if n != 50}


def adding(value: int, *, is_long: bool = False, **parameters: Any) -> Any:
    """A request of sequence 5. ``is_long``: the second process reads it."""
    made = classes().ModelInferRequest(model_name="accumulate", id=str(value))
    made.inputs.add(name="x", datatype="INT64", shape=[1]).contents.int64_contents.append(value)
    made.parameters["sequence_id"].int64_param = 5
    for key, flag in parameters.items():
        made.parameters[key].bool_param = flag
    if is_long:
        made.inputs[0].parameters["pad"].string_param = "x" * 20_000
    return made


async def test_requests_of_a_sequence_stay_in_order_also_if_one_is_long_to_read(ada: Stub) -> None:
    async def requests() -> AsyncIterator[Any]:
        yield adding(1, is_long=True, sequence_start=True)
        yield adding(10)
        yield adding(100, is_long=True)
        yield adding(1000, sequence_end=True)

    found = {}
    async for answer in ada.stream(requests()):
        assert not answer.error_message
        found[answer.infer_response.id] = np.frombuffer(answer.infer_response.raw_output_contents[0], np.int64)[0]
    assert found == {"1": 1, "10": 11, "100": 111, "1000": 1111}


async def test_a_stateful_model_that_streams_gives_all_answers_of_a_request_before_those_of_the_next(ada: Stub) -> None:
    async def requests() -> AsyncIterator[Any]:
        for n, (first, last) in enumerate([(True, False), (False, False), (False, True)]):
            for number in (5, 6):
                made = request(
                    np.array([3 if number == 5 else 2], np.int64), "x", "INT64", "recount", id=f"{number}.{n}"
                )
                made.parameters["sequence_id"].int64_param = number
                made.parameters["sequence_start"].bool_param = first
                made.parameters["sequence_end"].bool_param = last
                made.parameters["triton_enable_empty_final_response"].bool_param = True
                yield made

    found: dict[str, list[tuple[str, list[int]]]] = {"5": [], "6": []}
    async for answer in ada.stream(requests()):
        assert not answer.error_message
        said = answer.infer_response
        assert is_final(answer) == (not said.outputs)
        values = np.frombuffer(said.raw_output_contents[0], np.int64).tolist() if said.outputs else []
        found[said.id[0]].append((said.id[2:], values))
    for number, each in (("5", 3), ("6", 2)):
        wanted: list[tuple[str, list[int]]] = []
        for n, flags in enumerate((1, 0, 2)):
            wanted += [(str(n), [n * each + m + 1, flags]) for m in range(each)]
        answers = [one for one in found[number] if one[1]]
        assert answers == wanted
        assert [n for n, values in found[number] if not values] == ["0", "1", "2"]


# -- health and keep-alive ----------------------------------------------------------------------------------------
SERVING, NOT_SERVING, SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"
"""Answers of grpc.health.v1, byte by byte."""


def of_service(name: str = "") -> bytes:
    """A request of grpc.health.v1."""
    return b"\x0a" + bytes([len(name)]) + name.encode() if name else b""


def check(channel: grpc.aio.Channel, name: str = "") -> Any:
    return channel.unary_unary("/grpc.health.v1.Health/Check")(of_service(name), timeout=20.0)


def watch(channel: grpc.aio.Channel, name: str = "") -> Any:
    return channel.unary_stream("/grpc.health.v1.Health/Watch")(of_service(name))


@pytest.fixture
def ready(gateway: Rig, monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """What the gateway takes for its readiness from here on."""
    said = {"is": True}
    monkeypatch.setattr(type(gateway.gateway.tenants), "is_ready", property(lambda _: said["is"]))
    return said


async def test_the_standard_health_service_needs_no_token(channel: grpc.aio.Channel, ready: dict[str, bool]) -> None:
    for name in ("", SERVICE, "grpc.health.v1.Health"):
        assert await check(channel, name) == SERVING
    assert await refused(check(channel, "nope")) == ("NOT_FOUND", "there is no such service")
    ready["is"] = False
    assert await check(channel) == NOT_SERVING


async def test_a_watch_reports_each_change_and_the_end(
    channel: grpc.aio.Channel, gateway: Rig, ready: dict[str, bool]
) -> None:
    call, other = watch(channel), watch(channel, "nope")
    assert await call.read() == SERVING
    for is_ready, status in ((False, NOT_SERVING), (True, SERVING)):
        ready["is"] = is_ready
        assert await call.read() == status
    assert await other.read() == SERVICE_UNKNOWN
    assert gateway.gateway.grpc is not None
    await gateway.gateway.grpc.close(20.0)
    assert await call.read() == NOT_SERVING
    assert await call.read() is grpc.aio.EOF
    assert await other.read() is grpc.aio.EOF


async def test_watches_have_a_bound_and_give_their_place_back(
    open_gateway: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_health, "MOST_WATCHES", 2)
    served = (await open_gateway(grpc="127.0.0.1:0", http="")).gateway.grpc
    assert served is not None
    async with grpc.aio.insecure_channel(served.address) as channel:
        calls = [watch(channel) for _ in range(2)]
        assert [await call.read() for call in calls] == [SERVING, SERVING]
        assert await refused(watch(channel).read()) == ("RESOURCE_EXHAUSTED", "2 watches are open")
        assert await check(channel) == SERVING
        calls[0].cancel()
        assert served._health is not None
        await until(lambda: served._health._watches == 1)  # type: ignore[union-attr]
        assert await watch(channel).read() == SERVING


@pytest.mark.parametrize(("ping_ms", "survives"), [(100, True), (7_200_000, False)])
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_client_pings_as_often_as_the_file_says(
    open_gateway: Open, ping_ms: int, survives: bool, is_late: bool
) -> None:
    """It sends a ping 200 ms after the answer to the one before. ``is_late``: it had no call for some pings."""
    served = (await open_gateway(grpc="127.0.0.1:0", http="", grpc_ping_ms=ping_ms)).gateway.grpc
    assert served is not None
    options = (
        ("grpc.keepalive_time_ms", 200), ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", int(is_late)), ("grpc.http2.max_pings_without_data", 0),
    )  # fmt: skip
    async with grpc.aio.insecure_channel(served.address, options) as channel:
        ada = Stub(channel, Rig.token("ada"))
        assert (await ada.call("ServerLive")).live
        if is_late and survives:
            await asyncio.sleep(2)
        nap = request(np.array([2.0 if survives else 60.0]), "seconds", "FP64", "napping")
        if survives:
            assert (await ada.call("ModelInfer", request=nap)).model_name == "napping"
        else:
            assert (await refused(ada.call("ModelInfer", request=nap, timeout=None)))[0] == "UNAVAILABLE"


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What grpcio's servers are given from here on."""
    given: dict[str, Any] = {}
    real = grpc.aio.server

    def server(*, options: Any, **more: Any) -> Any:
        given.update(options)
        return real(options=options, **more)

    monkeypatch.setattr(grpc.aio, "server", server)
    return given


async def test_a_silent_client_is_pinged_after_the_time_of_the_file(
    open_gateway: Open, options: dict[str, Any]
) -> None:
    await open_gateway(grpc="127.0.0.1:0", http="", grpc_keepalive_s=30)
    assert options["grpc.keepalive_time_ms"] == 30_000
