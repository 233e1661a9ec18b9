"""docs/protocol.md and its pages cannot rot: their tables are held against structs, enumerations, models, constants.

A table is checked when an HTML comment above it says how: ``<!-- check: KIND ARGUMENT -->``.
"""

from __future__ import annotations

import importlib
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from offpath.bindings import ports
from offpath.bindings.ina import frames as ina
from offpath.bindings.ina import packets
from offpath.bindings.loopback import fabric
from offpath.bindings.wire import admin, codes, control, fields, header, host, negotiating, regions, signatures

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "docs" / "protocol.md", *sorted((ROOT / "docs" / "protocol").glob("*.md"))]
DOC = "\n".join(page.read_text("utf-8") for page in PAGES)
Row = dict[str, str]


def parse_tables(text: str) -> dict[str, list[Row]]:
    """Every checked table by the words of its comment, rows as {column: cell} without back-quotes."""
    found: dict[str, list[Row]] = {}
    for match in re.finditer(r"<!-- check: (.+?) -->\n+((?:\|.*\n)+)", text):
        lines = [
            [cell.strip().replace("`", "") for cell in line.strip()[1:-1].split("|")] for line in match[2].splitlines()
        ]
        assert match[1] not in found, f"two tables say {match[1]}"
        assert all(len(line) == len(lines[0]) for line in lines), f"ragged table under {match[1]}"
        found[match[1]] = [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]
    return found


TABLES = parse_tables(DOC)


def layout(fmt: str) -> list[tuple[int, int]]:
    """(offset, size) of each field of a little-endian struct; ``84x`` is one field, ``6Q`` is six."""
    assert fmt[0] == "<"
    at, fields = 0, []
    for count, code in re.findall(r"(\d*)([a-zA-Z])", fmt[1:]):
        one = struct.calcsize("<" + count + code) if code == "x" else struct.calcsize("<" + code)
        for _ in range(1 if code == "x" else int(count or 1)):
            fields.append((at, one))
            at += one
    assert at == struct.calcsize(fmt)
    return fields


def pattern(offset: int, size: int) -> bytes:
    """Bytes that tell where they lie."""
    return bytes((7 * offset + n) % 251 + 1 for n in range(size))


def number(offset: int, size: int) -> int:
    return int.from_bytes(pattern(offset, size), "little")


# How to make each struct with one named field set: the doc's names are the parameters' names.
def make_request(name: str, value: int) -> bytes:
    given = {"request_id": 1, "kernel_id": 0, "payload_bytes": 0, name: value}
    return header.pack_request(**given)  # type: ignore[arg-type]


def make_answer(name: str, value: int) -> bytes:
    stages = tuple(value if name == f"stages.{stage}" else 0 for stage in header.Stages._fields)
    given: dict[str, Any] = {"request_id": 0, "status": 0, "stages": stages}
    if not name.startswith("stages."):
        given[name] = value
    return header.pack_answer(**given)


def make_tensor(name: str, value: int) -> bytes:
    if name.startswith("dims["):
        dims = tuple(value if n == int(name[5]) else 0 for n in range(header.MAX_DIMS))
        return header.pack_tensors([header.Tensor(1, dims, 0, 0)])
    if name == "ndim":
        return header.pack_tensors([header.Tensor(1, (0,) * 5, 0, 0)])
    return header.pack_tensors([header.Tensor(**{"dtype": 1, "dims": (), "offset": 0, "nbytes": 0, name: value})])


def make_launch(name: str, value: int) -> bytes:
    names = ("job", "generation", "kernel_id", "demand", "flags", "payload_crc", "payload_bytes")
    assert name in (*names, "adds")
    sequence = int(name == "adds")
    return host.pack_launch(*(value if each == name else 0 for each in names), b"", sequence, sequence)


def make_result(name: str, value: int) -> bytes:
    names = ("job", "generation", "status", "started_ns", "finished_ns", "result_bytes", "is_inline", "number")
    assert name in names
    *given, last = [value if each == name else 0 for each in names]
    return host.pack_result(*given, b"", b"", last)  # type: ignore[arg-type]


def make_proceed(name: str, value: int) -> bytes:
    names = ("job", "generation", "number", "is_stop")
    assert name in names
    return host.pack_proceed(*(value if each == name else 0 for each in names))  # type: ignore[arg-type]


def make_geometry(name: str, value: int) -> bytes:
    names = ("slots", "payload_bytes", "result_bytes")
    assert name in names
    return fabric._GEOMETRY.pack(*(value if each == name else 0 for each in names))


