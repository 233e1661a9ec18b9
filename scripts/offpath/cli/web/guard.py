"""Who may read the page's data, and what a browser may do with the page.

- Host: only names that the page is served under, so that no other site can point its own name at this address (DNS
  rebinding). 421 otherwise.
- Method: GET and HEAD. 405 otherwise; nothing here changes anything.
- Data (``/api/``): only with a session's cookie or the token as ``Authorization: Bearer``, and never for another site's
  page (``Sec-Fetch-Site``). The page's own files have no data and need neither.
- Each answer forbids inline scripts, other hosts, frames, and HTML that a script makes from text (Trusted Types).
"""

from __future__ import annotations

import hmac
import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from offpath.bindings.errors import OptionRefused

MOST_SESSIONS: Final = 64
SESSION_S: Final = 86_400.0
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_LONGEST_COOKIE: Final = 4096


def is_loopback(host: str) -> bool:
    """An address of this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_of(host: str, names: list[str]) -> frozenset[str]:
    """The names that are accepted in a request's Host header. Raises: OptionRefused: an address that names no host
    needs a name."""
    given = {name.lower().rstrip(".") for name in names}
    if is_loopback(host):
        return LOOPBACK | {host} | given
    try:
        is_any = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        is_any = False
    if is_any and not given:
        raise OptionRefused(f"--listen {host}: give the page's host name with --name")
    return frozenset(given if is_any else {host, *given})


def name_in(host_header: str) -> str:
    """The name without its port, in lower case.

    >>> name_in("LocalHost:7788"), name_in("[::1]:7788"), name_in("::1")
    ('localhost', '::1', '::1')
    """
    text = host_header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text if text.count(":") > 1 else text.partition(":")[0].rstrip(".")


class Keys:
    """What opens the data: a token, or one-time links; either begins a session. Sessions have a bound: the oldest is
    dropped.

    Args:
        token: empty: links, each of which works once.
        random: returns a new secret.
        clock: seconds, monotonic.
    """

    def __init__(self, token: str, random: Callable[[], str], clock: Callable[[], float]) -> None:
        self._token, self._random, self._clock = token, random, clock
        self._sessions: OrderedDict[str, float] = OrderedDict()
        self.link = "" if token else random()
        """The secret of the next link; empty with a token."""

    def opens(self, presented: str) -> bool:
        """A token or a link's secret. A link's secret is then used up."""
        wanted = self._token or self.link
        if not hmac.compare_digest(presented.encode(), wanted.encode()):
            return False
        if not self._token:
            self.link = self._random()
        return True

    def is_token(self, presented: str) -> bool:
        """The token itself, for programs without a session."""
        return bool(self._token) and hmac.compare_digest(presented.encode(), self._token.encode())

    def begin(self) -> str:
        """A new session's secret."""
        session = self._random()
        self._sessions[session] = self._clock() + SESSION_S
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def is_session(self, presented: str) -> bool:
        """The secret of a session that has not expired."""
        expires_s = self._sessions.get(presented)
        return expires_s is not None and self._clock() < expires_s


def bearer(headers: Headers) -> str:
    """The secret of ``Authorization: Bearer``; empty without one."""
    kind, _, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else ""


class Guard:
    """Answers what may not pass, and adds the headers to all answers. ``cookie``: name of the session's cookie.
    ``on_identified`` is called with the address of each peer whose request may read data."""

    def __init__(
        self, app: ASGIApp, *, keys: Keys, names: frozenset[str], cookie: str, on_identified: Callable[[Any], None]
    ) -> None:
        self._app, self._keys, self._names, self._cookie = app, keys, names, cookie
        self._on_identified = on_identified

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a WebSocket: there is none
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refused = self._refusal(scope)
        await (refused or self._app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or name_in(hosts[0]) not in self._names:
            return refusal(421, "wrong_host", "the page is not served under this name; allow it with --name")
        if scope["method"] not in ("GET", "HEAD"):
            answer = refusal(405, "read_only", "the page only reads: GET and HEAD")
            answer.headers["allow"] = "GET, HEAD"
            return answer
        if not scope["path"].startswith("/api/"):
            return None
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return refusal(403, "cross_site", "another site's page may not read this")
        if scope["path"] == "/api/session":
            return None
        if self._may_read(headers):
            self._on_identified(scope["client"])
            return None
        return refusal(401, "unauthenticated", "open the link that `offpath web run` printed, or give its token")

    def _may_read(self, headers: Headers) -> bool:
        if self._keys.is_token(bearer(headers)):
            return True
        try:
            found = SimpleCookie(headers.get("cookie", "")[:_LONGEST_COOKIE]).get(self._cookie)
        except CookieError:
            return False
        return found is not None and self._keys.is_session(found.value)


def refusal(status: int, code: str, detail: str) -> JSONResponse:
    """An error's answer."""
    return JSONResponse({"code": code, "detail": detail}, status, {"cache-control": "no-store"})
