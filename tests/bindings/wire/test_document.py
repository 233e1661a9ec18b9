"""A key twice is an error wherever JSON comes from outside; what is no repetition is read as ever."""

from __future__ import annotations

import json
import re
from pathlib import Path

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offpath.bindings.errors import ControlError
from offpath.bindings.wire import admin, cluster, control, document, ina_admin, negotiating

ROOT = Path(__file__).resolve().parents[3]
KEYS = st.sampled_from(["a", "b", "a:b", ":", '"', "\\", "\x00", "é", '":', "kind"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | KEYS,
    lambda inside: st.lists(inside, max_size=3) | st.lists(st.tuples(KEYS, inside), max_size=4).map(tuple),
    max_leaves=12,
)
"""Tuples stand for objects: lists of pairs, so that a key may repeat."""


def written(value: object, escapes: bool) -> str:
    if isinstance(value, tuple):
        return "{" + ", ".join(f"{written(k, escapes)}: {written(v, escapes)}" for k, v in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(one, escapes) for one in value) + "]"
    if escapes and isinstance(value, str):
        return '"' + "".join(f"\\u{ord(each):04x}" for each in value) + '"'
    return json.dumps(value, ensure_ascii=False)


def repeats(value: object) -> bool:
    if isinstance(value, tuple):
        keys = [key for key, _ in value]
        return len(set(keys)) != len(keys) or any(repeats(each) for _, each in value)
    return isinstance(value, list) and any(repeats(one) for one in value)


@given(value=VALUES, escapes=st.booleans())
@example(value=(("a", (("b", 1), ("b", 2))),), escapes=False)
@example(value=(("a", 1), ("a", 1)), escapes=True)
def test_a_document_is_refused_exactly_if_an_object_repeats_a_key(value: object, escapes: bool) -> None:
    body = written(value, escapes).encode()
    if repeats(value):
        with pytest.raises(ControlError, match="a repeated key"):
            document.read(body)
    else:
        assert document.read(body) == orjson.loads(body)


def test_a_key_written_in_two_ways_is_one_key() -> None:
    with pytest.raises(ControlError, match="a repeated key"):
        document.read(b'{"kind": 1, "\\u006bind": 2}')


def test_an_escaped_colon_does_not_stand_for_that_of_a_key() -> None:
    """Written again, the value has as many colons as the document."""
    body = b'{"a":1,"a":"\\u003a"}'
    assert orjson.dumps(orjson.loads(body)).count(b":") == body.count(b":")
    with pytest.raises(ControlError, match="a repeated key"):
        document.read(body)


@pytest.mark.parametrize("depth", [250, 300, 600])
def test_keys_are_compared_also_where_a_value_nests_too_deeply_to_be_written(depth: int) -> None:
    def nested(inside: bytes) -> bytes:
        return b"[" * depth + inside + b"]" * depth

    assert document.read(nested(b'{"a":1,"b":1}')) == orjson.loads(nested(b'{"a":1,"b":1}'))
    with pytest.raises(ControlError, match="a repeated key"):
        document.read(nested(b'{"a":1,"a":1}'))


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 100_000, b'{"a":1}x', b"NaN", b"\xff", b'{"a" 1}', b'{"a":"\n"}'])
def test_what_is_no_json_is_a_typed_error(body: bytes) -> None:
    with pytest.raises(ControlError):
        document.read(body)


@pytest.mark.parametrize(
    ("adapter", "body"),
    [
        (admin.TO_ADMIN, b'{"kind":"status","kind":"drain"}'),
        (negotiating.TO_DAEMON, b'{"kind":"goodbye","kind":"goodbye"}'),
        (control.HOST_TO_DAEMON, b'{"kind":"pong","number":1,"number":2}'),
        (control.DAEMON_TO_HOST, b'{"kind":"ping","number":1,"number":2}'),
        (cluster.TO_AGENT, b'{"kind":"new_epoch","epoch":{"job":"a","job":"b"}}'),
        (ina_admin.TO_CONTROLLER_ADMIN, b'{"kind":"job_cancel","job":"a","job":"b"}'),
    ],
)
def test_no_adapter_takes_a_key_twice(adapter: object, body: bytes) -> None:
    with pytest.raises(ControlError, match="a repeated key"):
        control.decode(adapter, body)  # type: ignore[arg-type]


OWN_FILES = {
    "dpu_daemon/offpath/dpu_daemon/durability/journal/codec.py": "the journal, whose records have a CRC",
    "dpu_daemon/offpath/dpu_daemon/durability/journal/log.py": "the journal",
    "dpu_daemon/offpath/dpu_daemon/operation/recovery.py": "what the book kept for us",
    "dpu_daemon/offpath/dpu_daemon/ingress/admission.py": "what the book kept for us",
    "dpu_daemon/offpath/dpu_daemon/policy/plugin_child.py": "from the daemon that started this process",
    "dpu_daemon/offpath/dpu_daemon/config/lastgood.py": "the daemon's own file, mode 0600",
    "dpu_daemon/offpath/dpu_daemon/controller/store.py": "the controller's database",
    "dpu_daemon/offpath/dpu_daemon/collab/store.py": "the collaboration controller's database",
    "dpu_daemon/offpath/dpu_daemon/manager/store.py": "the job manager's database",
    "dpu_daemon/offpath/dpu_daemon/manager/inc/translation.py": "the job manager's database",
    "dpu_daemon/offpath/dpu_daemon/manager/inc/services.py": "the job manager's database",
    "bindings/offpath/bindings/engines/local_ledger.py": "the engine's own files",
    "bindings/offpath/bindings/engines/local_runner.py": "from the engine that started this process",
    "bindings/offpath/bindings/engines/ray_child.py": "from the process that it started",
    "bindings/offpath/bindings/engines/ray_driver.py": "from the engine that started this process, and its own entries",
    "bindings/offpath/bindings/engines/ray_process.py": "from the engine's task that started this process",
    "bindings/offpath/bindings/engines/ray_supervisor.py": "the engine's own files",
    "bindings/offpath/bindings/engines/slurm_reading.py": "of Slurm's programs, which print more than our models have",
    "host_helper/offpath/host_helper/gateway/nonfinite.py": "numbers that are not finite, under the same rules",
    "bindings/offpath/bindings/mig.py": "a file of the package",
    "bindings/offpath/bindings/wire/document.py": "the reader itself",
}
"""Who may parse JSON by other means, and what."""


def test_every_other_reader_of_json_is_named_here_with_its_reason() -> None:
    found = set()
    for role in ("bindings", "dpu_daemon", "host_helper"):
        for path in (ROOT / role / "offpath").rglob("*.py"):
            if re.search(r"\b(or)?json\.loads?\(", path.read_text("utf-8")):
                found.add(str(path.relative_to(ROOT)))
    assert found == set(OWN_FILES)
