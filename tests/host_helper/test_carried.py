"""What a request carries beside arrays of numbers: strings, many tensors, parameters, inputs that are absent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.bindings.errors import HeaderError, OptionRefused
from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.fields import MAX_BATCH
from offpath.host_helper import Options, Requester, RequestFailed
from offpath.host_helper.errors import PayloadTooLarge
from offpath.host_helper.parameters import MOST, MOST_BYTES, packed, unpacked
from offpath.host_helper.strings import Strings, array_of, elements, serialised

from ..support.carried import LAYERS
from ..support.cluster import TIMEOUT, Cluster

STRINGS = [b"one", b"", "zwölf".encode(), b"\xff\0\xfe", b"x" * 5000]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster({"ada": {}}, leasing={"keep_warm_ms": 60_000, "lanes": 1})
    try:
        made.start_helper(carried=True)
        yield made
        made.close()
    finally:
        made.kill()


@pytest.fixture(scope="module")
def ada(cluster: Cluster) -> Iterator[Requester]:
    with cluster.connect("ada", slots=8) as requester:
        yield requester


# -- strings -------------------------------------------------------------------------------------------------------
@given(st.lists(st.binary(max_size=40), max_size=20))
def test_strings_are_serialised_as_tritons_client_does(found: list[bytes]) -> None:
    packed = b"".join(len(each).to_bytes(4, "little") + each for each in found)
    array = np.empty(len(found), object)
    array[:] = found
    made = serialised(array)
    room = memoryview(bytearray(made.nbytes))
    made.read_into(room)
    assert (made.shape, made.nbytes, bytes(room)) == ((len(found),), len(packed), packed)
    again = array_of(packed, (len(found),))
    assert (again.dtype, again.tolist()) == (np.dtype(object), found)


BROKEN = [
    (b"", (1,), "strings: 0 bytes for 1 strings"),
    (b"\1\0\0", (1,), "3 bytes for 1 strings"),
    (b"\1\0\0\0", (1,), "string 0 of 1 ends beyond the 4 bytes of them"),
    (b"\xff\xff\xff\xff" + bytes(8), (2,), "string 0 of 2 ends beyond"),
    (bytes(4) + b"\5\0\0\0text", (2,), "string 1 of 2 ends beyond"),
    (bytes(4) + b"more", (1,), "4 bytes after the last of 1 strings"),
    (bytes(8), (1 << 20, 1 << 20), f"8 bytes for {1 << 40} strings"),
    (b"x", (0, 5), "1 bytes after the last of 0 strings"),
]


@pytest.mark.parametrize(("content", "shape", "said"), BROKEN)
def test_strings_that_do_not_fill_their_bytes_are_refused(content: bytes, shape: tuple[int, ...], said: str) -> None:
    for each in (content, memoryview(content)):
        with pytest.raises(HeaderError, match="strings") as refused:
            elements(each, shape)
        assert said in str(refused.value)


def test_a_kernel_gets_and_gives_strings(ada: Requester) -> None:
    sent = np.array([STRINGS, STRINGS[::-1]], object)
    got = ada.submit("upper", [sent], timeout=TIMEOUT).array
    assert (got.dtype, got.shape) == (np.dtype(object), (2, 5))
    assert got.tolist() == [[each.upper() for each in row] for row in sent]
    assert ada.submit("upper", [sent[:, ::2]], timeout=TIMEOUT).array.tolist() == got[:, ::2].tolist()
    assert ada.submit("upper", [sent[:0]], timeout=TIMEOUT).array.shape == (0, 5)


@pytest.mark.parametrize("dtype", ["O", "U3", "U7", "S2", "S30"])
def test_every_dtype_of_strings_arrives_as_bytes(ada: Requester, dtype: str) -> None:
    sent = np.array([["a", "bc"]], dtype)
    assert ada.submit("upper", [sent], timeout=TIMEOUT).array.tolist() == [[b"A", b"BC"]]
    assert ada.submit("upper", [np.array([["é", "ß"]], object)], timeout=TIMEOUT).array.tolist() == [
        ["é".encode(), "ß".encode()]
    ]


def test_a_kernel_may_return_text_of_any_dtype_beside_numbers(ada: Requester) -> None:
    for count in (2, 2000):  # in the message, and in the lane
        objects, texts, fixed, one, numbers = ada.submit("words", [np.array([count])], timeout=TIMEOUT).arrays
        assert objects.tolist() == [b"w%d" % n for n in range(count)]
        assert texts.tolist() == [f"ä{n}".encode() for n in range(count)]
        assert fixed.tolist() == [b"b%d" % n for n in range(count)]
        assert (one.shape, one[()]) == ((), b"one")
        assert numbers.tolist() == [0.0, 1.0, 2.0]
    assert ada.submit("text", [], timeout=TIMEOUT).array.tolist() == [b"spoken"]


def test_strings_longer_than_the_slot_are_refused_before_they_are_sent(ada: Requester) -> None:
    with pytest.raises(PayloadTooLarge):
        ada.submit("upper", [np.array([[b"x" * (128 << 10)]])])
    with pytest.raises(TypeError, match="array 0: element 0 of an array of objects is float; use bytes or str"):
        ada.submit("upper", [np.array([[1.5]], object)])
    with pytest.raises(ValueError, match="no text that UTF-8 can express"):
        ada.submit("upper", [np.array([["\udc00"]], object)])


class Lying(Strings):
    """One that announces what it does not send."""

    def read_into(self, room: memoryview) -> None:
        room[:] = b"\xff" * room.nbytes


def test_strings_that_lie_about_their_lengths_fail_their_request_alone(ada: Requester) -> None:
    for _ in range(2):
        with pytest.raises(RequestFailed, match="string 0 of 2 ends beyond the 12 bytes of them") as failed:
            ada.submit("upper", [Lying((1, 2), [], 12)], timeout=TIMEOUT)  # type: ignore[list-item]
        assert failed.value.reason is Reason.KERNEL_RAISED
    assert ada.submit("upper", [np.array([["b"]])], timeout=TIMEOUT).array.tolist() == [[b"B"]]


# -- many tensors --------------------------------------------------------------------------------------------------
def test_a_decoder_of_32_layers_has_its_cache_in_its_request_and_its_answer(ada: Requester) -> None:
    past = [np.zeros((1, 0), np.float16)] * (2 * LAYERS)
    for step in range(3):
        done = ada.submit("decode", [np.array([step], np.int32), *past], timeout=TIMEOUT)
        logits, *past = done.arrays
        assert logits.tolist() == [[64.0] * 4]
        assert [each.tolist() for each in past] == [[[float(n) for n in range(step + 1)]]] * (2 * LAYERS)
    signature = ada.signature("decode")
    assert signature is not None
    assert (len(signature.inputs), len(signature.outputs), signature.has_more) == (65, 65, False)
    assert [each.name for each in signature.outputs[:3]] == ["logits", "present.0.key", "present.0.value"]


def test_eighty_tensors_are_the_most(ada: Requester) -> None:
    with pytest.raises(HeaderError, match="too_many_tensors: 81 > 80"):
        ada.submit("decode", [np.zeros(1)] * 81)
    with pytest.raises(RequestFailed, match="kernel decode takes step") as failed:
        ada.submit("decode", [np.zeros(1)] * 80, timeout=TIMEOUT)
    assert failed.value.status is Status.FAILED


# -- parameters ----------------------------------------------------------------------------------------------------
PARAMETERS: dict[str, Any] = {
    "on": True, "off": False, "low": -(1 << 63), "high": (1 << 64) - 1, "half": 0.5, "text": "zwölf\n", "": 1,
}  # fmt: skip
del PARAMETERS[""]


def test_a_kernel_that_asks_gets_the_parameters_of_its_request(ada: Requester) -> None:
    x = np.zeros(3, np.float32)
    options = Options(parameters=PARAMETERS, with_checksum=True)
    (told,) = ada.submit("told", [x], options=options, timeout=TIMEOUT).array
    assert json.loads(told) == [3, PARAMETERS]
    (told,) = ada.submit("told", [x], options=Options(parameters={"n": np.int16(7)}), timeout=TIMEOUT).array
    assert json.loads(told) == [3, {"n": 7}]
    (told,) = ada.submit("told", [x], timeout=TIMEOUT).array
    assert json.loads(told) == [3, {}]
    signature = ada.signature("told")
    assert signature is not None
    assert signature.parameters


def test_a_kernel_that_does_not_ask_gets_its_tensors_alone(ada: Requester) -> None:
    options = Options(parameters=PARAMETERS)
    assert ada.submit("untold", [np.ones(2, np.float32)], options=options, timeout=TIMEOUT).array.tolist() == [-1, -1]
    assert ada.submit("text", [], options=options, timeout=TIMEOUT).array.tolist() == [b"spoken"]


def test_a_stream_has_parameters_too(ada: Requester) -> None:
    options = Options(parameters={"word": "so"})
    assert [each.array.tolist() for each in ada.stream("streamed", [np.array([3])], options=options)] == [[b"so"]] * 3


def test_each_row_of_a_batch_has_the_parameters_of_its_request(ada: Requester) -> None:
    """Three requests share the launch, whose kernel adds 100 for each of its rows."""
    rows = [np.array([1.0]), np.array([2.0, 3.0]), np.array([4.0])]
    waiting = [
        ada.begin("scaled", [each], options=Options(parameters={"by": by, "note": "n" * by}))
        for each, by in zip(rows, (10, 20, 30), strict=True)
    ]
    got = [each.result(TIMEOUT).array.tolist() for each in waiting]
    assert got == [[410.0], [440.0, 460.0], [520.0]]


def test_requests_without_parameters_share_no_launch_with_those_that_have_some(ada: Requester) -> None:
    told = [ada.begin("scaled", [np.ones(2)], options=Options(parameters={"by": 5})) for _ in range(2)]
    plain = [ada.begin("scaled", [np.ones(2)]) for _ in range(2)]
    assert [each.result(TIMEOUT).array.tolist() for each in told] == [[405.0, 405.0]] * 2
    assert [each.result(TIMEOUT).array.tolist() for each in plain] == [[401.0, 401.0]] * 2


def test_tensors_are_compared_before_there_is_anything_for_each_of_their_rows(ada: Requester) -> None:
    rows = MAX_BATCH + 1
    with pytest.raises(RequestFailed, match=r"kernel scaled takes x: float64 \[-1\]; got float64 \[4097, 0\]"):
        ada.submit("scaled", [np.empty((rows, 0))], timeout=TIMEOUT)
    with pytest.raises(RequestFailed, match="4097 rows; a launch with parameters by row has at most 4096"):
        ada.submit("scaled", [np.empty(rows)], timeout=TIMEOUT)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({f"p{n}": n for n in range(MOST + 1)}, "65 parameters; a request has at most 64"),
        ({"": 1}, "the name of a parameter has 1 to 128 characters"),
        ({"n" * 129: 1}, "the name of a parameter has 1 to 128 characters"),
        ({1: 1}, "the name of a parameter has 1 to 128 characters"),
        ({"a": None}, "parameter 'a' is NoneType, and neither a number nor a boolean nor a string"),
        ({"a": [1]}, "parameter 'a' is list"),
        ({"a": b"x"}, "parameter 'a' is bytes"),
        ({"a": 1 << 64}, "parameter 'a' is a whole number of more than 64 bits"),
        ({"a": float("inf")}, "parameter 'a' is no finite number"),
        ({"a": "x" * (MOST_BYTES + 1)}, f"parameter 'a' has more than {MOST_BYTES} characters"),
        ({"a": "x" * 9000, "b": "x" * 9000}, "parameters of 18019 bytes; a request has at most 16384"),
        ({"a": "\ud800"}, "no text that UTF-8 can express"),
    ],
)
def test_other_parameters_are_refused_where_they_are_given(parameters: Any, said: str) -> None:
    with pytest.raises(OptionRefused) as refused:
        Options(parameters=parameters)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[]", "no object"), (b"{", "parameters: "), (b"\xff", "parameters: "), (b"[" * 9000, "parameters: "),
        (b'{"a":1,"a":2}', "repeated key"), (b'{"a":null}', "parameter 'a' is NoneType"),
        (b'{"a":"' + b"x" * MOST_BYTES + b'"}', "16392 bytes; a request has at most 16384"),
    ],
)  # fmt: skip
def test_a_worker_takes_no_other_parameters_for_those_of_a_request(text: bytes, said: str) -> None:
    with pytest.raises(HeaderError, match="parameters") as refused:
        unpacked(len(text).to_bytes(4, "little") + text, 1)
    assert said in str(refused.value)


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), st.one_of(
    st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8"), max_size=20),
), max_size=8))  # fmt: skip
def test_parameters_come_back_as_they_were_given(given_: dict[str, Any]) -> None:
    once = packed(given_)
    room = memoryview(bytearray(2 * once.nbytes))
    once.read_into(room[: once.nbytes])
    once.read_into(room[once.nbytes :])
    assert unpacked(bytes(room), 2) == [given_, given_]


# -- absent inputs -------------------------------------------------------------------------------------------------
def test_an_optional_input_may_be_absent(ada: Requester) -> None:
    x, mask, note = np.arange(3, dtype=np.float32), np.array([True, False, True]), np.array([b"hi"])

    def run(*arrays: Any) -> list[Any]:
        total, given_ = ada.submit("masked", arrays, timeout=TIMEOUT).arrays
        return [*total.tolist(), *given_.tolist()]

    assert run(x, mask, note) == [2.0, b"x", b"mask", b"hi"]
    assert run(x, None, note) == [3.0, b"x", b"no mask", b"hi"]
    assert run(x, mask, None) == run(x, mask) == [2.0, b"x", b"mask", b"no note"]
    assert run(x, None, None) == run(x, None) == run(x) == [3.0, b"x", b"no mask", b"no note"]
    signature = ada.signature("masked")
    assert signature is not None
    assert [each.optional for each in signature.inputs] == [False, True, True]


def test_other_inputs_may_not(ada: Requester) -> None:
    wanted = r"kernel masked takes x: float32 \[-1\], mask: bool \[-1\] or nothing, note: bytes \[1\] or nothing; got "
    for arrays, got in (([None], "absent"), ([], "nothing"), ([None, np.array([True])], "absent")):
        with pytest.raises(RequestFailed, match=wanted + got):
            ada.submit("masked", arrays, timeout=TIMEOUT)
