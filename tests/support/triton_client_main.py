"""Unmodified tritonclient, in its own environment: HTTP TOKEN GRPC. Runs what its examples do, prints what it got."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient
import tritonclient.grpc as oip_grpc
import tritonclient.http as oip_http
import tritonclient.http.aio as oip_http_aio
import tritonclient.utils.shared_memory as shm

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)
BIG = np.arange(614_400, dtype=np.uint8)


def inputs(module: Any, array: Any, name: str = "x", datatype: str = "FP32", **more: Any) -> list[Any]:
    tensor = module.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, **more)
    return [tensor]


def failure(call: Callable[[], Any]) -> list[str | None]:
    """Status and text of the client's exception."""
    try:
        call()
    except Exception as error:
        status, message = getattr(error, "status", None), getattr(error, "message", None)
        return [str(status()) if status else None, str(message()) if message else str(error)]
    return ["no failure", None]


def metadata(client: Any, **more: Any) -> dict[str, Any]:
    found = client.get_model_metadata("scaling", **more)
    config = client.get_model_config("scaling", **more)
    return {
        "live": client.is_server_live(**more), "ready": client.is_server_ready(**more),
        "model": client.is_model_ready("scaling", **more), "nope": client.is_model_ready("nope", **more),
        "versions": found["versions"], "inputs": found["inputs"],
        "config": config.get("config", config)["name"],
        "server": client.get_server_metadata(**more)["name"],
    }  # fmt: skip


def infer(module: Any, client: Any, headers: Any) -> dict[str, Any]:
    scaled = client.infer("scaling", inputs(module, ROWS), request_id="r1", headers=dict(headers))
    outputs = [module.InferRequestedOutput("OUTPUT0")]
    big = client.infer("identity", inputs(module, BIG, "INPUT0", "UINT8"), outputs=outputs, headers=dict(headers))
    urgent = client.infer("scaling", inputs(module, ROWS), priority=1, timeout=5_000_000, headers=dict(headers))
    return {
        "scaled": scaled.as_numpy("y").tolist(),
        "id": scaled.get_response()["id"] if module is oip_http else scaled.get_response().id,
        "big": bool(np.array_equal(big.as_numpy("OUTPUT0"), BIG)),
        "urgent": urgent.as_numpy("y").tolist(),
    }


def by_region(module: Any, client: Any, headers: Any) -> dict[str, Any]:
    """As Triton's simple_*_shm_client examples."""
    made = [shm.create_shared_memory_region(name, f"/offpath-test-{name}", BIG.nbytes) for name in ("in", "out")]
    try:
        shm.set_shared_memory_region(made[0], [BIG])
        for name in ("in", "out"):
            client.register_system_shared_memory(name, f"/offpath-test-{name}", BIG.nbytes, headers=dict(headers))
        tensor = module.InferInput("INPUT0", list(BIG.shape), "UINT8")
        tensor.set_shared_memory("in", BIG.nbytes)
        output = module.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory("out", BIG.nbytes)
        answer = client.infer("identity", [tensor], outputs=[output], headers=dict(headers))
        status = client.get_system_shared_memory_status(headers=dict(headers))
        got = {
            "equal": bool(np.array_equal(shm.get_contents_as_numpy(made[1], np.uint8, list(BIG.shape)), BIG)),
            "output": answer.get_output("OUTPUT0") is not None,
            "regions": len(status if isinstance(status, list) else status.regions),
        }
        small = module.InferRequestedOutput("OUTPUT0")
        small.set_shared_memory("out", 32)
        got["small"] = failure(lambda: client.infer("identity", [tensor], outputs=[small], headers=dict(headers)))
        beyond = module.InferInput("INPUT0", [BIG.nbytes + 1], "UINT8")
        beyond.set_shared_memory("in", BIG.nbytes + 1)
        got["beyond"] = failure(lambda: client.infer("identity", [beyond], headers=dict(headers)))
        got["twice"] = failure(lambda: client.register_system_shared_memory(
            "in", "/offpath-test-in", BIG.nbytes, headers=dict(headers)))  # fmt: skip
        got["nokey"] = failure(lambda: client.register_system_shared_memory("no", "/nokey", 1, headers=dict(headers)))
        client.unregister_system_shared_memory(headers=dict(headers))
        got["unregistered"] = failure(lambda: client.infer("identity", [tensor], headers=dict(headers)))
        return got
    finally:
        for region in made:
            with contextlib.suppress(Exception):
                shm.destroy_shared_memory_region(region)


