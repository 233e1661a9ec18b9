"""Requests in the forms in which clients and proxies write them, by bytes, on a real node: chunks, offers of HTTP/2,
lists of headers, HEAD, whole addresses, packed bodies, connections that are opened in advance."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import orjson
import pytest

from offpath.host_helper.gateway import bodies, connection, http
from offpath.host_helper.gateway.buffers import AT_ONCE_BYTES
from offpath.host_helper.gateway.chunks import MOST_CHUNKS

from .conftest import Open
from .rig import ROWS, Answer, Rig, in_binary, in_json, until

INFER = "/v2/models/scaling/infer"
DOUBLED = [0, 2, 4, 6, 8, 10]
H2C = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAARAAAAAAAIAAAAA"}


def chunked(body: bytes, sizes: int, end: bytes = b"0\r\n\r\n") -> bytes:
    """The body in chunks of so many bytes."""
    parts = (body[at : at + sizes] for at in range(0, len(body), sizes))
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + end


def head(path: str = INFER, method: str = "POST", **headers: Any) -> bytes:
    return Rig.request(path, method=method, **headers)


async def sent(gateway: Rig, data: bytes, pieces: int = 1 << 20) -> Answer:
    client = await gateway.connect()
    for at in range(0, len(data), pieces):
        await client.send(data[at : at + pieces])
    return await client.answer()


def data_of(answer: Answer) -> Any:
    assert answer.status == 200, answer.body
    return answer.json["outputs"][0]["data"]


def held(gateway: Rig) -> int:
    assert gateway.gateway.http is not None
    return gateway.gateway.http.held_bytes


# -- chunks -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sizes", [1, 7, 1000])
@pytest.mark.parametrize("pieces", [1, 9, 1 << 20])
async def test_a_body_in_chunks(gateway: Rig, sizes: int, pieces: int) -> None:
    body = chunked(in_json(ROWS), sizes, b"0;last\r\nDigest: x\r\n\r\n")
    assert data_of(await sent(gateway, head(Transfer_Encoding="chunked") + body, pieces)) == DOUBLED
    await until(lambda: not held(gateway))


@pytest.mark.parametrize("sizes", [100, 5_000, AT_ONCE_BYTES, 300_000, 1 << 20])
async def test_a_long_body_in_chunks(gateway: Rig, sizes: int) -> None:
    rows = np.arange(3 * 80_000, dtype=np.float32).reshape(-1, 3)
    body, length = in_binary(rows, parameters={"binary_data_output": True})
    request = head(Transfer_Encoding="chunked", Inference_Header_Content_Length=length) + chunked(body, sizes)
    answer = await sent(gateway, request)
    assert np.array_equal(np.frombuffer(answer.binary, np.float32), 2 * rows.ravel())
    await until(lambda: not held(gateway))


async def test_requests_with_and_without_chunks_follow_each_other(gateway: Rig) -> None:
    one = head(Transfer_Encoding="chunked") + chunked(in_json(ROWS), 50)
    other = gateway.request(INFER, in_json(ROWS + 1))
    client = await gateway.connect()
    await client.send(one + other + one + gateway.request("/v2") + one)
    answers = [await client.answer() for _ in range(5)]
    assert [answer.status for answer in answers] == [200] * 5
    assert [data_of(answers[n])[1] for n in (0, 1, 2, 4)] == [2, 4, 2, 2]


async def test_a_packed_body_in_chunks(gateway: Rig) -> None:
    packed = gzip.compress(in_json(np.tile(ROWS, (1000, 1))))
    request = head(Transfer_Encoding="chunked", Content_Encoding="gzip") + chunked(packed, 500)
    assert data_of(await sent(gateway, request)) == DOUBLED * 1000


async def test_a_body_in_chunks_waits_for_leave(gateway: Rig) -> None:
    client = await gateway.connect()
    await client.send(head(Transfer_Encoding="chunked", Expect="100-continue"))
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await client.send(chunked(in_json(ROWS), 50))
    assert data_of(await client.answer()) == DOUBLED


async def test_no_body_in_chunks_is_that_of_no_length(gateway: Rig) -> None:
    answer = await sent(gateway, head(Transfer_Encoding="chunked") + b"0\r\n\r\n")
    assert (answer.status, answer.error) == (400, "the request has no body")
    index = await sent(gateway, head("/v2/repository/index", Transfer_Encoding="chunked") + b"0\r\n\r\n")
    assert "scaling" in [each["name"] for each in index.json]


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b"zz\r\n", 400, "the body is not in chunks as RFC 9112 has them"),
        (b"2\r\n{}x\n", 400, "a chunk does not end with CR LF"),
        (b"fffffffff\r\n", 413, "a body has at most "),
        (b"400000\r\n" + bytes(1 << 22) + b"\r\n1\r\n", 413, "a body has at most 4194304 bytes here"),
        (b"1\r\nA\r\n" * (MOST_CHUNKS + 1), 400, f"a body has at most {MOST_CHUNKS} chunks"),
    ],
)
async def test_chunks_beyond_a_bound_are_refused_and_end_the_connection(
    gateway: Rig, body: bytes, status: int, why: str
) -> None:
    client = await gateway.connect()
    await client.send(head(Transfer_Encoding="chunked") + body)
    answer = await client.answer()
    assert answer.status == status
    assert answer.error.startswith(why)
    assert await client.is_closed()
    assert held(gateway) == 0


async def test_a_chunk_is_refused_by_its_size_before_it_comes(gateway: Rig) -> None:
    client = await gateway.connect()
    await client.send(head(Transfer_Encoding="chunked") + b"10\r\n" + bytes(16) + b"\r\n3ffff1\r\n")
    assert (await client.answer()).status == 413


async def test_without_a_token_no_chunk_is_read(gateway: Rig) -> None:
    client = await gateway.connect()
    await client.send(head(Transfer_Encoding="chunked", Authorization=None) + b"zz\r\n")
    assert (await client.answer()).status == 401
    assert await client.is_closed()


async def test_what_chunks_take_is_counted_with_all_bodies(open_gateway: Open) -> None:
    gateway = await open_gateway(memory_bytes=16 << 20)
    clients = [await gateway.connect() for _ in range(3)]
    for client in clients[:2]:
        await client.send(head(Transfer_Encoding="chunked") + b"3d0900\r\n{")  # 4 000 000
    await until(lambda: held(gateway) == 8_000_000)
    await clients[2].send(head(Transfer_Encoding="chunked") + b"61a80\r\n")  # 400 000: beyond the tenant's half
    refused = await clients[2].answer()
    assert (refused.status, refused.error) == (503, "the gateway's memory for requests is in use")
    for client in clients:
        client.close()
    await until(lambda: held(gateway) == 0)


async def test_a_client_that_leaves_within_a_chunk_holds_nothing(gateway: Rig) -> None:
    client = await gateway.connect()
    await client.send(head(Transfer_Encoding="chunked") + b"ffff\r\n{")
    await until(lambda: held(gateway) > AT_ONCE_BYTES)
    client.close()
    await until(lambda: held(gateway) == 0)


# -- offers, lists, HEAD, addresses -------------------------------------------------------------------------------
async def test_an_offer_of_http_2_is_ignored(gateway: Rig) -> None:
    """As the JDK's HttpClient and curl --http2 make it."""
    offer = {key.replace("-", "_"): value for key, value in H2C.items()}
    client = await gateway.connect()
    for _ in range(2):
        await client.send(gateway.request(INFER, in_json(ROWS), **offer))
        assert data_of(await client.answer()) == DOUBLED
        await client.send(head(Transfer_Encoding="chunked", **offer) + chunked(in_json(ROWS), 60))
        assert data_of(await client.answer()) == DOUBLED
        await client.send(gateway.request("/v2/health/ready", Authorization=None, **offer))
        assert (await client.answer()).status == 200


