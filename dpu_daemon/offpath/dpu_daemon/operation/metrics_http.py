"""Serves ``/metrics``, ``/healthz`` and ``/readyz`` over HTTP from its own thread, so it can report a blocked loop.

Each peer takes one of `MAX_PEERS` threads for at most `PEER_S` seconds. Beyond that, the oldest connection is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import Any, Final, Generic, TextIO, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from offpath.dpu_daemon.config import ConfigError
from offpath.dpu_daemon.listening.accepting import LOG_EVERY_S, PAUSE_S, SPARE, is_exhaustion
from offpath.dpu_daemon.listening.checkup import ANSWER_S, Checkup

logger = logging.getLogger(__name__)
MAX_PEERS: Final = 8
PEER_S: Final = 5.0
_OPENMETRICS: Final = "application/openmetrics-text"
_VERSION_1: Final = re.compile(r"1(\.0){0,2}", re.ASCII)
_MOST_ELEMENTS: Final = 64
_LAG_EVERY_S: Final = 0.25
Application = Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]
_SWITCH_S: Final = 0.0005  # longest wait of the loop for the interpreter while text is formatted; default 5 ms
_S = TypeVar("_S")


@dataclass(frozen=True, slots=True)
class Pages(Generic[_S]):
    """What a process shows. ``families`` formats in another thread, all else is called in the process's event loop.

    ``take`` copies the numbers; its argument is the longest delay of a timer since the last call, in s. ``families``:
    every metric of such numbers, including those without samples; ``idle``: those of an idle process. ``tests``: names
    of the health tests, "loop" among them; ``check`` starts them for a `Checkup`, and states what is ready.
    ``exhausted``: a connection could not be accepted.
    """

    take: Callable[[float], _S]
    families: Callable[[_S], Iterator[Metric]]
    idle: _S
    tests: tuple[str, ...]
    check: Callable[[Checkup], None]
    exhausted: Callable[[], None]


class _Scraped(Collector, Generic[_S]):
    """Builds metric families from new numbers per scrape. ``get`` raises TimeoutError if the loop is blocked."""

    def __init__(self, pages: Pages[_S], get: Callable[[], _S]) -> None:
        self._pages, self._get = pages, get

    def describe(self) -> Iterable[Metric]:
        """The metrics of an idle process, without taking a snapshot."""
        return self._pages.families(self._pages.idle)

    def collect(self) -> Iterator[Metric]:
        """See `Collector.collect`."""
        return self._pages.families(self._get())


class MetricsServer(Generic[_S]):
    """Serves ``listen``, of ``operation.metrics_listen``; does nothing if that is empty. `start` listens, `close`
    stops."""

    def __init__(self, listen: str, pages: Pages[_S]) -> None:
        self._listen, self._pages = listen, pages
        self._loop = asyncio.get_running_loop()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self._lag_s = 0.0
        self._lag_timer: asyncio.TimerHandle | None = None
        self._expected_s = 0.0

    @property
    def address(self) -> tuple[str, int] | None:
        """Listening address; None if not listening."""
        if self._server is None:
            return None
        host, port, *_ = self._server.server_address
        return str(host), int(port)

    async def start(self) -> None:
        """Raises: ConfigError: the address is in use or not local."""
        if not self._listen:
            return
        host, _, port = self._listen.rpartition(":")
        try:
            self._server = _Server((host.strip("[]"), int(port)), self._application(), self._exhausted)
        except (OSError, OverflowError) as fault:
            raise ConfigError(f"operation.metrics_listen: cannot listen on {self._listen}: {fault}") from None
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_S))
        self._thread = threading.Thread(target=self._server.serve_forever, name="offpath-metrics", daemon=True)
        self._thread.start()
        self._arm_lag()
        logger.info("metrics on port %d", self._server.server_address[1], extra={"code": "metrics_listen"})

    async def close(self) -> None:
        """Stop listening and cut off connections in progress."""
        if self._lag_timer is not None:
            self._lag_timer.cancel()
        if self._server is not None and self._thread is not None:
            server, thread = self._server, self._thread
            await self._loop.run_in_executor(None, server.shutdown)
            server.server_close()
            server.cut_off(older_than_s=0.0)
            thread.join(PEER_S)

    # -- in the loop ----------------------------------------------------------------------------------------------
    def _arm_lag(self) -> None:
        self._expected_s = self._loop.time() + _LAG_EVERY_S
        self._lag_timer = self._loop.call_at(self._expected_s, self._measure_lag)

    def _measure_lag(self) -> None:
        self._lag_s = max(self._lag_s, self._loop.time() - self._expected_s)
        self._arm_lag()

    def _take(self, future: Future[_S]) -> None:
        try:
            lag_s, self._lag_s = self._lag_s, 0.0
            future.set_result(self._pages.take(lag_s))
        except Exception as fault:  # any error fails the scrape, not the loop
            future.set_exception(fault)

    def _exhausted(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._pages.exhausted)

    # -- in the threads -------------------------------------------------------------------------------------------
    def _snapshot(self) -> _S:
        future: Future[_S] = Future()
        self._loop.call_soon_threadsafe(self._take, future)
        return future.result(ANSWER_S)

    def _checkup(self) -> Checkup:
        checkup = Checkup(self._pages.tests)
        with contextlib.suppress(RuntimeError):  # the loop is closed: no check reports a result
            self._loop.call_soon_threadsafe(self._pages.check, checkup)
            checkup.wait()
        return checkup

    def _application(self) -> Application:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Scraped(self._pages, self._snapshot))
        metrics: Application = make_wsgi_app(registry)

        def application(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
            path = environ.get("PATH_INFO", "")
            if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
                return _respond(start, "405 Method Not Allowed", {"error": "GET only"})
            if path == "/metrics":
                try:
                    return metrics({**environ, "HTTP_ACCEPT": _accepted(environ.get("HTTP_ACCEPT", ""))}, start)
                except (TimeoutError, RuntimeError):
                    return _respond(start, "503 Service Unavailable", {"error": "the event loop does not answer"})
                except Exception:
                    logger.exception("could not build the metrics")
                    return _respond(start, "500 Internal Server Error", {"error": "see the log"})
            if path not in ("/healthz", "/readyz"):
                return _respond(start, "404 Not Found", {"error": "one of /metrics, /healthz, /readyz"})
            checkup = self._checkup()
            is_well = checkup.is_healthy and (path == "/healthz" or checkup.is_accepting)
            results = dict(checkup.checks)
            if path == "/readyz":
                results["ready"] = checkup.why_not_ready or "ok"
            return _respond(start, "200 OK" if is_well else "503 Service Unavailable", results)

        return application


def _accepted(header: str) -> str:
    """The ``Accept`` value to pass to the encoder, which raises for invalid versions. OpenMetrics 1 if the peer accepts
    it, else "" for plain text. Elements that cannot be parsed are skipped (RFC 9110 section 12.5.1)."""
    for element in header.split(",")[:_MOST_ELEMENTS]:
        media, *parameters = (part.strip() for part in element.split(";"))
        versions = [part.partition("=")[2] for part in parameters if part.partition("=")[0].strip() == "version"]
        if media == _OPENMETRICS and (not versions or _VERSION_1.fullmatch(versions[0].strip())):
            return f"{_OPENMETRICS}; version=1.0.0"
    return ""


def _respond(start: StartResponse, status: str, body: dict[str, str]) -> list[bytes]:
    text = json.dumps(body).encode() + b"\n"
    start(status, [("Content-Type", "application/json"), ("Content-Length", str(len(text)))])
    return [text]


class _Handler(WSGIRequestHandler):
    timeout = PEER_S  # per read or write; the server bounds the whole connection
    server_version = "offpathd"
    sys_version = ""

    def get_stderr(self) -> TextIO:
        """Discards wsgiref's messages about broken connections."""
        return io.StringIO()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


