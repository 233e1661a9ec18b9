"""Starts the page's server on a socket, with its secrets, and prints its address."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
import signal
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from typing import Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from offpath.bindings.errors import OptionRefused, PlaceUnusable
from offpath.bindings.tokens import read_token_file
from offpath.cli.files.networks import topology_of
from offpath.cli.web.app import Board, Settings, build
from offpath.cli.web.guard import Keys, is_loopback, names_of
from offpath.cli.web.listener import Listener
from offpath.cli.web.reader import Reader, Source

LOOK_S: Final = 5.0
IDLE_LOOKS: Final = 2
"""Looks without a new request after which a connection without one in progress ends."""
BUSY_LOOKS: Final = 12
HANDSHAKE_S: Final = 10.0
_BACKLOG: Final = 128
_END_S: Final = 2


class _Connection(H11Protocol):
    """Ends where a peer sends no whole request, or does not read its answer: it would count against the bound."""

    _seen: RequestResponseCycle | None = None
    _looks = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """asyncio's."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(LOOK_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        """A new request since the last look is progress."""
        cycle = self.cycle
        self._looks = self._looks + 1 if cycle is self._seen else 0
        self._seen = cycle
        is_waiting = cycle is None or cycle.response_complete
        if self._looks >= (IDLE_LOOKS if is_waiting else BUSY_LOOKS):
            self.transport.abort()
            return
        self._timer = self.loop.call_later(LOOK_S, self._look)


class _Server(uvicorn.Server):
    """Ends in order, with exit code 0, on the signals that end every `run` command."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. uvicorn's own has no bound on the time of a TLS handshake, and asyncio's is a minute."""
        loop, config = asyncio.get_running_loop(), self.config

        def connection() -> _Connection:
            return _Connection(config, self.server_state, self.lifespan.state)

        handshake_s = HANDSHAKE_S if config.ssl else None
        self.servers = [
            await loop.create_server(
                connection, sock=sock, ssl=config.ssl, backlog=_BACKLOG, ssl_handshake_timeout=handshake_s
            )
            for sock in sockets or []
        ]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's would raise the signal again at the end."""
        yield

    def stop(self) -> None:
        """Finish the requests in flight, then return from ``serve``."""
        self.should_exit = True


def serve(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT. Raises: OptionRefused: an address without what it needs. PlaceUnusable: the
    address cannot be bound, or a file cannot be read. TokenRefused, NetworkError."""
    host, port = arguments.listen
    is_secure = _check(arguments, host)
    names = names_of(host, arguments.name)
    token = read_token_file(arguments.token_file) if arguments.token_file else ""
    topology = topology_of(arguments.topology) if arguments.topology else None
    with bound(host, port) as sock:
        port = sock.getsockname()[1]
        settings = Settings(names, arguments.interval, f"offpath_web_{port}", is_secure, topology)
        shown = arguments.name[0] if arguments.name else host
        address = f"{'https' if is_secure else 'http'}://{f'[{shown}]' if ':' in shown else shown}:{port}/"
        source = Reader(arguments.runtime_dir, has_daemon=not arguments.no_daemon)
        return run(sock, source, settings, token, address, arguments)


def run(
    sock: Listener, source: Source, settings: Settings, token: str, address: str, arguments: argparse.Namespace
) -> int:
    """Serve ``source`` on a bound socket. ``arguments``: ``json``, ``certificate`` and ``key`` of the command line."""
    keys = Keys(token, lambda: secrets.token_urlsafe(24), time.monotonic)

    def next_link(secret: str) -> None:
        print(f"web page: next link, which works once: {address}#{secret}", file=sys.stderr, flush=True)

    async def serving() -> None:
        board = Board(source, settings, secrets.token_hex(8))
        app = build(board, keys, settings, next_link, sock.identified)
        config = uvicorn.Config(
            app, http=_Connection, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
            proxy_headers=False, timeout_keep_alive=15, timeout_graceful_shutdown=_END_S,
            ssl_certfile=arguments.certificate, ssl_keyfile=arguments.key,
        )  # fmt: skip
        try:
            config.load()
        except (OSError, ssl.SSLError) as fault:
            raise PlaceUnusable(f"certificate {arguments.certificate}: {fault.strerror or fault}") from None
        _print_ready(address, keys.link, is_json=arguments.json)
        server = _Server(config)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, server.stop)
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(board.keep_reading(), name="poll")
            await server.serve(sockets=[sock])
            reading.cancel()

    asyncio.run(serving())
    return 0


def _print_ready(address: str, link: str, *, is_json: bool) -> None:
    """On stdout as JSON, or on stderr for people. ``link``: the secret of the first one; empty with a token."""
    if is_json:
        print(json.dumps({"address": address, "link": f"{address}#{link}" if link else None}), flush=True)
    else:
        how = f"open {address}#{link} (this link works once)" if link else f"open {address} with the token"
        print(f"web page ready: {how}", file=sys.stderr, flush=True)


def bound(host: str, port: int) -> Listener:
    """A listening socket. Raises: PlaceUnusable."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = Listener(family, kind | socket.SOCK_CLOEXEC, protocol)
    except OSError as fault:
        raise PlaceUnusable(f"--listen {host}:{port}: {fault.strerror or fault}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as fault:
        sock.close()
        raise PlaceUnusable(f"--listen {host}:{port}: {fault.strerror or fault}") from None
    return sock


def _check(arguments: argparse.Namespace, host: str) -> bool:
    """Whether HTTPS is served. Raises: OptionRefused: other machines could read secrets on the way."""
    if bool(arguments.certificate) != bool(arguments.key):
        raise OptionRefused("give --certificate and --key together")
    if is_loopback(host) or arguments.certificate:
        return bool(arguments.certificate)
    if not arguments.plain_http:
        raise OptionRefused(
            f"--listen {host}: other machines can connect there; give --certificate and --key, or --plain-http behind a"
            " proxy with HTTPS, or listen on 127.0.0.1 and use an SSH tunnel"
        )
    return False
