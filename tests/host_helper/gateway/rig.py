"""A client that writes bytes and reads answers, for a gateway in the same process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from offpath.host_helper.gateway.serve import Gateway

from ...support.processes import BOUND_S

TENANTS = ("ada", "bob")


async def until(condition: Callable[[], Any], pause_s: float = 0.01) -> None:
    """Wait until it becomes so. With a pause of 0 no state of this loop goes by unseen."""
    end = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < end, "it does not become so"
        await asyncio.sleep(pause_s)


@dataclass
class Answer:
    """One that a client read."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        length = self.headers.get("inference-header-content-length")
        return orjson.loads(self.body[: int(length)] if length else self.body)

    @property
    def error(self) -> str:
        assert set(self.json) == {"error"}
        return str(self.json["error"])

    @property
    def binary(self) -> bytes:
        return self.body[int(self.headers["inference-header-content-length"]) :]


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> Answer:
        async with asyncio.timeout(BOUND_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            first, *lines = head[:-4].decode().split("\r\n")
            headers = {key.lower(): value for key, _, value in (line.partition(": ") for line in lines)}
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return Answer(int(first.split(" ")[1]), headers, body)

    async def is_closed(self) -> bool:
        """Whether the gateway ends the connection, and says nothing more before."""
        async with asyncio.timeout(BOUND_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    def close(self) -> None:
        self.writer.close()


class Rig:
    """The gateway, and the clients that a test opened."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._clients: list[Client] = []

    @staticmethod
    def token(tenant: str) -> str:
        return f"bearer-{tenant}-{'x' * 16}"

    def revoke(self, tenant: str) -> None:
        """No token of the tenant is valid from now on."""
        config = self.gateway.config
        for table in config.tenant:
            if table.name == tenant:
                Path(table.bearer_files[0]).write_text(f"another-{self.token(tenant)}")
        assert not self.gateway.tenants.reload(config)

    async def connect(self, tls: Any = None) -> Client:
        assert self.gateway.http is not None
        host, port = self.gateway.http.address
        given = {} if tls is None else {"ssl": tls, "server_hostname": "gateway"}
        client = Client(*await asyncio.open_connection(host, port, limit=1 << 26, **given))
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            client.close()
        await self.gateway.close()

    @staticmethod
    def request(
        path: str, body: bytes | None = None, *, tenant: str = "ada", method: str = "", **headers: Any
    ) -> bytes:
        """Headers by keyword: ``_`` stands for ``-``; None: without it."""
        given: dict[str, Any] = {"Host": "gateway", "Authorization": f"Bearer {Rig.token(tenant)}"}
        if body is not None:
            given["Content-Length"] = len(body)
        given |= {key.replace("_", "-"): value for key, value in headers.items()}
        lines = [f"{key}: {value}" for key, value in given.items() if value is not None]
        method = method or ("GET" if body is None else "POST")
        return "\r\n".join((f"{method} {path} HTTP/1.1", *lines, "", "")).encode("latin-1") + (body or b"")

    async def ask(self, path: str, body: bytes | None = None, **more: Any) -> Answer:
        """By a connection of its own."""
        client = await self.connect()
        await client.send(self.request(path, body, **more))
        return await client.answer()

    async def infer(self, body: tuple[bytes, int] | bytes, model: str = "scaling", **more: Any) -> Answer:
        if isinstance(body, tuple):
            body, more["Inference_Header_Content_Length"] = body
        return await self.ask(f"/v2/models/{model}/infer", body, **more)


def in_binary(array: NDArray[Any], *, name: str = "x", datatype: str = "FP32", **more: Any) -> tuple[bytes, int]:
    """A request with one tensor behind its header, and the header's length."""
    parameters = {"binary_data_size": array.nbytes}
    tensor = {"name": name, "datatype": datatype, "shape": list(array.shape), "parameters": parameters}
    header = orjson.dumps({"inputs": [tensor], **more})
    return header + array.tobytes(), len(header)


def in_json(array: NDArray[Any], *, name: str = "x", datatype: str = "FP32", **more: Any) -> bytes:
    tensor = {"name": name, "datatype": datatype, "shape": list(array.shape), "data": array.tolist()}
    return orjson.dumps({"inputs": [tensor], **more})


ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)
