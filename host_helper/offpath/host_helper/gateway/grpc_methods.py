"""The methods of the protocol over gRPC, but for the one that streams."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from offpath.host_helper.gateway import grpc_calls, routes
from offpath.host_helper.gateway.calls import Call, timeout_of
from offpath.host_helper.gateway.errors import unavailable, unsupported
from offpath.host_helper.gateway.messages import DATA_TYPES, FIELDS, classes
from offpath.host_helper.gateway.models import config as model_config
from offpath.host_helper.gateway.sequences import sequence_of
from offpath.host_helper.gateway.tenants import Tenant, Tenants
from offpath.host_helper.gateway.turns import Turn

STREAM: Final = "ModelStreamInfer"


@contextlib.asynccontextmanager
async def called(tenant: Tenant, request: Any, context: Any) -> AsyncIterator[tuple[Call, Turn]]:
    """The request, in its turn. It is read only then: reading one of many numbers takes longer than reading another of
    its sequence, and one that waits holds no more than its message. Raises: Refused."""
    model = tenant.models.find(request.model_name, request.model_version)
    left_s = context.time_remaining()
    parameters = grpc_calls.parameters_of(request, left_s)
    sequence_id, _, _ = sequence_of(model, parameters)
    async with tenant.turn(model, sequence_id, timeout_of(parameters)) as turn:
        parsed = await grpc_calls.parse(tenant.reader, request, left_s)
        call = parsed.call(model, tenant.regions)
        try:
            yield call, turn
        finally:
            call.end()


async def _unary(tenant: Tenant, request: Any, context: Any) -> Any:
    if tenant.models.find(request.model_name, request.model_version).streams:
        raise unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")
    async with called(tenant, request, context) as (call, turn):
        return grpc_calls.written(call, await tenant.infer(call, turn))


async def _server_metadata(tenant: Tenant, request: Any, context: Any) -> Any:
    return classes().ServerMetadataResponse(**routes.server_metadata())


async def _model_ready(tenant: Tenant, request: Any, context: Any) -> Any:
    return classes().ModelReadyResponse(ready=tenant.is_ready and tenant.models.is_ready(request.name, request.version))


async def _model_metadata(tenant: Tenant, request: Any, context: Any) -> Any:
    models = tenant.models
    return classes().ModelMetadataResponse(**models.metadata(models.find(request.name, request.version)))


async def _model_config(tenant: Tenant, request: Any, context: Any) -> Any:
    shown = model_config(tenant.models.find(request.name, request.version))
    for tensor in (*shown["input"], *shown["output"]):
        tensor["data_type"] = DATA_TYPES[tensor["data_type"].removeprefix("TYPE_")]
    return classes().ModelConfigResponse(config=shown)


async def _statistics(tenant: Tenant, request: Any, context: Any) -> Any:
    models = tenant.models
    which = [models.find(request.name, request.version)] if request.name else models.all()
    shown = tenant.statistics.shown(which)["model_stats"]
    for each in shown:
        for key in ("memory_usage", "response_stats"):
            each.pop(key)
    return classes().ModelStatisticsResponse(model_stats=shown)


async def _index(tenant: Tenant, request: Any, context: Any) -> Any:
    return classes().RepositoryIndexResponse(models=tenant.models.index())


async def _load(tenant: Tenant, request: Any, context: Any) -> Any:
    raise unavailable("models are loaded by helpers, not by clients", 0.0)


async def _region_status(tenant: Tenant, request: Any, context: Any) -> Any:
    answer = classes().SystemSharedMemoryStatusResponse()
    for one in tenant.regions.status(request.name):
        status = answer.regions[one["name"]]
        status.name, status.key, status.offset, status.byte_size = one.values()
    return answer


async def _register(tenant: Tenant, request: Any, context: Any) -> Any:
    tenant.regions.register(request.name, request.key, request.offset, request.byte_size)
    return classes().SystemSharedMemoryRegisterResponse()


async def _unregister(tenant: Tenant, request: Any, context: Any) -> Any:
    if request.name:
        tenant.regions.unregister(request.name)
    else:
        tenant.regions.unregister_all()
    return classes().SystemSharedMemoryUnregisterResponse()


async def _no_cuda(tenant: Tenant, request: Any, context: Any) -> Any:
    raise unsupported("CUDA shared memory is not served: the GPUs are not this host's")


async def _cuda_status(tenant: Tenant, request: Any, context: Any) -> Any:
    return classes().CudaSharedMemoryStatusResponse()


async def _cuda_unregister(tenant: Tenant, request: Any, context: Any) -> Any:
    return classes().CudaSharedMemoryUnregisterResponse()


def _live(tenants: Tenants) -> Any:
    return classes().ServerLiveResponse(live=True)


def _ready(tenants: Tenants) -> Any:
    return classes().ServerReadyResponse(ready=tenants.is_ready)


OPEN: Final[dict[str, Callable[[Tenants], Any]]] = {"ServerLive": _live, "ServerReady": _ready}
"""Methods that need no token."""


async def _never(tenant: Tenant, request: Any, context: Any) -> Any:
    raise AssertionError("it is answered without a tenant")


METHODS: Final[dict[str, Callable[[Tenant, Any, Any], Awaitable[Any]]]] = {
    "ServerLive": _never, "ServerReady": _never, STREAM: _never,
    "ServerMetadata": _server_metadata, "ModelReady": _model_ready, "ModelMetadata": _model_metadata,
    "ModelConfig": _model_config, "ModelStatistics": _statistics, "ModelInfer": _unary,
    "RepositoryIndex": _index, "RepositoryModelLoad": _load, "RepositoryModelUnload": _load,
    "SystemSharedMemoryStatus": _region_status, "SystemSharedMemoryRegister": _register,
    "SystemSharedMemoryUnregister": _unregister, "CudaSharedMemoryStatus": _cuda_status,
    "CudaSharedMemoryRegister": _no_cuda, "CudaSharedMemoryUnregister": _cuda_unregister,
}  # fmt: skip
assert all(name == STREAM or f"{name}Request" in FIELDS for name in METHODS)
