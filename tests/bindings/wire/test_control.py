"""Control messages: round trips of every model, and nothing but typed errors for anything else."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from offpath.bindings.errors import ControlError
from offpath.bindings.mig import gpu_models
from offpath.bindings.wire import control, fields, negotiating
from offpath.bindings.wire.frames import MAX_FRAME_BYTES
from offpath.bindings.wire.host import MAX_MESSAGE_BYTES

UNIONS: dict[str, tuple[Any, Any]] = {
    "to daemon": (negotiating.TO_DAEMON, negotiating.ToDaemon),
    "to requester": (negotiating.TO_REQUESTER, negotiating.ToRequester),
    "host to daemon": (control.HOST_TO_DAEMON, control.HostToDaemon),
    "daemon to host": (control.DAEMON_TO_HOST, control.DaemonToHost),
}


def models(union: Any) -> tuple[type[BaseModel], ...]:
    """The message classes of one direction."""
    return get_args(get_args(union)[0])


CASES = [(adapter, model) for adapter, union in UNIONS.values() for model in models(union)]
IDS = [f"{direction}-{model.__name__}" for direction, (_, union) in UNIONS.items() for model in models(union)]


def values(schema: dict[str, Any], definitions: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that fit a JSON schema as pydantic writes it."""
    if "$ref" in schema:
        return values(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of(*(values(each, definitions) for each in schema["anyOf"]))
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        required = set(schema.get("required", ()))
        fields = {name: values(each, definitions) for name, each in schema["properties"].items()}
        return st.fixed_dictionaries(
            {name: each for name, each in fields.items() if name in required or name == "kind"},
            optional={name: each for name, each in fields.items() if name not in required and name != "kind"},
        )
    if kind == "object":
        inner = schema.get("additionalProperties", True)
        plain = st.integers(-(1 << 63), (1 << 63) - 1)
        element = plain if inner is True else values(inner, definitions)
        return st.dictionaries(st.text(max_size=8), element, max_size=3)
    if kind == "array":
        most = min(schema.get("maxItems", 3), 3)
        return st.lists(values(schema["items"], definitions), min_size=schema.get("minItems", 0), max_size=most)
    if kind == "integer":
        return st.integers(schema.get("minimum", 0), schema.get("maximum", (1 << 63) - 1))
    if kind == "boolean":
        return st.booleans()
    if kind == "null":
        return st.none()
    assert kind == "string", schema
    if "pattern" in schema:
        size = (schema.get("minLength", 1), schema["maxLength"])
        return st.text("abcXYZ019_-" if "_-" in schema["pattern"] else "abcXYZ019", min_size=size[0], max_size=size[1])
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=min(schema.get("maxLength", 40), 40))


@pytest.mark.parametrize(("adapter", "model"), CASES, ids=IDS)
@given(data=st.data())
def test_every_message_comes_back_as_sent(adapter: Any, model: type[BaseModel], data: st.DataObject) -> None:
    schema = model.model_json_schema()
    raw = data.draw(values(schema, schema.get("$defs", {})))
    if "version" in raw:
        raw["version"] = fields.PROTOCOL_VERSION
    message = control.decode(adapter, json.dumps(raw).encode())
    assert type(message) is model
    assert control.decode(adapter, control.encode(message)) == message


