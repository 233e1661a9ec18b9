"""Kernels of what a request can carry: strings, many tensors, parameters, inputs that may be absent."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from offpath.host_helper import Helper

LAYERS = 32
TEXT = {"text": ("BYTES", [-1, -1])}


def offer_carried(helper: Helper) -> None:
    """Adds them."""
    helper.kernel("upper", demand=14, inputs=TEXT, outputs={"upper": TEXT["text"]})(upper)
    helper.kernel("shout", demand=14, inputs={"text": ("bytes", [1])}, outputs={"upper": ("bytes", [1])})(upper)
    helper.kernel("words", demand=14)(words)
    helper.kernel("text", demand=14, inputs={}, outputs={"text": ("bytes", [-1])})(spoken)
    helper.kernel(
        "decode", demand=14, inputs={"step": ("int32", [1]), **cached("past")},
        outputs={"logits": ("fp32", [1, 4]), **cached("present")},
    )(decode)  # fmt: skip
    helper.kernel("told", demand=14, inputs={"x": ("fp32", [-1])}, outputs={"told": ("bytes", [1])}, parameters=True)(
        told
    )
    helper.kernel("untold", demand=14, inputs={"x": ("fp32", [-1])}, outputs={"y": ("fp32", [-1])})(np.negative)
    helper.kernel(
        "scaled", demand=14, inputs={"x": ("fp64", [-1])}, outputs={"y": ("fp64", [-1])}, parameters=True, max_batch=8,
        max_queue_delay_us=5_000_000, preferred_batch_sizes=(4,),
    )(scaled)  # fmt: skip
    helper.kernel("streamed", demand=14, parameters=True, streams=True)(streamed)
    helper.kernel(
        "masked", demand=14, outputs={"sum": ("fp32", [1]), "given": ("BYTES", [3])},
        inputs={"x": ("fp32", [-1]), "mask": ("bool", [-1], None), "note": ("BYTES", [1], None)},
    )(masked)  # fmt: skip
    helper.kernel("scores", demand=14, inputs={"x": ("fp32", [-1, 4])}, outputs={"y": ("fp32", [-1, 4])}, max_batch=8)(
        np.negative
    )
    helper.kernel("ranks", demand=14, inputs={"x": ("int64", [-1])}, outputs={"y": ("int64", [-1])})(np.positive)
    helper.kernel(
        "said", demand=14, inputs={"count": ("int64", [1])}, outputs={"word": ("BYTES", [1])}, parameters=True,
        streams=True,
    )(streamed)  # fmt: skip


def cached(side: str) -> dict[str, tuple[str, list[int]]]:
    return {f"{side}.{layer}.{each}": ("fp16", [1, -1]) for layer in range(LAYERS) for each in ("key", "value")}


def upper(text: Any) -> Any:
    assert text.dtype == object
    assert all(type(each) is bytes for each in text.flat)
    return np.array([each.upper() for each in text.flat], object).reshape(text.shape)


def words(count: Any) -> Any:
    """Arrays of each of numpy's kinds of strings."""
    many = range(int(count[0]))
    return (
        np.array([f"w{n}" for n in many], object), np.array([f"ä{n}" for n in many]),
        np.array([b"b%d" % n for n in many]), "one", np.arange(3.0),
    )  # fmt: skip


def spoken() -> Any:
    return np.array(["spoken"])


def decode(step: Any, *past: Any) -> Any:
    present = [np.concatenate([each, np.full((1, 1), step[0], np.float16)], axis=1) for each in past]
    return np.full((1, 4), len(past), np.float32), *present


def told(x: Any, *, parameters: dict[str, Any]) -> Any:
    return np.array([json.dumps([len(x), parameters], sort_keys=True)])


def scaled(x: Any, *, parameters: list[dict[str, Any]]) -> Any:
    assert len(parameters) == len(x)
    return x * [each.get("by", 1) for each in parameters] + 100 * len(x)


def streamed(count: Any, *, parameters: dict[str, Any]) -> Any:
    for _ in range(int(count[0])):
        yield np.array([str(parameters["word"])])


def masked(x: Any, mask: Any, note: Any) -> Any:
    given = [b"x", b"no mask" if mask is None else b"mask", b"no note" if note is None else note[0]]
    return np.array([x.sum() if mask is None else x[mask].sum()], np.float32), np.array(given, object)
