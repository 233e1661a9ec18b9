"""Strings, parameters, fewer inputs, many tensors and classes through the gateway: by Triton's own clients, and by
messages that they do not send."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpath.host_helper.gateway import classification
from offpath.host_helper.gateway.classification import MOST, classified
from offpath.host_helper.gateway.errors import Refused
from offpath.host_helper.gateway.messages import classes
from offpath.host_helper.gateway.texts import MOST_LOOKED, check

from ...support.cluster import Cluster
from ...support.clusters import NARROW
from ...support.processes import HERE
from .conftest import Open
from .grpc_cases import Stub, refused
from .process import GatewayProcess
from .rig import TENANTS, Rig
from .test_clients import BOUND_S, clients  # noqa: F401  (a fixture)

BOTH = pytest.mark.parametrize("protocol", ["http", "grpc"])
WORDS = [["one", "", "zw\u00f6lf".encode().decode("latin1")], ["\xff\0", "x" * 300, "six"]]
UPPER = [["ONE", "", "ZW\u00f6LF".encode().decode("latin1")], ["\xff\0", "X" * 300, "SIX"]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """With the kernels of ``carried``."""
    made = Cluster(dict.fromkeys(TENANTS, NARROW), leasing={"keep_warm_ms": 60_000})
    try:
        made.start_helper(carried=True)
        yield made
        made.close()
    finally:
        made.kill()


@pytest.fixture(scope="module")
def got(cluster: Cluster, clients: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:  # noqa: F811
    """What the client's script printed."""
    gateway = GatewayProcess(cluster, tmp_path_factory.mktemp("gateway"))
    try:
        script = [str(clients / "bin/python"), str(HERE / "triton_carried_main.py")]
        places = [gateway.addresses["http"], Rig.token("ada"), gateway.addresses["grpc"]]
        done = subprocess.run([*script, *places], capture_output=True, text=True, timeout=BOUND_S, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        yield json.loads(done.stdout.splitlines()[-1])
    finally:
        gateway.close()


# -- Triton's clients ----------------------------------------------------------------------------------------------
@BOTH
def test_the_client_s_arrays_of_objects_are_strings_both_ways(got: Any, protocol: str) -> None:
    strings = got[protocol]["strings"]
    assert strings["objects"] == UPPER
    assert (strings["texts"], strings["fixed"]) == ([["EIN", "WORT"]], [["AB", "C"]])
    assert (strings["none"], strings["config"]) == ([0, 3], ["TYPE_STRING"])


def test_the_asynchronous_clients_send_and_get_strings(got: Any) -> None:
    assert got["aio"] == [UPPER, UPPER]


def test_json_has_text_only(got: Any) -> None:
    assert got["http"]["strings"]["json"] == [["EIN", "WORT"]]
    assert got["http"]["strings"]["not text"] == [
        "400", "sending BYTES data that is not UTF-8 via JSON is not supported. Please use the binary data format for "
        "output 'upper'",
    ]  # fmt: skip


@BOTH
def test_strings_lie_in_shared_memory_as_they_are_serialised(got: Any, protocol: str) -> None:
    found, short = got[protocol]["by_region"]
    assert found == UPPER
    assert short == [
        "400" if protocol == "http" else "StatusCode.INVALID_ARGUMENT",
        "incomplete string data for inference input 'text', expecting string of length 3 but only 2 bytes available",
    ]


@BOTH
def test_a_kernel_gets_the_client_s_parameters_and_no_others(got: Any, protocol: str) -> None:
    wanted = {"flag": True, "low": -5, "high": 1 << 40, "half": 0.5, "word": "w\u00f6rt"}
    if protocol == "grpc":
        del wanted["half"]
    assert got[protocol]["parameters"] == [[2, wanted], [-0.0, -0.0]]


@BOTH
def test_an_optional_input_may_be_left_out(got: Any, protocol: str) -> None:
    found = got[protocol]["optional"]
    assert found["all"] == [2.0, "x", "mask", "hi"]
    assert found["no mask"] == [3.0, "x", "no mask", "hi"]
    assert found["no note"] == [2.0, "x", "mask", "no note"]
    assert found["neither"] == [3.0, "x", "no mask", "no note"]
    assert found["config"] == {"x": False, "mask": True, "note": True}
    assert found["no x"][1] == (
        "expected number of inputs between 1 and 3 but got 1 inputs for model 'masked'. Got input(s) ['mask'], but "
        "missing required input(s) ['x']. Please provide all required input(s)."
    )


@BOTH
def test_a_decoder_s_cache_goes_through(got: Any, protocol: str) -> None:
    logits, last, first = got[protocol]["cached"]
    assert (logits, last, first) == ([[64.0] * 4], [[31.0, 31.0, 7.0]], [[0.0, 0.0, 7.0]])


@BOTH
def test_classes_are_the_greatest_values_of_each_row(got: Any, protocol: str) -> None:
    found = got[protocol]["classes"]
    assert found["two"] == [[2, 2], ["4.000000:1", "2.000000:3", "8.000000:2", "-0.000000:0"]]
    assert found["all"][0] == [2, 4]
    assert found["all"][1][:4] == ["4.000000:1", "2.000000:3", "-1.000000:0", "-3.000000:2"]
    assert found["whole numbers"] == [[2], ["7:1", "7:2"]]


def test_a_stream_carries_strings_and_parameters(got: Any) -> None:
    assert got["streamed"] == ["so", "so"]


# -- other messages ------------------------------------------------------------------------------------------------
def packed(*strings: bytes) -> bytes:
    return b"".join(len(each).to_bytes(4, "little") + each for each in strings)


UPPERS = "for inference input 'text' for model 'upper'"
WRONG: list[tuple[bytes, str]] = [
    (b"", f"expected 2 string elements {UPPERS}, got 0"),
    (packed(b"a"), f"expected 2 string elements {UPPERS}, got 1"),
    (packed(b"a", b"b", b"c"), f"unexpected number of string elements 3 {UPPERS}, expecting 2"),
    (packed(b"a") + b"\5\0\0\0bcd", "incomplete string data for inference input 'text', expecting string of length 5 "
     "but only 3 bytes available"),
    (packed(b"a") + b"\5\0", f"incomplete string length indicator {UPPERS}, expecting 4 bytes but only 2 bytes "
     "available. Please make sure the string length indicator is in one buffer."),
    (packed(b"a", b"b") + b"\0", f"incomplete string length indicator {UPPERS}, expecting 4 bytes but only 1 bytes "
     "available. Please make sure the string length indicator is in one buffer."),
    (b"\xff\xff\xff\xff" + bytes(8), f"expected 2 string elements {UPPERS}, got 1"),
]  # fmt: skip


async def test_strings_that_do_not_fill_their_bytes_are_refused_in_triton_s_words(open_gateway: Open) -> None:
    rig = await open_gateway()
    for content, said in WRONG:
        header = json.dumps({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 2],
                                         "parameters": {"binary_data_size": len(content)}}]}).encode()  # fmt: skip
        answer = await rig.infer((header + content, len(header)), "upper")
        assert (answer.status, answer.error) == (400, said)


