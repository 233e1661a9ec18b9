"""The web page's application without a network: requests go in, answers come out."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from offpath.cli.web.app import Board, Settings, build
from offpath.cli.web.guard import LOOPBACK, Keys
from offpath.cli.web.reader import Seen

from .web_world import World, controller, daemon


class Page:
    """The application without a network: requests go in, answers come out."""

    def __init__(self, token: str = "", seen: Seen | None = None) -> None:
        self.secrets = (f"secret-{n}" for n in range(1000))
        self.now_s = 0.0
        self.links: list[str] = []
        self.world = World(seen or Seen(daemon(7), controller()))
        self.keys = Keys(token, lambda: next(self.secrets), lambda: self.now_s)
        settings = Settings(LOOPBACK)
        self.board = Board(self.world, settings, "run", lambda: self.now_s)
        self.board.take(self.world.read(), 1.0)
        self.app = build(self.board, self.keys, settings, self.links.append)

    def get(self, path: str, method: str = "GET", hosts: tuple[str, ...] = ("localhost",), **headers: str) -> Answer:
        return asyncio.run(self._get(path, method, hosts, headers))

    async def _get(self, path: str, method: str, hosts: tuple[str, ...], headers: dict[str, str]) -> Answer:
        target, _, query = path.partition("?")
        given = [(b"host", host.encode()) for host in hosts]
        given += [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": target, "raw_path": target.encode(), "query_string": query.encode(), "root_path": "",
            "headers": given, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 7788),
        }  # fmt: skip
        answer = Answer()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                answer.body += message.get("body", b"")

        await self.app(scope, receive, send)
        return answer

    def enter(self) -> str:
        """The cookie of a new session."""
        answer = self.get("/api/session", authorization=f"Bearer {self.keys.link}")
        assert answer.status == 200
        return answer.headers["set-cookie"].partition(";")[0]


class Answer:
    """Of the application."""

    status = 0

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.body = b""

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.document["code"])
