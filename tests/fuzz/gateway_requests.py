"""The gateway's parsers: heads, compressed bodies, inference requests in HTTP's form and in gRPC's."""

from __future__ import annotations

import gzip
import json
import math
import os
import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from offpath.host_helper.gateway.calls import Call, FromRegion
from offpath.host_helper.gateway.errors import Refused
from offpath.host_helper.gateway.messages import classes
from offpath.host_helper.gateway.models import Model, Spec
from offpath.host_helper.gateway.regions import Regions

from .mutate import Numbers, json_mutation, spoil, text_mutation
from .target import Modules, Target

MODEL = Model(
    "m", 1, "k", (),
    {"x": Spec("x", "FP32", (-1, 3)), "n": Spec("n", "INT8", (2,)), "b": Spec("b", "BOOL", (-1, -1, -1))},
    {"y": Spec("y", "FP32", (-1, 3)), "z": Spec("z", "FP16", (1,))},
)  # fmt: skip
RAW = Model("r", 1, "k", (), {"x": Spec("x", "FP32", (-1, 3))}, {"y": Spec("y", "FP32", (-1, 3))})
REGION_BYTES = 4096
CODINGS = ("gzip", "deflate", "identity", "br", "")
MOST_INFLATED = 100_000
GZIP = partial(gzip.compress, mtime=0)
"""The same bytes at any time of day: a seed names its inputs."""
_NONE, _RAW = -1, 0
"""Header lengths: none was sent; a raw body."""


def targets(m: Modules, folder: str) -> list[Target]:
    (place := os.path.join(folder, "shm")) and os.makedirs(place)
    with open(os.path.join(place, "o"), "wb") as file:
        file.truncate(REGION_BYTES)
    regions = Regions({os.getuid()}, place)
    regions.register("r", "/o", 8, REGION_BYTES - 8)
    return [_head(m), _body(m), _chunks(m), _infer(m, regions), _grpc(m, regions)]


def _head(m: Modules) -> Target:
    def check(data: bytes, numbers: Numbers, got: Any) -> None:
        lines = data.split(b"\r\n\r\n", 1)[0].split(b"\r\n")
        named = [line.partition(b":")[0].lower() for line in lines[1:]]
        assert named.count(b"content-length") + named.count(b"transfer-encoding") <= 1
        assert got.is_chunked == (b"transfer-encoding" in named)
        assert not got.is_chunked or data.split(b" ", 3)[2].startswith(b"HTTP/1.1")
        assert got.headers.get("transfer-encoding", "chunked").lower() == "chunked"
        assert all(line and line[:1] not in b" \t" for line in lines)
        assert got.length == 0 or b"content-length" in named
        assert len(got.headers) <= m.heads.MOST_HEADERS
        assert got.path.startswith("/")

    words = (
        b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":",
        b"Host: y\r\n", b"HTTP/1.0", b"HTTP/1.1", b"GET ", b"POST ", b"PUT ", b"Connection: Upgrade\r\n", b"9" * 17,
        b"Authorization: Bearer x\r\n", b"Expect: 100-continue\r\n", b"X: " + b"y" * 700 + b"\r\n", b"/v2/" * 40,
        b"X-1: 1\r\n" * 70, b"".join(b"Y-%d: 1\r\n" % n for n in range(70)),
    )  # fmt: skip
    text = text_mutation(words)

    def mutate(noise: Any, data: bytes, numbers: Numbers) -> tuple[bytes, Numbers]:
        data, _ = text(noise, data.removesuffix(b"\r\n\r\n"), ())
        return data[: m.heads.MOST_HEAD_BYTES - 4] + b"\r\n\r\n", ()

    return Target(
        "gateway_head", lambda data, _: m.heads.parse(data), (Refused,), check, mutate,
        frozenset({"400", "405", "413", "431", "501", "505"}),
        lambda got: f"{got.method} {got.keeps} {bool(got.length)} {got.is_chunked}",
    )  # fmt: skip


