"""Requests of the gateway's clients share launches of a kernel that batches, and each gets its own rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from ...support.cluster import Cluster
from .conftest import Open
from .rig import TENANTS, until

NEEDS = {
    "demand": 14, "max_batch": 16, "max_queue_delay_us": 20_000,
    "inputs": {"x": ("fp32", [-1, 3]), "more": ("fp64", [-1])},
    "outputs": {"twice": ("fp32", [-1, 3]), "total": ("fp64", [-1])},
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster({name: {} for name in TENANTS}, leasing={"keep_warm_ms": 60_000})
    try:
        tally = {"OFFPATH_TEST_TALLY": str(cluster.folder / "tally")}
        cluster.start_helper(tally, needs={"double": NEEDS})
        yield cluster
        cluster.close()
    finally:
        cluster.kill()


def request(array: Any, more: Any) -> tuple[bytes, int]:
    """Both arguments of `double` in binary, and the length of the header before them."""
    tensors = (("x", "FP32", array), ("more", "FP64", more))
    inputs = [
        {"name": name, "datatype": datatype, "shape": list(each.shape), "parameters": {"binary_data_size": each.nbytes}}
        for name, datatype, each in tensors
    ]
    header = orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}})
    return header + array.tobytes() + more.tobytes(), len(header)


async def test_clients_share_launches_and_each_gets_its_rows(cluster: Cluster, open_gateway: Open) -> None:
    gateway = await open_gateway()

    async def ask(tenant: str, number: int) -> None:
        rows = 1 + number % 3
        array, more = np.full((rows, 3), number, np.float32), np.arange(rows, dtype=np.float64)
        answer = await gateway.infer(request(array, more), "double", tenant=tenant)
        assert answer.status == 200, answer.body
        twice, total = answer.json["outputs"]
        assert (twice["shape"], total["shape"]) == ([rows, 3], [rows])
        cut = twice["parameters"]["binary_data_size"]
        assert np.array_equal(np.frombuffer(answer.binary[:cut], np.float32), 2 * array.ravel())
        assert np.allclose(np.frombuffer(answer.binary[cut:], np.float64), 3 * number + more)

    await asyncio.gather(*(ask(TENANTS[1 if number % 4 == 0 else 0], number) for number in range(48)))
    launched = [int(line) for line in Path(cluster.folder / "tally").read_text().split()]
    assert sum(launched) == sum(1 + number % 3 for number in range(48))
    assert len(launched) < 40, "of 48 requests"
    both = [(await gateway.ask("/v2/models/double/stats", tenant=name)).json["model_stats"][0] for name in TENANTS]
    mine = [1 + number % 3 for number in range(48) if number % 4]
    assert (both[0]["inference_count"], both[0]["inference_stats"]["success"]["count"]) == (sum(mine), 36)
    assert sum(stats["execution_count"] for stats in both) == len(launched)
    sizes = [
        each["batch_size"]
        for stats in both
        for each in stats["batch_stats"]
        for _ in range(each["compute_infer"]["count"])
    ]
    assert sorted(sizes) == sorted(launched)


async def test_a_member_that_leaves_costs_the_others_nothing(cluster: Cluster, open_gateway: Open) -> None:
    gateway = await open_gateway()
    leaving = await gateway.connect()
    body, length = request(np.ones((2, 3), np.float32), np.ones(2))
    await leaving.send(gateway.request("/v2/models/double/infer", body, Inference_Header_Content_Length=length))
    ada = gateway.gateway.tenants.by_name["ada"]
    await until(lambda: ada._pending == 1, pause_s=0)
    staying = asyncio.create_task(gateway.infer(request(np.full((1, 3), 5, np.float32), np.zeros(1)), "double"))
    leaving.close()
    answer = await staying
    assert answer.status == 200, answer.body
    assert np.frombuffer(answer.binary[:12], np.float32).tolist() == [10, 10, 10]


async def test_clients_learn_the_batch_dimension_and_its_bound(open_gateway: Open) -> None:
    gateway = await open_gateway()
    shown = (await gateway.ask("/v2/models/double/config")).json
    assert (shown["max_batch_size"], [each["dims"] for each in shown["input"]]) == (16, [[3], []])
    assert shown["dynamic_batching"] == {"preferred_batch_size": [16], "max_queue_delay_microseconds": 20_000}
    metadata = (await gateway.ask("/v2/models/double")).json
    assert [each["shape"] for each in metadata["inputs"]] == [[-1, 3], [-1]]
    answer = await gateway.infer(request(np.ones((17, 3), np.float32), np.ones(17)), "double")
    assert (answer.status, answer.error) == (400, "inference request batch-size must be <= 16 for 'double'")
    answer = await gateway.infer(request(np.ones((16, 3), np.float32), np.ones(16)), "double")
    assert (answer.status, answer.json["outputs"][0]["shape"]) == (200, [16, 3])
