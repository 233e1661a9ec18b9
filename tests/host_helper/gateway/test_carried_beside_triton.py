"""Strings, parameters, optional inputs and classes: the same requests to a real Triton server and to the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import orjson
import pytest

from offpath.bindings.errors import EngineMissing
from offpath.cli.bench.compiled import NotBuilt
from offpath.cli.bench.request_path.triton_server import HttpClient, PythonModel, TritonServer, request
from offpath.cli.local.environments import fetched

from ...support.cluster import Cluster
from .process import GatewayProcess
from .rig import Rig
from .test_beside_triton import plain
from .test_carried import cluster, packed  # noqa: F401  (a fixture)

_CODE: Final = """\
import json
import numpy as np
import triton_python_backend_utils as pb


def upper(request):
    text = pb.get_input_tensor_by_name(request, "text").as_numpy()
    return [pb.Tensor("upper", np.array([each.upper() for each in text.flat], object).reshape(text.shape))]


def told(request):
    x = pb.get_input_tensor_by_name(request, "x").as_numpy()
    said = json.dumps([len(x), json.loads(request.parameters())], sort_keys=True)
    return [pb.Tensor("told", np.array([said.encode()], object))]


def masked(request):
    x, mask, note = (pb.get_input_tensor_by_name(request, name) for name in ("x", "mask", "note"))
    values = x.as_numpy() if mask is None else x.as_numpy()[mask.as_numpy()]
    given = [b"x", b"no mask" if mask is None else b"mask", b"no note" if note is None else note.as_numpy()[0]]
    return [pb.Tensor("sum", np.array([values.sum()], np.float32)), pb.Tensor("given", np.array(given, object))]


def scores(request):
    return [pb.Tensor("y", -pb.get_input_tensor_by_name(request, "x").as_numpy())]


