"""Devices by HTTP, on real sockets: what is answered, and every bound that a peer could try."""

from __future__ import annotations

import asyncio
import errno
import json
import resource
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from offpath.dpu_daemon.collab import http
from offpath.dpu_daemon.collab.http import HttpServer
from offpath.dpu_daemon.config import device_context
from offpath.dpu_daemon.listening.accepting import cap

from ...support.certificates import Authority
from ...support.collab import message
from .conftest import World


class Server:
    """A served world, and raw connections to it."""

    def __init__(self, world: World) -> None:
        assert world.loaded.config.http is not None
        self.world = world
        self.http = HttpServer(world.loaded.config.http, world.devices, None)
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.http.address)
        self._writers.append(writer)
        return reader, writer

    def body(self, device: str, **more: object) -> bytes:
        return json.dumps(message(device, self.world.clock.ms, **more)).encode()

    async def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await self.http.close()


def post(path: str, body: bytes, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(body)}", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    """The next answer: status and body. (0, {}): the connection was closed."""
    async with asyncio.timeout(30):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
            return int(head.split()[1]), json.loads(await reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return 0, {}


async def closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(30):
        try:
            return await reader.read() == b""
        except ConnectionResetError:
            return True


@pytest.fixture
async def server(world: World) -> AsyncIterator[Server]:
    made = Server(world)
    made.http.start()
    yield made
    await made.close()


async def test_a_device_checks_in_and_answers_on_one_connection(server: Server) -> None:
    server.world.job(demand=1)
    reader, writer = await server.connect()
    writer.write(post("/v1/checkin", server.body("d1")))
    status, lease = await answer(reader)
    assert (status, lease["kind"], lease["job"]) == (200, "lease", "a")
    server.world.clock.pass_s(1)
    writer.write(post("/v1/result", server.body("d1", lease=lease["lease"], is_good=True)))
    assert (await answer(reader))[1]["kind"] == "recorded"
    assert server.http.connections == 1


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"GET /v1/checkin HTTP/1.1\r\n\r\n", 405, "method"),
        (post("/v2/checkin", b"{}"), 404, "path"),
        (post("/v1/checkin", b"{"), 400, "json"),
        (post("/v1/checkin", b"[]"), 400, "message"),
        (post("/v1/checkin", b'{"device": "a", "device": "a"}'), 400, "json"),
        (post("/v1/checkin", b'"' + b"x" * http.MOST_MESSAGE_BYTES + b'"'), 413, "too_long"),
    ],
)
async def test_what_is_no_message_is_refused_and_the_reason_is_typed(
    server: Server, request_bytes: bytes, status: int, code: str
) -> None:
    reader, writer = await server.connect()
    writer.write(request_bytes)
    found, body = await answer(reader)
    assert (found, body["kind"], body["code"]) == (status, "refused", code)


async def test_health_is_answered(server: Server) -> None:
    reader, writer = await server.connect()
    writer.write(b"GET /healthz?a=1 HTTP/1.1\r\n\r\n")
    assert await answer(reader) == (200, {"status": "ok"})


OFFERS = [
    ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAARAAAAAAAIAAAAA"),
    ("connection: upgrade", "upgrade: websocket", "expect: 100-continue"),
]


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("pieces", [1, 50, 1 << 16])
async def test_an_offer_of_another_protocol_is_ignored(server: Server, offer: tuple[str, ...], pieces: int) -> None:
    """RFC 9110 §7.8. Java's HttpClient offers HTTP/2 with its first request."""
    reader, writer = await server.connect()
    health = "\r\n".join(("GET /healthz HTTP/1.1", "host: x", *offer, "", "")).encode()
    data = health + post("/v1/checkin", server.body("d1"), *offer) + health
    for at in range(0, len(data), pieces):
        writer.write(data[at : at + pieces])
        await asyncio.sleep(0)
    found = []
    while len(found) < 3:
        async with asyncio.timeout(30):
            head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 100 "):
            assert head.startswith(b"HTTP/1.1 200 ")
            found.append(json.loads(await reader.readexactly(int(head.split(b"length: ")[1].split(b"\r\n")[0]))))
    assert (found[0], found[1]["kind"], found[2]) == ({"status": "ok"}, "no_job", {"status": "ok"})