def make_region_copy(name: str, value: int) -> bytes:
    return regions.pack_copy(**{each: value if each == name else 0 for each in regions.RegionCopy._fields})


def make_region_offer(name: str, value: int) -> bytes:
    return regions.pack_region(**{each: value if each == name else 0 for each in regions.RegionOffer._fields})


def make_region_drop(name: str, value: int) -> bytes:
    return regions.pack_drop(**{name: value})


def make_packet(name: str, value: int) -> bytes:
    names = ("job", "psn", "workers", "bitmap", "hash")
    assert name in names
    given: dict[str, Any] = {"job": 0, name: value}
    return packets.pack(packets.Packet(packets.PacketKind.DATA, **given))[4:]


STRUCTS: dict[str, tuple[struct.Struct, Callable[[str, int], bytes]]] = {
    "request": (header._REQUEST, make_request),
    "answer": (header._ANSWER, make_answer),
    "tensor": (header._TENSOR, make_tensor),
    "launch": (host._LAUNCH, make_launch),
    "result": (host._RESULT, make_result),
    "proceed": (host._PROCEED, make_proceed),
    "region_copy": (regions._COPY, make_region_copy),
    "region_offer": (regions._REGION, make_region_offer),
    "region_drop": (regions._DROP, make_region_drop),
    "geometry": (fabric._GEOMETRY, make_geometry),
    "packet": (packets._HEAD, make_packet),
}
# fields that the packer fills itself: name -> bytes
FIXED: dict[tuple[str, str], bytes] = {
    ("request", "magic"): b"OFRQ",
    ("request", "version"): b"\2\0",
    ("answer", "magic"): b"OFAS",
    ("answer", "version"): b"\2\0",
    ("tensor", "ndim"): b"\5",
    ("launch", "kind"): b"\1",
    ("result", "kind"): b"\2",
    ("proceed", "kind"): b"\6",
    ("region_copy", "kind"): b"\3",
    ("region_offer", "kind"): b"\4",
    ("region_drop", "kind"): b"\5",
    ("packet", "kind"): b"\5",
    ("packet", "version"): b"\1",
    ("packet", "flags"): b"\0\0",
}


@pytest.mark.parametrize("name", STRUCTS)
def test_offsets_and_sizes_are_the_structs(name: str) -> None:
    packer, _ = STRUCTS[name]
    documented = [(int(row["offset"]), int(row["size"])) for row in TABLES[f"struct {name}"]]
    assert documented == layout(packer.format)


@pytest.mark.parametrize("name", STRUCTS)
def test_each_named_field_lies_where_the_table_says(name: str) -> None:
    """Packing a telling value puts exactly these bytes there, and moves no other named field."""
    _, make = STRUCTS[name]
    for row in TABLES[f"struct {name}"]:
        field, offset, size = row["field"], int(row["offset"]), int(row["size"])
        if (name, field) in FIXED:
            made = make("ndim", 0) if field == "ndim" else make(next(iter(first_named(name))), 1)
            assert made[offset : offset + size] == FIXED[name, field]
        elif field in ("reserved", "crc", "tensor_count"):
            continue
        elif size == 1 and field in ("is_inline", "is_writable", "adds", "is_stop"):
            assert make(field, 1)[offset] == 1
        else:
            assert make(field, number(offset, size))[offset : offset + size] == pattern(offset, size), field


def first_named(name: str) -> list[str]:
    skip = {
        "magic", "version", "reserved", "crc", "tensor_count", "kind", "ndim", "flags", "is_inline", "is_writable",
        "adds", "is_stop",
    }  # fmt: skip
    return [row["field"] for row in TABLES[f"struct {name}"] if row["field"] not in skip]


@pytest.mark.parametrize("name", ["request", "answer", "launch", "result"])
def test_the_tensor_count_lies_where_the_table_says(name: str) -> None:
    (at,) = [int(row["offset"]) for row in TABLES[f"struct {name}"] if row["field"] == "tensor_count"]
    described = bytes(5 * header.TENSOR_BYTES)
    made = {
        "request": lambda: header.pack_request(request_id=1, kernel_id=0, payload_bytes=0, tensors=described),
        "answer": lambda: header.pack_answer(request_id=1, status=1, tensors=described),
        "launch": lambda: host.pack_launch(0, 0, 0, 0, 0, 0, 0, described),
        "result": lambda: host.pack_result(0, 0, 0, 0, 0, 0, False, described, b""),
    }[name]()
    assert made[at] == 5


