"""The protocol over HTTP, by bytes, on a real node: answers, errors, connections."""

from __future__ import annotations

import asyncio
import gzip
import os
import random
import ssl
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from offpath.host_helper.gateway import buffers, connection, http
from offpath.host_helper.gateway.routes import EXTENSIONS

from ...support.certificates import Authority
from ...support.sources import ROOT
from .conftest import Open
from .http_peers import CASES
from .rig import ROWS, Rig, in_binary, in_json, until


# -- what there is ------------------------------------------------------------------------------------------------
async def test_the_server_says_what_it_is(gateway: Rig) -> None:
    answer = await gateway.ask("/v2")
    assert (answer.status, answer.json["name"], answer.json["extensions"]) == (200, "offpath", list(EXTENSIONS))
    assert (await gateway.ask("/v2/")).json == answer.json


async def test_a_model_is_described(gateway: Rig) -> None:
    tensors = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
               "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}]}  # fmt: skip
    wanted = {"name": "scaling", "versions": ["2"], "platform": "offpath", **tensors}
    for path in ("", "/versions/2", "/versions/stable"):
        answer = await gateway.ask(f"/v2/models/scaling{path}")
        assert (answer.status, answer.json) == (200, wanted)
    config = (await gateway.ask("/v2/models/scaling/config")).json
    assert (config["name"], config["max_batch_size"]) == ("scaling", 0)
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 3], "optional": False}]
    index = await gateway.ask("/v2/repository/index", b"")
    assert [each["name"] for each in index.json] == [
        "accumulate", "count", "identity", "lying", "napping", "recount", "scaling",
    ]  # fmt: skip
    assert index.json[-1] == {"name": "scaling", "version": "2", "state": "READY"}


async def test_what_is_alive_and_ready(gateway: Rig) -> None:
    for path in ("/v2/models/scaling/ready", "/v2/models/scaling/versions/2/ready"):
        answer = await gateway.ask(path)
        assert (answer.status, answer.body) == (200, b"")
    for what in ("live", "ready"):
        answer = await gateway.ask(f"/v2/health/{what}", Authorization=None)
        assert (answer.status, answer.json) == (200, {what: True})
        assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("path", "status", "why"),
    [
        ("/v2/models/nope", 404, "Request for unknown model: 'nope' is not found"),
        ("/v2/models/nope/config", 404, "Request for unknown model: 'nope' is not found"),
        ("/v2/models/nope/ready", 400, "Model version not ready"),
        ("/v2/models/nope/stats", 400, "requested model 'nope' is not available"),
        ("/v2/models/scaling/versions/7", 404, "Request for unknown model: 'scaling' version 7 is not found"),
        ("/v2/models/scaling/versions/x", 400, "failed to get model version from specified version string 'x'"),
        ("/v2/nothing", 404, "Not Found"),
        ("/", 404, "Not Found"),
        ("/v2/models/scaling/infer", 405, "Method Not Allowed"),
        ("/v2/repository/index", 405, "Method Not Allowed"),
    ],
)
async def test_what_is_not_there(gateway: Rig, path: str, status: int, why: str) -> None:
    answer = await gateway.ask(path)
    assert (answer.status, answer.error) == (status, why)


# -- inference ----------------------------------------------------------------------------------------------------
async def test_binary_tensors_both_ways(gateway: Rig) -> None:
    answer = await gateway.infer(in_binary(ROWS, id="r1", parameters={"binary_data_output": True}))
    assert answer.status == 200
    assert answer.json == {
        "model_name": "scaling", "model_version": "2", "id": "r1",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 3], "parameters": {"binary_data_size": 24}}],
    }  # fmt: skip
    assert np.frombuffer(answer.binary, np.float32).tolist() == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize("data", [[0, 1, 2, 3, 4, 5], [[0, 1, 2], [3, 4, 5]], [0.0, 1, 2, 3, 4, 5.0]])