async def test_offers_do_not_pass_the_bounds_of_messages(server: Server) -> None:
    offer = OFFERS[0]
    for data in (
        post("/v1/checkin", b"{}", *offer) * (2 * http.MOST_PIPELINED),
        post("/v1/checkin", b"x" * (http.MOST_HEAD_BYTES + http.MOST_MESSAGE_BYTES), *offer),
        post("/v1/checkin", b"{}", "content-length: 3", *offer),
        post("/v1/checkin", b"{}", "transfer-encoding: chunked", *offer),
        b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n",
    ):
        reader, writer = await server.connect()
        writer.write(data)
        assert await ended(reader)


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the server closes the connection, and gives no good answer before."""
    async with asyncio.timeout(30):
        try:
            return b"HTTP/1.1 200" not in await reader.read()
        except ConnectionResetError:
            return True


async def test_head_of_health_has_no_body(server: Server) -> None:
    reader, writer = await server.connect()
    writer.write(
        b"HEAD /healthz HTTP/1.1\r\n\r\n" + b"HEAD /v1/checkin HTTP/1.1\r\n\r\n" + b"GET /healthz HTTP/1.1\r\n\r\n"
    )
    async with asyncio.timeout(30):
        for status in (b"200", b"405"):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 " + status)
    assert await answer(reader) == (200, {"status": "ok"})


async def test_a_client_that_waits_for_leave_to_send_the_body_gets_it(server: Server) -> None:
    reader, writer = await server.connect()
    body = server.body("d1")
    head, _, _ = post("/v1/checkin", body, "expect: 100-continue").partition(b"\r\n\r\n")
    writer.write(head + b"\r\n\r\n")
    async with asyncio.timeout(30):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    assert (await answer(reader))[1]["kind"] == "no_job"


async def test_a_message_that_comes_byte_by_byte_is_one(server: Server) -> None:
    reader, writer = await server.connect()
    for byte in post("/v1/checkin", server.body("d1")):
        writer.write(bytes([byte]))
        await asyncio.sleep(0)
    assert (await answer(reader))[1]["kind"] == "no_job"


async def test_pipelined_messages_are_answered_in_order_also_if_the_first_waits_for_the_disk(server: Server) -> None:
    server.world.job(demand=1)
    reader, writer = await server.connect()
    writer.write(b"".join(post("/v1/checkin", server.body(f"d{n}")) for n in range(4)))
    kinds = [(await answer(reader))[1]["kind"] for _ in range(4)]
    assert kinds == ["lease", "no_job", "no_job", "no_job"]


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00",
        b"POST /v1/checkin HTTP/9.9\r\n\r\n",
        b"POST /v1/checkin HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/checkin HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
    ],
)
async def test_what_is_no_request_ends_the_connection(server: Server, request_bytes: bytes) -> None:
    reader, writer = await server.connect()
    writer.write(request_bytes)
    status, body = await answer(reader)
    assert (status, body["code"]) == (400, "http")
    assert await closed(reader)


async def test_endless_headers_end_the_connection(server: Server) -> None:
    reader, writer = await server.connect()
    writer.write(b"POST /v1/checkin HTTP/1.1\r\n")
    for number in range(10_000):
        writer.write(b"x-%d: %b\r\n" % (number, b"y" * 100))
        if number % 50 == 0:
            await asyncio.sleep(0)
        if writer.transport.is_closing():
            break
    assert (await answer(reader))[0] in (413, 0)
    assert server.world.shell.refused["too_long"] == 1
    assert await closed(reader)


async def test_a_flood_of_pipelined_messages_ends_the_connection(server: Server) -> None:
    server.world.job()
    reader, writer = await server.connect()
    writer.write(post("/v1/checkin", server.body("d1")) * (http.MOST_PIPELINED + 5))
    assert await closed(reader)


async def test_an_invalid_token_ends_the_connection(server: Server) -> None:
    reader, writer = await server.connect()
    writer.write(post("/v1/checkin", server.body("d1", token="0" * 64)))
    status, body = await answer(reader)
    assert (status, body["code"]) == (401, "forged")
    assert await closed(reader)


async def test_slow_and_silent_peers_are_closed(server: Server) -> None:
    """The sweep is called as if the time had passed."""
    (half_reader, half), (silent_reader, _) = await server.connect(), await server.connect()
    half.write(post("/v1/checkin", server.body("d1"))[:-5])
    while sum(each._nbytes > 0 for each in server.http._all) < 1 or server.http.connections < 2:
        await asyncio.sleep(0.001)
    for connection in server.http._all:
        assert connection.until_s <= server.http._loop.time() + http.MESSAGE_S
        connection.until_s = 0
    server.http._sweep()
    status, body = await answer(half_reader)
    assert (status, body["code"]) == (408, "timeout")
    assert await closed(half_reader)
    assert await closed(silent_reader)


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """Fewer than a controller wants. They may be raised again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    yield 512
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_the_bound_without_a_token_is_a_part_of_the_raised_limit_of_descriptors(
    world: World, few_descriptors: int
) -> None:
    before = cap(http.MOST_UNIDENTIFIED)
    made = Server(world)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= made.http.table.connections > few_descriptors
    assert made.http._waiting._most == cap(http.MOST_UNIDENTIFIED) > before