JSON: list[tuple[Any, Any, int, Any]] = [
    ([1, 2], ["a", "\u00e4"], 200, ["A", "\u00e4"]),
    ([2, 1], [["a"], ["b"]], 200, ["A", "B"]),
    ([1, 2], ["a", 1], 500, "Unable to parse 'data': attempt to access JSON non-string as string for input 'text'"),
    ([1, 2], ["a", None], 500, "Unable to parse 'data'"),
    ([1, 2], ["a"], 400, f"expected 2 string elements {UPPERS}, got 1"),
    ([1, 1], ["a", "b"], 400, f"unexpected number of string elements 2 {UPPERS}, expecting 1"),
    ([1, 1 << 31], [], 400, f"expected {1 << 31} string elements {UPPERS}, got 0"),
    ([1, 1 << 40], [], 400, "unexpected shape for input 'text' for model 'upper'"),
]


async def test_strings_in_json_are_text(open_gateway: Open) -> None:
    rig = await open_gateway()
    for shape, data, status, wanted in JSON:
        body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": shape, "data": data}]}
        answer = await rig.infer(json.dumps(body).encode(), "upper")
        assert answer.status == status, answer.body
        if status == 200:
            (output,) = answer.json["outputs"]
            assert (output["datatype"], output["shape"], output["data"]) == ("BYTES", shape, wanted)
        else:
            assert wanted in answer.error


async def test_many_strings_of_an_answer_become_json_in_the_other_process(open_gateway: Open) -> None:
    rig = await open_gateway()
    many = [f"w{n}" for n in range(9000)]
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [90, 100], "data": many}]}
    answer = await rig.infer(json.dumps(body).encode(), "upper")
    assert answer.json["outputs"][0]["data"] == [each.upper() for each in many]