def doubled(lines: str) -> bytes:
    return gateway_request().replace(b"\r\n\r\n", b"\r\n" + lines.encode() + b"\r\n\r\n", 1)


def gateway_request() -> bytes:
    return Rig.request(INFER, in_json(ROWS))


async def test_lists_of_headers_are_joined_and_the_others_named(gateway: Rig) -> None:
    for name in ("tracestate", "baggage", "Forwarded", "Cache-Control", "X-Forwarded-Proto", "X-Forwarded-For"):
        assert data_of(await sent(gateway, doubled(f"{name}: a=1\r\n{name}: b=2"))) == DOUBLED
    for name in ("Host", "Authorization", "Content-Encoding", "Inference-Header-Content-Length"):
        refused = await sent(gateway, doubled(f"{name}: 1\r\n{name}: 1"))
        assert (refused.status, refused.error) == (400, f"the header {name.lower()} occurs twice")


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2", "/v2/models/scaling", "/nothing"])
async def test_head_has_the_head_of_get(gateway: Rig, path: str) -> None:
    client = await gateway.connect()
    for _ in range(2):
        await client.send(gateway.request(path))
        got = await client.answer()
        await client.send(gateway.request(path, method="HEAD") + gateway.request("/v2/health/live"))
        bare = await client.reader.readuntil(b"\r\n\r\n")
        assert f"Content-Length: {len(got.body)}\r\n".encode() in bare
        assert bare.startswith(f"HTTP/1.1 {got.status} ".encode())
        assert (await client.answer()).json == {"live": True}, "what follows is the next answer"


