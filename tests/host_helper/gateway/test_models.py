"""Models by name, version and label, and inputs of many shapes, without a node."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from typing import Any

import pytest

from offpath.bindings.wire.negotiating import Described, KernelBatches
from offpath.bindings.wire.signatures import KernelSignature, TensorSpec
from offpath.host_helper.gateway import grpc_calls, tenants
from offpath.host_helper.gateway.config import TenantTable
from offpath.host_helper.gateway.errors import Refused
from offpath.host_helper.gateway.inference import Parsed
from offpath.host_helper.gateway.messages import DATA_TYPES, classes
from offpath.host_helper.gateway.models import Model, Models, Spec, config, model_of
from offpath.host_helper.gateway.readers import ReaderProcess
from offpath.host_helper.gateway.regions import Regions
from offpath.host_helper.gateway.tenants import Tenant


def model(version: int, kernel: str, *labels: str) -> Model:
    spec = Spec("x", "FP32", (-1, -1, -1))
    return Model("m", version, kernel, labels, {"x": spec}, {"x": spec})


def test_the_first_of_two_kernels_that_are_one_version_is_served() -> None:
    models = Models([model(1, "first"), model(1, "second"), model(2, "third")])
    assert [each.kernel for each in models.all()] == ["first", "third"]
    assert [each.kernel for each in models.twice] == ["second"]


def test_a_number_is_a_version_before_it_is_a_label() -> None:
    models = Models([model(1, "first", "3", "2"), model(2, "second")])
    assert {version: models.find("m", version).kernel for version in ("", "1", "2", "3")} == {
        "": "second", "1": "first", "2": "second", "3": "first",
    }  # fmt: skip
    with pytest.raises(Refused, match="version 4 is not found"):
        models.find("m", "4")


def test_before_the_daemon_was_reached_nothing_is_said_of_models() -> None:
    tenant = Tenant(TenantTable(name="ada", token_file="t", bearer_files=["b"]), "", ReaderProcess())
    assert not tenant.is_ready
    with pytest.raises(Refused, match="the daemon cannot be reached") as refused:
        tenant.models.find("m")
    assert (refused.value.http, refused.value.grpc) == (503, "UNAVAILABLE")


BATCHES = KernelBatches(max_batch=8, max_queue_delay_us=500, preferred_batch_sizes=[2, 4])


def described(*shapes: list[int], batches: KernelBatches | None = BATCHES) -> Model:
    """A model whose inputs have all but the last of these shapes, and its output the last."""
    tensors = [TensorSpec(name=f"t{n}", dtype="float32", shape=shape) for n, shape in enumerate(shapes)]
    signature = KernelSignature(name="k", model="m", inputs=tensors[:-1], outputs=tensors[-1:])
    made = model_of(Described(name="k", signature=signature, batches=batches))
    assert made is not None
    return made


def test_the_configuration_of_a_model_that_batches_leaves_out_the_batch_dimension() -> None:
    model = described([-1, 3], [-1], [-1, 2, 2])
    shown = config(model)
    assert (shown["max_batch_size"], [each["dims"] for each in shown["input"] + shown["output"]]) == (
        8, [[3], [], [2, 2]],
    )  # fmt: skip
    assert shown["dynamic_batching"] == {"preferred_batch_size": [2, 4], "max_queue_delay_microseconds": 500}
    assert [spec.describe()["shape"] for spec in model.inputs.values()] == [[-1, 3], [-1]]  # of its metadata
    for tensor in shown["input"] + shown["output"]:
        tensor["data_type"] = DATA_TYPES["FP32"]
    message = classes().ModelConfig(**shown)
    assert (message.max_batch_size, list(message.dynamic_batching.preferred_batch_size)) == (8, [2, 4])


def test_without_preferred_sizes_the_largest_is_shown_as_one_as_triton_does() -> None:
    shown = config(described([-1], [-1], batches=KernelBatches(max_batch=8)))
    assert shown["dynamic_batching"] == {"preferred_batch_size": [8], "max_queue_delay_microseconds": 0}


@pytest.mark.parametrize(
    ("shapes", "batches"),
    [
        (([1, 3], [-1, 3]), BATCHES), (([-1, 3], [4]), BATCHES), (([-1], []), BATCHES), (([-1],), BATCHES),
        (([-1, 3], [-1, 3]), None),
    ],
)  # fmt: skip
def test_a_model_without_a_dimension_for_the_batch_shows_its_dims_as_they_are(
    shapes: tuple[list[int], ...], batches: KernelBatches | None
) -> None:
    shown = config(described(*shapes, batches=batches))
    assert (shown["max_batch_size"], [each["dims"] for each in shown["input"] + shown["output"]]) == (0, [*shapes])
    assert "dynamic_batching" not in shown


NOTE = "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension"


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ([9, 3], [9], "inference request batch-size must be <= 8 for 'm'"),
        ([2, 3], [1], "input 't1' batch size does not match other inputs for 'm'"),
        ([], [1], "input 't0' has no shape but model requires batch dimension for 'm'"),
        ([0, 3], [0], "input byte size mismatch for input 't0' for model 'm'. Expected 12, got 0"),
        ([2, 4], [2], f"unexpected shape for input 't0' for model 'm'. Expected [-1,3], got [2,4]. {NOTE}"),
    ],
)
def test_a_request_with_another_batch_is_refused_in_tritons_words(
    first: list[int], second: list[int], why: str
) -> None:
    asked = classes().ModelInferRequest(model_name="m")
    for name, shape in (("t0", first), ("t1", second)):
        asked.inputs.add(name=name, datatype="FP32", shape=shape)
        asked.raw_input_contents.append(bytes(4 * math.prod(shape)))
    with pytest.raises(Refused, match=re.escape(why)) as refused:
        grpc_calls.read(asked, None).call(described([-1, 3], [-1], [-1]), Regions(frozenset()))
    assert (refused.value.http, refused.value.grpc) == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize(("nbytes", "why"), [(12, ""), (24, "Expected 12, got 24")])
def test_bytes_without_a_header_are_a_batch_of_one(nbytes: int, why: str) -> None:
    parsed = Parsed(raw=memoryview(bytes(nbytes)))
    with pytest.raises(Refused, match=why) if why else contextlib.nullcontext():
        (array,) = parsed.call(described([-1, 3], [-1]), Regions(frozenset())).arrays
        assert array.shape == (1, 3)


@pytest.mark.parametrize("dims", [[0, 2**31 - 1, 2**31 - 1], [2**31 - 1, 2**31 - 1, 0]])
def test_an_empty_tensor_with_dims_beyond_numpys_is_refused(dims: list[int]) -> None:
    asked = classes().ModelInferRequest(model_name="m")
    asked.inputs.add(name="x", datatype="FP32", shape=dims)
    asked.raw_input_contents.append(b"")
    with pytest.raises(Refused, match="are too large"):
        grpc_calls.read(asked, None).call(model(1, "kernel"), Regions(frozenset()))


# -- models of a daemon that was started again --------------------------------------------------------------------
def test_models_that_may_come_back_are_unavailable_and_others_unknown() -> None:
    models = Models([model(2, "second")], [model(1, "first", "old"), model(2, "second")])
    assert [each.version for each in models.away] == [1]
    assert models.find("m", "2").kernel == models.find("m").kernel == "second"
    for version in ("1", "old"):
        with pytest.raises(Refused, match="is not served now") as refused:
            models.find("m", version)
        assert (refused.value.http, refused.value.grpc, refused.value.retry_s) == (503, "UNAVAILABLE", 1.0)
    assert not models.is_ready("m", "1")
    with pytest.raises(Refused, match="version 3 is not found") as refused:
        models.find("m", "3")
    assert refused.value.http == 404
    with pytest.raises(Refused, match="unknown model: 'n'") as refused:
        models.find("n")
    assert refused.value.http == 404
    assert [each["version"] for each in models.index()] == ["2"]


class Session:
    """A requester of a daemon that says what there is."""

    is_lost = False

    def __init__(self) -> None:
        self.found = (0, 1)
        self.served: dict[str, Any] = {}

    async def revision(self) -> tuple[int, int]:
        return self.found

    async def kernels(self) -> dict[str, Any]:
        return self.served

    async def described(self, name: str) -> Any:
        return self.served[name]


async def test_what_does_not_come_back_in_time_is_unknown_and_what_was_taken_away_is_so_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tenants, "_LOOK_S", 0.001)
    monkeypatch.setattr(tenants, "model_of", lambda described: described)
    tenant = Tenant(TenantTable(name="ada", token_file="t"), "", ReaderProcess())
    session: Any = Session()
    one, other = model(1, "one"), model(2, "other")
    session.served = {"one": one, "other": other}
    looking = asyncio.ensure_future(tenant._look(session))

    async def status(version: str) -> int:
        try:
            tenant.models.find("m", version)
        except Refused as refused:
            return refused.http
        return 200

    async def becomes(version: str, wanted: int) -> None:
        async with asyncio.timeout(20):
            while tenant._models is None or await status(version) != wanted:
                await asyncio.sleep(0.001)

    await becomes("2", 200)
    session.served, session.found = {"one": one}, (0, 2)
    await becomes("2", 404)  # the daemon runs on, and its helper has taken it away
    session.served, session.found = {}, (1, 1)
    await becomes("1", 503)
    assert await status("2") == 404
    session.served, session.found = {"other": other}, (1, 2)
    await becomes("2", 200)
    assert await status("1") == 503, "another one is back"
    tenant._away_until_s = 0.0
    await becomes("1", 404)
    assert await status("2") == 200
    looking.cancel()
