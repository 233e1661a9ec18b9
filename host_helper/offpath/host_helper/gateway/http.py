"""The gateway's HTTP/1.1 server: its connections, and what they share.

Whatever a peer can make large or long is bounded: heads, bodies and their sum, connections, the time for a head and the
rate of a body. Before a valid token nothing of a body is read, and nothing is said of what there is.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final

from offpath.host_helper.gateway.buffers import Buffers
from offpath.host_helper.gateway.config import GatewayFile
from offpath.host_helper.gateway.connection import Connection
from offpath.host_helper.gateway.errors import unavailable
from offpath.host_helper.gateway.listener import Listener
from offpath.host_helper.gateway.shares import Shares
from offpath.host_helper.gateway.tenants import Tenant, Tenants

_SWEEP_S: Final = 1.0


class HttpServer:
    """Serves tenants' clients (implements `connection.Owner`). `start` listens, `close` stops."""

    def __init__(self, config: GatewayFile, tenants: Tenants, tls: ssl.SSLContext | None) -> None:
        self.config = config
        self._tenants = tenants
        names = [table.name for table in config.tenant]
        self._memory = Shares(config.memory_bytes, names)
        self._shares = Shares(config.connections, names)
        """Of connections."""
        self.buffers = Buffers()
        """For bodies."""
        self._all: dict[Connection, None] = {}
        self._unidentified: dict[Connection, None] = {}
        """Connections without a valid token so far, the oldest first."""
        self._of: dict[str, dict[Connection, None]] = {}
        """Connections of each tenant, the one that was used last at the end."""
        self._listener = Listener(tls, self._begin)
        self._sweeper: asyncio.TimerHandle | None = None

    def reload(self, config: GatewayFile) -> None:
        """Serve these tenants, within these bounds, from now on."""
        self.config = config
        names = [table.name for table in config.tenant]
        self._memory.divide(config.memory_bytes, names)
        self._shares.divide(config.connections, names)

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
        return self._listener.address

    @property
    def held_bytes(self) -> int:
        """Of bodies, of all connections."""
        return self._memory.held

    @property
    def connections(self) -> int:
        """Open ones."""
        return len(self._all)

    async def start(self) -> None:
        """Raises: PlaceUnusable: the address is taken, or not this machine's."""
        await self._listener.open(self.config.http)
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep)

    async def close(self) -> None:
        """Idempotent. Requests under way end."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._listener.close()
        for connection in list(self._all):
            connection.cut()
        await asyncio.sleep(0)

    # -- called by connections ------------------------------------------------------------------------------------
    def _begin(self, sock: socket.socket) -> Connection:
        """A new connection. Of too many without a token, the oldest goes."""
        while len(self._unidentified) >= self.config.unidentified:
            self._end(next(iter(self._unidentified)))
        connection = Connection(self, sock)
        self._all[connection] = None
        self._unidentified[connection] = None
        return connection

    def known(self, connection: Connection, tenant: Tenant) -> None:
        """See `Owner.known`. To make room, a tenant with more connections loses the idle one that it has not used for
        the longest time, or else this tenant its own."""
        some = self._of.setdefault(tenant.name, {})
        if connection not in some:
            if connection.tenant is not None:
                self._forget(connection, connection.tenant)
                self._unidentified[connection] = None
            while not self._shares.take(tenant.name):
                leaves = self._idle(tenant.name)
                if leaves is None:
                    raise unavailable(f"the tenant has {len(some)} connections here, as many as it may")
                self._end(leaves)
        self._unidentified.pop(connection, None)
        some.pop(connection, None)
        some[connection] = None

    def _idle(self, tenant: str) -> Connection | None:
        """One that can make room for the tenant."""
        mine = self._shares.of(tenant)
        others = [name for name in self._shares.holders() if self._shares.of(name) > mine]
        return next((each for name in (*others, tenant) for each in self._of[name] if each.is_idle), None)

    def _end(self, connection: Connection) -> None:
        self.closed(connection)
        connection.cut()

    def closed(self, connection: Connection) -> None:
        """See `Owner.closed`. Idempotent."""
        self._all.pop(connection, None)
        self._unidentified.pop(connection, None)
        if connection.tenant is not None:
            self._forget(connection, connection.tenant)

    def _forget(self, connection: Connection, tenant: Tenant) -> None:
        some = self._of.get(tenant.name, {})
        if connection in some:
            del some[connection]
            self._shares.give(tenant.name)

    def hold(self, tenant: Tenant, nbytes: int) -> None:
        """See `Owner.hold`."""
        if not self._memory.take(tenant.name, nbytes):
            raise unavailable("the gateway's memory for requests is in use")

    def release(self, tenant: Tenant, nbytes: int) -> None:
        """See `Owner.release`."""
        self._memory.give(tenant.name, nbytes)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for connection in [each for each in self._all if each.until_s <= now_s]:
            connection.late()
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep)
