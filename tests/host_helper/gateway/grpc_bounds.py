"""gRPC's clients hold up no others: calls, messages and connections of one have bounds (`grpc_cases`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest

from offpath.host_helper.gateway import grpc_admission, grpc_connections
from offpath.host_helper.gateway.config import GatewayFile
from offpath.host_helper.gateway.grpc_methods import STREAM
from offpath.host_helper.gateway.messages import SERVICE
from offpath.host_helper.gateway.shares import Shares

from .conftest import Open
from .grpc_cases import SERVING, Stub, ada, channel, check, gateway, once, options, refused, request
from .rig import Rig, until

FIXTURES = ada, channel, gateway, options
TENANT = {"name": "ada", "token_file": "/t"}


async def never() -> AsyncIterator[bytes]:
    """The message of a half-open call."""
    await asyncio.Event().wait()
    yield b""


def half_open(channel: grpc.aio.Channel, path: str, token: str | None = None) -> Any:
    method = channel.stream_stream(path)  # sends bytes as they are
    return method(never(), metadata=Stub(channel, token).metadata)


async def test_calls_without_a_token_that_send_nothing_hold_up_nobody(channel: grpc.aio.Channel, ada: Stub) -> None:
    for name in ("ServerLive", "ServerReady"):
        assert await half_open(channel, f"/{SERVICE}/{name}").read() == b"\x08\x01", "there is nothing to wait for"
    calls = [half_open(channel, "/grpc.health.v1.Health/Check") for _ in range(grpc_admission.MOST_OPEN + 8)]
    for call in calls[:8]:
        assert (await refused(call.read()))[0] == "DEADLINE_EXCEEDED", "the oldest make room"
    assert await check(channel) == SERVING
    assert (await ada.call("ServerMetadata")).name == "offpath"
    assert not any(call.done() for call in calls[9:])
    for call in calls:
        call.cancel()


async def test_a_client_without_a_token_is_the_anonymous_tenants_if_there_is_one(open_gateway: Open) -> None:
    served = (await open_gateway(grpc="127.0.0.1:0", http="", anonymous="bob")).gateway
    assert served.grpc is not None
    async with grpc.aio.insecure_channel(served.grpc.address) as channel:
        await Stub(channel, None).call("ModelInfer", request=request())
        counts = [
            (await Stub(channel, token).call("ModelStatistics", name="scaling")).model_stats[0].inference_count
            for token in (Rig.token("ada"), None)
        ]
        assert counts == [0, 1]
        assert (await refused(Stub(channel, "wrong").call("ServerMetadata")))[0] == "UNAUTHENTICATED"
        basic = Stub(channel, None)
        basic.metadata = (("authorization", "Basic YWRhOng="),)
        assert (await basic.call("ServerMetadata")).name == "offpath"


async def test_who_is_not_a_named_proxy_needs_a_token_before_its_message_is_read(open_gateway: Open) -> None:
    gateway = await open_gateway(grpc="127.0.0.1:0", http="", anonymous="ada", anonymous_from=["127.0.0.2"])
    assert gateway.gateway.grpc is not None
    async with grpc.aio.insecure_channel(gateway.gateway.grpc.address) as channel:
        for name in ("ModelInfer", STREAM):
            call = half_open(channel, f"/{SERVICE}/{name}")
            assert (await refused(call.read()))[0] == "UNAUTHENTICATED"
        assert (await Stub(channel, Rig.token("ada")).call("ServerMetadata")).name == "offpath"


async def test_a_tenant_that_holds_all_calls_it_may_leaves_the_other_its_own(open_gateway: Open) -> None:
    """There are 16: half for one tenant, and half of that for its streams."""
    served = (await open_gateway(grpc="127.0.0.1:0", http="", memory_bytes=16 << 20)).gateway.grpc
    assert served is not None
    async with grpc.aio.insecure_channel(served.address) as channel:
        ada, bob = Stub(channel, Rig.token("ada")), Stub(channel, Rig.token("bob"))
        streams = [half_open(channel, f"/{SERVICE}/{STREAM}", Rig.token("ada")) for _ in range(4)]
        await until(lambda: served.calls._streams.of("ada") == 4)
        text = "the tenant has 4 streams here, as many as it may"
        assert await refused(ada.stream(once(request())).read()) == ("RESOURCE_EXHAUSTED", text)
        assert (await ada.call("ModelInfer", request=request())).model_name == "scaling", "its streams leave it room"
        calls = [half_open(channel, f"/{SERVICE}/ModelInfer", Rig.token("ada")) for _ in range(4)]
        await until(lambda: served.calls._calls.of("ada") == 8)
        text = "the tenant has 8 calls here, as many as it may"
        assert await refused(ada.call("ServerMetadata")) == ("RESOURCE_EXHAUSTED", text)
        for _ in range(3):
            assert (await bob.call("ModelInfer", request=request())).model_name == "scaling"
            assert (await bob.stream(once(request(id="s"))).read()).infer_response.id == "s"
        for call in streams + calls:
            call.cancel()
        await until(lambda: not served.calls._calls.held)
        assert not served.calls._streams.held
        assert not served.calls.held_bytes
        assert (await ada.call("ServerMetadata")).name == "offpath"


async def test_a_call_whose_message_does_not_come_ends(gateway: Rig, channel: grpc.aio.Channel) -> None:
    assert gateway.gateway.grpc is not None
    gateway.gateway.grpc.calls._wait_s = 0.05
    for name in ("ModelInfer", "ModelConfig"):
        call = half_open(channel, f"/{SERVICE}/{name}", Rig.token("ada"))
        assert await refused(call.read()) == ("DEADLINE_EXCEEDED", "the request did not come in time")

    async def nothing() -> AsyncIterator[bytes]:
        return
        yield

    method = channel.stream_unary(f"/{SERVICE}/ModelInfer")
    answer = method(nothing(), metadata=Stub(channel, Rig.token("ada")).metadata)
    assert await refused(answer) == ("INVALID_ARGUMENT", "the call has no message")


async def test_messages_have_one_bound_in_bytes_for_each_tenant(gateway: Rig, ada: Stub) -> None:
    assert gateway.gateway.grpc is not None
    calls = gateway.gateway.grpc.calls
    calls._memory = Shares(2000, ["ada", "bob"])
    short, long = request(), request(np.zeros((100, 3), np.float32))
    assert await refused(ada.call("ModelInfer", request=long)) == (
        "UNAVAILABLE", "the gateway's memory for requests is in use",
    )  # fmt: skip
    assert (await ada.call("ModelInfer", request=short)).model_name == "scaling"

    async def requests() -> AsyncIterator[Any]:
        yield long
        yield short

    assert sorted([answer.error_message async for answer in ada.stream(requests())]) == [
        "", "the gateway's memory for requests is in use",
    ]  # fmt: skip
    assert not calls.held_bytes


@pytest.mark.parametrize("method", ["ModelInfer", "ModelConfig"])
async def test_a_message_of_too_many_parts_or_bytes_is_refused(channel: grpc.aio.Channel, method: str) -> None:
    body = b"\x2a\x00" * 1_000_000
    answer = channel.unary_unary(f"/{SERVICE}/{method}")(body, metadata=Stub(channel, Rig.token("ada")).metadata)
    assert await refused(answer) == {
        "ModelInfer": ("INVALID_ARGUMENT", "more than 80 inputs"),
        "ModelConfig": ("RESOURCE_EXHAUSTED", "the message of this method has at most 65536 bytes"),
    }[method]  # fmt: skip


def is_open(sock: socket.socket) -> bool:
    """Whether the other side has not closed it."""
    sock.setblocking(False)
    try:
        while data := sock.recv(1 << 16):
            assert data  # grpcio's SETTINGS frame
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    return False


async def test_connections_without_a_call_of_a_tenant_have_a_bound_and_the_oldest_make_room(
    open_gateway: Open,
) -> None:
    served = (await open_gateway(grpc="127.0.0.1:0", http="", unidentified=3)).gateway.grpc
    assert served is not None
    host, _, port = served.address.rpartition(":")
    async with grpc.aio.insecure_channel(served.address) as channel:
        ada = Stub(channel, Rig.token("ada"))
        assert (await ada.call("ServerMetadata")).name == "offpath"
        before = [socket.create_connection((host, int(port)), 20) for _ in range(4)]
        await until(lambda: sum(map(is_open, before)) == 3)
        after = [socket.create_connection((host, int(port)), 20) for _ in range(3)]
        await until(lambda: not any(map(is_open, before)))
        assert all(map(is_open, after))
        assert (await ada.call("ServerMetadata")).name == "offpath", "the connection of a tenant stays"
        async with grpc.aio.insecure_channel(served.address, (("grpc.use_local_subchannel_pool", 1),)) as other:
            assert (await Stub(other, Rig.token("bob")).call("ServerMetadata")).name == "offpath"
        for sock in before + after:
            sock.close()


async def test_a_tenant_has_half_of_the_connections_and_loses_those_without_a_call_first(open_gateway: Open) -> None:
    served = (await open_gateway(grpc="127.0.0.1:0", http="", grpc_connections=4)).gateway.grpc
    assert served is not None
    own = (("grpc.use_local_subchannel_pool", 1),)
    async with contextlib.AsyncExitStack() as opened:
        channels = []
        for _ in range(3):
            channels.append(await opened.enter_async_context(grpc.aio.insecure_channel(served.address, own)))
        bob = Stub(await opened.enter_async_context(grpc.aio.insecure_channel(served.address, own)), Rig.token("bob"))
        assert (await bob.call("ServerMetadata")).name == "offpath"
        busy = half_open(channels[0], f"/{SERVICE}/{STREAM}", Rig.token("ada"))
        await until(lambda: served.calls._streams.of("ada"))
        for channel in channels[1:]:
            assert (await Stub(channel, Rig.token("ada")).call("ServerMetadata")).name == "offpath"
        connected = grpc.ChannelConnectivity.READY
        await until(lambda: channels[1].get_state() is not connected)
        states = [channel.get_state() is connected for channel in channels]
        assert states == [True, False, True], "the one that was used longest ago, and has no call"
        assert not busy.done()
        assert (await bob.call("ServerMetadata")).name == "offpath"
        busy.cancel()


async def test_connections_that_never_begin_end_and_idle_and_old_ones_do_as_the_file_says(
    open_gateway: Open, options: dict[str, Any]
) -> None:
    keys = {"grpc_idle_s": 5, "grpc_age_s": 7, "grpc_connections": 9, "unidentified": 11}
    await open_gateway(grpc="127.0.0.1:0", http="", **keys)
    assert options["grpc.server_handshake_timeout_ms"] == 10_000
    assert options["grpc.max_connection_idle_ms"] == 5_000
    assert options["grpc.max_connection_age_ms"] == 7_000
    assert options["grpc.max_allowed_incoming_connections"] == 9 + 11 + 64


def test_all_descriptors_are_looked_at_a_few_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_connections, "_LISTED", 16)
    looked, real = [], os.fstat

    def counted(descriptor: int) -> os.stat_result:
        looked.append(descriptor)
        return real(descriptor)

    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as opened:
        clients = [opened.enter_context(socket.create_connection(server.getsockname()[:2], 20)) for _ in range(40)]
        accepted = [opened.enter_context(server.accept()[0]) for _ in clients]
        connections = grpc_connections.GrpcConnections(GatewayFile.model_validate({"tenant": [TENANT]}))
        connections._port = server.getsockname()[1]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(grpc_connections.os, "fstat", counted)
            steps, before = connections._steps, 0
            while not connections._sockets:
                next(steps)
                assert len(looked) - before <= 16 + 2 * grpc_connections._STEP
                before = len(looked)
            for _ in steps:
                pass
        assert {each.descriptor for each in connections._sockets.values()} == {each.fileno() for each in accepted}
        assert len(looked) > 80
        connections.close()


@pytest.mark.parametrize("text", ["ipv4:127.0.0.1:80", "ipv6:%5B::ffff:127.0.0.1%5D:80"])
def test_an_address_of_a_peer_has_one_spelling(text: str) -> None:
    assert grpc_connections.peer_of(text) == ("127.0.0.1", 80)
    assert grpc_connections.peer_of("ipv6:%5B::1%5D:5") == ("::1", 5)
    assert grpc_connections.peer_of("unix:") == ("unix:", 0)


async def test_refusals_of_a_client_that_begins_again_and_again_take_turns(gateway: Rig) -> None:
    """The first one at once, each further one two milliseconds later; a large message that is refused costs more."""
    assert gateway.gateway.grpc is not None
    calls = gateway.gateway.grpc.calls
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    await calls.refusal("ada")
    await asyncio.gather(*(calls.refusal("ada") for _ in range(50)))
    assert loop.time() - begun_s >= 50 * grpc_admission.REFUSAL_S * 0.99
    assert calls._refusals_s["ada"] >= begun_s + 51 * grpc_admission.REFUSAL_S
    calls._refusals_s.clear()
    before_s = loop.time()
    calls.charge("ada", 8 << 20)
    assert before_s + 0.25 <= calls._refusals_s["ada"] <= loop.time() + 0.25
    calls.charge("ada", 1 << 40)
    assert calls._refusals_s["ada"] <= loop.time() + 5.0
    assert "bob" not in calls._refusals_s, "each tenant has a line of its own"


async def test_a_large_message_that_is_at_fault_is_charged_and_one_that_is_served_is_not(
    gateway: Rig, channel: grpc.aio.Channel, ada: Stub
) -> None:
    assert gateway.gateway.grpc is not None
    charged: list[int] = []
    gateway.gateway.grpc.calls.charge = lambda tenant, nbytes: charged.append(nbytes)  # type: ignore[method-assign]
    large = request(np.zeros((20_000, 3), np.float32))
    await ada.call("ModelInfer", request=large)
    assert not charged
    body = b"\x2a\x00" * 100_000
    answer = channel.unary_unary(f"/{SERVICE}/ModelInfer")(body, metadata=ada.metadata)
    assert (await refused(answer))[0] == "INVALID_ARGUMENT"
    assert charged == [len(body)]
    large.model_name = "count"
    assert "unexpected inference input" in (await ada.stream(once(large)).read()).error_message
    assert charged[1:] == [len(large.SerializeToString())]