def _body(m: Modules) -> Target:
    """A body in the coding of the number."""

    def run(data: bytes, numbers: Numbers) -> Any:
        return m.bodies.inflate(memoryview(data), CODINGS[numbers[0] % len(CODINGS)], MOST_INFLATED)

    def check(data: bytes, numbers: Numbers, got: Any) -> None:
        coding = CODINGS[numbers[0] % len(CODINGS)]
        assert got.nbytes <= max(MOST_INFLATED, len(data))
        plain = {"gzip": gzip.decompress, "deflate": zlib.decompress}.get(coding, lambda same: same)
        assert plain(data) == got.tobytes()

    def mutate(noise: Any, data: bytes, numbers: Numbers) -> tuple[bytes, Numbers]:
        drawn = noise.random()
        if drawn < 0.4:
            return spoil(noise, data)[:6000], numbers
        plain = noise.randbytes(noise.randrange(200)) * noise.choice((1, 30, 2000))
        pack = noise.choice((GZIP, zlib.compress))
        packed = pack(plain[:300_000], 1)
        if drawn < 0.6:
            packed += noise.choice((packed, b"x", b"\0"))
        elif drawn < 0.7:
            packed = packed[: noise.randrange(len(packed))]
        return packed, (noise.randrange(len(CODINGS)),)

    return Target(
        "gateway_body", run, (Refused,), check, mutate, frozenset({"400", "413", "415"}),
        lambda got: str(got.nbytes.bit_length()),
    )  # fmt: skip


def _chunks(m: Modules) -> Target:
    """A body in chunks, which comes in any pieces."""

    def decoded(data: bytes, step: int) -> tuple[bytes, bytes] | None:
        """The body, and what follows it. None: it is not whole."""
        framing, received, at, body = m.chunks.Chunks(), bytearray(), 0, b""
        for start in range(0, len(data), step):
            received += data[start : start + step]
            while not framing.is_over:
                if framing.left:
                    piece = bytes(received[at : at + framing.left])
                    body += piece
                    framing.took(len(piece))
                    length = len(piece)
                else:
                    length = framing.read(received, at, len(received))
                if not length:
                    break
                at += length
            if framing.is_over:
                return body, bytes(received[at:]) + data[start + step :]
        return None

    def check(data: bytes, numbers: Numbers, got: Any) -> None:
        assert decoded(data, 1) == got
        if got is not None:
            body, rest = got
            assert len(body) + len(rest) + len(b"0\r\n\r\n") <= len(data)
            assert data.endswith(rest)
            assert data[: len(data) - len(rest)].endswith(b"\r\n\r\n")

    words = (
        b"\r\n", b"\n", b"\r", b"0\r\n\r\n", b"0\r\n", b"1\r\nx\r\n", b";a=b", b" ", b"\t", b"-1", b"+1", b"0x1",
        b"f" * 17, b"X: y\r\n", b";" + b"z" * 300, b"\0", b"1;" + b"y" * 254 + b"\r\n", b"X: y\r\n" * 65,
    )  # fmt: skip
    text = text_mutation(words)

    def mutate(noise: Any, data: bytes, numbers: Numbers) -> tuple[bytes, Numbers]:
        if noise.random() < 0.5:
            return text(noise, data, ())[0][:3000], ()
        pieces = [noise.randbytes(noise.randrange(1, 40)) for _ in range(noise.randrange(6))]
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        return (chunks + b"0\r\n\r\n" + noise.choice((b"", b"POST /")))[: noise.choice((3000, 20))], ()

    return Target(
        "gateway_chunks", lambda data, _: decoded(data, max(len(data), 1)), (Refused,), check, mutate,
        frozenset({"400"}), lambda got: "part" if got is None else str(len(got[0]).bit_length()),
    )  # fmt: skip


