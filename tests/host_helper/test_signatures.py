"""Declared inputs and outputs: the decorator's forms, and what they refuse."""

from __future__ import annotations

import re
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.bindings.wire import control, host
from offpath.bindings.wire.frames import MAX_FRAME_BYTES
from offpath.bindings.wire.negotiating import Described
from offpath.bindings.wire.signatures import KernelSignature, TensorSpec, joined, matches, parts
from offpath.host_helper.gateway.routes import _MODEL
from offpath.host_helper.kernels import KernelTable
from offpath.host_helper.signatures import check_model_name

IMAGE = {"image": ("fp32", [-1, 3, 224, 224])}
SCORES = {"scores": ("float32", (-1, 1000))}


def declared(name: str = "resnet", **given: Any) -> KernelSignature | None:
    table = KernelTable()
    table.kernel(name, **{"inputs": IMAGE, "outputs": SCORES, **given})(lambda image: image)
    return table.kernels[name].signature


def test_the_short_form_is_the_message() -> None:
    signature = declared(version=3, labels=["stable"])
    assert signature == KernelSignature(
        name="resnet", model="resnet", model_version=3, labels=["stable"],
        inputs=[TensorSpec(name="image", dtype="float32", shape=[-1, 3, 224, 224])],
        outputs=[TensorSpec(name="scores", dtype="float32", shape=[-1, 1000])],
    )  # fmt: skip