async def test_numbers_in_json_flat_or_nested(gateway: Rig, data: list[Any]) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": data}
    answer = await gateway.infer(orjson.dumps({"inputs": [tensor]}))
    assert (answer.status, answer.json["outputs"]) == (
        200, [{"name": "y", "datatype": "FP32", "shape": [2, 3], "data": [0, 2, 4, 6, 8, 10]}],
    )  # fmt: skip


async def test_a_raw_body_is_the_only_input(gateway: Rig) -> None:
    answer = await gateway.infer((ROWS.tobytes(), 0))
    assert np.frombuffer(answer.binary, np.float32).tolist() == [0, 2, 4, 6, 8, 10]


async def test_an_empty_tensor(gateway: Rig) -> None:
    answer = await gateway.infer(in_json(np.zeros((0, 3), np.float32)))
    assert answer.json["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [0, 3], "data": []}]


async def test_one_megabyte_and_one_byte_too_many(gateway: Rig) -> None:
    rows = np.ones((87_381, 3), np.float32)  # 1 048 572 bytes
    answer = await gateway.infer(in_binary(rows, parameters={"binary_data_output": True}))
    assert np.array_equal(np.frombuffer(answer.binary, np.float32), 2 * rows.ravel())
    answer = await gateway.infer(in_binary(np.ones((87_382, 3), np.float32)))
    assert answer.status == 413
    assert "slots hold 1048576" in answer.error


WRONG: list[tuple[str, dict[str, Any], int, str]] = [
    ("no input", {"inputs": []}, 400, "expected 1 inputs but got 0 inputs for model 'scaling'. Got input(s) [], but"
     " missing required input(s) ['x']. Please provide all required input(s)."),
    ("another input", {"inputs": [{"name": "z", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}, 400,
     "unexpected inference input 'z' for model 'scaling'"),
    ("datatype", {"inputs": [{"name": "x", "datatype": "INT32", "shape": [1, 3], "data": [1, 2, 3]}]}, 400,
     "inference input 'x' data-type is 'INT32', but model 'scaling' expects 'FP32'"),
    ("shape", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}, 400,
     "unexpected shape for input 'x' for model 'scaling'. Expected [-1,3], got [1,4]."),
    ("numbers", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2]}]}, 500,
     "Unable to parse 'data': Shape does not match true shape of 'data' field"),
    ("strings", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": ["1", "2", "3"]}]}, 500,
     "Unable to parse 'data': not FP32 numbers for input 'x'"),
    ("texts of very different lengths", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2000, 3], "data":
     ["x" * 100_000, *("",) * 5999]}]}, 500, "Unable to parse 'data': not FP32 numbers for input 'x'"),
    ("booleans", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [True, 1, 2]}]}, 500,
     "Unable to parse 'data': not FP32 numbers for input 'x'"),
    ("dimensions", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1] * 9, "data": [1]}]}, 400,
     "input 'x' has more than 6 dimensions"),
    ("mixed depth", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [[1, 2], 3]}]}, 500,
     "Unable to parse 'data': not an array of numbers for input 'x'"),
    ("output", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}],
                "outputs": [{"name": "z"}]}, 400, "unexpected inference output 'z' for model 'scaling'"),
    ("region", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "parameters": {
        "shared_memory_region": "zz", "shared_memory_byte_size": 12}}]}, 404,
     "Unable to find shared memory region: 'zz'"),
    ("sequence", {"inputs": [], "parameters": {"sequence_id": 5}}, 400, "model 'scaling' takes no sequences"),
    ("priority", {"inputs": [], "parameters": {"priority": -1}}, 400, "parameter 'priority' is a whole number from 0"),
    ("inputs", {"inputs": {}}, 500, "Unable to parse 'inputs': not an array of objects"),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "status", "why"), [each[1:] for each in WRONG], ids=[each[0] for each in WRONG])
async def test_a_wrong_request_is_told_what_is_wrong(
    gateway: Rig, request_: dict[str, Any], status: int, why: str
) -> None:
    answer = await gateway.infer(orjson.dumps(request_))
    assert (answer.status, answer.error) == (status, why)