def check_call(call: Call, regions: Regions) -> None:
    """Every tensor is as long as its dims say and inside what was given; nothing stays borrowed."""
    model = call.model
    assert len(call.arrays) == len(model.inputs)
    for array, spec in zip(call.arrays, model.inputs.values(), strict=True):
        assert len(array.shape) == len(spec.shape)
        assert all(want in (-1, dim) for dim, want in zip(array.shape, spec.shape, strict=True))
        assert array.nbytes == math.prod(array.shape) * array.dtype.itemsize
        if isinstance(array, FromRegion):
            assert 8 <= array.at <= array.at + array.nbytes <= REGION_BYTES
            array.read_into(memoryview(bytearray(array.nbytes)))
        else:
            assert isinstance(array, np.ndarray)
    assert {wanted.name for wanted in call.wanted} <= model.outputs.keys()
    assert len({wanted.name for wanted in call.wanted}) == len(call.wanted)
    for wanted in call.wanted:
        assert wanted.region is None or 8 <= wanted.at <= wanted.at + wanted.nbytes <= REGION_BYTES
    assert 0 <= call.options.priority <= 255
    assert (call.timeout_s is None) == (call.options.budget_ms == 0)
    call.end()
    assert regions._by_name["r"].users == 0


def _infer(m: Modules, regions: Regions) -> Target:
    """A body; the number is the length of its header."""

    def run(data: bytes, numbers: Numbers) -> Any:
        regions._by_name["r"].users = 0  # a run that only takes the time does not end its call
        length = None if numbers[0] == _NONE else str(numbers[0])
        return m.inference.parse(memoryview(data), length).call(RAW if numbers[0] == _RAW else MODEL, regions)

    def check(data: bytes, numbers: Numbers, got: Any) -> None:
        check_call(got, regions)
        if numbers[0] > 0:
            given = [each.get("parameters", {}) for each in json.loads(data[: numbers[0]])["inputs"]]
            in_bytes = [one for one in given if "binary_data_size" in one and one.get("shared_memory_region") is None]
            sizes = [one["binary_data_size"] for one in in_bytes]
            assert sum(sizes) == len(data) - numbers[0], "bytes of no tensor were passed over"

    names = (
        "inputs", "outputs", "parameters", "name", "datatype", "shape", "data", "id", "binary_data_size", "binary_data",
        "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset", "classification", "priority",
        "timeout",
        "binary_data_output", "sequence_id", "x", "n", "b", "y", "z",
    )  # fmt: skip
    spoilt_json = json_mutation((), names)

    def mutate(noise: Any, data: bytes, numbers: Numbers) -> tuple[bytes, Numbers]:
        length = numbers[0]
        if length == _RAW:
            return spoil(noise, data)[:6000], (noise.choice((_RAW, _RAW, _NONE, 1, 9999)),)
        cut = len(data) if length == _NONE else max(min(length, len(data)), 0)
        header, _ = spoilt_json(noise, data[:cut], ())
        binary = data[cut:]
        if noise.random() < 0.2:
            binary = spoil(noise, binary)[:6000] if binary else noise.randbytes(noise.choice((1, 12, 24)))
        told = len(header) if length != _NONE else _NONE
        if noise.random() < 0.05:
            told = noise.choice((_NONE, _RAW, 1, len(header) - 1, len(header) + 1, 1 << 40))
        return header + binary, (told,)

    return Target(
        "gateway_infer", run, (Refused,), check, mutate, frozenset({"400", "404", "500", "501"}),
        lambda got: f"{[type(array).__name__ for array in got.arrays]} {len(got.wanted)} {bool(got.id)}",
    )  # fmt: skip


