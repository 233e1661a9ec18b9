"""Unmodified tritonclient: HTTP TOKEN GRPC. Sends strings, parameters and fewer inputs, asks for classes, and prints
what it got."""

from __future__ import annotations

import asyncio
import json
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as oip_grpc
import tritonclient.grpc.aio as oip_grpc_aio
import tritonclient.http as oip_http
import tritonclient.http.aio as oip_http_aio
import tritonclient.utils as utils
import tritonclient.utils.shared_memory as shm

WORDS = np.array([[b"one", b"", "zw\u00f6lf".encode()], [b"\xff\x00", b"x" * 300, b"six"]], object)
TEXTS = np.array([["ein", "Wort"]])
ROWS = np.array([[1, -4, 3, -2], [0, 8, -8, 4]], np.float32)


def tensor(module: Any, name: str, array: Any, datatype: str, **more: Any) -> Any:
    made = module.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, **more)
    return made


def text_of(array: Any) -> list[Any]:
    """Bytes as JSON has them."""
    return [[each.decode("latin1") for each in row] for row in array.tolist()]


def strings(module: Any, client: Any, headers: Any) -> dict[str, Any]:
    def upper(array: Any, **more: Any) -> Any:
        return client.infer("upper", [tensor(module, "text", array, "BYTES", **more)], headers=dict(headers))

    got = {
        "objects": text_of(upper(WORDS).as_numpy("upper")), "texts": text_of(upper(TEXTS.astype(object))
                                                                            .as_numpy("upper")),
        "fixed": text_of(upper(np.array([[b"ab", b"c"]])).as_numpy("upper")),
        "none": list(upper(np.empty((0, 3), object)).as_numpy("upper").shape),
        "config": [each["data_type"] for each in config(client, "upper", headers)["input"]],
    }  # fmt: skip
    if module is oip_http:
        asked = [module.InferRequestedOutput("upper", binary_data=False)]
        made = tensor(module, "text", TEXTS.astype(object), "BYTES", binary_data=False)
        answer = client.infer("upper", [made], outputs=asked, headers=dict(headers))
        got["json"] = answer.as_numpy("upper").tolist()
        got["not text"] = failure(lambda: client.infer(
            "upper", [tensor(module, "text", WORDS, "BYTES")], outputs=asked, headers=dict(headers)))  # fmt: skip
    return got


def config(client: Any, model: str, headers: Any) -> Any:
    more = {"as_json": True} if isinstance(client, oip_grpc.InferenceServerClient) else {}
    found = client.get_model_config(model, headers=dict(headers), **more)
    return found.get("config", found)


def failure(call: Any) -> list[str | None]:
    """Status and text of the client's exception."""
    try:
        call()
    except utils.InferenceServerException as error:
        return [error.status(), error.message()]
    return ["no failure", None]


def by_region(module: Any, client: Any, headers: Any) -> list[Any]:
    """As Triton's simple_*_shm_string_client examples."""
    nbytes = sum(len(each) + 4 for each in WORDS.flat)
    made = [shm.create_shared_memory_region(name, f"/offpath-test-{name}", nbytes) for name in ("sin", "sout")]
    try:
        shm.set_shared_memory_region(made[0], [utils.serialize_byte_tensor(WORDS)])
        for name in ("sin", "sout"):
            client.register_system_shared_memory(name, f"/offpath-test-{name}", nbytes, headers=dict(headers))
        given = module.InferInput("text", list(WORDS.shape), "BYTES")
        given.set_shared_memory("sin", nbytes)
        output = module.InferRequestedOutput("upper")
        output.set_shared_memory("sout", nbytes)
        client.infer("upper", [given], outputs=[output], headers=dict(headers))
        got = text_of(shm.get_contents_as_numpy(made[1], np.object_, list(WORDS.shape)))
        given.set_shared_memory("sin", nbytes - 1)
        short = failure(lambda: client.infer("upper", [given], headers=dict(headers)))
        return [got, short]
    finally:
        client.unregister_system_shared_memory(headers=dict(headers))
        for region in made:
            shm.destroy_shared_memory_region(region)


