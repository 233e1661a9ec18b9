"""Models by name, version and label, and inputs of many shapes, without a node."""

from __future__ import annotations

import contextlib
import math
import re

import pytest

from offpath.bindings.wire.negotiating import Described, KernelBatches
from offpath.bindings.wire.signatures import KernelSignature, TensorSpec
from offpath.host_helper.gateway import grpc_calls
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