def failures(module: Any, client: Any, headers: Any) -> dict[str, Any]:
    def call(model: str, *arguments: Any, **more: Any) -> list[str | None]:
        return failure(lambda: client.infer(model, *arguments, headers=dict(headers), **more))

    return {
        "unknown model": call("nope", inputs(module, ROWS)),
        "unknown version": call("scaling", inputs(module, ROWS), model_version="7"),
        "unknown input": call("scaling", inputs(module, ROWS, "z")),
        "unknown output": call("scaling", inputs(module, ROWS), outputs=[module.InferRequestedOutput("z")]),
        "wrong shape": call("scaling", inputs(module, np.zeros((1, 4), np.float32))),
        "wrong dtype": call("scaling", inputs(module, np.zeros((1, 3), np.int32), datatype="INT32")),
        "oversize": call("identity", inputs(module, np.zeros(900_000, np.uint8), "INPUT0", "UINT8")),
        "no input": call("scaling", []),
    }


def sequences(module: Any, client: Any, headers: Any) -> dict[str, Any]:
    """Two sequences in turn, as Triton's simple_*_sequence_sync_infer_client examples; then what is refused."""

    def ask(value: int, number: Any, **how: bool) -> list[int]:
        tensor = inputs(module, np.array([value], np.int64), "x", "INT64")
        answer = client.infer("accumulate", tensor, sequence_id=number, headers=dict(headers), **how)
        return [int(answer.as_numpy("total")[0]), int(answer.as_numpy("from")[1])]

    more = {"as_json": True} if module is oip_grpc else {}
    config = client.get_model_config("accumulate", headers=dict(headers), **more)
    got: dict[str, Any] = {"config": "direct" in config.get("config", config)["sequence_batching"]}
    steps = [(1, {"sequence_start": True}), (2, {}), (3, {"sequence_end": True})]
    got["sums"] = [[ask(value + number % 7, number, **how) for number in (1001, 2**63 - 2)] for value, how in steps]
    got["ended"] = failure(lambda: ask(1, 1001))
    got["none"] = failure(lambda: ask(1, 0))
    got["texts"] = [ask(value, "speech-7", **how) for value, how in steps]
    got["text ended"] = failure(lambda: ask(1, "speech-7"))
    got["stateless"] = failure(lambda: client.infer(
        "scaling", inputs(module, ROWS), sequence_id=5, sequence_start=True, headers=dict(headers)))  # fmt: skip
    return got


