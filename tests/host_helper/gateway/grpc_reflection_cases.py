"""Server reflection on a real node: what grpcurl asks, and its bounds (`grpc_cases`)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from offpath.host_helper.gateway import grpc_reflection
from offpath.host_helper.gateway.grpc_health import HEALTH
from offpath.host_helper.gateway.grpc_methods import METHODS
from offpath.host_helper.gateway.messages import SERVICE

from .grpc_cases import Stub, channel, gateway, refused
from .rig import ROWS, Rig

FIXTURES = channel, gateway
VERSIONS = pytest.mark.parametrize("package", grpc_reflection.VERSIONS)
V1 = grpc_reflection.VERSIONS[0]


def asking(
    channel: grpc.aio.Channel, package: str, *questions: dict[str, Any], token: str | None = Rig.token("ada")
) -> Any:
    """A stream with these questions."""
    made = grpc_reflection._classes(package)

    async def given() -> AsyncIterator[Any]:
        for each in questions:
            yield made.ServerReflectionRequest(**each)

    method = channel.stream_stream(
        f"/{package}.ServerReflection/ServerReflectionInfo", lambda message: message.SerializeToString(),
        made.ServerReflectionResponse.FromString,
    )  # fmt: skip
    return method(given(), timeout=20.0, metadata=Stub(channel, token).metadata)


async def answers(channel: grpc.aio.Channel, *questions: dict[str, Any], package: str = V1) -> list[Any]:
    return [answer async for answer in asking(channel, package, *questions)]


@VERSIONS
async def test_the_services_are_listed(channel: grpc.aio.Channel, package: str) -> None:
    (answer,) = await answers(channel, {"host": "h", "list_services": "*"}, package=package)
    names = [each.name for each in answer.list_services_response.service]
    assert names == [SERVICE, HEALTH, *(f"{each}.ServerReflection" for each in grpc_reflection.VERSIONS)]
    assert (answer.valid_host, answer.original_request.list_services) == ("h", "*")


@VERSIONS
async def test_a_client_that_knows_nothing_else_can_infer(channel: grpc.aio.Channel, package: str) -> None:
    symbols = (SERVICE, f"{SERVICE}.ModelInfer", "inference.ModelInferRequest", "inference.ModelConfig.ParametersEntry")
    questions: list[dict[str, Any]] = [{"file_containing_symbol": symbol} for symbol in symbols]
    found = await answers(channel, *questions, {"file_by_filename": "offpath/inference.proto"}, package=package)
    (content,) = {bytes(each.file_descriptor_response.file_descriptor_proto[0]) for each in found}
    assert len(found) == 5
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptor_pb2.FileDescriptorProto.FromString(content))
    methods = pool.FindServiceByName(SERVICE).methods_by_name
    assert set(methods.keys()) == METHODS.keys()
    assert methods["ModelStreamInfer"].server_streaming
    assert methods["ModelStreamInfer"].client_streaming
    infer = methods["ModelInfer"]
    assert not infer.server_streaming
    request, response = (message_factory.GetMessageClass(each) for each in (infer.input_type, infer.output_type))
    made = request(model_name="scaling")
    made.inputs.add(name="x", datatype="FP32", shape=ROWS.shape)
    made.raw_input_contents.append(ROWS.tobytes())
    call = channel.unary_unary(f"/{SERVICE}/ModelInfer", lambda each: each.SerializeToString(), response.FromString)
    answer = await call(made, metadata=Stub(channel, Rig.token("ada")).metadata)
    assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [0, 2, 4, 6, 8, 10]


async def test_every_service_that_is_listed_is_described(channel: grpc.aio.Channel) -> None:
    (listed,) = await answers(channel, {"list_services": ""})
    names = [each.name for each in listed.list_services_response.service]
    for name, answer in zip(
        names, await answers(channel, *({"file_containing_symbol": name} for name in names)), strict=True
    ):
        pool = descriptor_pool.DescriptorPool()
        (content,) = answer.file_descriptor_response.file_descriptor_proto
        pool.Add(descriptor_pb2.FileDescriptorProto.FromString(content))
        assert pool.FindServiceByName(name).methods


async def test_what_is_not_there_is_not_found(channel: grpc.aio.Channel) -> None:
    extension = {"containing_type": "inference.ModelConfig", "extension_number": 7}
    questions: list[dict[str, Any]] = [
        {"file_containing_symbol": "nope"}, {"file_by_filename": "nope.proto"}, {"all_extension_numbers_of_type": "x"},
        {"file_containing_extension": extension}, {},
    ]  # fmt: skip
    found = await answers(channel, *questions, {"all_extension_numbers_of_type": "inference.ModelConfig"})
    assert [each.error_response.error_code for each in found[:-1]] == [5] * 5
    assert found[-1].all_extension_numbers_response.base_type_name == "inference.ModelConfig"


async def test_reflection_needs_a_token_and_short_questions(channel: grpc.aio.Channel, gateway: Rig) -> None:
    for token in (None, "wrong"):
        assert (await refused(asking(channel, V1, {"list_services": ""}, token=token).read()))[0] == "UNAUTHENTICATED"
    long = asking(channel, V1, {"file_containing_symbol": "x" * 1024})
    assert await refused(long.read()) == (
        "RESOURCE_EXHAUSTED", "a request of the reflection has at most 1024 bytes",
    )  # fmt: skip
    assert gateway.gateway.grpc is not None
    assert "ada" in gateway.gateway.grpc.calls._refusals_s, "its refusals take turns"


async def test_a_stream_of_questions_ends_after_its_number_or_a_pause(
    channel: grpc.aio.Channel, gateway: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_reflection, "MOST_QUESTIONS", 3)
    assert len(await answers(channel, *[{"list_services": ""}] * 5)) == 3
    monkeypatch.setattr(grpc_reflection, "HEAD_S", 0.05)
    made = grpc_reflection._classes(V1)
    method = channel.stream_stream(
        f"/{V1}.ServerReflection/ServerReflectionInfo", lambda message: message.SerializeToString(),
        made.ServerReflectionResponse.FromString,
    )  # fmt: skip
    call = method(timeout=20.0, metadata=Stub(channel, Rig.token("ada")).metadata)
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    assert gateway.gateway.grpc is not None
    assert gateway.gateway.grpc.calls._streams.of("ada") == 0