def _grpc(m: Modules, regions: Regions) -> Target:
    """A ``ModelInferRequest`` in protobuf's form."""

    def run(data: bytes, numbers: Numbers) -> Any:
        regions._by_name["r"].users = 0
        request = m.grpc_requests.received(data)
        if isinstance(request, m.grpc_requests.Long):
            m.grpc_requests.check_tensors(data)
            request = classes().ModelInferRequest.FromString(data)
        return m.grpc_calls.read(request, None).call(MODEL, regions)

    def check(data: bytes, numbers: Numbers, got: Any) -> None:
        check_call(got, regions)
        request = classes().ModelInferRequest.FromString(data)
        by_bytes = [each for each in request.inputs if not _has_region(each)]
        assert len(request.raw_input_contents) in (0, len(by_bytes)), "bytes of no tensor were passed over"

    words = text_mutation(
        (b"\x0a", b"\x12", b"\x1a", b"\x22", b"\x2a", b"\x3a", b"x", b"FP32", b"INT8", b"BOOL", b"r", b"\xff" * 10,
         b"\0",
         b"shared_memory_region", b"shared_memory_byte_size", b"classification", b"timeout", b"\x01", b"\x18\x03")
    )  # fmt: skip

    def mutate(noise: Any, data: bytes, numbers: Numbers) -> tuple[bytes, Numbers]:
        if noise.random() < 0.5:
            return words(noise, data, ())
        request = classes().ModelInferRequest()
        try:
            request.ParseFromString(data)
        except DecodeError:
            return words(noise, data, ())
        _change(noise, request)
        return request.SerializeToString(), ()

    return Target(
        "gateway_grpc", run, (Refused,), check, mutate, frozenset({"400", "404", "501"}),
        lambda got: f"{[type(array).__name__ for array in got.arrays]} {len(got.wanted)} {bool(got.id)}",
    )  # fmt: skip


def _has_region(tensor: Any) -> bool:
    key = "shared_memory_region"
    return key in tensor.parameters and tensor.parameters[key].WhichOneof("parameter_choice") is not None


def _change(noise: Any, request: Any) -> None:
    """One field of the message."""
    drawn = noise.randrange(8)
    if drawn == 0 and request.inputs:
        del request.inputs[noise.randrange(len(request.inputs))]
    elif drawn == 1 and request.inputs:
        tensor = noise.choice(request.inputs)
        tensor.shape.append(noise.choice((-1, 0, 1, 3, 1 << 40, (1 << 46) - 1)))
    elif drawn == 2 and request.inputs:
        tensor = noise.choice(request.inputs)
        tensor.datatype = noise.choice(("FP32", "INT8", "BOOL", "FP16", "BYTES", ""))
    elif drawn == 3 and request.raw_input_contents:
        del request.raw_input_contents[noise.randrange(len(request.raw_input_contents))]
    elif drawn == 4:
        request.raw_input_contents.append(noise.randbytes(noise.choice((0, 1, 2, 12))))
    elif drawn == 5 and request.inputs:
        _in_region(noise, noise.choice(request.inputs))
    elif drawn == 6:
        output = request.outputs.add(name=noise.choice(("y", "z", "w")))
        if noise.random() < 0.5:
            _in_region(noise, output)
    else:
        key = noise.choice(("priority", "timeout", "sequence_id", "other"))
        request.parameters[key].int64_param = noise.choice((0, 1, 5, -1, 1 << 40))


def _in_region(noise: Any, tensor: Any) -> None:
    tensor.parameters["shared_memory_region"].string_param = noise.choice(("r", "r", "q"))
    tensor.parameters["shared_memory_byte_size"].int64_param = noise.choice((0, 2, 12, 24, REGION_BYTES, -1))
    tensor.parameters["shared_memory_offset"].int64_param = noise.choice((0, 1, REGION_BYTES - 20, 1 << 40, -1))