def over_http(address: str, token: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"}
    client = oip_http.InferenceServerClient(address)
    got = {
        "metadata": metadata(client, headers=headers), "infer": infer(oip_http, client, headers),
        "regions": by_region(oip_http, client, headers), "failures": failures(oip_http, client, headers),
        "sequences": sequences(oip_http, client, headers),
    }  # fmt: skip
    packed = client.infer(
        "scaling", inputs(oip_http, ROWS), headers=dict(headers), request_compression_algorithm="gzip",
        response_compression_algorithm="gzip",
    )  # fmt: skip
    got["gzip"] = packed.as_numpy("y").tolist()
    as_json = client.infer("scaling", inputs(oip_http, ROWS, binary_data=False), headers=dict(headers),
                           outputs=[oip_http.InferRequestedOutput("y", binary_data=False)])  # fmt: skip
    got["json"] = as_json.as_numpy("y").tolist()
    special = np.array([[np.nan, np.inf, -np.inf]], np.float32)
    as_json = client.infer("scaling", inputs(oip_http, special, binary_data=False), headers=dict(headers),
                           outputs=[oip_http.InferRequestedOutput("y", binary_data=False)])  # fmt: skip
    got["not finite"] = list(map(str, as_json.as_numpy("y")[0]))
    several = oip_http.InferenceServerClient(address, concurrency=4)
    waiting = [several.async_infer("scaling", inputs(oip_http, ROWS + n), headers=dict(headers)) for n in range(8)]
    got["async"] = [each.get_result().as_numpy("y")[0, 0].item() for each in waiting]
    got["statistics"] = client.get_inference_statistics("scaling", headers=headers)["model_stats"][0]["inference_count"]
    got["index"] = [each["name"] for each in client.get_model_repository_index(headers=headers)]
    got["load"] = failure(lambda: client.load_model("scaling", headers=headers))
    got["no token"] = failure(lambda: client.infer("scaling", inputs(oip_http, ROWS)))
    got["aio"] = asyncio.run(over_http_aio(address, headers))
    wish = inputs(oip_http, np.array([1, 1, 0, 0], np.float64), "wish", "FP64")
    got["decoupled"] = failure(lambda: client.infer("count", wish, headers=dict(headers)))
    client.close()
    several.close()
    return got


async def over_http_aio(address: str, headers: dict[str, str]) -> list[Any]:
    """aiohttp adds Accept-Encoding: gzip to each request; the client unpacks answers to inference only."""
    async with oip_http_aio.InferenceServerClient(address) as client:
        for known in (
            (await client.get_server_metadata(headers=headers))["name"] == "offpath",
            (await client.get_model_metadata("scaling", headers=headers))["versions"] == ["2"],
            (await client.get_model_config("scaling", headers=headers))["name"] == "scaling",
            len((await client.get_inference_statistics("scaling", headers=headers))["model_stats"]) == 1,
            len(await client.get_model_repository_index(headers=headers)) == 7,
            isinstance(await client.get_system_shared_memory_status(headers=headers), list),
            await client.is_server_live(headers=headers),
            await client.is_server_ready(headers=headers),
            await client.is_model_ready("scaling", headers=headers),
        ):
            assert known
        answers = await asyncio.gather(
            *(client.infer("scaling", inputs(oip_http, ROWS + n), headers=dict(headers)) for n in range(4))
        )
        return [each.as_numpy("y")[0, 0].item() for each in answers]


def over_grpc(address: str, token: str) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {token}"}
    client = oip_grpc.InferenceServerClient(address)
    got = {
        "metadata": grpc_metadata(client, headers),
        "infer": infer(oip_grpc, client, headers), "regions": by_region(oip_grpc, client, headers),
        "failures": failures(oip_grpc, client, headers), "sequences": sequences(oip_grpc, client, headers),
    }  # fmt: skip
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)), headers=headers)
    for n in range(8):
        client.async_stream_infer("scaling", inputs(oip_grpc, ROWS + n), request_id=str(n))
    streamed = [answers.get(timeout=20) for _ in range(8)]
    client.stop_stream()
    got["stream"] = sorted(result.as_numpy("y")[0, 0].item() for result, error in streamed if error is None)
    got["streamed sequence"] = streamed_sequence(client, headers)
    got["answers"] = several_answers(client, headers)
    got["stateful answers"] = stateful_answers(client, headers)
    late: queue.Queue[Any] = queue.Queue()
    client.async_infer("scaling", inputs(oip_grpc, ROWS), lambda result, error: late.put((result, error)),
                       headers=headers)  # fmt: skip
    got["async"] = late.get(timeout=20)[0].as_numpy("y").tolist()
    got["deadline"] = failure(
        lambda: client.infer(
            "napping", inputs(oip_grpc, np.array([30.0]), "seconds", "FP64"), client_timeout=0.2, headers=headers
        )
    )[0]
    got["index"] = [each.name for each in client.get_model_repository_index(headers=headers).models]
    got["statistics"] = client.get_inference_statistics("scaling", headers=headers).model_stats[0].inference_count > 0
    got["no token"] = failure(lambda: client.infer("scaling", inputs(oip_grpc, ROWS)))
    client.close()
    return got


def streamed_sequence(client: Any, headers: Any) -> list[int]:
    """As Triton's simple_grpc_sequence_stream_infer_client example: all requests at once, over one stream."""
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)), headers=headers)
    for n in range(6):
        tensor = inputs(oip_grpc, np.array([n], np.int64), "x", "INT64")
        client.async_stream_infer(
            "accumulate", tensor, request_id=str(n), sequence_id=77, sequence_start=n == 0, sequence_end=n == 5
        )
    got = dict[str, int]()
    for _ in range(6):
        result, error = answers.get(timeout=20)
        if error is None:
            got[result.get_response().id] = int(result.as_numpy("total")[0])
    client.stop_stream()
    return [got.get(str(n), -1) for n in range(6)]