async def test_a_refused_head_has_no_body_either(gateway: Rig) -> None:
    client = await gateway.connect()
    await client.send(gateway.request("/v2", method="HEAD", Authorization=None))
    assert (await client.reader.read()).endswith(b"Connection: close\r\n\r\n")


async def test_a_target_may_be_a_whole_address(gateway: Rig) -> None:
    """As clients write it to a proxy."""
    assert data_of(await gateway.ask(f"http://gateway:8000{INFER}", in_json(ROWS))) == DOUBLED


async def test_an_empty_line_before_a_request_is_skipped(gateway: Rig) -> None:
    client = await gateway.connect()
    await client.send(b"\r\n" + gateway_request() + b"\r\n")
    assert data_of(await client.answer()) == DOUBLED
    await client.send(gateway_request())
    assert data_of(await client.answer()) == DOUBLED


# -- packed bodies ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "GZIP", "identity, gzip"])
@pytest.mark.parametrize("rows", [2, 3_000])
async def test_a_packed_body_of_several_members(gateway: Rig, coding: str, rows: int) -> None:
    """RFC 1952 §2.2, RFC 9110 §8.4.1.3."""
    body = in_json(np.tile(ROWS, (rows // 2, 1)))
    half = len(body) // 2
    for packed in (
        gzip.compress(body[:20]) + gzip.compress(body[20:]),
        gzip.compress(b"") + gzip.compress(body[:half], 0) + gzip.compress(b"") + gzip.compress(body[half:], 0),
    ):
        assert data_of(await gateway.infer(packed, Content_Encoding=coding)) == DOUBLED * (rows // 2)


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (gzip.compress(b"{}") + bytes(20), "not gzip"),
        (gzip.compress(b"{}") + gzip.compress(b"{}")[:-1], "not one whole gzip stream"),
        (gzip.compress(b"") * (bodies._MOST_MEMBERS + 1), f"more than {bodies._MOST_MEMBERS} gzip members"),
    ],
    ids=("zeros", "cut", "many"),  # gzip writes the time of day into its bytes, and each worker makes them anew
)
def test_what_is_behind_a_member_is_one_or_refused(packed: bytes, why: str) -> None:
    with pytest.raises(bodies.Refused, match=why) as refused:
        bodies.inflate(memoryview(packed), "gzip", 100)
    assert refused.value.http == 400


def test_many_members_have_one_bound() -> None:
    packed = gzip.compress(bytes(60)) * 10
    assert bodies.inflate(memoryview(packed), "gzip", 600).nbytes == 600
    with pytest.raises(bodies.Refused, match="more than 599 bytes"):
        bodies.inflate(memoryview(packed), "gzip", 599)


async def test_only_answers_to_inference_are_packed(gateway: Rig) -> None:
    """aiohttp adds Accept-Encoding to all requests of tritonclient, which unpacks no other answers."""
    for path in ("/v2", "/v2/models/scaling", "/v2/models/scaling/config", "/v2/models/stats", "/nothing"):
        answer = await gateway.ask(path, Accept_Encoding="gzip, deflate")
        assert "content-encoding" not in answer.headers
        assert orjson.loads(answer.body)
    answer = await gateway.ask("/v2/repository/index", b"", Accept_Encoding="gzip")
    assert "content-encoding" not in answer.headers
    for accepted in ("gzip, deflate", "x-gzip", "deflate;q=0.1, gzip;q=0.2, identity;q=0.1"):
        answer = await gateway.infer(in_json(ROWS), Accept_Encoding=accepted)
        assert answer.headers["content-encoding"] == "gzip"
        assert json.loads(gzip.decompress(answer.body))["outputs"][0]["data"] == DOUBLED
    for accepted in ("identity", "br", "gzip;q=0", "gzip;q=0.5, identity", "*;q=0"):
        answer = await gateway.infer(in_json(ROWS), Accept_Encoding=accepted)
        assert data_of(answer) == DOUBLED
        assert "content-encoding" not in answer.headers
    refused = await gateway.infer(b"{", Accept_Encoding="gzip")
    assert "content-encoding" not in refused.headers


# -- wrong requests and idle connections --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b'{"inputs":[5]}', 400),
        (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3]}]}', 400),
        (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":[1,2,3],'
         b'"parameters":{"binary_data_size":12}}]}', 400),
        (b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":null}]}', 500),
        (b"{", 500),
    ],
)  # fmt: skip
async def test_a_malformed_request_has_tritons_status(gateway: Rig, body: bytes, status: int) -> None:
    """`test_beside_triton` asks Triton."""
    answer = await gateway.ask(INFER, body)
    assert answer.status == status, answer.error


