"""Which calls over gRPC are taken: a share of the calls for each tenant, and a few for clients without a token."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Final

from offpath.host_helper.gateway.config import GatewayFile
from offpath.host_helper.gateway.connection import HEAD_S, LEAST_BYTES_PER_S
from offpath.host_helper.gateway.errors import Refused, invalid, unavailable
from offpath.host_helper.gateway.shares import Shares

MOST_OPEN: Final = 32
"""Calls without a token whose message has not come."""
REFUSAL_S: Final = 0.002
"""Between two refusals of a tenant, or of clients without a token: each costs the loop a part of a millisecond."""
REFUSED_BYTES_PER_S: Final = 32 << 20
"""As much of messages that are refused: one of 4 MiB costs some milliseconds before it can be."""
_MOST_REFUSALS_S: Final = 5.0
"""No refusal waits longer."""
_CALLS: Final = (16, 1024)
"""Least and most calls of all tenants. Between them as many as have room for their messages."""


class Calls:
    """Counts the calls of the server."""

    def __init__(self, config: GatewayFile) -> None:
        names = [table.name for table in config.tenant]
        self.most = min(max(config.memory_bytes // config.most_body, _CALLS[0]), _CALLS[1])
        """Calls of all tenants at once."""
        self._wait_s = HEAD_S + config.most_body / LEAST_BYTES_PER_S
        self._calls = Shares(self.most, names)
        self._streams = Shares(self.most // 2, names)
        """Streams may be idle for as long as their clients like: they leave room for other calls of the tenant."""
        self._memory = Shares(config.memory_bytes, names)
        self._refusals_s: dict[str, float] = {}
        """When the next one may be, by tenant."""
        self._open: dict[asyncio.Timeout, None] = {}
        """Calls without a token that wait for their message, the oldest first."""

    @property
    def held_bytes(self) -> int:
        """Of messages, of all tenants."""
        return self._memory.held

    def divide(self, config: GatewayFile) -> None:
        """Other tenants share them from now on. What a message may have stays as it was."""
        names = [table.name for table in config.tenant]
        self._calls.divide(self.most, names)
        self._streams.divide(self.most // 2, names)
        self._memory.divide(config.memory_bytes, names)

    @contextlib.contextmanager
    def taken(self, tenant: str, *, is_stream: bool = False) -> Iterator[None]:
        """A call of the tenant. Raises: Refused: it has as many as it may."""
        shares = [self._calls, self._streams] if is_stream else [self._calls]
        held = []
        try:
            for share in shares:
                if not share.take(tenant):
                    what = "streams" if share is self._streams else "calls"
                    text = f"the tenant has {share.of(tenant)} {what} here, as many as it may"
                    raise Refused(429, "RESOURCE_EXHAUSTED", text)
                held.append(share)
            yield
        finally:
            for share in held:
                share.give(tenant)

    @contextlib.contextmanager
    def held(self, tenant: str, nbytes: int) -> Iterator[None]:
        """A message of the tenant, until its request has ended. Raises: Refused: there is no room."""
        if not self._memory.take(tenant, nbytes):
            raise unavailable("the gateway's memory for requests is in use")
        try:
            yield
        finally:
            self._memory.give(tenant, nbytes)

    def charge(self, tenant: str, nbytes: int) -> None:
        """A message of so many bytes is the fault of its refusal: the tenant's next refusals wait for it."""
        now_s = asyncio.get_running_loop().time()
        next_s = max(self._refusals_s.get(tenant, 0.0), now_s) + nbytes / REFUSED_BYTES_PER_S
        self._refusals_s[tenant] = min(next_s, now_s + _MOST_REFUSALS_S)

    async def refusal(self, tenant: str) -> None:
        """Wait for the turn of a refusal. Clients that are refused begin again: hundreds at once would take the loop's
        time from the others. ``tenant``: empty for clients without a token."""
        now_s = asyncio.get_running_loop().time()
        turn_s = max(self._refusals_s.get(tenant, 0.0), now_s)
        if turn_s - now_s < _MOST_REFUSALS_S:
            self._refusals_s[tenant] = turn_s + REFUSAL_S
            if turn_s > now_s:
                await asyncio.sleep(turn_s - now_s)

    async def message(self, requests: AsyncIterator[bytes]) -> bytes:
        """The only message of a tenant's call. Raises: Refused: it did not come in time."""
        try:
            async with asyncio.timeout(self._wait_s):
                return await _first(requests)
        except TimeoutError:
            raise _late() from None

    async def open_message(self, requests: AsyncIterator[bytes]) -> bytes:
        """The only message of a call without a token. Of too many that wait, the oldest ends. Raises: Refused: it did
        not come in time, or has to end."""
        try:
            async with asyncio.timeout(HEAD_S) as wait:
                while len(self._open) >= MOST_OPEN:
                    oldest = next(iter(self._open))
                    del self._open[oldest]
                    if not oldest.expired():
                        oldest.reschedule(0.0)
                self._open[wait] = None
                try:
                    return await _first(requests)
                finally:
                    self._open.pop(wait, None)
        except TimeoutError:
            raise _late() from None


async def _first(requests: AsyncIterator[bytes]) -> bytes:
    """Raises: Refused: there is none."""
    async for message in requests:
        return message
    raise invalid("the call has no message")


def _late() -> Refused:
    return Refused(408, "DEADLINE_EXCEEDED", "the request did not come in time")
