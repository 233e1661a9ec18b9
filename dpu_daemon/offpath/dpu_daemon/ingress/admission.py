"""Decides which requesters are admitted and with which resources: tenants, quotas, grants, tickets, resumable sessions.

Carriers and fabric acceptors call this module; it reads no socket itself. Quotas are checked and reserved before
anything is allocated. A grant releases everything exactly once, whichever component detects its end first.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

import orjson
from pydantic import BaseModel

from offpath.bindings.errors import NegotiationRefused
from offpath.bindings.memory.slots import slot_stride
from offpath.bindings.ports import FabricListener
from offpath.bindings.wire import control, negotiating
from offpath.bindings.wire.frames import MAX_FRAME_BYTES
from offpath.dpu_daemon.config import DaemonConfig, TenantTable, read_token
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.requests.sessions import Session, memory_name
from offpath.sched.jobs.admission import DRAIN_RETRY_MS

TICKET_TTL_S: Final = 5
RESUME_EVERY_NS: Final = 100_000_000
"""Minimum time between two attempts to resume a session, on fabrics where each attempt creates a queue pair."""
CONNECT_EVERY_NS: Final = 100_000_000
"""Long-term interval between a tenant's connections on such fabrics; a burst may be as large as its session limit."""
_REMOVED: Final = "the tenant was taken out of the configuration"
_STATE: Final[dict[bool | None, Literal["answered", "running", "retry_safe"]]] = {
    None: "retry_safe",
    True: "answered",
    False: "running",
}


class Peer(Protocol):
    """The negotiation connection of a requester, on any carrier."""

    def send(self, message: BaseModel) -> None:
        """Send without waiting; a peer that does not read is disconnected."""

    def renew(self, message: BaseModel) -> None:
        """Send what replaces the former message of its kind. A peer that does not read, because it waits for answers
        only, is not disconnected: it gets the newest once it reads, and none in between."""

    def hang_up(self) -> None:
        """Close after the pending messages are sent."""


@dataclass(slots=True)
class Carrier:
    """The identity that a connection proves: the uid of a Unix peer, or the tenant of a certificate."""

    uid: int | None = None
    certified: str | None = None


@dataclass(slots=True, eq=False)
class Tenant:
    """A tenant's quotas and what its sessions use of them."""

    table: TenantTable
    token: str | None
    sessions: int = 0
    nbytes: int = 0
    is_removed: bool = False
    connects_due_ns: int = 0
    """When its connections so far would all have arrived at the permitted rate."""


class Terms(NamedTuple):
    """A session's granted parameters, for its tenant and for a restarted daemon. ``token`` is the SHA-256 of the resume
    token, in hex."""

    slots: int
    payload_bytes: int
    result_bytes: int
    token: str

    @property
    def nbytes(self) -> int:
        """Memory of the session in bytes."""
        return self.slots * (slot_stride(self.payload_bytes) + slot_stride(self.result_bytes))


@dataclass(slots=True, eq=False)
class Grant:
    """What a welcomed peer holds, from the welcome until its session ends."""

    tenant: Tenant
    session: int
    terms: Terms
    peer: Peer | None
    ticket: str = ""
    expiry: asyncio.TimerHandle | None = None
    live: Session | None = None
    waiting: asyncio.TimerHandle | None = None
    """Timer that runs while the peer's connection is lost."""
    came_back_ns: int = -RESUME_EVERY_NS
    """Time of the last attempt to resume."""
    is_over: bool = False

    @property
    def origin(self) -> str:
        """The terms as the book stores them for a restart."""
        return orjson.dumps(list(self.terms)).decode()


def credentials(config: DaemonConfig) -> dict[str, tuple[TenantTable, str | None]]:
    """Each tenant's table and token, by name. Raises: ConfigError: a token file is unusable."""
    return {t.name: (t, read_token(t.token_file) if t.token_file else None) for t in config.tenant}


