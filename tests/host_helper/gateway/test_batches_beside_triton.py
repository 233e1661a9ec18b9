"""Batches: the same requests to a real Triton server and to the gateway; what they answer and what they count."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from offpath.bindings.errors import EngineMissing
from offpath.cli.bench.compiled import NotBuilt
from offpath.cli.bench.request_path.triton_server import HttpClient, PythonModel, TritonServer
from offpath.cli.local.environments import fetched

from ...support.cluster import Cluster
from .process import GatewayProcess
from .rig import TENANTS
from .test_beside_triton import Bearer, asked, plain

_CODE = """\
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor("y", pb.get_input_tensor_by_name(each, "x").as_numpy())])
                for each in requests]
"""
_CONFIG = """\
backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ %s ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ %s ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
dynamic_batching { %s }
"""
PATIENT = {"max_queue_delay_us": 10_000_000, "preferred_batch_sizes": [2, 4]}
"""Nothing waits for so long here but where a test is about that."""
MODELS: dict[str, tuple[list[int], dict[str, Any]]] = {
    "patient": ([-1, 3], PATIENT),
    "shapes": ([-1, -1], {**PATIENT, "max_queue_delay_us": 500_000}),
}
"""Each with the shape of its tensors, and how it batches."""


def kernel(name: str) -> dict[str, Any]:
    shape, how = MODELS[name]
    tensors = {"inputs": {"x": ("fp32", shape)}, "outputs": {"y": ("fp32", shape)}}
    return {"demand": 14, "max_batch": 8, "model": name, **tensors, **how}


def python_model(name: str) -> PythonModel:
    shape, how = MODELS[name]
    batching = " ".join(
        [*(f"preferred_batch_size: {size}" for size in how.get("preferred_batch_sizes", ())),
         f"max_queue_delay_microseconds: {how.get('max_queue_delay_us', 0)}"]
    )  # fmt: skip
    return PythonModel(_CONFIG % (shape[1], shape[1], batching), _CODE)


@pytest.fixture(scope="module")
def triton() -> Iterator[int]:
    try:
        fetched("triton-env", "Triton cannot be installed", 240.0)
        server = TritonServer(None, python={name: python_model(name) for name in MODELS})
    except (EngineMissing, NotBuilt) as missing:
        pytest.skip(str(missing))
    yield server.port
    server.close()


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    cluster = Cluster({name: {} for name in TENANTS}, leasing={"keep_warm_ms": 60_000})
    try:
        kernels = dict(zip(("identity", "echo"), MODELS, strict=True))
        needs = {name: kernel(model) for name, model in kernels.items()}
        cluster.start_helper(needs=needs, only=list(kernels))
        gateway = GatewayProcess(cluster, tmp_path_factory.mktemp("gateway"))
        yield int(gateway.addresses["http"].rpartition(":")[2])
        gateway.close()
        cluster.close()
    finally:
        cluster.kill()


@pytest.fixture
def both(triton: int, ours: int) -> Iterator[tuple[HttpClient, HttpClient]]:
    clients = HttpClient(triton), Bearer(ours)
    yield clients
    for each in clients:
        each.close()


def rows(*shape: int, datatype: str = "FP32") -> bytes:
    tensor = {"name": "x", "datatype": datatype, "shape": shape, "data": [1] * math.prod(shape)}
    return orjson.dumps({"inputs": [tensor]})


@pytest.mark.parametrize("model", MODELS)
def test_configuration_and_metadata_are_tritons(both: tuple[HttpClient, HttpClient], model: str) -> None:
    theirs, mine = (asked(each, ("GET", f"/v2/models/{model}", b""))[1] for each in both)
    assert (mine["inputs"], mine["outputs"]) == (theirs["inputs"], theirs["outputs"])
    theirs, mine = (asked(each, ("GET", f"/v2/models/{model}/config", b""))[1] for each in both)
    assert mine["max_batch_size"] == theirs["max_batch_size"] == 8
    for key in ("input", "output"):
        assert mine[key][0].items() <= theirs[key][0].items()
    assert mine["dynamic_batching"].items() <= theirs["dynamic_batching"].items()


@pytest.mark.parametrize(
    "body",
    [rows(9, 3), rows(0, 3), rows(3), rows(), rows(1, 3, 1), rows(1, 4), rows(9, 4), rows(9, 3, datatype="INT32")],
    ids=bytes.decode,
)
def test_a_request_with_another_batch_gets_tritons_answer(both: tuple[HttpClient, HttpClient], body: bytes) -> None:
    theirs, mine = (asked(each, ("POST", "/v2/models/patient/infer", body)) for each in both)
    assert (mine[0], plain(mine[1])) == (theirs[0], plain(theirs[1]))
    assert mine[0] == 400


def counted(client: HttpClient, model: str) -> dict[str, Any]:
    stats = asked(client, ("GET", f"/v2/models/{model}/stats", b""))[1]["model_stats"][0]
    sizes = {each["batch_size"]: each["compute_infer"]["count"] for each in stats["batch_stats"]}
    counts = {key: stats[key] for key in ("inference_count", "execution_count")}
    return {**counts, "requests": stats["inference_stats"]["success"]["count"], "sizes": sizes}


def at_once(port: int, kind: type[HttpClient], model: str, *shapes: tuple[int, ...]) -> None:
    """Requests of several clients, all of which are answered with their rows."""
    faults: list[Any] = []

    def ask(shape: tuple[int, ...]) -> None:
        client = kind(port)
        try:
            status, answer = asked(client, ("POST", f"/v2/models/{model}/infer", rows(*shape)))
            if status != 200 or answer["outputs"][0]["data"] != [1] * math.prod(shape):
                faults.append(answer)
        finally:
            client.close()

    threads = [threading.Thread(target=ask, args=(shape,)) for shape in shapes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


@pytest.mark.parametrize(
    ("model", "shapes", "sizes"),
    [
        ("patient", [(4, 3)], {4: 1}),
        ("patient", [(8, 3)], {8: 1}),
        ("patient", [(1, 3), (1, 3)], {2: 1}),
        ("patient", [(1, 3), (3, 3)], {4: 1}),
        ("patient", [(3, 3), (3, 3), (4, 3)], None),
        ("shapes", [(1, 3), (1, 2)], {1: 2}),
        ("shapes", [(1, 3), (8, 3)], {1: 1, 8: 1}),
        ("shapes", [(5, 3)], {5: 1}),
        ("shapes", [(1, 3)], {1: 1}),
    ],
)  # fmt: skip
def test_launches_and_statistics_are_tritons(
    both: tuple[HttpClient, HttpClient],
    triton: int,
    ours: int,
    model: str,
    shapes: list[tuple[int, ...]],
    sizes: dict[int, int] | None,
) -> None:
    """Whichever of the requests comes first. ``sizes``: the launches, by their rows; None: depends on that."""
    found = []
    for client, port, kind in zip(both, (triton, ours), (HttpClient, Bearer), strict=True):
        before = counted(client, model)
        at_once(port, kind, model, *shapes)
        after = counted(client, model)
        new = {size: after["sizes"][size] - before["sizes"].get(size, 0) for size in after["sizes"]}
        found.append({
            **{key: after[key] - before[key] for key in ("inference_count", "requests")},
            "sizes": {size: count for size, count in new.items() if count},
        })  # fmt: skip
        assert after["execution_count"] - before["execution_count"] == sum(new.values())
    for each in found:
        assert (each["inference_count"], each["requests"]) == (sum(shape[0] for shape in shapes), len(shapes))
        assert sum(size * count for size, count in each["sizes"].items()) == each["inference_count"]
        assert sizes is None or each["sizes"] == sizes
