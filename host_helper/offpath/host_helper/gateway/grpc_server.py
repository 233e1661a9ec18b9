"""The protocol over gRPC, by grpcio's asyncio server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from offpath.bindings.certificates import tenant_of_pem
from offpath.bindings.errors import PlaceUnusable
from offpath.host_helper.gateway import grpc_calls
from offpath.host_helper.gateway.buffers import AT_ONCE_BYTES
from offpath.host_helper.gateway.calls import Call
from offpath.host_helper.gateway.config import GatewayFile
from offpath.host_helper.gateway.connection import HEAD_S
from offpath.host_helper.gateway.errors import (
    GatewayConfigInvalid,
    GatewayMissing,
    Refused,
    unauthenticated,
)
from offpath.host_helper.gateway.grpc_admission import Calls
from offpath.host_helper.gateway.grpc_connections import SPARE, GrpcConnections, peer_of
from offpath.host_helper.gateway.grpc_health import Health
from offpath.host_helper.gateway.grpc_methods import METHODS, OPEN, STREAM, called
from offpath.host_helper.gateway.grpc_reflection import Reflection
from offpath.host_helper.gateway.grpc_requests import other, received
from offpath.host_helper.gateway.messages import SERVICE, classes
from offpath.host_helper.gateway.tenants import Tenant, Tenants
from offpath.host_helper.gateway.turns import Turn

logger = logging.getLogger(__name__)
_FINAL: Final = "triton_enable_empty_final_response"
_IS_FINAL: Final = "triton_final_response"
_FAULTS: Final = frozenset({400, 413})
"""Statuses of requests that are wrong or too large."""
_MOST_STREAMED: Final = 64
"""Requests of one stream whose answers the client has not taken."""


def grpc_module() -> Any:
    """grpc. Raises: GatewayMissing."""
    try:
        import grpc
        import grpc.aio
    except ImportError:
        raise GatewayMissing('the gateway\'s gRPC needs grpcio: pip install "offpath[gateway]"') from None
    return grpc


class GrpcServer:
    """Serves tenants' clients. `start` listens, `close` stops."""

    def __init__(self, config: GatewayFile, tenants: Tenants) -> None:
        self.config, self.tenants = config, tenants
        self.address = ""
        self._grpc = grpc_module()
        self._server: Any = None
        self._health: Health | None = None
        self.calls = Calls(config)
        self.connections = GrpcConnections(config)

    def reload(self, config: GatewayFile) -> None:
        """Serve these tenants from now on."""
        self.config = config
        self.calls.divide(config)
        self.connections.divide(len(config.tenant))

    async def start(self) -> None:
        """Raises: PlaceUnusable: the address is taken. GatewayConfigInvalid: a file of TLS cannot be used."""
        grpc = self._grpc
        has_certificates = self.config.tls is not None and bool(self.config.tls.client_ca_file)
        self._server = server = grpc.aio.server(options=_options(self.config))
        self._health = Health(grpc, self.tenants, self.calls)
        service = _Service(grpc, self.tenants, self.calls, self.connections)
        server.add_generic_rpc_handlers(
            (_Handler(grpc, self.tenants, self._health, service, has_certificates=has_certificates),)
        )
        try:
            credentials = self._credentials()
            add = server.add_insecure_port if credentials is None else server.add_secure_port
            port = add(self.config.grpc, *(() if credentials is None else (credentials,)))
        except RuntimeError:
            raise PlaceUnusable(f"grpc: {self.config.grpc}: the address is in use, or not this machine's") from None
        self.address = f"{self.config.grpc.rpartition(':')[0]}:{port}"
        await server.start()
        self.connections.start(port)

    async def close(self, grace_s: float = 0.5) -> None:
        """Idempotent."""
        self.connections.close()
        if self._health is not None:
            self._health.close()
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(grace_s)

    def _credentials(self) -> Any:
        tls = self.config.tls
        if tls is None:
            return None
        try:
            key, chain = Path(tls.key_file).read_bytes(), Path(tls.cert_file).read_bytes()
            authority = Path(tls.client_ca_file).read_bytes() if tls.client_ca_file else None
        except OSError as fault:
            raise GatewayConfigInvalid(f"tls: {fault.filename}: {fault.strerror}") from None
        # grpcio asks for a certificate only if it requires one.
        return self._grpc.ssl_server_credentials(
            ((key, chain),), root_certificates=authority, require_client_auth=authority is not None
        )


