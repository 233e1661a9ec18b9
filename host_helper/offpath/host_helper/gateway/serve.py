"""Wires the gateway together: tenants, HTTP, gRPC, signals."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import ssl
from collections.abc import Callable
from typing import Any

from offpath.bindings.errors import OffpathError
from offpath.bindings.open_files import allow_files
from offpath.host_helper.gateway.config import GatewayFile, TlsFiles, load
from offpath.host_helper.gateway.errors import GatewayConfigInvalid, GatewayMissing
from offpath.host_helper.gateway.grpc_connections import SPARE
from offpath.host_helper.gateway.grpc_server import GrpcServer
from offpath.host_helper.gateway.heads import httptools
from offpath.host_helper.gateway.http import HttpServer
from offpath.host_helper.gateway.tenants import Tenants, close_all

logger = logging.getLogger(__name__)
_FILES_OF_ONE = 5
"""Descriptors of an HTTP connection: its socket, and two for each buffer of a long body, packed and unpacked."""
_OTHER_FILES = 512
_LEAST_FILES = 256
_RESTART = (
    "daemon", "http", "grpc", "tls", "grpc_ping_ms", "grpc_keepalive_s", "grpc_connections", "unidentified",
    "grpc_idle_s", "grpc_age_s",
)  # fmt: skip
"""Keys that a reload does not change."""


class Gateway:
    """One gateway on the running loop. `start` listens, `close` ends it. ``config``: as it was loaded."""

    def __init__(self, config: GatewayFile, path: str = "") -> None:
        """Raises: GatewayConfigInvalid: a file cannot be used. GatewayMissing: a package is not installed."""
        self._loaded, self.path = config, path
        self.config = config = fitting(config)
        self.tenants = Tenants(config)
        self.http: HttpServer | None = None
        self.grpc: GrpcServer | None = None
        if config.http:
            httptools()
            self.http = HttpServer(config, self.tenants, None if config.tls is None else _context(config.tls))
        if config.grpc:
            self.grpc = GrpcServer(config, self.tenants)

    async def start(self) -> None:
        """Raises: PlaceUnusable: an address is in use, or not this machine's. GatewayConfigInvalid."""
        try:
            if self.http is not None:
                await self.http.start()
            if self.grpc is not None:
                await self.grpc.start()
        except BaseException:
            await self.close()
            raise
        self.tenants.start()

    async def close(self) -> None:
        """Idempotent. Requests under way end."""
        if self.http is not None:
            await self.http.close()
        if self.grpc is not None:
            await self.grpc.close()
        await self.tenants.close()

    async def reload(self) -> bool:
        """Read the file anew: tenants, tokens, bounds. False: it has faults, and all stays as it is. The listeners stay
        in any case."""
        try:
            loaded = load(self.path)
            for key in _RESTART:
                if getattr(loaded, key) != getattr(self._loaded, key):
                    raise GatewayConfigInvalid(f"{self.path}: {key} changes with a restart only")
            config = fitting(loaded)
            leaving = self.tenants.reload(config)
        except OffpathError as fault:
            logger.warning("the configuration stays as it was: %s", fault, extra={"code": "reload_refused"})
            return False
        self.config, self._loaded = config, loaded
        if self.http is not None:
            self.http.reload(config)
        if self.grpc is not None:
            self.grpc.reload(config)
        await close_all(leaving)
        logger.info("the configuration of %d tenants is in force", len(config.tenant), extra={"code": "reloaded"})
        return True

    def addresses(self) -> dict[str, str]:
        """Where clients reach it, by protocol."""
        found = {}
        if self.http is not None:
            host, port = self.http.address
            found["http"] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if self.grpc is not None:
            found["grpc"] = self.grpc.address
        return found


def run(path: str, ready: Callable[[dict[str, str]], None]) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP reads the file anew. ``ready`` gets the addresses.

    Raises: GatewayConfigInvalid, GatewayMissing, PlaceUnusable.
    """
    try:
        import uvloop
    except ImportError:
        raise GatewayMissing('the gateway needs uvloop: pip install "offpath[gateway]"') from None
    config = load(path)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, path, ready))


def files_of(config: GatewayFile) -> int:
    """Descriptors that clients over both protocols can make the process use, and those of all else."""
    over_http = _FILES_OF_ONE * config.connections + config.unidentified
    over_grpc = config.grpc_connections + config.unidentified + SPARE
    return over_http + over_grpc + _OTHER_FILES


def fitting(config: GatewayFile) -> GatewayFile:
    """The configuration with bounds of connections that the process has descriptors for; its limit is raised to what
    they need, as far as it may be. Without this, clients over one protocol could use up those of the other."""
    needed = files_of(config)
    allow_files(needed)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return config
    part = max(limit - _LEAST_FILES, 0) / needed
    keys = ("connections", "grpc_connections", "unidentified")
    fewer = {key: max(int(getattr(config, key) * part), 1) for key in keys}
    told = ", ".join(f"{key} = {fewer[key]}" for key in keys)
    logger.warning("limit of descriptors: %d, not %d: %s", limit, needed, told, extra={"code": "few_descriptors"})
    return config.model_copy(update=fewer)


async def _serve(config: GatewayFile, path: str, ready: Callable[[dict[str, str]], None]) -> None:
    loop = asyncio.get_running_loop()
    stop, reloads = asyncio.Event(), set[asyncio.Task[Any]]()
    gateway = Gateway(config, path)

    def reload() -> None:
        task = loop.create_task(gateway.reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload)
    await gateway.start()
    gc.collect()
    gc.freeze()  # a full collection would look at all modules: a tenth of a second, in which nobody is served
    try:
        ready(gateway.addresses())
        await stop.wait()
    finally:
        await gateway.close()


def _context(tls: TlsFiles) -> ssl.SSLContext:
    """Raises: GatewayConfigInvalid: a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file, password=_no_password)
        if tls.client_ca_file:
            context.load_verify_locations(tls.client_ca_file)
            context.verify_mode = ssl.CERT_OPTIONAL
    except (OSError, ValueError) as fault:
        raise GatewayConfigInvalid(f"tls: {getattr(fault, 'strerror', None) or 'not usable PEM'}") from None
    return context


def _no_password() -> str:
    """Prevents OpenSSL from prompting on the terminal for an encrypted key's password."""
    raise ValueError("the key is encrypted")
