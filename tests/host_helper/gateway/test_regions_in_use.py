"""A region that a request has while its client unregisters it, over HTTP and on a real node."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from .conftest import Open
from .rig import Rig, until


@pytest.fixture
def place() -> Iterator[Path]:
    made = Path(f"/dev/shm/offpath-test-in-use-{os.getpid()}")
    made.write_bytes(np.array([5, 0], np.int64).tobytes())
    yield made
    made.unlink()


def adding(place: str) -> bytes:
    """The first request of sequence 7: its number from the region, and its sum into it."""
    region = {"shared_memory_region": place, "shared_memory_byte_size": 8}
    tensor = {"name": "x", "datatype": "INT64", "shape": [1], "parameters": region}
    output = {"name": "total", "parameters": {**region, "shared_memory_offset": 8}}
    parameters = {"sequence_id": 7, "sequence_start": True, "sequence_end": True}
    return orjson.dumps({"inputs": [tensor], "outputs": [output], "parameters": parameters})


async def region(gateway: Rig, what: str, **body: Any) -> tuple[int, Any]:
    sent = None if what == "status" else orjson.dumps(body) if body else b""
    answer = await gateway.ask(f"/v2/systemsharedmemory/region/r/{what}", sent)
    return answer.status, answer.json if answer.body else None


async def test_a_region_in_use_is_unregistered_when_its_request_has_ended(open_gateway: Open, place: Path) -> None:
    gateway = await open_gateway({"uids": [os.getuid()]})
    ada = gateway.gateway.tenants.by_name["ada"]
    given = {"key": place.name, "offset": 0, "byte_size": 16}
    assert (await region(gateway, "register", **given))[0] == 200
    async with ada.turn(ada.models.find("accumulate"), 7, None):  # the request waits for its turn, with the region
        asked = asyncio.create_task(gateway.infer(adding("r"), "accumulate"))
        await until(lambda: ada._pending == 2)
        assert await region(gateway, "unregister") == (200, None)
        assert await region(gateway, "status") == (200, [{"name": "r", **given}])
        assert await region(gateway, "register", **given) == (
            400, {"error": "shared memory region 'r' already in manager"},
        )  # fmt: skip
    answer = await asked
    assert answer.status == 200, answer.body
    assert np.frombuffer(place.read_bytes(), np.int64).tolist() == [5, 5]
    assert await region(gateway, "status") == (
        404, {"error": "Unable to find system shared memory region: 'r'"},
    )  # fmt: skip
    assert (await region(gateway, "register", **given))[0] == 200
