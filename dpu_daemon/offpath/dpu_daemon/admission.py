"""Who is let in, and with how much: tenants, quotas, grants, tickets. Carriers and ticket doors call this; it reads no
socket itself.

Quotas are checked and reserved before anything is allocated; a grant gives everything back once, whoever noticed its
end first.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from pydantic import BaseModel

from offpath.bindings.errors import NegotiationRefused
from offpath.bindings.loopback.fabric import slot_stride
from offpath.bindings.ports import FabricListener
from offpath.bindings.wire import control
from offpath.dpu_daemon.config import DaemonConfig, TenantTable, read_token
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.sessions import Session

TICKET_TTL_S: Final = 5
RESUME_TTL_S: Final = 60
_REMOVED: Final = "the tenant was taken out of the configuration"


class Peer(Protocol):
    """The negotiation connection of a requester, whatever carries it."""

    def say(self, message: BaseModel) -> None:
        """Send without waiting; a peer that does not read is cut off."""

    def hang_up(self) -> None:
        """Close once what was said is out."""


@dataclass(slots=True)
class Carrier:
    """How a connection says who it is: the uid of a Unix peer, or the tenant of a certificate."""

    uid: int | None = None
    certified: str | None = None


@dataclass(slots=True, eq=False)
class Tenant:
    """A tenant's rights and what its sessions hold of them."""

    table: TenantTable
    token: str | None
    sessions: int = 0
    nbytes: int = 0
    is_removed: bool = False


@dataclass(slots=True, eq=False)
class Grant:
    """A welcomed peer: what it holds, from the welcome until its session ends."""

    tenant: Tenant
    session: int
    ticket: str
    nbytes: int
    peer: Peer
    expiry: asyncio.TimerHandle | None = None
    live: Session | None = None
    is_over: bool = False


def credentials(config: DaemonConfig) -> dict[str, tuple[TenantTable, str | None]]:
    """Each tenant's table and token, by name. Raises: ConfigError: a token file is unusable."""
    return {t.name: (t, read_token(t.token_file) if t.token_file else None) for t in config.tenant}


