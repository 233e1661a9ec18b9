"""Declared inputs and outputs of kernels: from the decorator's short form to the message for the daemon.

inputs={"image": ("fp32", [-1, 3, 224, 224]), "mask": ("bool", [-1], None)}, outputs={"scores": ("fp32", [-1, 1000])}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import ValidationError

from offpath.bindings.invalid import listed
from offpath.bindings.wire.header import DTYPE_CODES
from offpath.bindings.wire.signatures import KernelSignature, TensorSpec, has_a_name_twice

Declared = Mapping[str, tuple[str, Sequence[int]] | tuple[str, Sequence[int], None]]
"""Dtype and dims by the tensor's name, in the order of the kernel's arguments or results. An input with None behind
them is optional: the kernel gets None in its place."""
SHORT: Final = {
    "fp16": "float16", "fp32": "float32", "fp64": "float64", "bf16": "bfloat16",
}  # fmt: skip
"""Names of the Open Inference Protocol, in lower case, that differ from the wire's."""
_ENDS: Final = frozenset(("config", "infer", "ready", "stats"))
"""What may follow a model's name in an address of the protocol."""


def signature(
    name: str,
    inputs: Declared | None,
    outputs: Declared | None,
    model: str | None,
    version: int,
    labels: Sequence[str],
    *,
    sequences: bool = False,
    streams: bool = False,
    parameters: bool = False,
) -> KernelSignature | None:
    """The signature of kernel ``name``; None: nothing is declared. ``model`` None: the kernel's name.

    Raises: ValueError: only one side is declared, a model without tensors, an unknown dtype, dims or names out of
    range, or a model whose address would be another's.
    """
    if inputs is None and outputs is None:
        if model is not None or version != 1 or labels:
            raise ValueError("model, version and labels need inputs= and outputs=")
        return None
    if inputs is None or outputs is None:
        raise ValueError("declare both inputs= and outputs=, or neither")
    try:
        declared = KernelSignature(
            name=name, model=name if model is None else model, model_version=version, labels=list(labels),
            inputs=_tensors("input", inputs), outputs=_tensors("output", outputs), sequences=sequences,
            streams=streams, parameters=parameters,
        )  # fmt: skip
    except ValidationError as fault:
        raise ValueError(listed(fault, 1, whole="signature")[0]) from None
    check_model_name(declared.model)
    if has_a_name_twice(declared):
        raise ValueError("a name occurs twice")
    return declared


def check_model_name(model: str) -> None:
    """Whether the addresses of the model, ``/v2/models/NAME`` and what follows, are its own in the Open Inference
    Protocol. Raises: ValueError: clients, proxies or the gateway would take one for another address."""
    parts = model.split("/")
    if model == "stats":
        what = "statistics of all models"
    elif parts[-1] in _ENDS and len(parts) > 1:
        what = f"'{parts[-1]}' of model '{'/'.join(parts[:-1])}'"
    elif "versions" in parts[1:][-2:]:
        what = f"a version of model '{model.rpartition('/versions')[0]}'"
    elif {".", "..", ""} & set(parts):
        what = "another path: clients and proxies resolve '.', '..' and '//'"
    else:
        return
    raise ValueError(f"model {model!r}: its address /v2/models/{model} means {what}: give another name with model=")


def check_batched(declared: KernelSignature) -> None:
    """Whether requests for the kernel can share launches. Raises: ValueError: it returns strings, whose rows the daemon
    cannot tell apart."""
    strings = [each.name for each in declared.outputs if each.dtype == "bytes"]
    if strings:
        raise ValueError(f"max_batch needs outputs without strings, and {strings[0]!r} has them")


def _tensors(side: str, declared: Declared) -> list[TensorSpec]:
    tensors = []
    for name, each in declared.items():
        if not isinstance(each, (tuple, list)) or len(each) not in (2, 3) or not isinstance(each[1], (tuple, list)):
            raise ValueError(f'{side} {name!r}: write it as ("fp32", [-1, 3]): dtype and dims')
        is_optional = len(each) == 3
        if is_optional and (each[-1] is not None or side != "input"):
            raise ValueError(f"{side} {name!r}: only None may follow the dims, and only of an input: it is optional")
        dtype = SHORT.get(str(each[0]).lower(), str(each[0]).lower())
        if dtype not in DTYPE_CODES:
            raise ValueError(f"{side} {name!r}: no dtype {each[0]!r}; known: {', '.join([*SHORT, *DTYPE_CODES])}")
        tensors.append(
            TensorSpec.model_validate({"name": name, "dtype": dtype, "shape": list(each[1]), "optional": is_optional})
        )
    return tensors
