"""A stream's messages, one by one: what is written to a client's regions, and when."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from offpath.host_helper.gateway import grpc_server
from offpath.host_helper.gateway.config import GatewayFile, TenantTable
from offpath.host_helper.gateway.grpc_admission import Calls

CONFIG = GatewayFile(tenant=[TenantTable(name="ada", token_file="t")])


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The answers that were taken from the daemon, and so written to regions."""
    pytest.importorskip("grpc")
    model = SimpleNamespace(streams=True, name="count", version=1)
    call = SimpleNamespace(model=model, id="r")

    @contextlib.asynccontextmanager
    async def called(*given: Any) -> AsyncIterator[Any]:
        yield call, None

    monkeypatch.setattr(grpc_server, "called", called)
    return []


async def once(made: bytes) -> AsyncIterator[bytes]:
    yield made


def test_an_answer_is_written_to_regions_once_the_message_before_was_written_to_the_stream(written: list[int]) -> None:
    async def answers(call: Any, turn: Any) -> AsyncIterator[tuple[()]]:
        for number in (1, 2, 3):
            written.append(number)
            yield ()

    async def main() -> None:
        tenant: Any = SimpleNamespace(stream=answers, name="ada")
        stream = grpc_server._Stream(lambda context: tenant, None, Calls(CONFIG))
        request = grpc_server.classes().ModelInferRequest(model_name="count", id="r")
        reader = asyncio.ensure_future(stream.read(once(request.SerializeToString())))
        for number in (1, 2, 3):
            message = await stream.answers.get()
            await asyncio.sleep(0.01)
            assert written == [*range(1, number + 1)], "the next one waits"
            assert message is not None
            message[1]()
        assert await stream.answers.get() is None
        await reader

    asyncio.run(main())
