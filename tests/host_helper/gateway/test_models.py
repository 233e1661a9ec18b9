"""Models by name, version and label, and inputs of many shapes, without a node."""

from __future__ import annotations

import pytest

from offpath.host_helper.gateway import grpc_calls
from offpath.host_helper.gateway.config import TenantTable
from offpath.host_helper.gateway.errors import Refused
from offpath.host_helper.gateway.messages import classes
from offpath.host_helper.gateway.models import Model, Models, Spec
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


@pytest.mark.parametrize("dims", [[0, 2**31 - 1, 2**31 - 1], [2**31 - 1, 2**31 - 1, 0]])
def test_an_empty_tensor_with_dims_beyond_numpys_is_refused(dims: list[int]) -> None:
    asked = classes().ModelInferRequest(model_name="m")
    asked.inputs.add(name="x", datatype="FP32", shape=dims)
    asked.raw_input_contents.append(b"")
    with pytest.raises(Refused, match="are too large"):
        grpc_calls.read(asked, None).call(model(1, "kernel"), Regions(frozenset()))
