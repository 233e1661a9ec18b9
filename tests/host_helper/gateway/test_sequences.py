"""Sequences at the gateway: parameters against the model, and the order of one sequence's requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.negotiating import Described
from offpath.bindings.wire.signatures import KernelSignature
from offpath.host_helper.errors import RequestFailed, RequestTimeout
from offpath.host_helper.gateway.errors import Refused, of_request
from offpath.host_helper.gateway.models import Model, config, model_of
from offpath.host_helper.gateway.sequences import Lines, not_started, sequence_of


def model(*, sequences: bool) -> Model:
    signature = KernelSignature(name="k", model="lstm", inputs=[], outputs=[], sequences=sequences)
    made = model_of(Described(name="k", signature=signature, sequence_idle_ms=10_000 if sequences else 0))
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"sequence_id": 7}, (7, False, False)),
        ({"sequence_id": (1 << 64) - 1, "sequence_start": True}, ((1 << 64) - 1, True, False)),
        ({"sequence_id": 7, "sequence_end": True, "sequence_start": False}, (7, False, True)),
    ],
)
def test_the_three_parameters_name_the_sequence(given: dict[str, Any], wanted: tuple[int, bool, bool]) -> None:
    assert sequence_of(model(sequences=True), given) == wanted


def test_an_id_may_be_a_text_which_is_a_number_to_the_daemon() -> None:
    texts = ["speech-7", "speech-8", "7", "é☃", "s" * 128, " "]
    found = [sequence_of(model(sequences=True), {"sequence_id": text, "sequence_start": True}) for text in texts]
    numbers = [number for number, is_start, is_end in found if is_start and not is_end]
    assert [str(number) for number in numbers] == texts
    assert len({*map(int, numbers)}) == len(texts)
    assert all(0 < number < 1 << 64 and number != 7 for number in numbers)
    again, _, _ = sequence_of(model(sequences=True), {"sequence_id": "speech-7"})
    assert again == numbers[0] == 9_889_240_949_742_088_951, (
        "the same in each process, so that a restart changes nothing"
    )
    assert "for sequence speech-7 to model" in not_started(model(sequences=True), again).text


@pytest.mark.parametrize("given", [{}, {"sequence_id": 0, "sequence_start": True}, {"sequence_id": ""}])
def test_a_model_without_sequences_takes_requests_of_none(given: dict[str, Any]) -> None:
    assert sequence_of(model(sequences=False), given) == (0, False, False)
    with pytest.raises(Refused, match="must specify a non-zero or non-empty correlation ID"):
        sequence_of(model(sequences=True), given)


@pytest.mark.parametrize(
    ("given", "status", "why"),
    [
        ({"sequence_id": "s" * 129}, 501, "string correlation ID cannot be longer than 128 characters"),
        ({"sequence_id": None}, 400, "whole number"),
        ({"sequence_id": ["a"]}, 400, "whole number"),
        ({"sequence_id": -1}, 400, "whole number"),
        ({"sequence_id": 1 << 64}, 400, "whole number"),
        ({"sequence_id": True}, 400, "whole number"),
        ({"sequence_id": 1.5}, 400, "whole number"),
        ({"sequence_id": 7, "sequence_start": 1}, 400, "'sequence_start' is a boolean"),
        ({"sequence_id": 7, "sequence_end": "yes"}, 400, "'sequence_end' is a boolean"),
    ],
)
def test_what_no_sequence_has_is_refused(given: dict[str, Any], status: int, why: str) -> None:
    with pytest.raises(Refused, match=why) as refused:
        sequence_of(model(sequences=True), given)
    assert refused.value.http == status


def test_a_sequence_for_a_model_that_takes_none_is_refused() -> None:
    with pytest.raises(Refused, match="model 'lstm' takes no sequences"):
        sequence_of(model(sequences=False), {"sequence_id": 7, "sequence_start": True})


def test_the_configuration_of_a_model_says_that_it_takes_sequences() -> None:
    assert config(model(sequences=True))["sequence_batching"] == {
        "max_sequence_idle_microseconds": 10_000_000, "direct": {},
    }  # fmt: skip
    assert "sequence_batching" not in config(model(sequences=False))


@pytest.mark.parametrize(
    ("status", "reason", "http", "grpc"),
    [
        (Status.CANCELLED, Reason.SEQUENCE_LOST, 409, "ABORTED"),
        (Status.REJECTED, Reason.TOO_MANY_SEQUENCES, 429, "RESOURCE_EXHAUSTED"),
    ],
)
def test_the_end_of_a_sequence_has_a_status_of_its_own(status: Status, reason: Reason, http: int, grpc: str) -> None:
    refused = of_request(RequestFailed(status, reason, 1_000, ""))
    assert (refused.http, refused.grpc) == (http, grpc)


def test_a_request_without_a_start_is_told_what_triton_says() -> None:
    refused = not_started(model(sequences=True), 42)
    assert (refused.http, refused.grpc) == (400, "INVALID_ARGUMENT")
    assert refused.text == (
        "inference request for sequence 42 to model 'lstm' must specify the START flag on the first request of the "
        "sequence"
    )


async def test_requests_of_one_sequence_pass_one_by_one_and_those_of_others_beside_them() -> None:
    lines, seen = Lines(), list[str]()

    async def one(name: str, number: int, go: asyncio.Event | None = None) -> None:
        async with lines.turn("k", number, None):
            seen.append(name)
            if go is not None:
                await go.wait()

    go = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for name, number, event in (
            ("a1", 1, go),
            ("a2", 1, None),
            ("a3", 1, None),
            ("b1", 2, None),
            ("none", 0, None),
        ):
            tasks.create_task(one(name, number, event))
        await asyncio.sleep(0.01)
        assert seen == ["a1", "b1", "none"]
        go.set()
    assert seen == ["a1", "b1", "none", "a2", "a3"]
    assert len(lines) == 0


async def test_a_request_that_waits_behind_others_has_its_time_out_and_can_be_cancelled() -> None:
    lines = Lines()
    async with lines.turn("k", 1, None):
        with pytest.raises(RequestTimeout):
            async with lines.turn("k", 1, 0.01):
                pass
        waiting = asyncio.ensure_future(lines.turn("k", 1, None).__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert len(lines) == 0
