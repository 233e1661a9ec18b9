"""Clients without a token or a certificate: which of them are the anonymous tenant's, if there is one.

Either proxies are named, whose authentication is trusted, and a request from one of their addresses needs no token. Or
none is, and then the gateway listens on loopback addresses only: programs of the machine need no token. Behind a local
proxy, and for a page of a browser, the peer is the machine as well; so a request over HTTP is the machine's own only if
its Host is too, it names no Origin, and no browser says that another site asks: for scripts and images of a page it
sends Sec-Fetch-Site, and no Origin. A named loopback address is no exception: every user can send from it.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Collection
from typing import Final

_LOCAL: Final = "localhost"
_OWN_SITES: Final = frozenset(("", "none", "same-origin"))
"""Of Sec-Fetch-Site (Fetch Metadata Request Headers, W3C): no browser, its address bar, a page of the gateway."""


def is_loopback(host: str) -> bool:
    """Whether the address or name reaches this machine alone."""
    if host == _LOCAL:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def one_spelling(address: str) -> str:
    """An IP address without zone, and as IPv4 if it is one. Raises: ValueError: it is no address."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def address_of(transport: asyncio.BaseTransport) -> str:
    """The address at the other end of a connection; empty: it has left already."""
    peer = transport.get_extra_info("peername")
    return one_spelling(peer[0]) if peer else ""


class Anonymous:
    """Decides for a request. ``tenant``: its name; empty: there is none. ``proxies``: addresses in `one_spelling`."""

    def __init__(self, tenant: str = "", proxies: Collection[str] = ()) -> None:
        self.tenant, self._proxies = tenant, frozenset(proxies)

    def serves(self, peer: str, host: str, origin: str, site: str = "") -> bool:
        """``peer``: the address at the other end, in `one_spelling`. ``host``, ``origin``, ``site``: the headers Host,
        Origin and Sec-Fetch-Site of a request over HTTP, empty if there are none; over gRPC the first is the name of
        this machine."""
        if not self.tenant or not peer or (self._proxies and peer not in self._proxies):
            return False
        if not is_loopback(peer):
            return bool(self._proxies)
        return is_loopback(_name(host)) and not origin and site.strip().lower() in _OWN_SITES


def _name(host: str) -> str:
    """Of a Host header, without the port."""
    text = host.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]
