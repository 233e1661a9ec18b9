"""Streams and sequences: the same calls to a real Triton server and to the gateway, over gRPC, compared."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from offpath.bindings.errors import EngineMissing
from offpath.cli.bench.compiled import NotBuilt
from offpath.cli.bench.request_path.triton_server import TritonServer
from offpath.cli.local.environments import fetched

from .conftest import Open, cluster, open_gateway  # noqa: F401  (fixtures)
from .grpc_cases import Stub, counting, request
from .rig import Rig
from .triton_models import MODELS


@pytest.fixture(scope="module")
def server() -> Iterator[TritonServer]:
    try:
        fetched("triton-env", "Triton cannot be installed", 240.0)
        made = TritonServer(None, python=MODELS, has_grpc=True)
    except (EngineMissing, NotBuilt) as missing:
        pytest.skip(str(missing))
    yield made
    made.close()


@pytest.fixture
async def both(server: TritonServer, open_gateway: Open) -> AsyncIterator[tuple[Stub, Stub]]:  # noqa: F811
    """Triton and the gateway."""
    gateway = await open_gateway(grpc="127.0.0.1:0", http="")
    assert gateway.gateway.grpc is not None
    async with (
        grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as theirs,
        grpc.aio.insecure_channel(gateway.gateway.grpc.address) as ours,
    ):
        yield Stub(theirs, None), Stub(ours, Rig.token("ada"))


# -- what is compared ---------------------------------------------------------------------------------------------
def shown(answer: Any) -> tuple[Any, ...]:
    """An answer of a stream: all that a client sees of it, but the text of an error of a kernel."""
    response = answer.infer_response
    parameters = {name: value.bool_param for name, value in response.parameters.items()}
    outputs = [(output.name, output.datatype, tuple(output.shape)) for output in response.outputs]
    model = response.model_name, response.model_version
    return bool(answer.error_message), response.id, model, parameters, outputs, list(response.raw_output_contents)


async def streamed(stub: Stub, *requests: Any) -> list[Any]:
    async def given() -> AsyncIterator[Any]:
        for each in requests:
            yield each

    return [answer async for answer in stub.stream(given())]


async def unary(stub: Stub, made: Any) -> tuple[Any, ...]:
    """Code and text, or the sum of the sequence so far and the request's number in it."""
    try:
        answer = await stub.call("ModelInfer", request=made)
    except grpc.aio.AioRpcError as refused:
        return refused.code().name, refused.details()
    total, seen = (np.frombuffer(each, np.int64).tolist() for each in answer.raw_output_contents)
    return (*total, *seen[1:])


def ending(made: Any) -> Any:
    made.parameters["triton_enable_empty_final_response"].bool_param = True
    return made


def adding(x: int, sequence: int | str | None = 5, **flags: bool) -> Any:
    made = request(np.array([x], np.int64), "x", "INT64", "accumulate")
    if isinstance(sequence, str):
        made.parameters["sequence_id"].string_param = sequence
    elif sequence is not None:
        made.parameters["sequence_id"].int64_param = sequence
    for name, value in flags.items():
        made.parameters[name].bool_param = value
    return made


def first(x: int, sequence: int | str | None = 5, **flags: bool) -> Any:
    return adding(x, sequence, sequence_start=True, **flags)


def last(x: int, sequence: int | str | None = 5) -> Any:
    return adding(x, sequence, sequence_end=True)


# -- streams ------------------------------------------------------------------------------------------------------
STREAMS = {
    "answers": [counting(5, id="a")],
    "none": [counting(0, id="a")],
    "an end": [ending(counting(2, id="a"))],
    "an end alone": [ending(counting(0, id="a"))],
    "an error": [counting(9, fails_at=3, id="a")],
    "an error at once": [counting(9, fails_at=1, id="a")],
    "an error and an end": [ending(counting(9, fails_at=3, id="a"))],
    "long answers": [counting(3, size=10_000, id="a")],
}


@pytest.mark.parametrize("case", STREAMS)
async def test_the_answers_of_a_stream_are_tritons(case: str, both: tuple[Stub, Stub]) -> None:
    theirs, ours = [list(map(shown, await streamed(stub, *STREAMS[case]))) for stub in both]
    assert ours == theirs


async def test_requests_of_one_stream_each_have_their_answers_in_order(both: tuple[Stub, Stub]) -> None:
    requests = [counting(4, id="a"), counting(9, fails_at=2, id="b"), ending(counting(3, id="c"))]
    theirs, ours = [list(map(shown, await streamed(stub, *requests))) for stub in both]
    for name in ("a", "b", "c"):
        assert [each for each in ours if each[1] == name] == [each for each in theirs if each[1] == name]


def misnamed(model: str = "count") -> Any:
    made = counting(1, id="a")
    made.inputs[0].name, made.model_name = "nope", model
    return made


@pytest.mark.parametrize("made", [misnamed(), misnamed("nope")], ids=["input", "model"])
async def test_a_request_of_a_stream_is_refused_as_by_triton(made: Any, both: tuple[Stub, Stub]) -> None:
    """Alone: Triton 2.51 can end with a segmentation fault if more requests are behind it."""
    (theirs,), (ours,) = [await streamed(stub, made) for stub in both]
    assert ours.error_message == theirs.error_message
    assert (ours.infer_response.model_name, theirs.infer_response.model_name) == ("", "")


async def test_one_answer_cannot_be_asked_of_a_model_that_streams(both: tuple[Stub, Stub]) -> None:
    theirs, ours = [await unary(stub, counting(1)) for stub in both]
    assert ours == theirs


# -- sequences ----------------------------------------------------------------------------------------------------
SEQUENCES = {
    "start, go on, end": [first(1), adding(2), last(3)],
    "after the end": [first(1), last(2), adding(3)],
    "start anew": [first(1), adding(2), first(10), last(20)],
    "start and end in one": [first(1, sequence_end=True), adding(2)],
    "never started": [adding(1, 77)],
    "an end that was never started": [last(1, 78)],
    "no id": [adding(1, None)],
    "a start without an id": [first(1, None)],
    "id 0": [first(1, 0)],
    "two at once": [first(1, 1), first(10, 2), adding(1, 1), adding(10, 2), last(1, 1), last(10, 2)],
    "no text": [first(1, "")],
    "the largest id": [first(1, (1 << 63) - 1), last(2, (1 << 63) - 1)],
}


@pytest.mark.parametrize("case", SEQUENCES)
async def test_the_answers_of_a_sequence_are_tritons(case: str, both: tuple[Stub, Stub]) -> None:
    theirs, ours = [[await unary(stub, each) for each in SEQUENCES[case]] for stub in both]
    assert ours == theirs


async def test_a_sequence_on_a_stream(both: tuple[Stub, Stub]) -> None:
    found = [await streamed(stub, first(1), adding(2), last(3)) for stub in both]
    sums = [
        [np.frombuffer(each.infer_response.raw_output_contents[0], np.int64)[0] for each in answers]
        for answers in found
    ]
    assert sums[1] == sums[0] == [1, 3, 6]
    (theirs,), (ours,) = [await streamed(stub, adding(4, 66)) for stub in both]
    assert ours.error_message == theirs.error_message


async def test_a_kernel_that_raises_ends_no_sequence(both: tuple[Stub, Stub]) -> None:
    theirs, ours = [[await unary(stub, each) for each in (first(1), adding(-1), last(2))] for stub in both]
    assert (ours[0], ours[2]) == (theirs[0], theirs[2])
    assert (ours[1][0], theirs[1][0]) == ("INTERNAL", "INTERNAL")