class _Server(ThreadingMixIn, WSGIServer):
    """One thread per peer, with bounds on the number of peers and on the time of each."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], application: Any, count: Callable[[], None]) -> None:
        """``count`` is called, from any thread, each time a connection could not be accepted."""
        self._count = count
        self._logged_s = -LOG_EVERY_S
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._peers: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, _Handler)
        self.set_app(application)

    def server_bind(self) -> None:
        """Bind without a name-server lookup of the own host."""
        socket.socket.setsockopt(self.socket, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def get_request(self) -> tuple[Any, Any]:
        """The next connection. When descriptors run out, spare ones are used to refuse pending connections, and the
        thread pauses, because the selector would call again at once. Raises: OSError, which `serve_forever` ignores."""
        try:
            return self.socket.accept()
        except OSError as fault:
            if not isinstance(fault, BlockingIOError | ConnectionAbortedError):
                self._count()
                if is_exhaustion(fault):
                    SPARE.use(self._refuse)
                self._log("a connection could not be accepted", fault)
                time.sleep(PAUSE_S)
            raise

    def _refuse(self) -> bool:
        if not select.select([self.socket], [], [], 0)[0]:
            return False
        self.socket.accept()[0].close()
        return True

    def _log(self, what: str, fault: BaseException) -> None:
        now_s = time.monotonic()
        if now_s - self._logged_s >= LOG_EVERY_S:
            self._logged_s = now_s
            logger.warning("metrics: %s: %s", what, fault, extra={"code": "metrics_failed"})

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve one more peer; close the oldest connection if there are too many."""
        with self._lock:
            if len(self._peers) >= MAX_PEERS:
                longest = next(iter(self._peers))
                del self._peers[longest]
                _cut(longest)
            self._peers[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """The peer was served or disconnected."""
        with self._lock:
            self._peers.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called twice a second."""
        self.cut_off(PEER_S)

    def cut_off(self, older_than_s: float) -> None:
        """Close connections older than this: a slow reader or writer holds a thread."""
        with self._lock:
            for peer, since in self._peers.items():
                if time.monotonic() - since >= older_than_s:
                    _cut(peer)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores peers that disconnect. Other errors, such as a thread that cannot be started, are logged once a
        second."""
        fault = sys.exc_info()[1]
        if fault is not None and not isinstance(fault, OSError):
            self._log("a request could not be served", fault)


def _cut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