def parameters(module: Any, client: Any, headers: Any) -> list[Any]:
    x = tensor(module, "x", np.zeros(2, np.float32), "FP32")
    custom = {"flag": True, "low": -5, "high": 1 << 40, "half": 0.5, "word": "w\u00f6rt"}
    if module is oip_grpc:
        del custom["half"]  # the client has no such parameter
    told = client.infer("told", [x], parameters=custom, priority=2, headers=dict(headers)).as_numpy("told")
    plain = client.infer("untold", [x], parameters=custom, headers=dict(headers)).as_numpy("y")
    return [json.loads(told[0]), plain.tolist()]


def optional(module: Any, client: Any, headers: Any) -> dict[str, Any]:
    x = tensor(module, "x", np.arange(3, dtype=np.float32), "FP32")
    note = tensor(module, "note", np.array([b"hi"], object), "BYTES")
    mask = tensor(module, "mask", np.array([True, False, True]), "BOOL")

    def run(*given: Any) -> list[Any]:
        answer = client.infer("masked", list(given), headers=dict(headers))
        return [*answer.as_numpy("sum").tolist(), *map(bytes.decode, answer.as_numpy("given").tolist())]

    return {
        "all": run(mask, x, note), "no mask": run(x, note), "no note": run(x, mask), "neither": run(x),
        "no x": failure(lambda: run(mask)),
        "config": {each["name"]: each.get("optional", False) for each in config(client, "masked", headers)["input"]},
    }  # fmt: skip


def cached(module: Any, client: Any, headers: Any) -> list[Any]:
    """A step of a decoder with a key/value cache."""
    given = [tensor(module, "step", np.array([7], np.int32), "INT32")]
    for layer in range(32):
        for each in ("key", "value"):
            given.append(tensor(module, f"past.{layer}.{each}", np.full((1, 2), layer, np.float16), "FP16"))
    answer = client.infer("decode", given, headers=dict(headers))
    last = answer.as_numpy("present.31.value").tolist()
    return [answer.as_numpy("logits").tolist(), last, answer.as_numpy("present.0.key").tolist()]


def classes(module: Any, client: Any, headers: Any) -> dict[str, Any]:
    def top(model: str, count: int, array: Any = ROWS, datatype: str = "FP32") -> list[Any]:
        asked = [module.InferRequestedOutput("y", class_count=count)]
        answer = client.infer(model, [tensor(module, "x", array, datatype)], outputs=asked, headers=dict(headers))
        found = answer.as_numpy("y")
        return [list(found.shape), [each.decode() for each in found.flatten()]]

    return {"two": top("scores", 2), "all": top("scores", 9), "whole numbers": top(
        "ranks", 2, np.array([5, 7, 7, -1], np.int64), "INT64")}  # fmt: skip


async def aio(addresses: list[str], headers: Any) -> list[Any]:
    got = []
    for module, address in zip((oip_http_aio, oip_grpc_aio), addresses, strict=True):
        async with module.InferenceServerClient(address) as client:
            sync = oip_http if module is oip_http_aio else oip_grpc
            given = [tensor(sync, "text", WORDS, "BYTES")]
            answer = await client.infer("upper", given, headers=dict(headers))
            got.append(text_of(answer.as_numpy("upper")))
    return got


def streamed(address: str, headers: Any) -> list[Any]:
    """Strings and parameters over a gRPC stream."""
    found: queue.Queue[Any] = queue.Queue()
    with oip_grpc.InferenceServerClient(address) as client:
        client.start_stream(lambda result, error: found.put(error or result), headers=dict(headers))
        x = tensor(oip_grpc, "count", np.array([2]), "INT64")
        client.async_stream_infer("said", [x], parameters={"word": "so"})
        got = [found.get(timeout=60).as_numpy("word").tolist()[0].decode() for _ in range(2)]
        client.stop_stream()
    return got


def main() -> None:
    http, token, grpc = sys.argv[1:]
    headers = {"authorization": f"Bearer {token}"}
    got: dict[str, Any] = {}
    for protocol, module, address in (("http", oip_http, http), ("grpc", oip_grpc, grpc)):
        with module.InferenceServerClient(address) as client:
            got[protocol] = {
                each.__name__: each(module, client, headers)
                for each in (strings, by_region, parameters, optional, cached, classes)
            }
    got["aio"] = asyncio.run(aio([http, grpc], headers))
    got["streamed"] = streamed(grpc, headers)
    print(json.dumps(got))


main()