async def test_an_empty_answer_is_no_json(gateway: Rig) -> None:
    answer = await gateway.ask("/v2/models/scaling/ready")
    assert (answer.status, answer.body, answer.headers["content-type"]) == (200, b"", "text/plain")


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_of_a_get_is_read_and_ignored(gateway: Rig, chunked: bool) -> None:
    """As Triton does: some clients send JSON's null with each request."""
    client = await gateway.connect()
    body = b"4\r\nnull\r\n0\r\n\r\n" if chunked else b"null"
    framing = {"Transfer_Encoding": "chunked", "Content_Length": None} if chunked else {}
    for path, key in (("/v2", "version"), ("/v2/models/scaling", "versions")):
        await client.send(gateway.request(path, body, method="GET", **framing))
        answer = await client.answer()
        assert (answer.status, key in answer.json) == (200, True)
    await client.send(gateway.request("/v2/health/ready", body, method="GET", Authorization=None, **framing))
    answer = await client.answer()
    assert (answer.status, answer.json, answer.headers["connection"]) == (200, {"ready": True}, "close")
    assert await client.is_closed(), "its body is not read without a token"


async def test_a_body_of_a_get_has_the_bounds_of_others(gateway: Rig) -> None:
    for method in ("GET", "HEAD"):
        client = await gateway.connect()
        await client.send(gateway.request("/v2", method=method, Content_Length=1 << 30))
        assert (await client.reader.readuntil(b"\r\n")).split()[1] == b"413"


async def test_json_may_begin_with_a_byte_order_mark(gateway: Rig) -> None:
    mark = b"\xef\xbb\xbf"
    assert data_of(await gateway.ask(INFER, mark + in_json(ROWS))) == DOUBLED
    body, length = in_binary(ROWS, parameters={"binary_data_output": False})
    assert data_of(await gateway.infer((mark + body, length + 3))) == DOUBLED
    long = in_json(ROWS, parameters={"pad": "x" * (1 << 15)})
    assert data_of(await gateway.ask(INFER, mark + long)) == DOUBLED
    registered = await gateway.ask(
        "/v2/systemsharedmemory/region/n/register", mark + b'{"key":"/nokey","offset":0,"byte_size":4}'
    )
    assert registered.error == "Unable to open shared memory region: '/nokey'"
    assert (await gateway.ask(INFER, mark)).status == 500


async def test_a_connection_waits_for_its_first_request_as_long_as_for_others(
    open_gateway: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pools of clients and proxies open connections in advance."""
    monkeypatch.setattr(connection, "HEAD_S", 0.05)
    monkeypatch.setattr(http, "_SWEEP_S", 0.05)
    gateway = await open_gateway(idle_s=86_400)
    silent, slow = await gateway.connect(), await gateway.connect()
    await slow.send(b"GET /v2 HTTP/1.1\r\nHo")
    assert (await slow.answer()).status == 408
    assert await slow.is_closed()
    server = gateway.gateway.http
    assert server is not None
    sweeper = server._sweeper
    await until(lambda: server._sweeper is not sweeper)  # it has looked again whose time has passed
    monkeypatch.undo()
    await silent.send(gateway.request("/v2"))
    assert (await silent.answer()).status == 200