@pytest.mark.parametrize("fault", [PermissionError(errno.EPERM, "not permitted"), ValueError("not allowed")])
async def test_a_limit_of_descriptors_that_cannot_be_raised_is_one_warning(
    world: World, few_descriptors: int, fault: Exception, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """As in a container, which may refuse what the hard limit would allow."""

    def refused(*_: object) -> None:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(resource, "setrlimit", refused)
        made = Server(world)
    made.http.start()
    assert [each.code for each in caplog.records if each.levelname == "WARNING"] == ["few_descriptors"]
    reader, writer = await made.connect()
    writer.write(post("/v1/checkin", made.body("d1")))
    assert (await answer(reader))[0] == 200
    await made.close()


async def test_another_protocol_on_the_connection_is_not_spoken(server: Server) -> None:
    reader, writer = await server.connect()
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert await ended(reader)


async def test_a_peer_that_takes_no_answers_is_not_answered_further(server: Server) -> None:
    """The transport's limits are called as if the peer's window were full, and later open again."""
    reader, writer = await server.connect()
    while not server.http.connections:
        await asyncio.sleep(0.001)
    (connection,) = server.http._all
    assert connection._transport is not None
    assert connection._transport.get_write_buffer_limits()[1] == http._MOST_UNREAD_BYTES
    connection.pause_writing()
    writer.write(b"GET /healthz HTTP/1.1\r\n\r\n" * 3)
    while len(connection._waiting) < 3:
        await asyncio.sleep(0.001)
    assert connection._is_paused, "nothing more is read either"
    assert connection._transport.get_write_buffer_size() == 0
    connection.resume_writing()
    assert [await answer(reader) for _ in range(3)] == [(200, {"status": "ok"})] * 3
    assert not connection._is_paused
    connection.pause_writing()
    connection.until_s = 0
    server.http._sweep()
    assert await closed(reader)


async def test_unidentified_connections_are_bounded_and_a_device_gets_through(
    server: Server,
) -> None:
    most = server.http._waiting._most
    for _ in range(most + 10):
        await server.connect()
    reader, writer = await server.connect()
    writer.write(post("/v1/checkin", server.body("d1")))
    assert (await answer(reader))[1]["kind"] == "no_job"
    while server.http.connections > most + 1:
        await asyncio.sleep(0.001)
    assert server.http.evicted >= 10


async def test_the_longest_silent_device_makes_room_for_another_one(tmp_path: Path) -> None:
    world = World(tmp_path, http="connections = 16", per_minute=60_000, burst=1_000)
    world.start()
    server = Server(world)
    server.http.start()
    world.clock.pass_s(1)
    readers = []
    for number in range(17):
        reader, writer = await server.connect()
        writer.write(post("/v1/checkin", server.body(f"d{number}")))
        assert (await answer(reader))[1]["kind"] == "no_job"
        readers.append(reader)
    assert await closed(readers[0])
    assert server.http.connections == 16
    await server.close()
    await world.stop()


async def test_a_device_that_hangs_up_before_its_answer_does_no_harm(server: Server) -> None:
    server.world.job()
    _, writer = await server.connect()
    writer.write(post("/v1/checkin", server.body("d1")))
    while not server.world.shell.book.leases:
        await asyncio.sleep(0)
    writer.transport.abort()
    await server.world.shell.durable()
    while server.http.connections:
        await asyncio.sleep(0.001)
    reader, writer = await server.connect()
    server.world.clock.pass_s(1)
    writer.write(post("/v1/checkin", server.body("d1")))
    assert (await answer(reader))[1]["lease"] == 1


async def test_a_device_checks_in_over_tls_and_plain_bytes_are_not_answered(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert_file, key_file = authority.issue("localhost", is_server=True)
    world = World(tmp_path, http=f'cert_file = "{cert_file}"\nkey_file = "{key_file}"')
    world.start()
    world.clock.pass_s(1)
    assert world.loaded.config.http is not None
    served = HttpServer(world.loaded.config.http, world.devices, world.loaded.tls)
    served.start()
    body = json.dumps(message("d1", world.clock.ms)).encode()
    context = ssl.create_default_context(cafile=authority.ca_file)
    reader, writer = await asyncio.open_connection(*served.address, ssl=context, server_hostname="localhost")
    writer.write(post("/v1/checkin", body))
    assert (await answer(reader))[1]["kind"] == "no_job"
    plain_reader, plain = await asyncio.open_connection(*served.address)
    plain.write(post("/v1/checkin", body))
    async with asyncio.timeout(30):
        assert b"HTTP" not in await plain_reader.read()
    for each in (writer, plain):
        each.transport.abort()
    await served.close()
    await world.stop()


async def test_with_fewer_connections_after_a_reload_the_longest_silent_devices_are_closed(server: Server) -> None:
    ends = []
    for number in range(3):
        reader, writer = await server.connect()
        writer.write(post("/v1/checkin", server.body(f"d{number}")))
        assert (await answer(reader))[0] == 200
        ends.append((reader, writer))
    server.http.reload(server.http.table.model_copy(update={"connections": 1}), None)
    assert [await closed(reader) for reader, _ in ends[:2]] == [True, True]
    server.world.clock.pass_s(1)
    reader, writer = ends[2]
    writer.write(post("/v1/checkin", server.body("d2")))
    assert (await answer(reader))[0] == 200
    assert server.http.evicted == 2


async def test_after_a_reload_the_next_connection_gets_the_renewed_certificate(tmp_path: Path) -> None:
    before, after = Authority(tmp_path, "before"), Authority(tmp_path, "after")
    cert_file, key_file = before.issue("localhost", is_server=True)
    world = World(tmp_path, http=f'cert_file = "{cert_file}"\nkey_file = "{key_file}"')
    world.start()
    assert world.loaded.config.http is not None
    served = HttpServer(world.loaded.config.http, world.devices, world.loaded.tls)
    served.start()

    async def trusts(authority: Authority) -> bool:
        context = ssl.create_default_context(cafile=authority.ca_file)
        try:
            _, writer = await asyncio.open_connection(*served.address, ssl=context, server_hostname="localhost")
        except ssl.SSLCertVerificationError:
            return False
        writer.transport.abort()
        return True

    assert (await trusts(before), await trusts(after)) == (True, False)
    assert after.issue("localhost", is_server=True) == (cert_file, key_file)  # in its place
    served.reload(world.loaded.config.http, device_context(cert_file, key_file))
    assert (await trusts(before), await trusts(after)) == (False, True)
    await served.close()
    await world.stop()