def example(model: type[BaseModel]) -> dict[str, Any]:
    """The plainest valid message of the model, as parsed JSON."""

    def plain(schema: dict[str, Any], definitions: dict[str, Any]) -> Any:
        if "$ref" in schema:
            return plain(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
        if "const" in schema or "enum" in schema:
            return schema.get("const", schema.get("enum", [None])[0])
        if "anyOf" in schema:
            return plain(schema["anyOf"][0], definitions)
        kind = schema.get("type")
        if kind == "object":
            names = [*schema.get("required", ()), *(["kind"] if "kind" in schema.get("properties", {}) else [])]
            return {name: plain(schema["properties"][name], definitions) for name in names}
        if kind == "array":
            return [plain(schema["items"], definitions)] * schema.get("minItems", 0)
        return {"integer": schema.get("minimum", 1), "boolean": True, "string": "x" * schema.get("minLength", 1)}[kind]

    schema = model.model_json_schema()
    return plain(schema, schema.get("$defs", {}))


@pytest.mark.parametrize(("adapter", "model"), CASES, ids=IDS)
def test_a_message_with_one_field_wrong_is_refused(adapter: Any, model: type[BaseModel]) -> None:
    good = example(model)
    control.decode(adapter, json.dumps(good).encode())
    wrong: list[dict[str, Any]] = [{**good, "surprise": 1}, {**good, "kind": "no_such_kind"}]
    for name, value in good.items():
        wrong.append({key: each for key, each in good.items() if key != name})
        wrong += [{**good, name: spoilt} for spoilt in (None, 1.5, -1, [[]], {"": {}}, "\x00" * 600, 1 << 64)]
        wrong.append({**good, name: str(value) if not isinstance(value, str) else 7})
    left_out = {key: each for key, each in good.items() if key != "version"}  # which may be left out
    for message in (each for each in wrong if each != left_out):
        with pytest.raises(ControlError) as refused:
            control.decode(adapter, json.dumps(message).encode())
        assert refused.value.code in ("model", "version"), message
        assert len(refused.value.detail) <= 400


@pytest.mark.parametrize("adapter", [adapter for adapter, _ in UNIONS.values()], ids=UNIONS)
@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_random_bytes_raise_control_errors_only(adapter: Any, noise: bytes) -> None:
    with pytest.raises(ControlError):
        control.decode(adapter, noise)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("adapter", [adapter for adapter, _ in UNIONS.values()], ids=UNIONS)
@given(data=st.data())
def test_random_json_raises_control_errors_only(adapter: Any, data: st.DataObject) -> None:
    kinds = ["hello", "welcome", "refused", "kernels", "closing", "worker_hello", "lane_ready", "open_instance"]
    noise = data.draw(json_values)
    if isinstance(noise, dict):
        noise["kind"] = data.draw(st.sampled_from(kinds))
    with pytest.raises(ControlError):
        control.decode(adapter, json.dumps(noise).encode())


@pytest.mark.parametrize("body", [b"[" * 60_000, b'{"a":' * 12_000, b"1" * 60_000, b'"' + b"x" * 65_000, b"\xff\xfe"])
def test_json_made_to_hurt_is_refused(body: bytes) -> None:
    with pytest.raises(ControlError):
        control.decode(negotiating.TO_DAEMON, body)


@pytest.mark.parametrize("version", [0, 1, 2, 4, 65535, "3", None, [], 2.5])
def test_another_protocol_version_is_told_apart_from_a_broken_message(version: object) -> None:
    hello = {"kind": "hello", "version": version, "slots": 1, "payload_bytes": 1, "result_bytes": 1}
    with pytest.raises(ControlError) as refused:
        control.decode(negotiating.TO_DAEMON, json.dumps(hello).encode())
    assert refused.value.code == "version"


def test_a_message_of_the_other_direction_is_refused() -> None:
    goodbye = control.encode(control.Goodbye())
    with pytest.raises(ControlError, match="model"):
        control.decode(negotiating.TO_REQUESTER, goodbye)


@pytest.mark.parametrize("name", ["", "-a", "a b", "a\n", "ä", "x" * 65, "../etc"])
def test_names_that_could_mean_something_else_elsewhere_are_refused(name: str) -> None:
    hello = {"kind": "hello", "tenant": name, "slots": 1, "payload_bytes": 1, "result_bytes": 1}
    with pytest.raises(ControlError, match="model"):
        control.decode(negotiating.TO_DAEMON, json.dumps(hello).encode())


@pytest.mark.parametrize("model", gpu_models())
def test_an_offer_of_any_gpu_of_the_table_fits_the_host_channel(model: str) -> None:
    gpu = gpu_models()[model]
    offer = control.GpuOffer(
        uuid="G" * 64,
        model=gpu.name,
        is_emulated=False,
        compute_slices=gpu.compute_slices,
        memory_slices=gpu.memory_slices,
        profiles=[
            control.ProfileInfo(
                name=p.name,
                compute_slices=p.compute_slices,
                memory_slices=p.memory_slices,
                memory_bytes=p.memory_bytes,
                starts=list(p.starts),
                max_instances=p.max_instances,
            )
            for p in gpu.profiles
        ],
    )
    assert len(control.encode(offer)) <= MAX_MESSAGE_BYTES


def test_the_largest_orders_and_hellos_fit_the_host_channel() -> None:
    name, most, token = "n" * 64, (1 << 64) - 1, "t" * 256
    order = control.OpenInstance(
        lease=(1 << 32) - 1, generation=most, tenant=name, gpu=name, profile=name, start=15, lanes=64,
        landing_bytes=most, result_bytes=most, scrub_first=False, token=token,
    )  # fmt: skip
    kernels = [control.KernelOffer(name=name, demand=100)] * 32
    hello = control.HelperHello(name="n" * 32, pid=(1 << 32) - 1, kernels=kernels, gpu_count=16)
    worker = control.WorkerHello(lease=(1 << 32) - 1, lane=63, pid=(1 << 32) - 1, token=token)
    welcome = control.HostWelcome(generation=most, kernel_ids={name[:-2] + f"{n:02}": (1 << 32) - 1 for n in range(32)})
    for message in (order, hello, worker, welcome):
        assert len(control.encode(message)) <= MAX_MESSAGE_BYTES


def test_a_welcome_with_many_kernels_fits_a_frame() -> None:
    kernels = [negotiating.KernelInfo(name="k" * 64, kernel_id=(1 << 32) - 1, demand=100, is_emulated=False)] * 256
    assert len(control.encode(negotiating.Kernels(kernels=kernels))) < MAX_FRAME_BYTES


def test_a_frame_full_of_faults_is_only_counted() -> None:
    """To describe each of thousands takes longer than all the rest: a stranger could hold up the daemon's loop."""
    hello = {"kind": "hello", "slots": 1, "payload_bytes": 1, "result_bytes": 1}
    with pytest.raises(ControlError, match="model: 8000 faults"):
        control.decode(negotiating.TO_DAEMON, json.dumps({**hello, **{f"{n:x}": 0 for n in range(8000)}}).encode())
    with pytest.raises(ControlError, match="at most 256 items"):
        control.decode(negotiating.TO_REQUESTER, json.dumps({"kind": "kernels", "kernels": [{}] * 20_000}).encode())
