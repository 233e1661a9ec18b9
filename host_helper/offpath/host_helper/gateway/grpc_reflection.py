"""Server reflection of gRPC, versions v1 and v1alpha: grpcurl, grpcui, Postman and evans read services and messages.

The package grpcio-reflection serves v1alpha only, and messages of generated files; here messages are a table
(`messages`), and so are those of reflection, which are the same in both versions. A question needs a token, as all of a
tenant's calls do, and counts as one of its streams; the answers are the same for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

from offpath.host_helper.gateway.connection import HEAD_S
from offpath.host_helper.gateway.errors import Refused, too_large
from offpath.host_helper.gateway.grpc_health import HEALTH
from offpath.host_helper.gateway.grpc_methods import METHODS, STREAM
from offpath.host_helper.gateway.grpc_requests import parsed
from offpath.host_helper.gateway.messages import FIELDS, HEALTH_FIELDS, HEALTH_PACKAGE, PACKAGE, SERVICE, file_of, made

VERSIONS: Final = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
REFLECTION: Final = "ServerReflection"
METHOD: Final = "ServerReflectionInfo"
MOST_QUESTIONS: Final = 256
"""Of one stream. A client that has more opens another."""
_MOST_BYTES: Final = 1024
_NOT_FOUND: Final = 5
_FIELDS: Final = {
    "ExtensionRequest": "1 containing_type string, 2 extension_number int32",
    "ServerReflectionRequest": "1 host string, 3 file_by_filename string|, 4 file_containing_symbol string|, "
                               "5 file_containing_extension ExtensionRequest|, "
                               "6 all_extension_numbers_of_type string|, 7 list_services string|",
    "FileDescriptorResponse": "1 file_descriptor_proto bytes*",
    "ExtensionNumberResponse": "1 base_type_name string, 2 extension_number int32*",
    "ServiceResponse": "1 name string",
    "ListServiceResponse": "1 service ServiceResponse*",
    "ErrorResponse": "1 error_code int32, 2 error_message string",
    "ServerReflectionResponse": "1 valid_host string, 2 original_request ServerReflectionRequest, "
                                "4 file_descriptor_response FileDescriptorResponse|, "
                                "5 all_extension_numbers_response ExtensionNumberResponse|, "
                                "6 list_services_response ListServiceResponse|, 7 error_response ErrorResponse|",
}  # fmt: skip


class Reflection:
    """Serves the two versions. ``taken``: counts a call for its tenant, or raises Refused. ``refuse``: ends a call when
    the turn of its refusal has come."""

    def __init__(
        self,
        grpc: Any,
        taken: Callable[[Any], AbstractContextManager[None]],
        refuse: Callable[[Any, Refused], Awaitable[None]],
    ) -> None:
        self._grpc, self._taken, self._refuse = grpc, taken, refuse

    def methods(self) -> dict[str, Any]:
        """The handler of each method, by its path."""
        return {f"/{package}.{REFLECTION}/{METHOD}": self._method(package) for package in VERSIONS}

    def _method(self, package: str) -> Any:
        made_ = _classes(package)

        async def info(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
            try:
                with self._taken(context):
                    async for data in _questions(requests):
                        yield _answer(made_, parsed(made_.ServerReflectionRequest, data))
            except Refused as refused:
                await self._refuse(context, refused)

        serializer = made_.ServerReflectionResponse.SerializeToString
        return self._grpc.stream_stream_rpc_method_handler(info, response_serializer=serializer)


async def _questions(requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Those of a stream, until it ends, nothing comes for `HEAD_S`, or it has had its number. Raises: Refused: one is
    longer than any needs to be."""
    coming = aiter(requests)
    for _ in range(MOST_QUESTIONS):
        try:
            async with asyncio.timeout(HEAD_S):
                data = await anext(coming)
        except (StopAsyncIteration, TimeoutError):
            return
        if len(data) > _MOST_BYTES:
            raise too_large(f"a request of the reflection has at most {_MOST_BYTES} bytes")
        yield data


def _answer(made_: SimpleNamespace, asked: Any) -> Any:
    answer = made_.ServerReflectionResponse(valid_host=asked.host, original_request=asked)
    which = asked.WhichOneof("parameter_choice")
    known = _known()
    if which == "list_services":
        for name in known.services:
            answer.list_services_response.service.add(name=name)
        return answer
    if which == "all_extension_numbers_of_type" and asked.all_extension_numbers_of_type in known.by_symbol:
        answer.all_extension_numbers_response.base_type_name = asked.all_extension_numbers_of_type
        return answer
    content = None
    if which == "file_by_filename":
        content = known.by_name.get(asked.file_by_filename)
    elif which == "file_containing_symbol":
        content = known.by_symbol.get(asked.file_containing_symbol)
    if content is None:  # no message has extensions
        answer.error_response.error_code = _NOT_FOUND
        answer.error_response.error_message = "there is no such file, symbol or extension"
    else:
        answer.file_descriptor_response.file_descriptor_proto.append(content)
    return answer


@cache
def _classes(package: str) -> SimpleNamespace:
    return made(file_of(package, _FIELDS))


@cache
def _known() -> SimpleNamespace:
    """``services``: their names. ``by_name``, ``by_symbol``: files, as they are sent."""
    files = [_inference(), _health(), *(_reflection(package) for package in VERSIONS)]
    by_symbol: dict[str, bytes] = {}
    for file in files:
        content = file.SerializeToString()
        for service in file.service:
            by_symbol[f"{file.package}.{service.name}"] = content
            by_symbol.update((f"{file.package}.{service.name}.{method.name}", content) for method in service.method)
        for message in file.message_type:
            by_symbol[f"{file.package}.{message.name}"] = content
            by_symbol.update((f"{file.package}.{message.name}.{entry.name}", content) for entry in message.nested_type)
    services = [f"{file.package}.{service.name}" for file in files for service in file.service]
    return SimpleNamespace(
        services=services, by_name={file.name: file.SerializeToString() for file in files}, by_symbol=by_symbol
    )


def _inference() -> Any:
    file = file_of(PACKAGE, FIELDS)
    service = file.service.add(name=SERVICE.rpartition(".")[2])
    for name in METHODS:
        is_stream = name == STREAM
        service.method.add(
            name=name, input_type=f".{PACKAGE}.{'ModelInfer' if is_stream else name}Request",
            output_type=f".{PACKAGE}.{name}Response", client_streaming=is_stream, server_streaming=is_stream,
        )  # fmt: skip
    return file


def _health() -> Any:
    file = file_of(HEALTH_PACKAGE, HEALTH_FIELDS)
    service = file.service.add(name=HEALTH.rpartition(".")[2])
    for name in ("Check", "Watch"):
        service.method.add(
            name=name, input_type=f".{HEALTH_PACKAGE}.HealthCheckRequest",
            output_type=f".{HEALTH_PACKAGE}.HealthCheckResponse", server_streaming=name == "Watch",
        )  # fmt: skip
    return file


def _reflection(package: str) -> Any:
    file = file_of(package, _FIELDS)
    file.service.add(name=REFLECTION).method.add(
        name=METHOD, input_type=f".{package}.ServerReflectionRequest",
        output_type=f".{package}.ServerReflectionResponse", client_streaming=True, server_streaming=True,
    )  # fmt: skip
    return file
