"""Devices by ZeroMQ: gateways with listed keys, batches in both directions, and bounds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.wire.collab import MOST_BATCH, MOST_BATCH_BYTES
from offpath.bindings.zeromq.gateway import BatchEnd
from offpath.bindings.zeromq.keys import make_keys
from offpath.dpu_daemon.collab import gateways

from ...support.collab import message
from .conftest import Served, World


def batch(served: Served, number: int, *devices: str) -> bytes:
    items = [{"kind": "checkin", **message(device, served.world.clock.ms)} for device in devices]
    return json.dumps({"kind": "batch", "number": number, "items": items}).encode()


async def ask(end: BatchEnd, *bodies: bytes) -> list[dict[str, Any]]:
    for body in bodies:
        assert await asyncio.to_thread(end.send, body)
    found = [await asyncio.to_thread(end.receive, 30.0) for _ in bodies]
    return [json.loads(each or b"{}") for each in found]


async def test_a_batch_is_answered_in_its_order_after_the_disk_has_it(served: Served) -> None:
    served.world.job(demand=2)
    (found,) = await ask(served.end(), batch(served, 7, "d1", "d2", "d3"))
    assert (found["kind"], found["number"]) == ("answers", 7)
    assert [each["kind"] for each in found["items"]] == ["lease", "lease", "no_job"]
    assert served.world.shell.commits >= 1


async def test_many_batches_on_their_way_are_all_answered(served: Served) -> None:
    served.world.job(demand=1_000)
    bodies = [
        batch(served, number, *(f"d{number}-{n}" for n in range(4))) for number in range(3 * gateways.MOST_AT_ONCE)
    ]
    found = await ask(served.end(), *bodies)
    assert sorted(each["number"] for each in found) == list(range(len(bodies)))
    assert len({item["lease"] for each in found for item in each["items"]}) == 4 * len(bodies)


async def test_two_gateways_get_their_own_answers(served: Served) -> None:
    served.world.job()
    first, second = served.end(), served.end()
    assert [each["number"] for each in await ask(first, batch(served, 1, "d1"))] == [1]
    assert [each["number"] for each in await ask(second, batch(served, 2, "d2"))] == [2]


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"{", "json"), (b"{}", "message"), (b'{"kind":"batch","number":1,"number":2,"items":[]}', "json")],
)
async def test_what_is_no_batch_is_refused(served: Served, body: bytes, code: str) -> None:
    (found,) = await ask(served.end(), body)
    assert (found["kind"], found["code"]) == ("refused", code)


async def test_a_batch_with_too_many_messages_is_refused(served: Served) -> None:
    (found,) = await ask(served.end(), batch(served, 1, *["d1"] * (MOST_BATCH + 1)))
    assert found["code"] == "message"


async def test_a_message_above_the_limit_of_bytes_is_not_read(served: Served) -> None:
    end = served.end()
    assert (await ask(end, batch(served, 1, "d1")))[0]["number"] == 1
    await asyncio.to_thread(end.send, b"x" * (MOST_BATCH_BYTES + 1_000))
    assert await asyncio.to_thread(end.receive, 0.5) is None
    assert served.world.shell.refused == {}


async def test_a_gateway_whose_key_is_not_listed_is_not_served(served: Served) -> None:
    make_keys("stranger", str(served.folder))
    end = served.end("stranger.key")
    await asyncio.to_thread(end.send, batch(served, 1, "d1"), 0.2)
    assert await asyncio.to_thread(end.receive, 0.5) is None
    assert served.gateways.listener.refused >= 1
    assert served.world.shell.book.tally.check_ins == 0


async def test_batches_that_the_disk_holds_up_wait_without_a_bound_being_passed(tmp_path: Path) -> None:
    world = World(tmp_path, gateways=True)
    world.start(writes=False)
    world.clock.pass_s(1)
    made = Served(world, tmp_path)
    world.job(demand=1_000)
    end = made.end()
    sent = 0
    while sent < 3 * gateways.MOST_AT_ONCE and await asyncio.to_thread(end.send, batch(made, sent, f"d{sent}"), 0.5):
        sent += 1
    async with asyncio.timeout(30):
        while made.gateways._in_work < gateways.MOST_AT_ONCE:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert made.gateways._in_work == gateways.MOST_AT_ONCE
    assert world.shell.book.tally.check_ins == gateways.MOST_AT_ONCE
    await made.close()
    await world.stop()
