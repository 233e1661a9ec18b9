"""The page's server: files, the session, the state, explanations. One poll serves all browsers."""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final, TypeVar

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from offpath.bindings.errors import DaemonNotTrusted, OffpathError
from offpath.cli.admin_client import Refused, job_id
from offpath.cli.exits import DaemonUnreachable, NotPermitted
from offpath.cli.web import document
from offpath.cli.web.guard import SESSION_S, Guard, Keys, bearer, refusal
from offpath.cli.web.history import History
from offpath.cli.web.reader import LONGEST_S, SHARE, DaemonSeen, Seen, Source, pause_s
from offpath.sched.topology.graph import Topology

logger = logging.getLogger(__name__)
MOST_EXPLAINING: Final = 4
MOST_EXPLAINED_S: Final = SHARE * LONGEST_S / 2
"""Time of explanations between two polls: half of what the longest pause pays for."""
TYPES: Final = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    **dict.fromkeys(
        ("main.js", "chart.js", "explain.js", "network.js", "tables.js", "words.js"), "text/javascript; charset=utf-8"
    ),
}
_NO_STORE: Final = {"cache-control": "no-store"}
_NO_CACHE: Final = {"cache-control": "no-cache"}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Settings:
    """``interval_s``: shortest time between two polls. ``cookie``: name of the session's cookie. ``is_secure``: the
    page is reached by HTTPS only."""

    names: frozenset[str]
    interval_s: float = 1.0
    cookie: str = "offpath_web"
    is_secure: bool = False
    topology: Topology | None = None