def several_answers(client: Any, headers: Any) -> dict[str, Any]:
    """A decoupled model: all answers, the empty last one, an error, and a stream that is cancelled."""
    answers: queue.Queue[Any] = queue.Queue()

    def ask(count: int, fails_at: int = 0, **more: Any) -> None:
        wish = np.array([count, 2, 0, fails_at], np.float64)
        client.async_stream_infer("count", inputs(oip_grpc, wish, "wish", "FP64"), **more)

    def got(result: Any, error: Any) -> Any:
        if error is not None:
            return str(error)
        parameters = result.get_response().parameters
        assert "triton_final_response" in parameters
        final = parameters["triton_final_response"].bool_param
        value = result.as_numpy("value")
        return [final, None if value is None else value.tolist()]

    client.start_stream(lambda result, error: answers.put(got(result, error)), headers=headers)
    ask(3, enable_empty_final_response=True)
    with_end = [answers.get(timeout=20) for _ in range(4)]
    ask(2)
    without_end = [answers.get(timeout=20) for _ in range(2)]
    ask(9, fails_at=2)
    failed = [answers.get(timeout=20) for _ in range(2)]
    ask(1 << 30)
    first = answers.get(timeout=20)
    client.stop_stream(cancel_requests=True)
    wish = inputs(oip_grpc, np.array([1, 1, 0, 0], np.float64), "wish", "FP64")
    return {
        "with end": with_end, "without end": without_end, "failed": failed, "first": first,
        "unary": failure(lambda: client.infer("count", wish, headers=headers)),
    }  # fmt: skip


def stateful_answers(client: Any, headers: Any) -> dict[str, Any]:
    """A stateful decoupled model: two sequences over one stream, all requests at once; then one that has ended."""
    answers: queue.Queue[Any] = queue.Queue()

    def ask(number: int, n: int, count: int) -> None:
        client.async_stream_infer(
            "recount", inputs(oip_grpc, np.array([count], np.int64), "x", "INT64"), request_id=f"{number}.{n}",
            sequence_id=number, sequence_start=n == 0, sequence_end=n == 2, enable_empty_final_response=True,
        )  # fmt: skip

    client.start_stream(lambda result, error: answers.put((result, error)), headers=headers)
    for n in range(3):
        ask(81, n, 3)
        ask(82, n, 2)
    got: dict[str, Any] = {"81": [], "82": [], "final": []}
    while len(got["final"]) < 6:
        result, error = answers.get(timeout=20)
        if error is not None:
            raise error
        response = result.get_response()
        if response.parameters["triton_final_response"].bool_param:
            got["final"].append(response.id)
        else:
            got[response.id.partition(".")[0]].append([response.id, *result.as_numpy("n").tolist()])
    got["final"].sort()
    ask(81, 1, 1)
    got["ended"] = str(answers.get(timeout=20)[1])
    client.stop_stream()
    return got


def grpc_metadata(client: Any, headers: Any) -> dict[str, Any]:
    found = client.get_model_metadata("scaling", headers=headers)
    return {
        "live": client.is_server_live(headers=headers), "ready": client.is_server_ready(headers=headers),
        "model": client.is_model_ready("scaling", headers=headers),
        "nope": client.is_model_ready("nope", headers=headers), "versions": list(found.versions),
        "inputs": [{"name": each.name, "datatype": each.datatype, "shape": list(each.shape)} for each in found.inputs],
        "config": client.get_model_config("scaling", headers=headers).config.name,
        "server": client.get_server_metadata(headers=headers).name,
    }  # fmt: skip


def main() -> None:
    http, token, grpc = sys.argv[1:4]
    print(json.dumps({
        "version": tritonclient.__version__ if hasattr(tritonclient, "__version__") else "",
        "http": over_http(http, token), "grpc": over_grpc(grpc, token),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
