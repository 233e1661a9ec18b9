"""One range for each field over all schemas: what one message may say, no other refuses of the same thing."""

from __future__ import annotations

import struct
import types
import typing
from collections import defaultdict
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

import annotated_types
import pytest
from pydantic import BaseModel

from offpath.bindings.wire import admin, cluster, control, fields, header, host, ina_admin, negotiating

Range = tuple[int | None, int | None]
MODULES: Final = (control, negotiating, admin, ina_admin, cluster)
OTHER_MEANING: Final = {
    "admin.JobLine.demand": "of a request, as its header has it: 0 takes the kernel's, beyond 100 it is refused",
    "negotiating.Resume.unanswered": "request ids; elsewhere a count",
    "admin.StartLine.leases": "numbers of leases; elsewhere a count",
    "control.InstanceHeld.lanes": "numbers of lanes; elsewhere a count",
    "ina_admin.InaJobLine.ranks_per_host": "0 of a job that was seen and not submitted",
}
"""Fields that share their name with another quantity."""
STRUCTS: Final[dict[str, tuple[struct.Struct, str]]] = {
    "request": (
        header._REQUEST,
        "magic version flags request_id kernel_id R priority tensors budget_ms payload_crc payload_bytes "
        "sequence_id crc",
    ),
    "answer": (
        header._ANSWER,
        "magic version flags request_id status tensors reason retry_after_ms lease gpu result_bytes "
        "queued copy launch kernel back total generation number batch_rows batch crc",
    ),
    "launch": (host._LAUNCH, "kind flags tensors adds kernel_id job generation payload_crc R zero payload_bytes"),
    "result": (
        host._RESULT, "kind status tensors inline number started_ns finished_ns job generation result_bytes"
    ),
}  # fmt: skip
"""Names in the order of the struct's items; only those that a message has too are compared."""
NOT_ZERO: Final = {"request_id"}
"""The parser refuses 0, which a struct cannot say."""
OTHER_STRUCT_MEANING: Final = {"version": "of the header format", "queued": "a time in ns", "number": "in a stream"}
BITS: Final = {"B": 8, "H": 16, "I": 32, "Q": 64}


def integers(hint: Any, metadata: tuple[Any, ...] = ()) -> Iterator[Range]:
    """The ranges of all integers inside a type."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        yield from integers(inside[0], inside[1:])
    elif hint is int:
        marks = [mark for one in metadata for mark in getattr(one, "metadata", [one])]
        low = [mark.ge for mark in marks if isinstance(mark, annotated_types.Ge)]
        high = [mark.le for mark in marks if isinstance(mark, annotated_types.Le)]
        yield (low or [None])[0], (high or [None])[0]
    elif origin not in (None, typing.Literal, typing.ClassVar):
        for one in inside:
            yield from integers(one)


def models(module: ModuleType) -> Iterator[type[BaseModel]]:
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == module.__name__:
            yield value


def integer_fields() -> Iterator[tuple[str, Range]]:
    """Every integer of every message: module.Model.field and its range."""
    for module in MODULES:
        for model in models(module):
            for name, hint in typing.get_type_hints(model, include_extras=True).items():
                for found in integers(hint):
                    yield f"{module.__name__.rpartition('.')[2]}.{model.__name__}.{name}", found


def items(name: str) -> Iterator[tuple[str, Range]]:
    """The items of a struct, by name."""
    layout, names = STRUCTS[name]
    codes: list[str] = []
    count = ""
    for code in layout.format[1:]:
        if code.isdigit():
            count += code
            continue
        codes += [code] * int(count or 1) if code != "x" else []
        count = ""
    for item, code in zip(names.split(), codes, strict=True):
        yield item, (1 if item in NOT_ZERO else 0, (1 << BITS[code]) - 1)


def test_every_integer_of_every_message_has_a_range_of_at_most_64_bits() -> None:
    found = list(integer_fields())
    assert len(found) > 150, "the walk finds the messages"
    assert [name for name, (low, high) in found if low is None or high is None] == []
    assert [name for name, (low, high) in found if not 0 <= low <= high < 1 << 64] == []  # type: ignore[operator]


def test_fields_of_one_name_have_one_range() -> None:
    ranges: dict[str, dict[Range, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path, found in integer_fields():
        if path not in OTHER_MEANING:
            ranges[path.rpartition(".")[2]][found].append(path)
    assert {name: dict(found) for name, found in ranges.items() if len(found) > 1} == {}
    assert OTHER_MEANING.keys() <= {path for path, _ in integer_fields()}


@pytest.mark.parametrize("name", STRUCTS)
def test_what_a_struct_can_say_a_message_can_say(name: str) -> None:
    of_messages = {path.rpartition(".")[2]: found for path, found in integer_fields() if path not in OTHER_MEANING}
    compared = {item: found for item, found in items(name) if item in of_messages and item not in OTHER_STRUCT_MEANING}
    assert len(compared) >= 3
    assert {item: of_messages[item] for item in compared} == compared


def test_the_demand_of_a_request_is_what_its_header_can_say() -> None:
    header_says = dict(items("request"))["R"]
    assert dict(integer_fields())["admin.JobLine.demand"] == header_says == dict(items("launch"))["R"]


def test_the_walk_sees_into_unions_lists_and_mappings() -> None:
    class Sample(BaseModel):
        maybe: fields.U16 | None = None
        many: list[fields.U32]
        named: dict[str, fields.U64 | str]
        bare: int

    module = types.ModuleType(Sample.__module__)
    vars(module)["Sample"] = Sample
    (model,) = models(module)
    hints = typing.get_type_hints(model, {"fields": fields}, include_extras=True)
    found = {name: list(integers(hint)) for name, hint in hints.items() if name in model.model_fields}
    assert found == {
        "maybe": [(0, 0xFFFF)], "many": [(0, 0xFFFF_FFFF)], "named": [(0, (1 << 64) - 1)], "bare": [(None, None)]
    }  # fmt: skip