class Admission:
    """`admit` creates or resumes a grant, `redeem` takes its ticket, `peer_left` and `end` release it. The welcome
    carries ``offer``."""

    def __init__(
        self, daemon: Daemon, config: DaemonConfig, fabric: FabricListener, offer: negotiating.FabricOffer
    ) -> None:
        self._daemon = daemon
        self._config = config
        self._fabric = fabric
        self._offer = offer
        self._tenants = {name: Tenant(table, token) for name, (table, token) in credentials(config).items()}
        self._grants: dict[int, Grant] = {}
        self._by_ticket: dict[bytes, Grant] = {}
        self._next_session = daemon.requests.book.ledger.last_session + 1
        self._loop = asyncio.get_running_loop()
        daemon.host.kernels.on_changed.append(self._notify_kernels)
        daemon.requests.sessions.on_ended.append(self._session_ended)
        daemon.requests.sessions.on_tenant_gone.append(self._tenant_gone)
        daemon.requests.sessions.on_lost.append(self._wait_for_peer)

    def admit(self, carrier: Carrier, hello: negotiating.Hello, peer: Peer) -> Grant:
        """Identify the tenant, check its quotas, and send the welcome. Raises: NegotiationRefused."""
        tenant = self._identify(carrier, hello)
        if tenant.is_removed:
            raise NegotiationRefused("tenant_removed", _REMOVED)
        if hello.resume is not None:
            return self._resume(tenant, hello.resume, peer)
        if self._daemon.is_draining:
            raise NegotiationRefused("draining", "the daemon is being drained", DRAIN_RETRY_MS)
        table = tenant.table
        if hello.payload_bytes > self._config.leasing.landing_bytes:
            raise NegotiationRefused("payload_bytes", f"at most {self._config.leasing.landing_bytes} per request")
        if hello.result_bytes > self._config.leasing.result_bytes:
            raise NegotiationRefused("result_bytes", f"at most {self._config.leasing.result_bytes} per request")
        resume_token = self._daemon.identity.token()
        terms = Terms(min(hello.slots, table.max_slots), hello.payload_bytes, hello.result_bytes, _digest(resume_token))
        self._make_room(tenant, terms.nbytes)
        if tenant.sessions >= table.max_sessions:
            raise NegotiationRefused("sessions", f"at most {table.max_sessions} sessions", 1000)
        if tenant.nbytes + terms.nbytes > table.max_bytes:
            left = table.max_bytes - tenant.nbytes
            raise NegotiationRefused("memory", f"{terms.nbytes} bytes requested, {left} available", 1000)
        self._pace(tenant)
        grant = self._granted(tenant, self._next_session, terms, peer)
        self._next_session += 1
        self._welcome(grant, peer, resume_token, [])
        return grant

    def _pace(self, tenant: Tenant) -> None:
        """Limit a tenant's connection rate on fabrics where a connection costs a queue pair and pinned memory.

        Raises: NegotiationRefused: too soon; it carries the time to wait.
        """
        if not self._fabric.paces_connections:
            return
        now_ns = self._daemon.requests.now_ns()
        due_ns = max(tenant.connects_due_ns, now_ns) + CONNECT_EVERY_NS
        early_ns = due_ns - now_ns - tenant.table.max_sessions * CONNECT_EVERY_NS
        if early_ns > 0:
            wait_ms = -(-early_ns // 1_000_000)
            raise NegotiationRefused("sessions_too_soon", "at most ten a second after a burst of max_sessions", wait_ms)
        tenant.connects_due_ns = due_ns

    def _granted(self, tenant: Tenant, session: int, terms: Terms, peer: Peer | None) -> Grant:
        tenant.sessions += 1
        tenant.nbytes += terms.nbytes
        self._grants[session] = grant = Grant(tenant, session, terms, peer)
        return grant

    def _make_room(self, tenant: Tenant, nbytes: int) -> None:
        """If the tenant is at its quota, end its sessions that wait for a peer and have no job left to run."""
        for grant in list(self._grants.values()):
            table = tenant.table
            if tenant.sessions < table.max_sessions and tenant.nbytes + nbytes <= table.max_bytes:
                return
            if grant.tenant is not tenant or grant.waiting is None or grant.live is None:
                continue
            ended = self._daemon.requests.answers.held  # of streams, whose last answers wait for their slots
            if all(ref.is_answered or (ref.stream is not None and ref.job in ended) for ref in grant.live.refs()):
                self.end(grant, None)

    def _welcome(self, grant: Grant, peer: Peer, resume_token: str, resumed: list[negotiating.Resumed]) -> None:
        """Offer a ticket and send it in the welcome."""
        terms = grant.terms
        grant.ticket = self._daemon.identity.token()
        expires_ns = self._daemon.requests.now_ns() + TICKET_TTL_S * 1_000_000_000
        self._fabric.offer(grant.ticket, terms.slots, terms.payload_bytes, terms.result_bytes, expires_ns)
        self._by_ticket[grant.ticket.encode()] = grant
        grant.expiry = self._loop.call_later(TICKET_TTL_S + 0.1, self._expired, grant)
        welcome = negotiating.Welcome(
            session=grant.session, tenant=grant.tenant.table.name, lineage=self._daemon.identity.lineage,
            slots=terms.slots, payload_bytes=terms.payload_bytes, result_bytes=terms.result_bytes,
            resume_token=resume_token, resume_ttl_s=self._config.durability.resume_ttl_s,
            ticket=grant.ticket, ticket_ttl_s=TICKET_TTL_S,
            fabric=self._offer, kernels=self._daemon.host.kernels.infos(), resumed=resumed,
        )  # fmt: skip
        for message in welcome_messages(welcome):
            peer.send(message)

    def reload(self, config: DaemonConfig, known: Mapping[str, tuple[TenantTable, str | None]]) -> None:
        """Apply another configuration and its `credentials`. Remaining tenants keep their sessions' resources. Removed
        tenants are refused by name until the book has released all their resources, and are then forgotten."""
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
            self.end(grant, control.Closing(code="tenant_removed", detail=_REMOVED))  # the book has no record of it

    def _tenant_gone(self, name: str) -> None:
        tenant = self._tenants.get(name)
        if tenant is not None and tenant.is_removed:
            tenant.token = None
            del self._tenants[name]

    def _identify(self, carrier: Carrier, hello: negotiating.Hello) -> Tenant:
        """The tenant that carrier and token prove, never one that is only claimed. All failures look the same."""
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

    # -- resuming -------------------------------------------------------------------------------------------------
    def _resume(self, tenant: Tenant, resume: negotiating.Resume, peer: Peer) -> Grant:
        """Resume a peer's session. Raises: NegotiationRefused: ``resume_unknown``, whatever does not match; on paced
        fabrics also ``resume_too_soon`` and ``sessions_too_soon``."""
        grant = self._grants.get(resume.session)
        digest = _digest(resume.token)
        if (
            grant is None
            or grant.tenant is not tenant
            or grant.live is None
            or resume.lineage != self._daemon.identity.lineage
            or not hmac.compare_digest(grant.terms.token, digest)
        ):
            raise NegotiationRefused("resume_unknown", "no such resumable session of this tenant")
        if self._fabric.paces_connections:
            wait_ms = (grant.came_back_ns + RESUME_EVERY_NS - self._daemon.requests.now_ns()) // 1_000_000
            if wait_ms > 0:
                raise NegotiationRefused("resume_too_soon", "at most one attempt per 100 ms", wait_ms)
            self._pace(tenant)
            grant.came_back_ns = self._daemon.requests.now_ns()
        if resume.taken and len(resume.taken) != len(resume.unanswered):
            raise NegotiationRefused("resume_unknown", "taken and unanswered differ in length")
        grant.live.detach()  # its former connection may look alive but be dead
        if grant.peer is not None:
            grant.peer.hang_up()
        self._withdraw(grant)
        self._stop_waiting(grant)
        grant.peer = peer
        self._daemon.counters["sessions_resumed"] += 1
        taken = resume.taken or [0] * len(resume.unanswered)
        answered = grant.live.take_stock(dict(zip(resume.unanswered, taken, strict=True)))
        resumed = []
        for request in resume.unanswered:
            is_answered = answered.get(request)
            resumed.append(negotiating.Resumed(request_id=request, state=_STATE[is_answered]))
        self._welcome(grant, peer, resume.token, resumed)
        if self._daemon.store.is_held(memory_name(grant.session)):
            self.held(grant)
        return grant

    def held(self, grant: Grant) -> None:
        """The service manager has acknowledged the session's memory: notify its requester."""
        if grant.peer is not None and not grant.is_over:
            grant.peer.send(negotiating.Durable(session=grant.session))

    def came_back(self, grant: Grant) -> None:
        """The grant's peer is connected: stop waiting for it."""
        self._stop_waiting(grant)

    def knows(self, tenant: str) -> bool:
        """True if the tenant may hold sessions."""
        return tenant in self._tenants

    def restored(self, session: Session, origin: str) -> None:
        """Have an earlier process's session wait for its peer. Raises: ValueError: ``origin`` is invalid."""
        tenant = self._tenants[session.tenant]
        grant = self._granted(tenant, session.number, Terms(*orjson.loads(origin)), None)
        grant.live = session
        # By timer even if the TTL is 0: the other sessions are not restored yet.
        grant.waiting = self._loop.call_later(self._config.durability.resume_ttl_s, self.end, grant, None)

    def peer_left(self, grant: Grant, peer: Peer, *, is_goodbye: bool) -> None:
        """The negotiation connection ended. Only a goodbye cancels the work in flight."""
        if grant.is_over or grant.peer is not peer:
            return  # it has resumed on another connection already
        if is_goodbye or grant.live is None:
            self.end(grant, None)
        else:
            grant.peer = None
            self._daemon.requests.sessions.lost(grant.live, "its negotiation connection ended")

    def _wait_for_peer(self, session: Session) -> None:
        grant = self._grants.get(session.number)
        ttl_s = self._config.durability.resume_ttl_s
        if grant is None or not ttl_s:
            self._daemon.requests.sessions.ended(session, "peer_gone", "it cannot be resumed")
            return
        if grant.waiting is None:  # its negotiation may still send a goodbye
            grant.waiting = self._loop.call_later(ttl_s, self.end, grant, None)

    def _stop_waiting(self, grant: Grant) -> None:
        if grant.waiting is not None:
            grant.waiting.cancel()
            grant.waiting = None

    # -- tickets --------------------------------------------------------------------------------------------------
    def redeem(self, ticket: bytes) -> Grant | None:
        """The grant of a redeemed ticket; its expiry timer stops. None: the grant has ended."""
        grant = self._by_ticket.pop(ticket, None)
        if grant is None or grant.is_over:
            return None
        if grant.expiry is not None:
            grant.expiry.cancel()
            grant.expiry = None
        return grant

    def _expired(self, grant: Grant) -> None:
        grant.expiry = None
        if grant.live is not None:
            self._withdraw(grant)
            self._wait_for_peer(grant.live)
        else:
            self.end(grant, control.Closing(code="ticket_expired", detail="the ticket was not redeemed in time"))

    def _withdraw(self, grant: Grant) -> None:
        self._by_ticket.pop(grant.ticket.encode(), None)
        self._fabric.withdraw(grant.ticket)
        if grant.expiry is not None:
            grant.expiry.cancel()
            grant.expiry = None

    # -- the end --------------------------------------------------------------------------------------------------
    def _session_ended(self, session: Session, code: str, detail: str) -> None:
        grant = self._grants.get(session.number)
        if grant is not None:
            self.end(grant, control.Closing(code=code, detail=detail[:500]))

    def end(self, grant: Grant, closing: control.Closing | None) -> None:
        """Release everything that the grant holds. Idempotent."""
        if grant.is_over:
            return
        grant.is_over = True
        del self._grants[grant.session]
        self._withdraw(grant)
        self._stop_waiting(grant)
        grant.tenant.sessions -= 1
        grant.tenant.nbytes -= grant.terms.nbytes
        if grant.live is not None:
            self._daemon.requests.sessions.ended(grant.live, "peer_gone", "its negotiation connection ended")
        if closing is not None and grant.peer is not None:
            grant.peer.send(closing)
            grant.peer.hang_up()

    def close(self) -> None:
        """The daemon ends: notify every peer. Durable sessions are left for the next process to resume."""
        for grant in list(self._grants.values()):
            if self._daemon.is_durable:
                self._withdraw(grant)
                self._stop_waiting(grant)
                if grant.peer is not None:
                    grant.peer.send(control.Closing(code="daemon_restarts", detail="reconnect: the session is kept"))
                    grant.peer.hang_up()
            else:
                self.end(grant, control.Closing(code="daemon_ends", detail="the daemon is shutting down"))

    def _notify_kernels(self) -> None:
        message = negotiating.Kernels(kernels=self._daemon.host.kernels.infos())
        for grant in self._grants.values():
            if grant.peer is not None:
                grant.peer.renew(message)


def welcome_messages(welcome: negotiating.Welcome) -> Iterator[BaseModel]:
    """The welcome; if it exceeds a frame, a second message carries the kernels. Each message then fits a frame,
    whatever the limits allow (tests/dpu_daemon/test_largest_welcome.py)."""
    if welcome.resumed and len(control.encode(welcome)) > MAX_FRAME_BYTES:
        yield welcome.model_copy(update={"kernels": []})
        yield negotiating.Kernels(kernels=welcome.kernels)
    else:
        yield welcome


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