async def test_bytes_that_do_not_fit_their_header(gateway: Rig) -> None:
    body, length = in_binary(ROWS)
    short = await gateway.infer((body[:-1], length))
    assert (short.status, short.error) == (400, "unexpected size for input 'x', expecting 1 additional bytes")
    more = await gateway.infer((body + b"x", length))
    assert (more.status, more.error) == (400, "unexpected additional input data for model 'scaling'")
    beyond = await gateway.infer((b"{}", 9999))
    assert (beyond.status, beyond.error) == (400, "inference header size should be in range (0, 2), got: 9999")
    broken = await gateway.infer(b"{")
    assert broken.status == 500
    assert broken.error.startswith("failed to parse the request JSON buffer: ")


async def test_statistics_count_what_ended(gateway: Rig) -> None:
    await gateway.infer(in_json(ROWS))
    await gateway.infer(in_json(ROWS))
    (stats,) = (await gateway.ask("/v2/models/scaling/stats")).json["model_stats"]
    assert (stats["inference_count"], stats["inference_stats"]["success"]["count"]) == (2, 2)
    assert stats["inference_stats"]["success"]["ns"] > stats["inference_stats"]["compute_infer"]["ns"] > 0
    assert stats in (await gateway.ask("/v2/models/stats")).json["model_stats"]
    (other,) = (await gateway.ask("/v2/models/scaling/stats", tenant="bob")).json["model_stats"]
    assert other["inference_count"] == 0, "another tenant's are its own"


async def test_a_model_that_streams_is_not_served_over_http(gateway: Rig) -> None:
    answer = await gateway.infer(in_json(np.array([1.0, 1.0, 0.0, 0.0]), name="wish", datatype="FP64"), "count")
    assert (answer.status, answer.error) == (
        501, "HTTP end point doesn't support models with decoupled transaction policy",
    )  # fmt: skip
    config = (await gateway.ask("/v2/models/count/config")).json
    assert config["model_transaction_policy"] == {"decoupled": True}


async def test_a_timeout_ends_the_request(gateway: Rig) -> None:
    body = in_json(np.array([5.0]), name="seconds", datatype="FP64", parameters={"timeout": 50_000})
    answer = await gateway.infer(body, "napping")
    assert answer.status == 504


async def test_a_kernel_that_raises_or_lies_is_told(gateway: Rig) -> None:
    answer = await gateway.infer(in_json(np.array([-1.0]), name="seconds", datatype="FP64"), "napping")
    assert answer.status == 500
    assert "kernel_raised" in answer.error
    answer = await gateway.infer(in_json(np.array([1.0]), name="x", datatype="FP64"), "lying")
    assert (answer.status, answer.error) == (
        500, "kernel 'lie' returned float64 for output 'y', and declares float32",
    )  # fmt: skip


# -- tenants ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Bearer x", "Basic YTpi", f"Basic {Rig.token('ada')}", Rig.token("ada"),
     f"Bearer {Rig.token('ada')}x", f"Bearer {Rig.token('ada')[:-1]}"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v2", "/v2/models/scaling", "/v2/models/nope", "/nothing", "/v2/repository/index"])
async def test_without_a_token_nothing_is_told(gateway: Rig, path: str, authorization: str | None) -> None:
    answer = await gateway.ask(path, Authorization=authorization)
    assert (answer.status, answer.json) == (401, {"error": "no valid bearer token"})
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_without_a_token_no_body_is_read(gateway: Rig) -> None:
    client = await gateway.connect()
    await client.send(
        gateway.request("/v2/models/scaling/infer", Authorization=None, Content_Length=1 << 30, method="POST")
    )
    assert (await client.answer()).status == 401
    assert gateway.gateway.http is not None
    assert gateway.gateway.http.held_bytes == 0
    assert await client.is_closed()