@pytest.mark.parametrize("name", ["request", "answer"])
def test_the_checksum_is_the_last_field_of_the_fixed_part(name: str) -> None:
    last = TABLES[f"struct {name}"][-1]
    assert (last["field"], int(last["offset"]), int(last["size"])) == ("crc", header.FIXED_BYTES - 4, 4)


@pytest.mark.parametrize("enum", [codes.Status, codes.Reason])
def test_statuses_and_reasons_are_the_enumerations(enum: Any) -> None:
    documented = {int(row["number"]): row["name"] for row in TABLES[f"enum {enum.__name__}"]}
    assert documented == {member.value: member.name for member in enum}


@pytest.mark.parametrize("enum", [ina.Kind, ina.Reason])
def test_kinds_and_reasons_of_the_fabric_are_the_enumerations(enum: Any) -> None:
    documented = {int(row["number"]): row["name"] for row in TABLES[f"enum Ina{enum.__name__}"]}
    assert documented == {member.value: member.name for member in enum}


@pytest.mark.parametrize("enum", [packets.PacketKind, packets.Flag, packets.Refusal])
def test_kinds_flags_and_refusals_of_statistical_ina_are_the_enumerations(enum: Any) -> None:
    documented = {int(row["number"]): row["name"] for row in TABLES[f"enum {enum.__name__}"]}
    assert documented == {member.value: member.name for member in enum}


def test_dtypes_are_the_table_of_the_code() -> None:
    documented = {int(row["number"]): (row["name"], int(row["element bytes"])) for row in TABLES["dtypes"]}
    assert documented == header.DTYPES