def _options(config: GatewayFile) -> tuple[tuple[str, int], ...]:
    """grpcio's, in its words. It refuses a connection beyond the bound, and ends one whose handshake takes too long:
    that of TLS, and HTTP/2's, which ends with the client's SETTINGS frame."""
    most_sent = max(table.result_bytes for table in config.tenant) + (1 << 20)
    options = [
        ("grpc.max_receive_message_length", config.most_body), ("grpc.max_send_message_length", most_sent),
        ("grpc.max_metadata_size", 8192), ("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", 128),
        # gRPC closes the connection of a client that pings more often (too_many_pings), with calls or without.
        ("grpc.http2.min_ping_interval_without_data_ms", config.grpc_ping_ms),
        ("grpc.keepalive_permit_without_calls", 1), ("grpc.keepalive_time_ms", 1000 * config.grpc_keepalive_s),
        ("grpc.max_allowed_incoming_connections", config.grpc_connections + config.unidentified + SPARE),
        ("grpc.server_handshake_timeout_ms", int(1000 * HEAD_S)),
        ("grpc.max_connection_idle_ms", 1000 * config.grpc_idle_s),
    ]  # fmt: skip
    if config.grpc_age_s:
        options.append(("grpc.max_connection_age_ms", 1000 * config.grpc_age_s))
    return tuple(options)


