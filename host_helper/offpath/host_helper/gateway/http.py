"""The gateway's HTTP/1.1 server: its connections, and what they share.

Whatever a peer can make large or long is bounded: heads, bodies and their sum, connections, the time for a head and the
rate of a body. Before a valid token nothing of a body is read, and nothing is said of what there is.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from typing import Any, Final, cast

from offpath.bindings.errors import PlaceUnusable
from offpath.host_helper.gateway import connection as connections
from offpath.host_helper.gateway.buffers import Buffers
from offpath.host_helper.gateway.config import GatewayFile
from offpath.host_helper.gateway.connection import Connection
from offpath.host_helper.gateway.errors import unavailable
from offpath.host_helper.gateway.tenants import Tenant, Tenants

MOST_UNIDENTIFIED: Final = 256
"""Connections without a valid token."""
_SWEEP_S: Final = 1.0


class HttpServer:
    """Serves tenants' clients (implements `connection.Owner`). `start` listens, `close` stops."""

    def __init__(self, config: GatewayFile, tenants: Tenants, tls: ssl.SSLContext | None) -> None:
        self.config = config
        self._tenants = tenants
        self.held_bytes = 0
        """Of bodies, of all connections."""
        self._held_by: defaultdict[str, int] = defaultdict(int)
        self.buffers = Buffers()
        """For bodies."""
        self._tls = tls
        self._all: dict[Connection, None] = {}
        self._unidentified: dict[Connection, None] = {}
        """Connections without a valid token so far, the oldest first."""
        self._of: dict[Tenant, dict[Connection, None]] = {}
        """Connections of each tenant, the one that was used last at the end."""
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def tenants(self) -> Tenants:
        """See `Owner.tenants`."""
        return self._tenants

    @property
    def idle_s(self) -> float:
        """See `Owner.idle_s`."""
        return self.config.idle_s

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    @property
    def connections(self) -> int:
        """Open ones."""
        return len(self._all)

    async def start(self) -> None:
        """Raises: PlaceUnusable: the address is taken, or not this machine's."""
        host, _, port = self.config.http.rpartition(":")
        loop = asyncio.get_running_loop()
        given = {"ssl": self._tls, "ssl_handshake_timeout": connections.HEAD_S} if self._tls is not None else {}
        try:
            self._server = await loop.create_server(
                lambda: Connection(self), host.strip("[]"), int(port), backlog=512, **cast(Any, given)
            )
        except (OSError, OverflowError) as fault:
            raise PlaceUnusable(f"http: {self.config.http}: {getattr(fault, 'strerror', None) or fault}") from None
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep)

    async def close(self) -> None:
        """Idempotent. Requests under way end."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self._all):
            connection.cut()
        await asyncio.sleep(0)

    # -- called by connections ------------------------------------------------------------------------------------
    def opened(self, connection: Connection) -> bool:
        """See `Owner.opened`. To make room, the oldest without a token goes first, then the idle one that the tenant
        with the most connections has not used for the longest time."""
        is_full = len(self._all) >= self.config.connections
        if is_full or len(self._unidentified) >= MOST_UNIDENTIFIED:
            leaves = next(iter(self._unidentified), None) or self._idle()
            if leaves is None:
                return False
            self.closed(leaves)
            leaves.cut()
        self._all[connection] = None
        self._unidentified[connection] = None
        return True

    def _idle(self) -> Connection | None:
        by_number = sorted(self._of.values(), key=len, reverse=True)
        return next((each for some in by_number for each in some if each.is_idle), None)

    def known(self, connection: Connection, tenant: Tenant) -> None:
        """See `Owner.known`."""
        self._unidentified.pop(connection, None)
        if connection.tenant is not tenant and connection.tenant is not None:
            self._forget(connection, connection.tenant)
        some = self._of.setdefault(tenant, {})
        some.pop(connection, None)
        some[connection] = None

    def closed(self, connection: Connection) -> None:
        """See `Owner.closed`. Idempotent."""
        self._all.pop(connection, None)
        self._unidentified.pop(connection, None)
        if connection.tenant is not None:
            self._forget(connection, connection.tenant)

    def _forget(self, connection: Connection, tenant: Tenant) -> None:
        some = self._of.get(tenant, {})
        some.pop(connection, None)
        if not some:
            self._of.pop(tenant, None)

    def hold(self, tenant: Tenant, nbytes: int) -> None:
        """See `Owner.hold`. One of several tenants has at most half of the room."""
        most = self.config.memory_bytes
        share = most // 2 if len(self._tenants.by_name) > 1 else most
        if self.held_bytes + nbytes > most or self._held_by[tenant.name] + nbytes > share:
            raise unavailable("the gateway's memory for requests is in use")
        self.held_bytes += nbytes
        self._held_by[tenant.name] += nbytes

    def release(self, tenant: Tenant, nbytes: int) -> None:
        """See `Owner.release`."""
        self.held_bytes -= nbytes
        self._held_by[tenant.name] -= nbytes
        if not self._held_by[tenant.name]:
            del self._held_by[tenant.name]

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for connection in [each for each in self._all if each.until_s <= now_s]:
            connection.late()
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep)