async def test_contents_of_grpc_may_be_strings_one_by_one(open_gateway: Open) -> None:
    import grpc

    rig = await open_gateway(grpc="127.0.0.1:0", http="")
    assert rig.gateway.grpc is not None
    async with grpc.aio.insecure_channel(rig.gateway.grpc.address) as channel:
        ada = Stub(channel, Rig.token("ada"))
        made = classes().ModelInferRequest(model_name="upper")
        made.inputs.add(name="text", datatype="BYTES", shape=[1, 2]).contents.bytes_contents.extend([b"a", b"\xffb"])
        answer = await ada.call("ModelInfer", request=made)
        assert answer.raw_output_contents[0] == packed(b"A", b"\xffB")
        made.inputs[0].contents.bytes_contents.append(b"c")
        assert await refused(ada.call("ModelInfer", request=made)) == (
            "INVALID_ARGUMENT", f"unexpected number of string elements 3 {UPPERS}, expecting 2",
        )  # fmt: skip
        made = classes().ModelInferRequest(model_name="told")
        made.inputs.add(name="x", datatype="FP32", shape=[1]).contents.fp32_contents.append(0)
        made.parameters["half"].double_param = 0.5
        made.parameters["most"].uint64_param = (1 << 64) - 1
        answer = await ada.call("ModelInfer", request=made)
        assert json.loads(answer.raw_output_contents[0][4:]) == [1, {"half": 0.5, "most": (1 << 64) - 1}]


async def test_parameters_are_bounded_for_kernels_that_ask_and_left_aside_by_others(open_gateway: Open) -> None:
    rig = await open_gateway()
    one = {"name": "x", "datatype": "FP32", "shape": [1], "data": [0]}
    for parameters, said in (
        ({"a" * 129: 1}, "the name of a parameter has 1 to 128 characters"),
        ({"a": "x" * 20_000}, "parameter 'a' has more than 16384 characters"),
    ):
        body = json.dumps({"parameters": parameters, "inputs": [one]}).encode()
        answer = await rig.infer(body, "told")
        assert (answer.status, answer.error) == (400, said)
        assert (await rig.infer(body, "untold")).status == 200
    body = json.dumps({"parameters": {f"p{n}": n for n in range(65)}, "inputs": [one]}).encode()
    for model in ("told", "untold"):
        assert (await rig.infer(body, model)).error == "more than 64 parameters"


async def test_a_raw_body_is_one_string(open_gateway: Open) -> None:
    rig = await open_gateway()
    answer = await rig.infer((b"any text", 0), "shout")
    assert (answer.status, answer.binary) == (200, packed(b"ANY TEXT"))
    assert (await rig.infer((b"any text", 0), "upper")).error == (
        "The shape of the raw input 'text' can not be deduced because there are more than one variable-sized dimension"
    )


async def test_classes_are_bounded(open_gateway: Open) -> None:
    rig = await open_gateway()
    one = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    for count, status, said in (
        (-1, 500, "Unable to set 'classification' of output 'y': not a whole number from 0"),
        ("2", 500, "Unable to set 'classification' of output 'y': not a whole number from 0"),
        (MOST + 1, 400, f"at most {MOST} classes are served, and output 'y' is asked for {MOST + 1}"),
    ):
        body = {"inputs": [one], "outputs": [{"name": "y", "parameters": {"classification": count}}]}
        answer = await rig.infer(json.dumps(body).encode(), "scores")
        assert (answer.status, answer.error) == (status, said)
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}],
            "outputs": [{"name": "upper", "parameters": {"classification": 1}}]}  # fmt: skip
    answer = await rig.infer(json.dumps(body).encode(), "upper")
    assert answer.error == "class result not available for output due to unsupported type 'BYTES'"


# -- without a gateway ---------------------------------------------------------------------------------------------
def test_of_many_strings_the_first_are_looked_at_here() -> None:
    whole = packed(*[b"ab"] * (MOST_LOOKED + 2))
    check(whole, MOST_LOOKED + 2, "x", "m")
    check(whole[:-1], MOST_LOOKED + 2, "x", "m")  # the worker's to find
    said = f"expected {1 << 40} string elements for inference input 'x' for model 'm', got {MOST_LOOKED + 3} at most"
    with pytest.raises(Refused, match=said):
        check(whole, 1 << 40, "x", "m")