class _Handler:
    """Finds the method of a call (a `grpc.GenericRpcHandler`)."""

    def __init__(
        self, grpc: Any, tenants: Tenants, health: Health, service: _Service, *, has_certificates: bool
    ) -> None:
        self._grpc, self._tenants, self._service = grpc, tenants, service
        self._has_certificates = has_certificates
        checks = health.methods()
        self._open = {f"/{SERVICE}/{name}" for name in OPEN} | checks.keys()
        self._refusing = grpc.stream_stream_rpc_method_handler(self._refuse)
        self._methods = {f"/{SERVICE}/{name}": self._method(name) for name in METHODS} | checks
        self._methods |= Reflection(grpc, partial(service.taken, is_stream=True), service.refuse).methods()

    def service(self, details: Any) -> Any:
        """grpc's hook, called with a call's metadata before its first message is read. A call without a valid token
        gets a handler that reads none. Where each client has a certificate, it is checked with the call."""
        method = self._methods.get(details.method)
        if method is None or self._has_certificates or details.method in self._open:
            return method
        token = _token(details.invocation_metadata)
        if token == "" and self._tenants.has_anonymous:
            return method  # which looks at the client's address before it reads a message
        return method if token is not None and self._tenants.of_token(token) is not None else self._refusing

    async def _refuse(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        await self._service.refuse(context, unauthenticated())
        yield  # it is a generator

    def _method(self, name: str) -> Any:
        """Its requests come as bytes. For grpcio all are streams of them: before the message of another method it would
        wait, for ever, where nothing is known of the call."""
        response = getattr(classes(), "ModelStreamInferResponse" if name == STREAM else f"{name}Response")
        given = {"response_serializer": response.SerializeToString}
        if name == STREAM:
            return self._grpc.stream_stream_rpc_method_handler(self._service.stream, **given)
        return self._grpc.stream_unary_rpc_method_handler(self._service.unary(name), **given)


class _Service:
    def __init__(self, grpc: Any, tenants: Tenants, calls: Calls, connections: GrpcConnections) -> None:
        self._grpc, self._tenants, self._calls, self._connections = grpc, tenants, calls, connections

    def unary(self, name: str) -> Callable[[AsyncIterator[bytes], Any], Awaitable[Any]]:
        """The method of that name."""

        async def call(requests: AsyncIterator[bytes], context: Any) -> Any:
            try:
                if name in OPEN:
                    return OPEN[name](self._tenants)  # its request has no fields: there is nothing to wait for
                return await self._answered(name, requests, context)
            except Refused as refused:
                await self.refuse(context, refused)
            except Exception:
                logger.exception("a request was not answered", extra={"code": "gateway_bug"})
                await self._abort(context, Refused(500, "INTERNAL", "internal error; the gateway's log has it"))

        return call

    async def _answered(self, name: str, requests: AsyncIterator[bytes], context: Any) -> Any:
        """Raises: Refused."""
        with self.taken(context):
            data = await self._calls.message(requests)
            tenant = self._tenant(context)  # again: a message may take a minute, and a reload a moment
            with self._calls.held(tenant.name, len(data)), self._charged(tenant, data):
                request = received(data) if name == "ModelInfer" else other(data, name)
                return await METHODS[name](tenant, request, context)

    @contextlib.contextmanager
    def _charged(self, tenant: Tenant, data: bytes) -> Iterator[None]:
        """A message that is at fault costs its tenant."""
        try:
            yield
        except Refused as refused:
            if refused.http in _FAULTS:
                self._calls.charge(tenant.name, len(data))
            raise

    @contextlib.contextmanager
    def taken(self, context: Any, *, is_stream: bool = False) -> Iterator[None]:
        """The call counts for its tenant, and its connection is the tenant's. Raises: Refused."""
        name = self._tenant(context).name
        with self._connections.used(context.peer(), name), self._calls.taken(name, is_stream=is_stream):
            yield

    async def refuse(self, context: Any, refused: Refused) -> None:
        """End the call when its turn has come."""
        try:
            name = self._tenant(context).name
        except Refused:
            name = ""
        await self._calls.refusal(name)
        await self._abort(context, refused)

    async def _abort(self, context: Any, refused: Refused) -> None:
        await context.abort(getattr(self._grpc.StatusCode, refused.grpc), refused.text)

    async def stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        """Each request of the stream is answered when it ends; an error is a message, not the stream's end."""
        try:
            with self.taken(context, is_stream=True):
                async with contextlib.aclosing(self._streamed(requests, context)) as answers:
                    async for answer in answers:
                        yield answer
        except Refused as refused:
            await self.refuse(context, refused)

    async def _streamed(self, requests: AsyncIterator[bytes], context: Any) -> AsyncGenerator[Any, None]:
        """Raises: Refused."""
        stream = _Stream(self._tenant, context, self._calls)
        reader = asyncio.ensure_future(stream.read(requests))
        try:
            while (each := await stream.answers.get()) is not None:
                answer, taken = each
                yield answer
                taken()
            await reader
        finally:
            reader.cancel()

    def _tenant(self, context: Any) -> Tenant:
        """Raises: Refused."""
        token = _token(context.invocation_metadata())
        if token is None:
            raise unauthenticated()
        return self._tenants.identified(token, _certified(context), peer_of(context.peer())[0])


def _token(metadata: Any) -> str | None:
    """The bearer token; empty: there is none, or another scheme. None: there are several."""
    values = [value for key, value in metadata or () if key == "authorization" and isinstance(value, str)]
    if len(values) > 1:
        return None
    scheme, _, token = "".join(values).strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class _Stream:
    """The requests of one stream, of which `_MOST_STREAMED` are answered at once, each with one answer at a time that
    the client has not taken. ``answers``: each with what to call when it was taken; None: no more. ``identify``: the
    client's tenant, determined for each request, because a reload may change it."""

    def __init__(self, identify: Callable[[Any], Tenant], context: Any, calls: Calls) -> None:
        self.answers: asyncio.Queue[tuple[Any, Callable[[], None]] | None] = asyncio.Queue()
        self._identify, self._context, self._calls = identify, context, calls
        self._room = asyncio.Semaphore(_MOST_STREAMED)

    async def read(self, requests: AsyncIterator[bytes]) -> None:
        """Answer all; those under way end with this. Raises: Refused: the client is the tenant's no more."""
        tasks = set[asyncio.Task[None]]()
        try:
            async for data in requests:
                await self._room.acquire()
                task = asyncio.ensure_future(self._answer(self._identify(self._context), data))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            self.answers.put_nowait(None)

    async def _answer(self, tenant: Tenant, data: bytes) -> None:
        """Answer a request. Its last message gives its room back, if there is one. The message of an error has the
        request's id, and if it ran, its model and that it is final, as Triton's has."""
        message = classes().ModelStreamInferResponse
        failed = message()
        try:
            async with contextlib.AsyncExitStack() as held:
                held.enter_context(self._calls.held(tenant.name, len(data)))
                request = received(data)
                failed.infer_response.id = request.id
                call, turn = await held.enter_async_context(called(tenant, request, self._context))
                failed.infer_response.CopyFrom(_final(_empty(call)))
                if call.model.streams:
                    response = await self._answers(tenant, call, turn, request)
                else:
                    response = grpc_calls.written(call, await tenant.infer(call, turn))
        except Refused as refused:
            failed.error_message = refused.text
            response = None
            if refused.http in _FAULTS and len(data) > AT_ONCE_BYTES:
                self._calls.charge(tenant.name, len(data))
                await self._calls.refusal(tenant.name)
        except Exception:
            logger.exception("a request was not answered", extra={"code": "gateway_bug"})
            failed.error_message = "internal error; the gateway's log has it"
            response = None
        if response is not None:
            self.answers.put_nowait((message(infer_response=_final(response)), self._room.release))
        elif failed.error_message:
            self.answers.put_nowait((failed, self._room.release))
        else:
            self._room.release()

    async def _answers(self, tenant: Tenant, call: Call, turn: Turn, request: Any) -> Any:
        """Answer a request of a model that streams. Returns the empty message at its end; None: the client does not
        want that. An answer is taken from the daemon, and written to regions, once the message of the one before was
        written to the client's stream. Raises: Refused."""
        async with contextlib.aclosing(tenant.stream(call, turn)) as answers:
            async for outputs in answers:
                response = grpc_calls.written(call, outputs)
                response.parameters[_IS_FINAL].bool_param = False
                taken = asyncio.Event()
                self.answers.put_nowait((classes().ModelStreamInferResponse(infer_response=response), taken.set))
                await taken.wait()
        wants_end = _FINAL in request.parameters and request.parameters[_FINAL].bool_param
        return _empty(call) if wants_end else None


def _empty(call: Call) -> Any:
    """A message without tensors. Triton's has no version."""
    response = grpc_calls.written(call, ())
    response.model_version = ""
    return response


def _final(response: Any) -> Any:
    response.parameters[_IS_FINAL].bool_param = True
    return response


def _certified(context: Any) -> str | None:
    """By the whole certificate: grpcio's own list of its names ends each at a NUL."""
    shown = context.auth_context().get("x509_pem_cert", ())
    return tenant_of_pem(shown[0]) if shown else None
