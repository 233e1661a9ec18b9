"""Each C function of the request path agrees with its Python twin, on a million mutated inputs each in a full run."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.bindings import native, twins
from offpath.bindings.wire.header import RequestHeader, Tensor, pack_request, pack_tensors
from offpath.dpu_daemon.durability.journal import native as journal

from ...sizes import sized
from ...support.evidence import keep
from .built import compiled, loaded
from .sweep import PARTS, compare, outcome

INPUTS = sized(quick=5_000, fast=5_000, slow=20_000, full=1_000_000)
SEED = 20_261_123
HEADER_CODES = {
    "magic", "version", "too_many_tensors", "crc", "reserved", "dtype", "dims", "tensor_bytes", "tensor_bounds",
    "tensor_alignment", "short",
}  # fmt: skip
REACHED = {
    "requests": HEADER_CODES | {"flags", "payload_bytes", "request_id", "sequence_id"},
    "answers": HEADER_CODES | {"result_bytes", "status"},
    "launches": {"launch", "length", "short"},
    "results": {"result", "length", "short", "inline_length"},
    "packed_requests": {"error", "TypeError"},
    "packed_answers": {"error", "TypeError"},
    "copies": {"returned True", "returned False"},
    "records": {"error"},
    "bells": {"returned True", "returned False", "returned None", "9", "32", "104"},
}
"""The outcomes that the inputs of a part must reach, beside a result: errors by code, of sockets by errno."""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Built without a warning, also by the compiler's stricter ones."""
    from .built import STRICT

    return loaded(compiled(tmp_path_factory.mktemp("path"), *STRICT))


@pytest.mark.not_fast("it makes records of wrong types, which a compiled class refuses")
@pytest.mark.parametrize("part", PARTS)
def test_c_and_python_agree_on_mutated_inputs(part: str, module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    seen = compare(module, part, INPUTS, SEED)
    with capsys.disabled():
        keep(f"path-{part}.txt", f"\n{part}: {seen.total()} inputs, {json.dumps(dict(seen.most_common()))}")
    assert seen.total() == INPUTS
    assert missing(part, seen) == set()
    assert sum(count for how, count in seen.items() if how.startswith("returned")) > INPUTS / 20


def missing(part: str, seen: Counter[str]) -> set[str]:
    return REACHED[part] - seen.keys()


def test_the_sweep_covers_every_function_of_the_module(module: Any) -> None:
    functions = {name for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
    swept = {
        "take_request", "parse_answer", "parse_launch", "parse_result", "pack_request", "pack_answer", "copy", "record",
        "ring", "receive", "receive_message", "wait", "spin",
    }  # fmt: skip
    assert functions - {"configure", "configure_journal"} == swept


def test_the_module_is_written_for_the_formats_of_its_twins(module: Any) -> None:
    assert module.LAYOUT == twins.LAYOUT
    assert module.JOURNAL_LAYOUT == journal.LAYOUT


@given(
    st.integers(1, (1 << 64) - 1), st.integers(0, (1 << 32) - 1), st.integers(0, 1 << 40), st.integers(0, 3),
    st.lists(st.tuples(st.sampled_from((1, 3, 5, 7)), st.lists(st.integers(0, 9), max_size=6)), max_size=8),
    st.integers(0, (1 << 16) - 1), st.integers(0, 255), st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1),
)  # fmt: skip
def test_what_c_packs_c_takes(
    module: Any, request_id: int, kernel: int, room: int, flags: int, arrays: Any, demand: int, priority: int, crc: int,
    sequence: int,
) -> None:  # fmt: skip
    described, at = [], 0
    for dtype, dims in arrays:
        element = {1: 1, 3: 2, 5: 4, 7: 8}[dtype]
        nbytes = element
        for length in dims:
            nbytes *= length
        described.append(Tensor(dtype, tuple(dims), at, nbytes))
        at += (nbytes + 63) // 64 * 64
    tensors, payload = pack_tensors(described), at + room
    crc = crc if flags & 2 else 0
    flags |= (sequence & 3) << 3 if sequence else 0
    args = (request_id, kernel, payload, tensors, flags, demand, priority, crc, crc, sequence)
    packed = module.pack_request(*args)
    assert packed == pack_request(*args)
    header, checksum = module.take_request(memoryview(packed.ljust(4096, b"\1")), 0, payload)
    assert header == RequestHeader(
        flags, request_id, kernel, demand, priority, crc, crc, payload, len(arrays), tensors, sequence
    )  # fmt: skip
    assert type(header) is RequestHeader
    assert checksum == int.from_bytes(packed[124:128], "little")


@given(st.binary(max_size=700), st.integers(0, 1 << 70))
def test_any_bytes_are_treated_alike(module: Any, data: bytes, most: int) -> None:
    view = memoryview(data.ljust(4096, b"\0"))
    assert outcome(module.take_request, view, 0, most) == outcome(twins.take_request, view, 0, most)
    assert outcome(module.parse_answer, data, most) == outcome(twins.parse_answer, data, most)
    for name in ("parse_launch", "parse_result"):
        for prefix in (b"", b"\1", b"\2"):
            assert outcome(getattr(module, name), prefix + data) == outcome(getattr(twins, name), prefix + data)


@pytest.mark.parametrize("name", ["parse_launch", "parse_result", "parse_answer", "take_request", "pack_request"])
@pytest.mark.parametrize("odd", [(), (None,), (5, 6), ("text", 0, 0), (bytearray(700), 5), (object(), 0, 1)])
def test_arguments_of_other_types_never_crash(module: Any, name: str, odd: tuple[object, ...]) -> None:
    """What does not fit is the twin's to report, or a TypeError about the number of arguments."""
    ours, theirs = outcome(getattr(module, name), *odd), outcome(getattr(twins, name), *odd)
    assert ours[0] == theirs[0]
    if ours[0] == "raised" and "positional argument" not in theirs[2]:
        assert ours[1] is theirs[1], (ours, theirs)


def test_before_it_is_configured_a_function_that_needs_classes_says_so(tmp_path_factory: Any) -> None:
    import importlib.util
    from importlib.machinery import ExtensionFileLoader

    path = compiled(tmp_path_factory.mktemp("raw"))
    loader = ExtensionFileLoader("offpath.bindings._path", str(path))
    spec = importlib.util.spec_from_file_location("offpath.bindings._path", path, loader=loader)
    assert spec is not None
    raw: Any = importlib.util.module_from_spec(spec)
    loader.exec_module(raw)
    with pytest.raises(RuntimeError, match="not configured"):
        raw.parse_result(b"")
    assert raw.record(memoryview(bytearray(9)), 1, 1, object(), (), 0, 0) == 0


def test_the_functions_that_are_chosen_are_all_of_one_kind() -> None:
    chosen = [native.take_request, native.ring, native.receive, native.copy, native.parse_result, native.spin]
    assert {getattr(each, "__module__", None) for each in chosen} in (
        {"offpath.bindings._path"}, {"offpath.bindings.twins", "offpath.bindings.wire.host"},
    )  # fmt: skip
