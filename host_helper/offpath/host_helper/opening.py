"""Opens a requester's session: negotiate, then connect over the carrier that the daemon names."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NoReturn

from pydantic import ValidationError

from offpath.bindings.errors import OptionRefused, PeerGone
from offpath.bindings.loopback.fabric import redeem_ticket
from offpath.bindings.ports import RequesterSession
from offpath.bindings.tokens import read_token_file
from offpath.bindings.wire import negotiating
from offpath.host_helper.negotiate import Negotiation, Rdma, Tls, check_timeout, connect_to, resolved

if TYPE_CHECKING:
    from offpath.bindings.verbs.fabric import VerbsRequesterSession

DEFAULT_PAYLOAD_BYTES: Final = 1 << 20
DEFAULT_RESULT_BYTES: Final = 1 << 16


def open_session(
    address: str | os.PathLike[str] | None,
    *,
    tenant: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    tls: Tls | None = None,
    slots: int = 16,
    payload_bytes: int = DEFAULT_PAYLOAD_BYTES,
    result_bytes: int = DEFAULT_RESULT_BYTES,
    timeout_s: float = 10.0,
    resume: negotiating.Resume | None = None,
    rdma: Rdma | None = None,
) -> tuple[Negotiation, negotiating.Welcome, RequesterSession]:
    """Negotiate and redeem the ticket.

    Args:
        address: see `offpath.host_helper.negotiate`; None: the local daemon.
        tenant, token_file: the identity over Unix sockets; the file holds the token, and only its owner may read it.
        slots, payload_bytes, result_bytes: requested credits and room per request; the daemon may grant less, never
        more.
        timeout_s: seconds for each step, above 0 and at most a day.
        resume: resume this session instead of opening a new one; it keeps its sizes.
        rdma: the requester's port, if the daemon's fabric is `verbs`; None: from the environment.

    Raises: NegotiationRefused, TicketRefused, PeerGone, ControlError, VerbsError. DaemonNotTrusted: an unexpected user
    listens at the address. OptionRefused (a ValueError; TokenRefused for the token file): an argument cannot be
    used. No error text contains a token.
    """
    check_timeout(timeout_s)
    rdma = rdma or Rdma.from_environment()
    address = resolved(address)
    token = read_token_file(os.fspath(token_file)) if token_file else None
    try:
        hello = negotiating.Hello(
            client="offpath", tenant=tenant, token=token, slots=slots, payload_bytes=payload_bytes,
            result_bytes=result_bytes, resume=resume,
        )  # fmt: skip
    except ValidationError as fault:
        _refuse(fault)
    with ExitStack() as undo:
        ready: VerbsRequesterSession | None = None
        if rdma != Rdma():  # the fabric will be verbs: do the slow part before a ticket's time runs
            from offpath.host_helper.verbs_session import prepared

            ready = prepared(rdma, slots, payload_bytes, result_bytes)
            undo.callback(ready.close)
        negotiation = Negotiation(connect_to(address, tls, timeout_s), timeout_s)
        # A goodbye would end the session that the next attempt is to resume.
        undo.callback(negotiation.close if resume is None else negotiation.abandon)
        try:
            welcome = negotiation.hello(hello)
        except TimeoutError:
            raise PeerGone(f"{address}: no welcome within {timeout_s:g} s") from None
        session: RequesterSession
        if welcome.fabric.carrier == "verbs":
            from offpath.host_helper.verbs_session import over_verbs

            session = over_verbs(negotiation, welcome, rdma, ready)
        else:
            session = redeem_ticket(welcome.fabric.address, welcome.ticket, timeout_s)
            if ready is not None:
                ready.close()
        undo.pop_all()
        return negotiation, welcome, session


_RULES: Final = {
    "tenant": "a tenant's name is 1 to 64 letters, digits and ._:/+-",
    "slots": "slots is a whole number from 1 to 1024",
    "payload_bytes": "payload_bytes is a whole number of bytes, 0 or more",
    "result_bytes": "result_bytes is a whole number of bytes, 0 or more",
}


def _refuse(fault: ValidationError) -> NoReturn:
    """With own texts, because pydantic's contain the values. Raises: OptionRefused."""
    names = dict.fromkeys(str(error["loc"][0]) if error["loc"] else "" for error in fault.errors(include_input=False))
    raise OptionRefused("; ".join(_RULES.get(name, f"{name}: cannot be sent") for name in names)) from None
