"""The standard health service of gRPC, grpc.health.v1: Kubernetes' and Envoy's probes and load balancers call it.

Its two messages have one field each, so they are made like the protocol's own (`messages`), and no package is needed.
As `ServerReady` it needs no token, and shows only whether the gateway serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from offpath.host_helper.gateway.errors import Refused, too_large
from offpath.host_helper.gateway.grpc_admission import Calls
from offpath.host_helper.gateway.grpc_requests import parsed
from offpath.host_helper.gateway.messages import SERVICE, health_classes
from offpath.host_helper.gateway.tenants import Tenants

HEALTH: Final = "grpc.health.v1.Health"
MOST_WATCHES: Final = 64
"""At once, and never more than a quarter of all calls: a watch holds a call for as long as its client likes."""
_LOOK_S: Final = 0.25
_MOST_BYTES: Final = 1024
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3


class Health:
    """Serves `Check` and `Watch`."""

    def __init__(self, grpc: Any, tenants: Tenants, calls: Calls) -> None:
        self._grpc, self._tenants, self._calls = grpc, tenants, calls
        self._most = min(MOST_WATCHES, calls.most // 4)
        self._watches = 0
        self._ended = asyncio.Event()

    def methods(self) -> dict[str, Any]:
        """The handler of each method, by its path."""
        given = {"response_serializer": health_classes()[1].SerializeToString}
        return {
            f"/{HEALTH}/Check": self._grpc.stream_unary_rpc_method_handler(self._check, **given),
            f"/{HEALTH}/Watch": self._grpc.stream_stream_rpc_method_handler(self._watch, **given),
        }

    def close(self) -> None:
        """Report NOT_SERVING to each watch, and end it. Idempotent."""
        self._ended.set()

    async def _service(self, requests: AsyncIterator[bytes], context: Any) -> str:
        """The service that the call asks for. A call that is no request ends."""
        try:
            data = await self._calls.open_message(requests)
            if len(data) > _MOST_BYTES:
                raise too_large(f"a request of the health has at most {_MOST_BYTES} bytes")
            return str(parsed(health_classes()[0], data).service)
        except Refused as refused:
            await self._calls.refusal("")
            await context.abort(getattr(self._grpc.StatusCode, refused.grpc), refused.text)
            raise

    def _status(self, service: str) -> int:
        if service not in ("", SERVICE, HEALTH):
            return _SERVICE_UNKNOWN
        return _SERVING if self._tenants.is_ready and not self._ended.is_set() else _NOT_SERVING

    async def _check(self, requests: AsyncIterator[bytes], context: Any) -> Any:
        status = self._status(await self._service(requests, context))
        if status == _SERVICE_UNKNOWN:
            await context.abort(self._grpc.StatusCode.NOT_FOUND, "there is no such service")
        return health_classes()[1](status=status)

    async def _watch(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        """The present status, then each change of it."""
        service = await self._service(requests, context)
        if self._watches >= self._most:
            await context.abort(self._grpc.StatusCode.RESOURCE_EXHAUSTED, f"{self._most} watches are open")
        self._watches += 1
        sent: int | None = None
        try:
            while True:
                is_last, status = self._ended.is_set(), self._status(service)
                if status != sent:
                    sent = status
                    yield health_classes()[1](status=status)
                if is_last:
                    return
                try:
                    await asyncio.wait_for(self._ended.wait(), _LOOK_S)
                except TimeoutError:
                    continue
        finally:
            self._watches -= 1