async def test_a_token_that_is_revoked_while_a_body_is_sent(gateway: Rig) -> None:
    body, length = in_binary(ROWS)
    sent = gateway.request("/v2/models/scaling/infer", body, Inference_Header_Content_Length=length)
    client = await gateway.connect()
    await client.send(sent[:-1])
    assert gateway.gateway.http is not None
    await until(lambda: gateway.gateway.http.held_bytes)
    gateway.revoke("ada")
    await client.send(sent[-1:])
    assert (await client.answer()).status == 401
    assert await client.is_closed()
    assert gateway.gateway.http.held_bytes == 0


# -- connections --------------------------------------------------------------------------------------------------
async def test_requests_one_after_the_other_on_one_connection(gateway: Rig) -> None:
    client = await gateway.connect()
    for n in range(3):
        body, length = in_binary(ROWS + n, parameters={"binary_data_output": True})
        await client.send(gateway.request("/v2/models/scaling/infer", body, Inference_Header_Content_Length=length))
        answer = await client.answer()
        assert np.array_equal(np.frombuffer(answer.binary, np.float32), 2 * (ROWS + n).ravel())


@pytest.mark.parametrize("pieces", [1, 7, 100])
async def test_requests_that_come_together_or_in_pieces(gateway: Rig, pieces: int) -> None:
    client = await gateway.connect()
    body, length = in_binary(ROWS)
    infer = gateway.request("/v2/models/scaling/infer", body, Inference_Header_Content_Length=length)
    stream = gateway.request("/v2") + infer + gateway.request("/v2/health/live") + infer + gateway.request("/v2")
    for at in range(0, len(stream), -(-len(stream) // pieces)):
        await client.send(stream[at : at + -(-len(stream) // pieces)])
        await asyncio.sleep(0)
    answers = [await client.answer() for _ in range(5)]
    assert [answer.status for answer in answers] == [200] * 5
    assert answers[1].json == answers[3].json
    assert answers[0].json == answers[4].json


async def test_two_hundred_requests_at_once_are_answered_in_order(gateway: Rig) -> None:
    client = await gateway.connect()
    await client.send(b"".join(gateway.request("/v2/health/live") for _ in range(200)))
    assert [(await client.answer()).status for _ in range(200)] == [200] * 200


async def test_a_client_that_wants_leave_gets_it(gateway: Rig) -> None:
    client = await gateway.connect()
    body = in_json(ROWS)
    request = gateway.request("/v2/models/scaling/infer", body, Expect="100-continue")
    await client.send(request[: -len(body)])
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await client.send(body)
    assert (await client.answer()).status == 200


async def test_compressed_bodies_both_ways(gateway: Rig) -> None:
    packed = gzip.compress(in_json(ROWS))
    answer = await gateway.infer(packed, Content_Encoding="gzip", Accept_Encoding="deflate;q=0, gzip")
    assert answer.headers["content-encoding"] == "gzip"
    assert orjson.loads(gzip.decompress(answer.body))["outputs"][0]["data"] == [0, 2, 4, 6, 8, 10]


async def test_a_small_body_does_not_become_a_large_one(gateway: Rig) -> None:
    bomb = gzip.compress(bytes(64 << 20))
    answer = await gateway.infer(bomb, Content_Encoding="gzip")
    assert answer.status == 413
    assert "without its Content-Encoding" in answer.error
    assert (await gateway.infer(b"x", Content_Encoding="gzip")).status == 400
    assert (await gateway.infer(b"x", Content_Encoding="br")).status == 415


async def test_a_broken_compressed_body_is_a_fault_of_the_client_also_if_it_is_long(gateway: Rig) -> None:
    answer = await gateway.infer(random.Random(1).randbytes(40_000), Content_Encoding="gzip")
    assert (answer.status, answer.error) == (400, "the body is not gzip")


async def test_a_request_without_a_body_may_name_a_coding(gateway: Rig) -> None:
    client = await gateway.connect()
    await client.send(gateway.request("/v2", Content_Encoding="gzip"))
    assert (await client.answer()).status == 200


async def test_what_is_lost_before_its_first_step_holds_nothing(gateway: Rig) -> None:
    """A task that is cancelled before it begins never comes to its end."""
    client = await gateway.connect()
    server = gateway.gateway.http
    assert server is not None
    body, length = in_binary(ROWS)
    request = gateway.request("/v2/models/scaling/infer", body, Inference_Header_Content_Length=length)
    await client.send(request[: -len(body)])
    await until(lambda: server.held_bytes)
    (connected,) = server._all
    view = connected.get_buffer(-1)
    view[: len(body)] = body
    connected.buffer_updated(len(body))
    connected.connection_lost(None)
    assert server.held_bytes == 0
    await asyncio.sleep(0)
    assert server.held_bytes == 0


@pytest.mark.parametrize("rows", [2, 3_000, 40_000])
@pytest.mark.parametrize("is_binary", [False, True])
async def test_compressed_bodies_of_any_length(gateway: Rig, rows: int, is_binary: bool) -> None:
    array = np.arange(rows * 3, dtype=np.float32).reshape(-1, 3)
    header: dict[str, Any] = {}
    body = in_json(array)
    if is_binary:
        body, length = in_binary(array, parameters={"binary_data_output": True})
        header = {"Inference_Header_Content_Length": length}
    answer = await gateway.infer(
        zlib.compress(body), Content_Encoding="deflate", Accept_Encoding="gzip", **header
    )  # fmt: skip
    plain = gzip.decompress(answer.body)
    (output,) = orjson.loads(plain[: int(answer.headers.get("inference-header-content-length", len(plain)))])["outputs"]
    got = np.frombuffer(plain[-array.nbytes :], np.float32) if is_binary else np.array(output["data"], np.float32)
    assert np.array_equal(got, 2 * array.ravel())


async def test_what_a_compressed_body_becomes_is_counted_with_all_bodies(open_gateway: Open) -> None:
    gateway = await open_gateway(memory_bytes=16 << 20)
    gateway.gateway.http.reload(gateway.gateway.config.model_copy(update={"memory_bytes": 3 << 20}))  # type: ignore[union-attr]
    packed = gzip.compress(in_json(np.zeros((3_000, 3), np.float32)))
    answer = await gateway.infer(packed, Content_Encoding="gzip")
    assert answer.status == 503
    assert gateway.gateway.http is not None
    assert gateway.gateway.http.held_bytes == 0
    assert (await gateway.infer(gzip.compress(in_json(ROWS)), Content_Encoding="gzip")).status == 200


async def test_a_client_that_leaves_while_its_body_is_read_keeps_no_region(open_gateway: Open) -> None:
    gateway = await open_gateway({"uids": [os.getuid()]})
    place = Path("/dev/shm/offpath-test-leaves")
    place.write_bytes(bytes(24))
    try:
        regions = gateway.gateway.tenants.by_name["ada"].regions
        regions.register("r", place.name, 0, 24)
        region = {"shared_memory_region": "r", "shared_memory_byte_size": 24}
        tensor = {"name": "x", "datatype": "FP32", "shape": [2, 3], "parameters": region}
        body = orjson.dumps({"inputs": [tensor], "other": [1] * 500_000})
        client = await gateway.connect()
        await client.send(gateway.request("/v2/models/scaling/infer", body))
        client.close()
        assert gateway.gateway.http is not None
        await until(lambda: gateway.gateway.http.connections == 0)  # type: ignore[union-attr]
        await until(lambda: not regions.borrow("r").users > 1)
    finally:
        place.unlink()


async def test_a_body_beyond_the_bound_is_refused_before_it_is_sent(gateway: Rig) -> None:
    client = await gateway.connect()
    await client.send(gateway.request("/v2/models/scaling/infer", method="POST", Content_Length=1 << 30))
    answer = await client.answer()
    assert answer.status == 413
    assert await client.is_closed()


async def test_a_client_that_leaves_cancels_its_request(gateway: Rig) -> None:
    client = await gateway.connect()
    body = in_json(np.array([60.0]), name="seconds", datatype="FP64")
    await client.send(gateway.request("/v2/models/napping/infer", body))
    ada = gateway.gateway.tenants.by_name["ada"]
    await until(lambda: ada._pending == 1)
    client.close()
    await until(lambda: ada._pending == 0)
    assert gateway.gateway.http is not None
    await until(lambda: gateway.gateway.http.held_bytes == 0)  # type: ignore[union-attr]


async def test_who_sends_too_slowly_is_cut(open_gateway: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.2)
    monkeypatch.setattr(http, "_SWEEP_S", 0.05)
    gateway = await open_gateway(idle_s=1)
    in_head, in_body, silent = [await gateway.connect() for _ in range(3)]
    await in_head.send(b"GET /v2 HTTP/1.1\r\nHo")
    await in_body.send(gateway.request("/v2/models/scaling/infer", method="POST", Content_Length=100) + b"{")
    for client in (in_head, in_body):
        assert (await client.answer()).status == 408
        assert await client.is_closed()
    assert await silent.is_closed()


async def test_connections_without_a_token_make_room_for_others(open_gateway: Open) -> None:
    gateway = await open_gateway(connections=4, unidentified=2)
    server = gateway.gateway.http
    assert server is not None
    known = []
    for tenant in ("ada", "ada", "bob"):
        known.append(client := await gateway.connect())
        await client.send(gateway.request("/v2", tenant=tenant))
        assert (await client.answer()).status == 200
    unidentified = [await gateway.connect() for _ in range(3)]
    assert await unidentified[0].is_closed()
    await until(lambda: server.connections == 5)
    await unidentified[2].send(gateway.request("/v2", tenant="bob"))
    assert (await unidentified[2].answer()).status == 200
    last = await gateway.connect()
    await last.send(gateway.request("/v2"))
    assert await known[0].is_closed(), "a tenant has half: the one that it has not used for the longest time leaves"
    assert (await last.answer()).status == 200


async def test_a_tenant_that_begins_heads_keeps_no_more_places_than_an_idle_one(open_gateway: Open) -> None:
    gateway = await open_gateway(connections=4)
    held = []
    for _ in range(3):
        held.append(client := await gateway.connect())
        await client.send(gateway.request("/v2"))
        assert (await client.answer()).status == 200
        await client.send(b"G")
    assert await held[0].is_closed()
    assert (await gateway.ask("/v2", tenant="bob")).status == 200
    await held[2].send(gateway.request("/v2")[1:])
    assert (await held[2].answer()).status == 200, "the head that it had begun"


async def test_a_tenant_whose_connections_are_all_at_work_gets_no_more(open_gateway: Open) -> None:
    gateway = await open_gateway(connections=4)
    held = [await gateway.connect() for _ in range(2)]
    for client in held:
        await client.send(gateway.request("/v2/models/scaling/infer", method="POST", Content_Length=100) + b"{")
    assert gateway.gateway.http is not None
    await until(lambda: gateway.gateway.http._shares.of("ada") == 2)  # type: ignore[union-attr]
    answer = await gateway.ask("/v2")
    assert (answer.status, answer.error) == (503, "the tenant has 2 connections here, as many as it may")
    assert (await gateway.ask("/v2", tenant="bob")).status == 200


async def test_connections_that_never_shake_hands_count_and_the_oldest_makes_room(
    open_gateway: Open, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("gateway", is_server=True)
    gateway = await open_gateway(unidentified=2, tls={"cert_file": certificate, "key_file": key})
    silent = [await gateway.connect() for _ in range(3)]
    assert await silent[0].is_closed()
    client = await gateway.connect(ssl.create_default_context(cafile=authority.ca_file))
    assert await silent[1].is_closed()
    await client.send(gateway.request("/v2"))
    assert (await client.answer()).status == 200
    assert gateway.gateway.http is not None
    assert gateway.gateway.http.connections == 2
    silent[2].close()
    await until(lambda: gateway.gateway.http.connections == 1)  # type: ignore[union-attr]


async def test_a_connection_that_never_shakes_hands_ends(open_gateway: Open, tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("gateway", is_server=True)
    gateway = await open_gateway(tls={"cert_file": certificate, "key_file": key})
    silent = await gateway.connect()
    assert gateway.gateway.http is not None
    server = gateway.gateway.http
    await until(lambda: server.connections)
    (one,) = server._all
    one.until_s = 0.0
    server._sweep()
    assert await silent.is_closed()
    await until(lambda: not server.connections)


async def test_bodies_share_one_bound_and_a_tenant_has_half_of_it(open_gateway: Open) -> None:
    gateway = await open_gateway(memory_bytes=16 << 20)
    server = gateway.gateway.http
    assert server is not None
    first, other = await gateway.connect(), await gateway.connect()
    announced = {"method": "POST", "Content_Length": 4_000_000}
    for client in (first, other):
        await client.send(gateway.request("/v2/models/scaling/infer", **announced))
    await until(lambda: server.held_bytes == 8_000_000)
    body = in_binary(np.ones((40_000, 3), np.float32))
    refused = await gateway.infer(body)
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert (await gateway.infer(body, tenant="bob")).status == 200
    first.close()
    await until(lambda: server.held_bytes == 4_000_000)
    assert (await gateway.infer(body)).status == 200
    other.close()
    await until(lambda: server.held_bytes == 0)
    assert not server._memory.holders()


async def test_buffers_that_are_kept_have_a_bound(gateway: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_SPARE_BYTES", 2_500_000)
    body = in_binary(np.ones((80_000, 3), np.float32))
    clients = [await gateway.connect() for _ in range(6)]
    for client in clients:
        request = gateway.request("/v2/models/scaling/infer", body[0], Inference_Header_Content_Length=body[1])
        await client.send(request)
    assert [(await client.answer()).status for client in clients] == [200] * 6
    assert gateway.gateway.http is not None
    assert 0 < gateway.gateway.http.buffers.spare_bytes <= 2_500_000


async def test_a_parameter_is_one_value_and_there_are_not_many(gateway: Rig) -> None:
    def with_parameters(parameters: dict[str, Any]) -> bytes:
        return in_json(ROWS, parameters=parameters)

    for many in ([[]] * 100_000, {"a": {}}):
        answer = await gateway.infer(with_parameters({"x": many}))
        text = "Unable to parse 'parameters': 'x' is no text, number or boolean"
        assert (answer.status, answer.error) == (500, text)
    answer = await gateway.infer(with_parameters({str(n): n for n in range(65)}))
    assert (answer.status, answer.error) == (400, "more than 64 parameters")
    answer = await gateway.infer(with_parameters({str(n): n for n in range(64)}))
    assert answer.status == 200


async def test_a_long_document_of_another_request_is_not_read(gateway: Rig) -> None:
    body = b'{"key":[' + b"[]," * 10_000 + b"[]]}"
    answer = await gateway.ask("/v2/systemsharedmemory/region/r/register", body)
    assert (answer.status, answer.error) == (413, "the body of this request has at most 16384 bytes")


# -- peers that send much and read little -------------------------------------------------------------------------
ON_UVLOOP = """
import asyncio, logging, sys, uvloop
from pathlib import Path
from tests.host_helper.gateway.http_peers import CASES
logging.disable()  # there is no daemon
uvloop.run(CASES[sys.argv[1]](Path(sys.argv[2])))
"""


@pytest.mark.parametrize("case", CASES)
def test_on_the_loop_that_the_gateway_runs_on(case: str, tmp_path: Path) -> None:
    """uvloop polls between two callbacks where asyncio's loop does not."""
    command = [sys.executable, "-W", "error", "-c", ON_UVLOOP, case, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