class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse(NAME(each)) for each in requests]
"""
_CONFIG: Final = 'backend: "python"\ninstance_group [ { kind: KIND_CPU count: 1 } ]\n'


def model(name: str, inputs: str, outputs: str, max_batch: int = 0) -> PythonModel:
    tensors = f"max_batch_size: {max_batch}\ninput [ {inputs} ]\noutput [ {outputs} ]\n"
    return PythonModel(_CONFIG + tensors, _CODE.replace("NAME", name))


MODELS: Final = {
    "upper": model("upper", '{ name: "text" data_type: TYPE_STRING dims: [ -1, -1 ] }',
                   '{ name: "upper" data_type: TYPE_STRING dims: [ -1, -1 ] }'),
    "shout": model("upper", '{ name: "text" data_type: TYPE_STRING dims: [ 1 ] }',
                   '{ name: "upper" data_type: TYPE_STRING dims: [ 1 ] }'),
    "told": model("told", '{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }',
                  '{ name: "told" data_type: TYPE_STRING dims: [ 1 ] }'),
    "masked": model("masked", '{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }, '
                    '{ name: "mask" data_type: TYPE_BOOL dims: [ -1 ] optional: true }, '
                    '{ name: "note" data_type: TYPE_STRING dims: [ 1 ] optional: true }',
                    '{ name: "sum" data_type: TYPE_FP32 dims: [ 1 ] }, '
                    '{ name: "given" data_type: TYPE_STRING dims: [ 3 ] }'),
    "scores": model("scores", '{ name: "x" data_type: TYPE_FP32 dims: [ 4 ] }',
                    '{ name: "y" data_type: TYPE_FP32 dims: [ 4 ] }', 8),
}  # fmt: skip


@pytest.fixture(scope="module")
def triton() -> Iterator[HttpClient]:
    try:
        fetched("triton-env", "Triton cannot be installed", 240.0)
        server = TritonServer(None, python=MODELS)
    except (EngineMissing, NotBuilt) as missing:
        pytest.skip(str(missing))
    try:
        client = HttpClient(server.port)
        yield client
        client.close()
    finally:
        server.close()


@pytest.fixture(scope="module")
def ours(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpClient]:  # noqa: F811
    gateway = GatewayProcess(cluster, tmp_path_factory.mktemp("gateway"))
    try:
        client = HttpClient(int(gateway.addresses["http"].rpartition(":")[2]), Rig.token("ada"))
        yield client
        client.close()
    finally:
        gateway.close()


Case = tuple[str, bytes, int | None]
"""Model, body, length of its JSON header."""


def one(name: str, datatype: str, shape: list[int], **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, **more}


def binary(content: bytes, shape: list[int]) -> Case:
    header = orjson.dumps({"inputs": [one("text", "BYTES", shape, parameters={"binary_data_size": len(content)})]})
    return "upper", header + content, len(header)


def in_json(model_: str, *inputs: dict[str, Any], **more: Any) -> Case:
    return model_, orjson.dumps({"inputs": inputs, **more}), None


X = one("x", "FP32", [2], data=[1, 2])
ROWS = one("x", "FP32", [2, 4], data=[1, -4, 3, -2, 0.5, 8, -8, 4])


def top(count: Any, **more: Any) -> Case:
    return in_json("scores", ROWS, outputs=[{"name": "y", "parameters": {"classification": count, **more}}])


SAME: dict[str, Case] = {
    "strings": binary(packed(b"a", b"bc"), [1, 2]),
    "no strings": binary(b"", [0, 2]),
    "one too few": binary(packed(b"a"), [1, 2]),
    "none of two": binary(b"", [1, 2]),
    "one too many": binary(packed(b"a", b"b", b"c"), [1, 2]),
    "a string cut short": binary(packed(b"a") + b"\5\0\0\0bcd", [1, 2]),
    "a length cut short": binary(packed(b"a") + b"\5\0", [1, 2]),
    "a length beyond all": binary(b"\xff\xff\xff\xff" + bytes(8), [1, 2]),
    "json": in_json("upper", one("text", "BYTES", [1, 2], data=["a", "\u00e4"])),
    "json, nested": in_json("upper", one("text", "BYTES", [2, 1], data=[["a"], ["b"]])),
    "too few in json": in_json("upper", one("text", "BYTES", [1, 2], data=["a"])),
    "too many in json": in_json("upper", one("text", "BYTES", [1, 1], data=["a", "b"])),
    "a raw body of several dims": ("upper", b"raw text", 0),
    "a raw string": ("shout", b"raw text", 0),
    "an empty body": ("shout", b"", 0),
    "classes in a region": top(2, shared_memory_region="x", shared_memory_byte_size=4),
    "parameters": in_json("told", X, parameters={"i": -5, "b": True, "s": "w\u00f6rt", "d": 0.5, "priority": 0}),
    "no parameters": in_json("told", X),
    "all inputs": in_json("masked", X, one("mask", "BOOL", [2], data=[True, False]),
                          one("note", "BYTES", [1], data=["hi"])),
    "the first left out": in_json("masked", X, one("note", "BYTES", [1], data=["hi"])),
    "both left out": in_json("masked", X),
    "all left out": in_json("masked"),
    "two classes": top(2),
    "more classes than values": top(9),
    "no class": top(0),
    "classes of one row": in_json("scores", one("x", "FP32", [1, 4], data=[1, 2, 3, 4]),
                                  outputs=[{"name": "y", "parameters": {"classification": 1}}]),
}  # fmt: skip
LIKE: dict[str, Case] = {
    "a number among strings": in_json("upper", one("text", "BYTES", [1, 2], data=["a", 1])),
    "too few of numbers": in_json("scores", one("x", "FP32", [1, 4], data=[1, 2, 3])),
    "classes as text": top("2"),
    "classes below none": top(-1),
}
"""The status is the same, the text is not, or neither has one."""


def asked(client: HttpClient, case: Case) -> tuple[Any, ...]:
    model_, body, length = case
    message = request("POST", f"/v2/models/{model_}/infer", body, client._token)
    if length is not None:
        message = message.replace(b"\r\n", b"\r\nInference-Header-Content-Length: %d\r\n" % length, 1)
    status, answer = client.exchange(message, tuple(range(200, 600)))
    if status != 200:
        return status, plain(orjson.loads(answer))
    at = answer.rfind(b"]}") + 2  # behind a header there may be bytes
    return status, [{**each, "parameters": None} for each in orjson.loads(answer[:at])["outputs"]], answer[at:]


@pytest.mark.parametrize("name", SAME)
def test_the_answer_is_tritons(triton: HttpClient, ours: HttpClient, name: str) -> None:
    theirs, mine = asked(triton, SAME[name]), asked(ours, SAME[name])
    assert mine == theirs


@pytest.mark.parametrize("name", LIKE)
def test_the_status_is_tritons(triton: HttpClient, ours: HttpClient, name: str) -> None:
    assert asked(ours, LIKE[name])[0] == asked(triton, LIKE[name])[0]


def test_the_configuration_shows_strings_and_optional_inputs_as_triton_does(
    triton: HttpClient, ours: HttpClient
) -> None:
    for name in ("upper", "masked"):
        theirs, mine = (orjson.loads(each.query("GET", f"/v2/models/{name}/config", b"")[1]) for each in (triton, ours))
        for side in ("input", "output"):
            for their, my in zip(theirs[side], mine[side], strict=True):
                assert my.items() <= their.items()
        assert [orjson.loads(each.query("GET", f"/v2/models/{name}", b"")[1])["inputs"] for each in (triton, ours)] == [
            [{"name": each["name"], "datatype": each["data_type"].removeprefix("TYPE_").replace("STRING", "BYTES"),
              "shape": [int(dim) for dim in each["dims"]]} for each in theirs["input"]]
        ] * 2  # fmt: skip
