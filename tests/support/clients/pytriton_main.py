"""pytriton's clients against a gateway with an anonymous tenant: PYTRITON HTTP GRPC; the first is pytriton's folder.
Prints JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np

sys.path.append(sys.argv[1])
from pytriton.client import AsyncioModelClient, FuturesModelClient, ModelClient

ROWS = np.arange(48, dtype=np.int32).reshape(3, 16)


def both(answer: Any) -> bool:
    """Whether each output has the rows of its input."""
    return all(np.array_equal(answer[f"OUTPUT{n}"], ROWS + n) for n in range(2))


def sample(answer: Any) -> bool:
    return all(np.array_equal(answer[f"OUTPUT{n}"], ROWS[0] + n) for n in range(2))


async def later(url: str) -> bool:
    async with AsyncioModelClient(url, "simple") as client:
        return both(await client.infer_batch(ROWS, ROWS + 1))


def over(url: str) -> dict[str, Any]:
    with ModelClient(url, "simple", init_timeout_s=20, inference_timeout_s=20) as client:
        got = {
            "batch": client.model_config.max_batch_size,
            "infer_batch": both(client.infer_batch(ROWS, ROWS + 1)),
            "named": both(client.infer_batch(INPUT0=ROWS, INPUT1=ROWS + 1)),
            "infer_sample": sample(client.infer_sample(ROWS[0], ROWS[0] + 1)),
        }
    with FuturesModelClient(url, "simple") as futures:
        got["futures"] = both(futures.infer_batch(ROWS, ROWS + 1).result(20))
    got["asyncio"] = asyncio.run(later(url))
    return got


print(json.dumps({"http": over(f"http://{sys.argv[2]}"), "grpc": over(f"grpc://{sys.argv[3]}")}))