class Admission:
    """`admit` welcomes, `redeem` takes a ticket, `end` gives back. ``fabric_address`` is told in the welcome."""

    def __init__(self, daemon: Daemon, config: DaemonConfig, fabric: FabricListener, fabric_address: str) -> None:
        self._daemon = daemon
        self._config = config
        self._fabric = fabric
        self._fabric_address = fabric_address
        self._tenants = {name: Tenant(table, token) for name, (table, token) in credentials(config).items()}
        self._grants: dict[int, Grant] = {}
        self._by_ticket: dict[bytes, Grant] = {}
        self._next_session = 1
        self._loop = asyncio.get_running_loop()
        daemon.on_kernels_changed.append(self._tell_kernels)
        daemon.on_session_ended.append(self._session_ended)
        daemon.on_tenant_gone.append(self._tenant_gone)

    def admit(self, carrier: Carrier, hello: control.Hello, peer: Peer) -> Grant:
        """Who, and how much; then the welcome. Raises: NegotiationRefused."""
        tenant = self._identify(carrier, hello)
        if tenant.is_removed:
            raise NegotiationRefused("tenant_removed", _REMOVED)
        table = tenant.table
        if tenant.sessions >= table.max_sessions:
            raise NegotiationRefused("sessions", f"{table.max_sessions} sessions at most", 1000)
        if hello.payload_bytes > self._config.leasing.landing_bytes:
            raise NegotiationRefused("payload_bytes", f"{self._config.leasing.landing_bytes} at most per request")
        if hello.result_bytes > self._config.leasing.result_bytes:
            raise NegotiationRefused("result_bytes", f"{self._config.leasing.result_bytes} at most per request")
        slots = min(hello.slots, table.max_slots)
        nbytes = slots * (slot_stride(hello.payload_bytes) + slot_stride(hello.result_bytes))
        if tenant.nbytes + nbytes > table.max_bytes:
            raise NegotiationRefused("memory", f"{nbytes} bytes asked, {table.max_bytes - tenant.nbytes} left", 1000)
        tenant.sessions += 1
        tenant.nbytes += nbytes
        session = self._next_session
        self._next_session += 1
        ticket = self._daemon.token()
        grant = Grant(tenant, session, ticket, nbytes, peer)
        expires_ns = self._daemon.now_ns() + TICKET_TTL_S * 1_000_000_000
        self._fabric.offer(ticket, slots, hello.payload_bytes, hello.result_bytes, expires_ns)
        self._by_ticket[ticket.encode()] = grant
        self._grants[session] = grant
        grant.expiry = self._loop.call_later(TICKET_TTL_S + 0.1, self._expired, grant)
        peer.say(
            control.Welcome(
                session=session, tenant=table.name, lineage=self._daemon.lineage, slots=slots,
                payload_bytes=hello.payload_bytes, result_bytes=hello.result_bytes,
                resume_token=self._daemon.token(), resume_ttl_s=RESUME_TTL_S, ticket=ticket,
                ticket_ttl_s=TICKET_TTL_S,
                fabric=control.FabricOffer(carrier="loopback", address=self._fabric_address),
                kernels=self._daemon.kernels.infos(),
            ),
        )  # fmt: skip
        return grant

    def reload(self, config: DaemonConfig, known: Mapping[str, tuple[TenantTable, str | None]]) -> None:
        """Another configuration with its `credentials`. Tenants that stay keep what their sessions hold; those that go
        are refused by name until the book has let go of all they hold, and are then forgotten."""
        self._config = config
        for name, (table, token) in known.items():
            tenant = self._tenants.get(name)
            if tenant is None:
                self._tenants[name] = Tenant(table, token)
            else:
                tenant.table, tenant.token, tenant.is_removed = table, token, False
        for name in self._tenants.keys() - known.keys():
            self._tenants[name].is_removed = True
        for grant in [grant for grant in self._grants.values() if grant.tenant.is_removed and grant.live is None]:
            self.end(grant, control.Closing(code="tenant_removed", detail=_REMOVED))  # nothing of it is in the book

    def _tenant_gone(self, name: str) -> None:
        tenant = self._tenants.get(name)
        if tenant is not None and tenant.is_removed:
            tenant.token = None
            del self._tenants[name]

    def _identify(self, carrier: Carrier, hello: control.Hello) -> Tenant:
        """The tenant comes from the carrier, never from what the peer claims; every failure looks the same."""
        denied = NegotiationRefused("denied", "no tenant for these credentials")
        if carrier.uid is None:
            tenant = self._tenants.get(carrier.certified or "")
            if tenant is None or hello.tenant not in (None, tenant.table.name):
                raise denied
            return tenant
        tenant = self._tenants.get(hello.tenant or "")
        given = (hello.token or "").encode()
        # An unknown tenant costs the same comparison, so that names cannot be told apart by time.
        expected = tenant.token if tenant is not None and tenant.token is not None else secrets.token_urlsafe(32)
        is_right = hmac.compare_digest(expected.encode(), given)
        if tenant is None or tenant.token is None or not is_right:
            raise denied
        if carrier.uid not in (tenant.table.uids or [os.getuid()]):
            raise denied
        return tenant

    # -- tickets --------------------------------------------------------------------------------------------------
    def redeem(self, ticket: bytes) -> Grant | None:
        """The grant a redeemed ticket belongs to, or None when that is over; its expiry stops."""
        grant = self._by_ticket.pop(ticket, None)
        if grant is None or grant.is_over:
            return None
        if grant.expiry is not None:
            grant.expiry.cancel()
            grant.expiry = None
        return grant

    def _expired(self, grant: Grant) -> None:
        grant.expiry = None
        self.end(grant, control.Closing(code="ticket_expired", detail="the ticket was not redeemed in time"))

    # -- the end --------------------------------------------------------------------------------------------------
    def _session_ended(self, session: Session, code: str, detail: str) -> None:
        grant = self._grants.get(session.number)
        if grant is not None:
            self.end(grant, control.Closing(code=code, detail=detail[:500]))

    def end(self, grant: Grant, closing: control.Closing | None) -> None:
        """Give everything back, once, whoever noticed first."""
        if grant.is_over:
            return
        grant.is_over = True
        del self._grants[grant.session]
        self._by_ticket.pop(grant.ticket.encode(), None)
        self._fabric.withdraw(grant.ticket)
        grant.tenant.sessions -= 1
        grant.tenant.nbytes -= grant.nbytes
        if grant.expiry is not None:
            grant.expiry.cancel()
        if grant.live is not None:
            self._daemon.session_ended(grant.live, "peer_gone", "its negotiation ended")
        if closing is not None:
            grant.peer.say(closing)
            grant.peer.hang_up()

    def close(self) -> None:
        """The daemon ends: tell every peer."""
        for grant in list(self._grants.values()):
            self.end(grant, control.Closing(code="daemon_ends", detail="the daemon ends"))

    def _tell_kernels(self) -> None:
        message = control.Kernels(kernels=self._daemon.kernels.infos())
        for grant in self._grants.values():
            grant.peer.say(message)
