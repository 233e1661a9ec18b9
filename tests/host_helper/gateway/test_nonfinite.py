"""Not-a-number and infinities in JSON: the tokens of Triton and of Python's json, and never another value."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.bindings.errors import ControlError
from offpath.host_helper.gateway import nonfinite
from offpath.host_helper.gateway.buffers import AT_ONCE_BYTES

from .rig import Rig

NUMBERS = [math.nan, math.inf, -math.inf, 1.5, -0.0, 3e38]


def same(got: Any, wanted: Any) -> bool:
    return bool(np.array_equal(np.array(got, np.float64), np.array(wanted, np.float64), equal_nan=True))


# -- the two functions --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_written_are_the_tokens(dtype: Any) -> None:
    text = nonfinite.written({"id": "null", "outputs": [{"shape": (4,), "data": np.array(NUMBERS[:4], dtype)}]})
    assert text == b'{"id":"null","outputs":[{"shape":[4],"data":[NaN,Infinity,-Infinity,1.5]}]}'
    assert same(json.loads(text)["outputs"][0]["data"], NUMBERS[:4])


def test_finite_numbers_are_written_by_orjson_alone() -> None:
    value = {"id": "null", "data": [np.arange(4.0), np.array([1, 2], np.int64), np.array([True]), np.array([])]}
    assert nonfinite.written(value) == orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


@given(st.lists(st.floats(width=32), max_size=20))
def test_any_numbers_are_read_as_they_were_written(numbers: list[float]) -> None:
    text = nonfinite.written({"data": np.array(numbers, np.float32)})
    assert same(np.array(nonfinite.read(text)["data"], np.float32), numbers)


@pytest.mark.parametrize("spaces", [{}, {"indent": 1}, {"separators": (",", ":")}])
def test_what_pythons_json_writes_is_read(spaces: dict[str, Any]) -> None:
    given_ = {"id": 'a " NaN é☃', "inputs": [{"data": NUMBERS, "other": [[math.nan]]}], "n": 1 << 63}
    read = nonfinite.read(json.dumps(given_, **spaces).encode())
    assert same(read["inputs"][0]["data"], NUMBERS)
    assert (read["id"], read["n"]) == (given_["id"], 1 << 63)


@pytest.mark.parametrize("text", [b"[1,2]", b"[1,NaN]"])
def test_one_byte_order_mark_is_read_over(text: bytes) -> None:
    assert str(nonfinite.read(b"\xef\xbb\xbf" + text)) == str(nonfinite.read(text))


@pytest.mark.parametrize(
    "text",
    [b'[NaN', b'{"a":NaN,}', b'[-NaN]', b'[nan, NaN]', b'[NaN, Inf]', b'[NaN, 1e400]', b'[NaN, -1e400]',
     b'[NaN, ' + b"9" * 400 + b']', b'[NaN, ' + b"9" * 5000 + b']', b'{"a":NaN,"a":1}', b'{"a":[{"b":1,"b":NaN}]}',
     b'["\\ud83d", NaN]', b'["\xff", NaN]', b'["\x01", NaN]', b'\xef\xbb\xbf\xef\xbb\xbf[NaN]', b"[" * 100_000 + b"NaN",
     b'[NaN] x', b'[01, NaN]', b'NaN NaN'],
)  # fmt: skip
def test_beside_the_tokens_the_rules_are_those_of_all_json(text: bytes) -> None:
    with pytest.raises(ControlError):
        nonfinite.read(text)


def test_a_token_in_a_text_is_text() -> None:
    assert nonfinite.read(b'{"id":"NaN","data":[1,-Infinity]}') == {"id": "NaN", "data": [1, -math.inf]}
    assert nonfinite.read(b'{"id":"Infinity"}') == {"id": "Infinity"}


# -- the gateway --------------------------------------------------------------------------------------------------
def asked(data: Any, datatype: str = "FP32", **more: Any) -> bytes:
    count = len(data) if isinstance(data, list) else 1
    tensor = {"name": "x", "datatype": datatype, "shape": [count // 3, 3], "data": data}
    return json.dumps({"inputs": [tensor], **more}).encode()


@pytest.mark.parametrize("rows", [1, 2_000])
async def test_they_pass_through_a_kernel_in_json(gateway: Rig, rows: int) -> None:
    data = [math.nan, math.inf, -math.inf] * rows
    body = asked(data)
    assert (len(body) > AT_ONCE_BYTES) == (rows > 1)
    answer = await gateway.infer(body)
    assert answer.status == 200
    assert b"null" not in answer.body
    assert same(json.loads(answer.body)["outputs"][0]["data"], data)


async def test_text_with_a_null_in_it_changes_nothing(gateway: Rig) -> None:
    answer = await gateway.infer(asked([1.0, 2.0, 3.0], id="null"))
    assert (answer.json["id"], answer.json["outputs"][0]["data"]) == ("null", [2.0, 4.0, 6.0])


@pytest.mark.parametrize("data", [[math.nan, None, 1.0], ["NaN", 1.0, math.nan], [math.nan, True, 1.0]])
async def test_what_is_no_number_beside_one_is_refused(gateway: Rig, data: list[Any]) -> None:
    answer = await gateway.infer(asked(data))
    assert (answer.status, answer.error) == (500, "Unable to parse 'data': not FP32 numbers for input 'x'")


async def test_whole_numbers_have_no_tokens(gateway: Rig) -> None:
    tensor = {"name": "x", "datatype": "INT64", "shape": [1], "data": [math.nan]}
    parameters = {"sequence_id": 9, "sequence_start": True}
    answer = await gateway.infer(json.dumps({"inputs": [tensor], "parameters": parameters}).encode(), "accumulate")
    assert (answer.status, answer.error) == (500, "Unable to parse 'data': not INT64 numbers for input 'x'")
    answer = await gateway.infer(asked([1.0, 2.0, 3.0], parameters={"timeout": math.nan}))
    assert (answer.status, answer.error) == (400, "parameter 'timeout' is a whole number from 0")
