"""KServe's own clients against a gateway with an anonymous tenant: HTTP GRPC. Prints JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.inference_client import InferenceGRPCClient

ROWS = np.arange(16, dtype=np.int32).reshape(1, 16)


def request(*, is_binary: bool) -> InferRequest:
    inputs = [InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for tensor in inputs:
        tensor.set_data_from_numpy(ROWS, binary_data=is_binary)
    return InferRequest("simple", inputs)


def first(answer: Any) -> list[int]:
    return [int(each) for each in np.asarray(answer.outputs[0].as_numpy()).ravel()]


async def over_http(address: str) -> dict[str, Any]:
    client = InferenceRESTClient(config=RESTConfig(protocol="v2", timeout=20))
    url = f"http://{address}"
    return {
        "live": await client.is_server_live(url), "ready": await client.is_server_ready(url),
        "model": await client.is_model_ready(url, "simple"),
        "json": first(await client.infer(url, request(is_binary=False), model_name="simple")),
        "binary": first(await client.infer(url, request(is_binary=True), model_name="simple")),
    }  # fmt: skip


async def over_grpc(address: str) -> dict[str, Any]:
    client = InferenceGRPCClient(url=address, timeout=20)
    try:
        return {
            "live": await client.is_server_live(), "ready": await client.is_server_ready(),
            "model": await client.is_model_ready("simple"),
            "infer": first(await client.infer(infer_request=request(is_binary=True))),
        }  # fmt: skip
    finally:
        await client.close()


async def main() -> None:
    print(json.dumps({"http": await over_http(sys.argv[1]), "grpc": await over_grpc(sys.argv[2])}))


asyncio.run(main())
