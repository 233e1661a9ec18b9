"""The endpoints of the Open Inference Protocol over HTTP, with Triton's extensions that clients call."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import metadata
from typing import Any, Final
from urllib.parse import unquote

import orjson

from offpath.bindings.errors import ControlError
from offpath.host_helper.gateway import bodies, inference, nonfinite
from offpath.host_helper.gateway.buffers import AT_ONCE_BYTES, Buffer
from offpath.host_helper.gateway.errors import Refused, not_found, too_large, unavailable, unparsable, unsupported
from offpath.host_helper.gateway.heads import Head
from offpath.host_helper.gateway.models import Models, config
from offpath.host_helper.gateway.responses import Response
from offpath.host_helper.gateway.tenants import Tenant

EXTENSIONS: Final = (
    "binary_tensor_data", "classification", "model_configuration", "model_repository", "parameters", "schedule_policy",
    "statistics", "system_shared_memory",
)  # fmt: skip
_MODEL: Final = re.compile(
    r"/v2/models/(?P<name>.+?)(?:/versions/(?P<version>[^/]+))?(?P<what>/ready|/config|/stats|/infer)?"
)
_REGION: Final = re.compile(
    r"/v2/(?P<kind>system|cuda)sharedmemory(?:/region/(?P<name>[^/]+))?/(?P<what>status|register|unregister)"
)
_LOAD: Final = re.compile(r"/v2/repository/models/.+/(?:load|unload)")


def server_metadata() -> dict[str, Any]:
    """``GET /v2``."""
    return {"name": "offpath", "version": metadata.version("offpath"), "extensions": list(EXTENSIONS)}


def open_to_all(head: Head, is_ready: bool) -> Response | None:
    """What needs no token: whether the gateway is alive and ready. None: it needs one. The bodies are those of the Open
    Inference Protocol, which KServe's client reads; Triton has none, and its clients look at the status only."""
    if head.path == "/v2/health/live" and head.method == "GET":
        return _json({"live": True})
    if head.path == "/v2/health/ready" and head.method == "GET":
        return _json({"ready": is_ready}, 200 if is_ready else 503)
    return None


async def respond(tenant: Tenant, head: Head, body: memoryview, room: Callable[[int], Buffer]) -> Response:
    """Answers one request of the tenant. ``room``: gives so much memory until the request has ended, or raises
    Refused. Raises: Refused."""
    if body.nbytes and (coding := head.headers.get("content-encoding", "")):
        body = await bodies.inflated(tenant.reader, body, coding, tenant.table.most_body, room)
    matched = _MODEL.fullmatch(head.path)
    if matched is not None and head.path != "/v2/models/stats":
        return await _model(tenant, head, body, matched)
    return _other(tenant, head, body)


async def _packed(tenant: Tenant, head: Head, response: Response) -> Response:
    """The answer in the coding that the client accepts. As Triton, the gateway packs answers to inference only: aiohttp
    adds Accept-Encoding to all requests of tritonclient, which unpacks no others."""
    coding = bodies.chosen(head.headers.get("accept-encoding", ""))
    if not coding:
        return response
    packed, coding = await bodies.deflated(tenant.reader, b"".join(response.chunks), coding)
    return Response(response.status, (packed,), response.content_type, response.header_length, coding)


async def _model(tenant: Tenant, head: Head, body: memoryview, matched: re.Match[str]) -> Response:
    name, version = unquote(matched["name"]), unquote(matched["version"] or "")
    what = matched["what"] or ""
    _method(head, "POST" if what == "/infer" else "GET")
    models = tenant.models
    if what == "/infer":
        return await _packed(tenant, head, await _infer(tenant, models, head, body, name, version))
    if what == "/ready":
        if not (tenant.is_ready and models.is_ready(name, version)):
            raise Refused(400, "NOT_FOUND", "Model version not ready")
        return Response(200)
    if what == "/stats":
        if not models.is_ready(name, version):
            raise Refused(400, "NOT_FOUND", f"requested model '{name}' is not available")
        return _json(tenant.statistics.shown([models.find(name, version)]))
    model = models.find(name, version)
    return _json(config(model) if what == "/config" else models.metadata(model))


async def _infer(tenant: Tenant, models: Models, head: Head, body: memoryview, name: str, version: str) -> Response:
    model = models.find(name, version)
    if model.streams:
        raise unsupported("HTTP end point doesn't support models with decoupled transaction policy")
    header_length = head.headers.get(inference.HEADER_LENGTH)
    parsed = await inference.parse_by(tenant.reader, body, header_length)
    call = parsed.call(model, tenant.regions)
    try:
        async with tenant.turn(model, call.options.sequence_id, call.timeout_s) as turn:
            outputs = await tenant.infer(call, turn)
        header, binary = await inference.written_by(tenant.reader, call, outputs)
    finally:
        call.end()
    if not binary:
        return Response(200, (header,))
    return Response(200, (header, *binary), "application/octet-stream", len(header))


def _other(tenant: Tenant, head: Head, body: memoryview) -> Response:
    path = head.path
    if path in ("/v2", "/v2/"):
        _method(head, "GET")
        return _json(server_metadata())
    if path == "/v2/models/stats":
        _method(head, "GET")
        return _json(tenant.statistics.shown(tenant.models.all()))
    if path == "/v2/repository/index":
        _method(head, "POST")
        return _json(tenant.models.index())
    if _LOAD.fullmatch(path):
        _method(head, "POST")
        raise unavailable("models are loaded by helpers, not by clients", 0.0)
    region = _REGION.fullmatch(path)
    if region is not None:
        return _region(tenant, head, body, region)
    if path.startswith(("/v2/logging", "/v2/trace")):
        raise unsupported("logging and tracing are not set by clients")
    raise not_found("Not Found")


def _region(tenant: Tenant, head: Head, body: memoryview, matched: re.Match[str]) -> Response:
    name, what, is_cuda = unquote(matched["name"] or ""), matched["what"], matched["kind"] == "cuda"
    _method(head, "GET" if what == "status" else "POST")
    if what == "status":
        return _json([] if is_cuda else tenant.regions.status(name))
    if what == "unregister":
        if not is_cuda and name:
            tenant.regions.unregister(name)
        elif not is_cuda:
            tenant.regions.unregister_all()
        return Response(200)
    if is_cuda:
        raise unsupported("CUDA shared memory is not served: the GPUs are not this host's")
    if body.nbytes > AT_ONCE_BYTES:
        raise too_large(f"the body of this request has at most {AT_ONCE_BYTES} bytes")
    try:
        asked = nonfinite.read(bytes(body))
    except ControlError:
        raise unparsable("failed to parse the request JSON buffer") from None
    if not isinstance(asked, dict):
        raise unparsable("failed to parse the request JSON buffer: it is not an object")
    key, offset, nbytes = asked.get("key"), asked.get("offset", 0), asked.get("byte_size")
    if key is None or nbytes is None:
        lacks = "key" if key is None else "byte_size"
        raise Refused(400, "INVALID_ARGUMENT", f"Shared memory register request has no '{lacks}' field")
    if not isinstance(key, str) or type(offset) is not int or type(nbytes) is not int:
        raise unparsable("'key' is a string, 'offset' and 'byte_size' are whole numbers")
    tenant.regions.register(name, key, offset, nbytes)
    return Response(200)


def _method(head: Head, method: str) -> None:
    if head.method != method:
        raise Refused(405, "UNIMPLEMENTED", "Method Not Allowed")


def _json(value: Any, status: int = 200) -> Response:
    return Response(status, (orjson.dumps(value),))