def test_a_kernel_that_declares_nothing_has_none() -> None:
    assert declared(inputs=None, outputs=None) is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"outputs": None}, "declare both"),
        ({"inputs": None}, "declare both"),
        ({"inputs": None, "outputs": None, "version": 2}, "need inputs= and outputs="),
        ({"inputs": None, "outputs": None, "labels": ["a"]}, "need inputs= and outputs="),
        ({"inputs": {"x": ("fp31", [1])}}, "no dtype 'fp31'"),
        ({"inputs": {"x": [1, 2]}}, "write it as"),
        ({"inputs": {"x": ("fp32", "12")}}, "write it as"),
        ({"inputs": {"x": ("fp32", [-2])}}, "greater than or equal to -1"),
        ({"inputs": {"x": ("fp32", [1] * 7)}}, "at most 6 items"),
        ({"inputs": {"x": ("fp32", [1.5])}}, "valid integer"),
        ({"inputs": {f"x{n}": ("fp32", [1]) for n in range(81)}}, "at most 80 items"),
        ({"inputs": {"x": ("fp32", [1], 0)}}, "only None may follow the dims"),
        ({"outputs": {"x": ("fp32", [1], None)}}, "only of an input"),
        ({"inputs": {"a b": ("fp32", [1])}}, "must be letters, digits"),
        ({"version": 0}, "greater than or equal to 1"),
        ({"version": True}, "valid integer"),
        ({"labels": ["a", "a"]}, "a name occurs twice"),
        ({"labels": [f"l{n}" for n in range(9)]}, "at most 8 items"),
        ({"model": ""}, "model: is empty"),
    ],
)
def test_what_is_not_a_signature_is_refused_where_it_is_written(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        declared(**given)
    assert "kernel 'resnet': " in str(refused.value)


COLLIDING = {
    "stats": "statistics of all models",
    "jobs/stats": "'stats' of model 'jobs'",
    "jobs/ready": "'ready' of model 'jobs'",
    "a/b/config": "'config' of model 'a/b'",
    "a/infer": "'infer' of model 'a'",
    "x/versions/1": "a version of model 'x'",
    "x/versions/1/infer": "'infer' of model 'x/versions/1'",
    "x/versions": "a version of model 'x'",
    "a/../b": "another path",
    "a/./b": "another path",
    "a/..": "another path",
    "a//b": "another path",
    "a/": "another path",
}


@pytest.mark.parametrize(("name", "what"), COLLIDING.items())
def test_a_model_s_name_is_no_other_address_of_the_protocol(name: str, what: str) -> None:
    text = f"model '{name}': its address /v2/models/{name} means {what}"
    for given_ in ({"name": name}, {"name": "other", "model": name}):
        with pytest.raises(ValueError, match=re.escape(text)):
            declared(**given_)
    assert declared(name, model="other") is not None, "a kernel's name is no address"
    assert declared(name, inputs=None, outputs=None) is None


@pytest.mark.parametrize(
    "name",
    ["jobs", "infer", "ready", "config", "versions", "versions/1", "stats/a", "a/stats.x", "x/versions/1/y", "a/b",
     "v1.0+cu12:latest", "a..b"],
)  # fmt: skip
def test_other_names_are_those_of_models(name: str) -> None:
    signature = declared(name)
    assert signature is not None
    assert signature.model == name


PARTS = st.sampled_from(["a", "b.c", "stats", "infer", "ready", "config", "versions", "1", "..", ".", ""])


@given(st.lists(PARTS, min_size=1, max_size=5))
def test_the_gateway_reads_each_name_that_is_accepted_from_each_of_its_addresses(parts: list[str]) -> None:
    name = "/".join(parts)
    try:
        check_model_name(name)
    except ValueError:
        return
    for version in ("", "/versions/1", "/versions/stats"):
        for what in ("", "/ready", "/config", "/stats", "/infer"):
            path = f"/v2/models/{name}{version}{what}"
            found = _MODEL.fullmatch(path)
            assert found is not None
            assert (found["name"], found["version"], found["what"]) == (name, version[10:] or None, what or None)
            assert path != "/v2/models/stats"


def test_two_kernels_are_not_one_version_of_a_model() -> None:
    table = KernelTable()
    table.kernel("a", inputs=IMAGE, outputs=SCORES, model="m")(len)
    table.kernel("b", inputs=IMAGE, outputs=SCORES, model="m", version=2)(len)
    with pytest.raises(ValueError, match="kernel 'c': 'b' is version 2 of model 'm' already"):
        table.kernel("c", inputs=IMAGE, outputs=SCORES, model="m", version=2)(len)
    assert list(table.kernels) == ["a", "b"]


def test_each_part_of_the_largest_signature_fits_its_message() -> None:
    inputs = {f"{'t' * 62}{n:02}": ("float8_e4m3fn", [(1 << 46) - 1] * 6, None) for n in range(80)}
    outputs = {name: each[:2] for name, each in inputs.items()}
    labels = [f"{'l' * 62}{n:02}" for n in range(8)]
    signature = declared("k" * 64, inputs=inputs, outputs=outputs, model="m" * 64, version=(1 << 31) - 1, labels=labels)
    assert signature is not None
    some = parts(signature)
    assert [each.has_more for each in some] == [True] * 13 + [False]
    assert max(len(control.encode(each)) for each in some) <= host.MAX_MESSAGE_BYTES
    assert reduce(joined, some) == signature
    assert len(control.encode(Described(name="k", signature=signature))) <= MAX_FRAME_BYTES


def test_parts_of_two_signatures_are_not_joined() -> None:
    one = KernelSignature(name="k", model="m", inputs=[], outputs=[], has_more=True)
    with pytest.raises(ValueError, match="has parts that differ"):
        joined(one, one.model_copy(update={"model": "n"}))
    tensors = [TensorSpec(name=f"t{n}", dtype="bool", shape=[]) for n in range(50)]
    with pytest.raises(ValueError, match="more than 80 inputs or outputs"):
        joined(*[one.model_copy(update={"inputs": tensors})] * 2)


def test_a_helpers_kernels_declare_4096_tensors_at_most() -> None:
    table = KernelTable()
    many = {f"t{n}": ("bool", [1]) for n in range(80)}
    for number in range(25):
        table.kernel(f"k{number}", inputs=many, outputs=many)(bool)
    table.kernel("last", inputs=many, outputs={f"t{n}": ("bool", [1]) for n in range(16)})(bool)
    with pytest.raises(ValueError, match="kernel 'more': the kernels of a helper declare 4096 tensors at most"):
        table.kernel("more", inputs={"x": ("bool", [1])}, outputs={})(bool)


def test_a_kernel_that_batches_returns_no_strings() -> None:
    with pytest.raises(ValueError, match="max_batch needs outputs without strings, and 'scores' has them"):
        declared(outputs={"scores": ("BYTES", [-1])}, max_batch=4)
    assert declared(outputs={"scores": ("BYTES", [-1])}) is not None


@given(st.lists(st.integers(-1, 5), max_size=6), st.data())
def test_dims_match_where_each_is_free_or_equal(shape: list[int], data: st.DataObject) -> None:
    actual = tuple(data.draw(st.integers(0, 5)) if each < 0 else each for each in shape)
    assert matches(actual, shape)
    assert not matches((*actual, 1), shape)
    for at, each in enumerate(shape):
        if each >= 0:
            assert not matches((*actual[:at], each + 1, *actual[at + 1 :]), shape)
