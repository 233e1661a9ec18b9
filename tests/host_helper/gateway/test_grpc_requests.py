"""Messages of gRPC are bounded before anything is made of them."""

from __future__ import annotations

import random
import ssl
from pathlib import Path

import pytest

from offpath.bindings.certificates import tenant_of_pem
from offpath.host_helper.gateway import grpc_calls, grpc_requests
from offpath.host_helper.gateway.errors import Refused
from offpath.host_helper.gateway.grpc_requests import Long, check_tensors, received
from offpath.host_helper.gateway.messages import classes
from offpath.host_helper.gateway.protobuf_fields import fields

from ...support.certificates import Authority

MODEL = b"\x0a\x06double"


def nested(number: int, value: bytes) -> bytes:
    """A field with bytes."""
    length, prefix = len(value), b""
    while True:
        prefix += bytes([length & 127 | (128 if length > 127 else 0)])
        length >>= 7
        if not length:
            return bytes([number << 3 | 2]) + prefix + value


def parameters(count: int, number: int) -> bytes:
    return b"".join(nested(number, nested(1, b"%x" % n) + b"\x12\x02\x08\x01") for n in range(count))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of what protobuf was given to make messages of."""
    lengths: list[int] = []
    parsed = grpc_requests.parsed

    def counted(kind: object, data: bytes) -> object:
        lengths.append(len(data))
        return parsed(kind, data)

    monkeypatch.setattr(grpc_requests, "parsed", counted)
    return lengths


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (MODEL + b"\x2a\x00" * 2_000_000, "more than 80 inputs"),
        (MODEL + b"\x32\x00" * 2_000_000, "more than 80 outputs"),
        (MODEL + b"\x3a\x00" * 2_000_000, "more than 80 input contents"),
        (MODEL + parameters(100_000, 4), "more than 64 parameters"),
        (MODEL + b"\x52\x00" * 100_000, "more than 80 fields of a kind"),
        (nested(1, b"x" * 70_000), "names and parameters of a request have at most 65536 bytes"),
        (b"\xff" * 1_000_000, "no protobuf message"),
        (b"\x2a\xff\x01", "no protobuf message"),
        (b"\x0b", "no protobuf message"),
        (b"\x02\x00", "no protobuf message"),
        (nested(1, b"\xff"), "no protobuf message"),
    ],
)
def test_a_message_of_too_many_parts_is_refused_before_it_is_made(body: bytes, why: str, made: list[int]) -> None:
    steps = 0
    real = fields

    def counted(*given: object) -> object:
        nonlocal steps
        for each in real(*given):  # type: ignore[arg-type]
            steps += 1
            yield each

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpc_requests, "fields", counted)
        with pytest.raises(Refused, match=why):
            received(body)
    assert steps <= 86
    assert sum(made) < 100


def test_tensors_of_many_parts_are_left_to_the_reading_process_which_refuses_them(made: list[int]) -> None:
    tensor = b"\x0a\x01x\x12\x04FP32\x1a\x01\x01" + parameters(100_000, 4)
    got = received(MODEL + nested(5, tensor))
    assert isinstance(got, Long)
    assert (got.model_name, got.model_version, got.id) == ("double", "", "")
    assert sum(made) < 100, "only its head was made"
    with pytest.raises(Refused, match="a tensor of the request has more than 512 parts"):
        check_tensors(got.data)


def test_contents_have_the_bound_of_json(made: list[int]) -> None:
    tensor = b"\x0a\x01x\x12\x05BYTES\x1a\x03\x80\x80\x40" + nested(5, b"\x42\x00" * (2 << 20))
    with pytest.raises(Refused, match="at most 4194304 bytes beside its raw contents") as caught:
        received(MODEL + nested(5, tensor))
    assert caught.value.http == 413
    assert made == []
    raw = MODEL + nested(5, b"\x0a\x01x") + nested(7, bytes((4 << 20) + 1))
    assert received(raw).raw_input_contents == [bytes((4 << 20) + 1)], "raw contents have the bound of a payload"


@pytest.mark.parametrize(
    ("shape", "strings", "why"),
    [
        (b"\x1a\x02\x02\x03", 6, ""),
        (b"\x18\x02\x18\x03", 6, ""),
        (b"\x1a\x02\x02\x03", 1_000_000, "unexpected number of string elements 7 for an input, expecting 6"),
        (b"\x18\x02\x18\x03", 1_000_000, "unexpected number of string elements 7 for an input, expecting 6"),
        (b"\x1a\x01\x00", 1, "unexpected number of string elements 1 for an input, expecting 0"),
        (b"\x1a\x04\x80\x80\x80\x01", 300_000, "more than 262144 strings in the contents of a request: send them raw"),
        (b"\x1d\x01\x01\x01\x01", 1, "no protobuf message"),
    ],
)
def test_strings_of_contents_are_counted_before_they_are_made(
    shape: bytes, strings: int, why: str, made: list[int]
) -> None:
    for split in (1, 2):  # protobuf joins the parts of a field that comes twice
        parts = nested(5, b"\x42\x00" * (strings // split)) * split
        data = MODEL + nested(5, b"\x0a\x01x\x12\x05BYTES" + parts + shape)
        if not why:
            check_tensors(data)
        elif strings >= split:
            with pytest.raises(Refused, match=why):
                check_tensors(data)
    assert made == []


def test_what_is_short_beside_its_raw_contents_is_read_at_once() -> None:
    request = classes().ModelInferRequest(model_name="m", id="7")
    request.inputs.add(name="x", datatype="FP32", shape=[100_000])
    request.raw_input_contents.append(bytes(400_000))
    assert received(request.SerializeToString()) == request


def test_a_long_request_has_the_head_of_the_whole_one() -> None:
    request = classes().ModelInferRequest(model_name="m", model_version="3", id="7")
    request.parameters["timeout"].int64_param = 9
    request.inputs.add(name="x", datatype="INT64", shape=[9000]).contents.int64_contents.extend(range(9000))
    got = received(request.SerializeToString())
    assert isinstance(got, Long)
    assert (got.model_name, got.model_version, got.id) == ("m", "3", "7")
    assert grpc_calls.parameters_of(got, None) == {"timeout": 9}
    check_tensors(got.data)


def test_more_parameters_of_a_tensor_than_are_served_are_refused() -> None:
    request = classes().ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[1])
    for n in range(65):
        tensor.parameters[str(n)].bool_param = True
    with pytest.raises(Refused, match="more than 64 parameters"):
        grpc_calls.read(received(request.SerializeToString()), None)


@pytest.mark.parametrize("seed", range(10))
def test_the_fields_of_a_message_are_those_that_protobuf_wrote(seed: int) -> None:
    noise = random.Random(seed)
    request = classes().ModelInferRequest(model_name="m" * noise.randint(0, 300), id="i" * noise.randint(0, 20_000))
    for _ in range(noise.randint(0, 9)):
        request.inputs.add(name="x", shape=[noise.getrandbits(62) for _ in range(noise.randint(0, 8))])
        request.raw_input_contents.append(noise.randbytes(noise.randint(0, 300)))
    data = request.SerializeToString()
    found = list(fields(data))
    assert b"".join(data[each.at : each.end] for each in found) == data
    assert [each.number for each in found].count(5) == len(request.inputs)
    raw = [data[each.value : each.end] for each in found if each.number == 7]
    assert raw == list(request.raw_input_contents)


# -- certificates ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("uris", "email", "tenant"),
    [
        (["offpath://tenant/ada"], "", "ada"),
        (["offpath://tenant/ada\0b"], "", "ada\0b"),
        (["offpath://tenant/ada", "https://x"], "", "ada"),
        (["offpath://tenant/ada", "offpath://tenant/bob"], "", None),
        ([], "offpath://tenant/ada", None),
        ([], "", None),
    ],
)
def test_the_names_of_a_certificate_are_read_whole(
    tmp_path: Path, uris: list[str], email: str, tenant: str | None
) -> None:
    certificate, _ = Authority(tmp_path).issue("someone", *uris, email=email)
    assert tenant_of_pem(Path(certificate).read_bytes()) == tenant


@pytest.mark.parametrize("bad", [b"", b"x", b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"])
def test_what_is_no_certificate_names_nobody(bad: bytes) -> None:
    assert tenant_of_pem(bad) is None


def test_a_certificate_that_ends_early_names_nobody_and_costs_no_more(tmp_path: Path) -> None:
    text = Path(Authority(tmp_path).issue("ada", "offpath://tenant/ada")[0]).read_text()
    der = ssl.PEM_cert_to_DER_cert(text)
    for end in range(len(der)):
        assert tenant_of_pem(ssl.DER_cert_to_PEM_cert(der[:end]).encode()) is None