def top(values: Any, count: int, datatype: str = "FP32", *, has_batch: bool = False) -> list[str]:
    content, _ = classified("y", datatype, values.shape, memoryview(values.tobytes()), count, has_batch=has_batch)
    found, at = [], 0
    while at < len(content):
        end = at + 4 + int.from_bytes(content[at : at + 4], "little")
        found.append(content[at + 4 : end].decode())
        at = end
    return found


def test_of_equal_values_the_lower_index_is_first_and_not_a_number_is_last() -> None:
    values = np.array([1, np.nan, 3, 3, -np.inf, 3], np.float32)
    assert top(values, 2) == ["3.000000:2", "3.000000:3"]
    assert top(values, 9) == ["3.000000:2", "3.000000:3", "3.000000:5", "1.000000:0", "nan:1", "-inf:4"]
    assert top(np.array([0, 255, 7], np.uint8), 2, "UINT8") == ["255:1", "7:2"]
    assert top(np.empty((0, 4), np.float32), 2, has_batch=True) == []
    assert top(np.empty((2, 0), np.float32), 2, has_batch=True) == []


@pytest.mark.parametrize("shape", [(0, *[(1 << 32) - 1] * 5), ((1 << 32) - 1, 0)])
def test_dims_without_values_have_no_classes_and_take_no_time(shape: tuple[int, ...]) -> None:
    made, _ = classified("y", "FP32", shape, memoryview(b""), 2, has_batch=True)
    assert made == b""


@pytest.mark.parametrize("datatype", ["FP32", "FP64", "UINT8", "UINT64", "INT8", "INT64"])
def test_classes_of_all_rows_are_those_of_each_row(datatype: str) -> None:
    noise = np.random.default_rng(7)
    dtype = np.dtype({"FP": "f", "UI": "u", "IN": "i"}[datatype[:2]] + str(int(datatype.lstrip("FPUINT")) // 8))
    few = np.array([0, 1, 2, 100], dtype) if dtype.kind == "u" else np.array([-100, -1, 0, 1], dtype)
    if dtype.kind == "f":
        few[0] = np.nan
    values = noise.choice(few, (41, 3000))
    form = (lambda value: f"{value:f}") if dtype.kind == "f" else str
    for some, count in ((values, 7), (values[:, :4], 4), (values[:1], 3000), (values[:1], 5)):
        expected = [
            f"{form(row[index].item())}:{index}"
            for row in some
            for index in sorted(range(row.size), key=lambda at: (bool(np.isnan(row[at])), -float(row[at]), at))[:count]
        ]
        assert top(some, count, datatype, has_batch=True) == expected


def test_rows_are_classified_together(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, real = [], np.partition

    def counted(keys: Any, *given: Any, **more: Any) -> Any:
        calls.append(keys.shape)
        return real(keys, *given, **more)

    monkeypatch.setattr(np, "partition", counted)
    assert len(top(np.zeros((4096, 64), np.float32), 1, has_batch=True)) == 4096
    assert calls == [(1024, 64)] * 4


@pytest.mark.parametrize("nbytes", [0, 1 << 30])
async def test_what_takes_long_to_classify_is_left_to_the_reading_process(
    open_gateway: Open, monkeypatch: pytest.MonkeyPatch, nbytes: int
) -> None:
    monkeypatch.setattr(classification, "_MOST_BYTES", nbytes)
    rig = await open_gateway()
    reader = rig.gateway.tenants.by_name["ada"].reader
    asked, real = [], reader.run

    async def run(function: Any, *given: Any, **more: Any) -> Any:
        asked.append(function.__name__)
        return await real(function, *given, **more)

    monkeypatch.setattr(reader, "run", run)
    one = {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": [1, 2, 4, 3, 9, 8, 7, 6]}
    body = {"inputs": [one], "outputs": [{"name": "y", "parameters": {"classification": 2}}]}

    async def check() -> None:
        (output,) = (await rig.infer(json.dumps(body).encode(), "scores")).json["outputs"]
        assert (output["datatype"], output["shape"]) == ("BYTES", [2, 2])
        assert [text.partition(":")[2] for text in output["data"]] == ["0", "1", "3", "2"], "the model negates"

    await check()
    assert asked == ([] if nbytes else ["_classified_there"])
    rig.gateway.tenants._reader.close()
    await check()  # the answer is there, and is not lost


def test_a_batch_has_no_more_classes_than_are_made() -> None:
    with pytest.raises(Refused, match="has 8192 classes, and at most 4096 are served"):
        top(np.zeros((4096, 4), np.float32), 2, has_batch=True)