class Board:
    """The newest poll as JSON, and the history. ``run`` identifies this server's history; ``clock`` is monotonic."""

    def __init__(
        self, source: Source, settings: Settings, run: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._source, self._settings, self._clock = source, settings, clock
        self._run = run
        self._began_s = clock()
        self._plan = document.plan_of(settings.topology) if settings.topology is not None else None
        self._read_s = self._began_s
        self._observed_ms = 0.0
        """When the history was last observed: a daemon that does not answer adds nothing to it."""
        self._explained_s = 0.0
        """Since the last poll."""
        self._before: DaemonSeen | None = None
        self._rates: dict[str, float] = {}
        self._faults: dict[str, str] = {}
        self._one_at_a_time = asyncio.Lock()
        self._explaining = 0
        self._state = b"null"
        self.history = History()
        self.polls = 0

    @property
    def etag(self) -> str:
        """Of the newest poll."""
        return f'"{self._run}-{self.polls}"'

    async def keep_reading(self) -> None:
        """Poll until cancelled."""
        while True:
            await asyncio.sleep(await self.poll())

    async def poll(self) -> float:
        """Poll once. Returns: seconds until the next poll; explanations since the last one count as this one does."""
        async with self._one_at_a_time:
            seen = await asyncio.to_thread(self._source.read)
        pause = pause_s(seen.waited_s + self._explained_s, self._settings.interval_s)
        self._explained_s = 0.0
        self.take(seen, pause)
        return pause

    def take(self, seen: Seen, pause: float) -> None:
        """Make a poll the newest one."""
        self._read_s = self._clock()
        now_ms = self._now_ms()
        self._log(seen.faults)
        daemon = None
        if seen.daemon is not None:
            if self._before is not None:
                self._rates = document.rates(self._before, seen.daemon)
            self._before = seen.daemon
            self.history.observe(now_ms, document.held(seen.daemon))
            self._observed_ms = now_ms
            daemon = document.daemon(seen.daemon, self._rates)
        self.polls += 1
        self._state = orjson.dumps(
            {
                "run": self._run, "poll": self.polls, "now_ms": round(now_ms), "next_ms": round(pause * 1e3),
                "faults": seen.faults, "daemon": daemon,
                "controller": document.controller(seen.controller, self._plan)
                if seen.controller is not None else None,
                "manager": document.manager(seen.manager) if seen.manager is not None else None,
            }
        )  # fmt: skip

    def state(self, run: str, change: int) -> bytes:
        """The newest poll and its age, and the history after ``change`` of the run. All of it for another run, or if
        spans that changed since were dropped."""
        is_same = run == self._run and self.history.dropped <= change <= self.history.change
        spans = document.spans(self.history.since(change if is_same else 0))
        more = {
            "change": self.history.change, "is_whole": not is_same, "now_ms": round(self._observed_ms), **spans,
        }  # fmt: skip
        age_ms = round((self._clock() - self._read_s) * 1e3)
        return b'{"state":%b,"age_ms":%d,"history":%b}' % (self._state, age_ms, orjson.dumps(more))

    async def call_source(self, call: Callable[[], _T]) -> _T | None:
        """Call a method of the source in a thread; None: too many wait already, or those since the last poll took
        `MOST_EXPLAINED_S`."""
        if self._explaining >= MOST_EXPLAINING or self._explained_s >= MOST_EXPLAINED_S:
            return None
        self._explaining += 1
        try:
            async with self._one_at_a_time:
                began_s = self._clock()
                try:
                    return await asyncio.to_thread(call)
                finally:
                    self._explained_s += self._clock() - began_s
        finally:
            self._explaining -= 1

    def explain(self, identity: dict[str, int]) -> dict[str, Any]:
        """An explained request. Raises: as `Source.explain`."""
        return document.explanation(self._source.explain(identity))

    def explain_job(self, name: str) -> dict[str, Any]:
        """An explained training job. Raises: as `Source.explain_job`."""
        return document.job_explanation(self._source.explain_job(name))

    def _now_ms(self) -> float:
        return (self._clock() - self._began_s) * 1e3

    def _log(self, faults: dict[str, str]) -> None:
        """Only what is new."""
        for name, text in faults.items():
            if name not in self._faults:
                logger.warning("%s does not answer: %s", name, text)
        for name in self._faults.keys() - faults.keys():
            logger.warning("%s answers again", name)
        self._faults = dict(faults)


def build(
    board: Board, keys: Keys, settings: Settings, on_link: Callable[[str], None],
    on_identified: Callable[[Any], None] = lambda address: None,
) -> Starlette:  # fmt: skip
    """The application. ``on_link`` is called with the secret of each new link, ``on_identified`` with the address of
    each peer whose request may read data."""
    folder = resources.files(__package__) / "static"
    files = {name: (folder / name).read_bytes() for name in TYPES}

    async def file(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in files:
            raise HTTPException(404)
        return Response(files[name], headers={**_NO_CACHE, "content-type": TYPES[name]})

    async def session(request: Request) -> Response:
        if not keys.opens(bearer(request.headers)):
            return refusal(401, "unauthenticated", "this link was used already, or the token is wrong")
        if keys.link:
            on_link(keys.link)
        answer = JSONResponse({"session_s": SESSION_S}, headers=_NO_STORE)
        answer.set_cookie(
            settings.cookie, keys.begin(), max_age=int(SESSION_S), path="/", secure=settings.is_secure, httponly=True,
            samesite="strict",
        )  # fmt: skip
        return answer

    async def state(request: Request) -> Response:
        if request.headers.get("if-none-match") == board.etag:
            return Response(status_code=304, headers={**_NO_CACHE, "etag": board.etag})
        after = request.query_params.get("after", "0")[:20]
        change = int(after) if after.isascii() and after.isdigit() else 0
        body = board.state(request.query_params.get("run", "")[:64], change)
        headers = {**_NO_CACHE, "etag": board.etag, "content-type": "application/json"}
        return Response(body, headers=headers)

    async def explain(request: Request) -> Response:
        try:
            identity = job_id(request.path_params["identity"][:64])
        except argparse.ArgumentTypeError as fault:
            return refusal(400, "bad_request", str(fault))
        return await _answered(lambda: board.explain(identity))

    async def job(request: Request) -> Response:
        return await _answered(lambda: board.explain_job(request.path_params["name"]))

    async def unknown(_: Request, __: Exception) -> Response:
        return refusal(404, "unknown_page", "there is no such page")

    async def _answered(call: Callable[[], dict[str, Any]]) -> Response:
        try:
            found = await board.call_source(call)
        except Refused as fault:
            return refusal(404 if fault.code.startswith("unknown") else 400, fault.code, str(fault))
        except NotPermitted as fault:
            return refusal(403, "denied", str(fault))
        except (DaemonUnreachable, DaemonNotTrusted) as fault:
            return refusal(503, "unreachable", str(fault)[:400])
        except OffpathError as fault:
            return refusal(400, "bad_request", str(fault)[:400])
        if found is None:
            return refusal(429, "busy", "too many explanations; try again after the next poll")
        return JSONResponse(found, headers=_NO_STORE)

    routes = [
        Route("/", file),
        Route("/static/{name}", file),
        Route("/api/session", session),
        Route("/api/state", state),
        Route("/api/explain/{identity:path}", explain),
        Route("/api/job/{name}", job),
    ]
    guard = Middleware(
        Guard, keys=keys, names=settings.names, cookie=settings.cookie, on_identified=on_identified
    )  # fmt: skip
    return Starlette(routes=routes, middleware=[guard], exception_handlers={404: unknown})