# -- hand-made cases ----------------------------------------------------------------------------------------------
def plain(name: str) -> Iterator[tuple[Any, ...]]:
    """Of the target ``name``."""
    if name == "gateway_head":
        for line in (b"GET /v2 HTTP/1.1", b"POST /v2/models/m/infer HTTP/1.1", b"GET /v2 HTTP/1.0", b"PUT /v2 HTTP/1.1",
                     b"GET /v2 HTTP/2.0"):  # fmt: skip
            yield (line + b"\r\nHost: x\r\n\r\n",)
            yield (line + b"\r\nHost: x\r\nContent-Length: 12\r\nAuthorization: Bearer t\r\n\r\n",)
        for header in (b"Transfer-Encoding: chunked", b"Content-Length: 99999999999999", b"X-1: y\r\n" * 65 + b"X: y"):
            yield (b"POST /v2 HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n",)
    elif name == "gateway_body":
        for number, pack in ((0, GZIP), (1, zlib.compress)):
            for data in (b"", b"abc", bytes(MOST_INFLATED), bytes(MOST_INFLATED + 1)):
                yield pack(data), number
        yield from ((b"abc", number) for number in (2, 3, 4))
    elif name == "gateway_infer":
        yield from _plain_infer()
    else:
        yield from ((request.SerializeToString(),) for request in _plain_grpc())


def _tensors(**more: Any) -> list[dict[str, Any]]:
    return [
        {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2.5, 3], **more},
        {"name": "n", "datatype": "INT8", "shape": [2], "data": [[-128], [127]]},
        {"name": "b", "datatype": "BOOL", "shape": [0, 1, 1], "data": []},
    ]


def _plain_infer() -> Iterator[tuple[bytes, int]]:
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 12}
    wanted = [{"name": "y", "parameters": {**region, "shared_memory_offset": 100}}, {"name": "z"}]
    whole = {"id": "1", "inputs": _tensors(), "outputs": wanted, "parameters": {"priority": 1, "timeout": 5000}}
    in_region = _tensors(parameters=region)
    in_bytes = _tensors(parameters={"binary_data_size": 12})
    for header in (
        whole, {"inputs": _tensors()}, {"inputs": in_region}, {"inputs": _tensors()[:1]}, {}, [],
        {"inputs": _tensors(), "parameters": {"sequence_id": 1}},
        {"inputs": _tensors(parameters={**region, "shared_memory_region": "q"})},
    ):  # fmt: skip
        yield json.dumps(header).encode(), _NONE
    text = json.dumps({"inputs": in_bytes, "parameters": {"binary_data_output": True}}).encode()
    yield from ((text + bytes(12), len(text)), (text + bytes(11), len(text)), (text + bytes(13), len(text)))
    yield from ((bytes(24), _RAW), (bytes(25), _RAW), (b"{", _NONE), (b"", _NONE), (b"{}", 9999))


def _plain_grpc() -> Iterator[Any]:
    def whole() -> Any:
        request = classes().ModelInferRequest(model_name="m", id="1")
        request.inputs.add(name="x", datatype="FP32", shape=[1, 3])
        request.inputs.add(name="n", datatype="INT8", shape=[2])
        request.inputs.add(name="b", datatype="BOOL", shape=[0, 1, 1])
        request.raw_input_contents.extend([bytes(12), bytes(2), b""])
        return request

    yield whole()
    (request := whole()).outputs.add(name="y").parameters["shared_memory_region"].string_param = "r"
    request.outputs[0].parameters["shared_memory_byte_size"].int64_param = 12
    request.parameters["timeout"].int64_param = 5000
    yield request
    (request := whole()).inputs[0].parameters["shared_memory_region"].string_param = "q"
    request.inputs[0].parameters["shared_memory_byte_size"].int64_param = 12
    yield request
    (request := whole()).parameters["sequence_id"].int64_param = 1
    yield request
    request = classes().ModelInferRequest(model_name="m")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 3]).contents.fp32_contents.extend([1, 2, 3])
    request.inputs.add(name="n", datatype="INT8", shape=[2]).contents.int_contents.extend([1, -128])
    request.inputs.add(name="b", datatype="BOOL", shape=[2, 1, 1]).contents.bool_contents.extend([True, False])
    yield request
    yield classes().ModelInferRequest()