_REQUEST_FLAGS = (
    "FLAG_IDEMPOTENT", "FLAG_PAYLOAD_CRC", "FLAG_STREAM", "FLAG_SEQUENCE_START", "FLAG_SEQUENCE_END",
    "FLAG_PARAMETERS",
)  # fmt: skip
CONSTANTS = {
    "immediates": {name: getattr(ports, name) for name in ("IMM_SUBMIT", "IMM_CREDIT", "IMM_CANCEL", "IMM_NEXT")},
    "request flags": {name: getattr(header, name) for name in _REQUEST_FLAGS},
    "answer flags": {"FLAG_MORE": header.FLAG_MORE},
    "result statuses": {
        name: value for name, value in vars(host).items() if name.startswith("RESULT_") and name != "RESULT_BYTES"
    },
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_small_enumerations_are_the_constants(name: str) -> None:
    assert {row["name"]: int(row["number"]) for row in TABLES[f"constants {name}"]} == CONSTANTS[name]


def test_limits_are_the_constants_they_name() -> None:
    rows = TABLES["limits"]
    assert len(rows) >= 10
    for row in rows:
        module, _, name = row["constant"].rpartition(".")
        actual = getattr(importlib.import_module(f"offpath.bindings.{module}"), name)
        assert int(row["value"].replace(" ", "")) == actual, row["constant"]


ERRORS = (
    "HeaderError",
    "HostMessageError",
    "ControlError",
    "FrameError",
    "DoorbellError",
    "InaFrameError",
    "PacketError",
)


@pytest.mark.parametrize("error", ERRORS)
def test_error_codes_are_those_the_code_raises(error: str) -> None:
    raised = set()
    for path in (ROOT / "bindings" / "offpath" / "bindings").rglob("*.py"):
        raised |= set(re.findall(rf'\b{error}\(\s*"([a-z_]+)"', path.read_text("utf-8")))
    assert raised
    assert {row["code"] for row in TABLES[f"codes {error}"]} == raised


@pytest.mark.parametrize("name", ["request", "answer", "tensor"])
def test_every_code_a_header_table_names_is_a_header_error(name: str) -> None:
    known = {row["code"] for row in TABLES["codes HeaderError"]}
    named = {code for row in TABLES[f"struct {name}"] for code in re.findall(r"[a-z_]+", row["code"])}
    assert named <= known
    assert named


DIRECTIONS = {
    "ToDaemon": negotiating.ToDaemon,
    "ToRequester": negotiating.ToRequester,
    "HostToDaemon": control.HostToDaemon,
    "DaemonToHost": control.DaemonToHost,
    "ToAdmin": admin.ToAdmin,
    "FromAdmin": admin.FromAdmin,
}


def message_models(union: Any) -> list[type[BaseModel]]:
    return list(get_args(get_args(union)[0]))


RECORDS = [
    model
    for module in (control, negotiating, admin, signatures)
    for model in vars(module).values()
    if isinstance(model, type) and issubclass(model, module._Message) and model is not module._Message
]


def type_text(schema: dict[str, Any]) -> str:
    """A JSON schema's type in the doc's words."""
    if "$ref" in schema:
        return str(schema["$ref"].rsplit("/", 1)[1])
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        if schema["enum"] == list(range(200, 1_700, 100)):
            return "200, 300 … 1600"
        return " or ".join(json.dumps(each) for each in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(type_text(each) for each in schema["anyOf"])
    kind = schema.get("type", "any")
    if kind == "integer":
        bounds = (schema.get("minimum"), schema.get("maximum"))
        short = {(0, 2**bits - 1): f"u{bits}" for bits in (8, 16, 32, 64)}
        short |= {(1, 2**64 - 1): "u64 from 1", (None, None): "integer"}
        return short.get(bounds, f"integer {bounds[0]}..{bounds[1]}")
    if kind == "array":
        inner, low, high = type_text(schema["items"]), schema.get("minItems", 0), schema.get("maxItems")
        return f"list of {inner}" + (f", {low}..{high}" if high is not None else "")
    if kind == "object":
        inner = schema.get("additionalProperties", True)
        return "object" + (f" of {type_text(inner)}" if isinstance(inner, dict) else "")
    if kind == "string" and "pattern" in schema:
        token = "TenantToken" if "x20" in schema["pattern"] else "Token"
        names = {32: "HelperName", 64: "Name", 97: "GpuIdentity", 256: token, fields.MAX_PART_CHARACTERS: "Part"}
        return names[schema["maxLength"]]
    if kind == "string":
        return f"string ≤ {schema['maxLength']}" if "maxLength" in schema else "string"
    return str(kind)


def expected_fields(model: type[BaseModel]) -> list[tuple[str, str, str]]:
    """(field, type, default) as the doc prints them."""
    schema = model.model_json_schema()
    required = schema.get("required", ())
    return [
        (name, type_text(each), "" if name in required else json.dumps(each.get("default")))
        for name, each in schema["properties"].items()
    ]


@pytest.mark.parametrize("model", RECORDS, ids=lambda model: model.__name__)
def test_fields_of_control_messages_are_the_models(model: type[BaseModel]) -> None:
    documented = [(row["field"], row["type"], row["default"]) for row in TABLES[f"message {model.__name__}"]]
    assert documented == expected_fields(model)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_directions_list_their_messages(direction: str) -> None:
    documented = [(row["kind"], row["model"]) for row in TABLES[f"direction {direction}"]]
    models = message_models(DIRECTIONS[direction])
    assert documented == [(model.model_fields["kind"].default, model.__name__) for model in models]


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        (fields.Name, "Name"),
        (fields.HelperName, "HelperName"),
        (fields.GpuIdentity, "GpuIdentity"),
        (fields.Token, "Token"),
        (fields.TenantToken, "TenantToken"),
        (fields.Part, "Part"),
    ],
)
def test_the_patterns_of_names_and_tokens_are_quoted(alias: Any, name: str) -> None:
    rule = get_args(alias)[1]
    assert f"`{name}`: {rule.min_length} to {rule.max_length} characters, `{rule.pattern}`" in DOC


def test_every_checked_table_is_looked_at() -> None:
    looked_at = {f"struct {name}" for name in STRUCTS}
    looked_at |= {"enum Status", "enum Reason", "enum InaKind", "enum InaReason", "dtypes", "limits"}
    looked_at |= {"enum PacketKind", "enum Flag", "enum Refusal"}
    looked_at |= {f"constants {name}" for name in CONSTANTS} | {f"codes {error}" for error in ERRORS}
    looked_at |= {f"message {model.__name__}" for model in RECORDS} | {f"direction {name}" for name in DIRECTIONS}
    assert set(TABLES) == looked_at


def test_ticket_redemption_says_the_words_of_the_code() -> None:
    assert f'`"{fabric._TAKEN.decode()}"`' in DOC
    assert f'`"{fabric._REFUSED.decode()}"`' in DOC


def test_every_page_is_short_enough_to_read_and_the_first_one_leads_to_it() -> None:
    for page in PAGES:
        assert len(page.read_text("utf-8").splitlines()) <= 400, page
    assert [page.name for page in PAGES[1:] if f"](protocol/{page.name})" not in PAGES[0].read_text("utf-8")] == []
