"""Signatures of kernels: the tensors that a kernel takes and returns, and the model that it is.

A helper sends them after its hello; a requester asks for them by kernel. The gateway serves a kernel as a model by its
signature.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field

from offpath.bindings.wire.fields import STRICT, Name
from offpath.bindings.wire.header import MAX_DIMS, MAX_TENSORS

ANY: Final = -1
"""A dimension of any length."""
MAX_LABELS: Final = 8
MAX_DECLARED: Final = 4096
"""Tensors that all kernels of a helper declare: a daemon has 16 helpers, and a tensor takes 1.5 KB of its memory."""
TENSORS_OF_PART: Final = 12
"""Of any names and dims, they fit one message of the host channel."""

Dtype = Literal[
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64", "bool",
    "bfloat16", "float8_e4m3fn", "float8_e5m2", "int4x2", "complex64", "complex128", "bytes",
]  # fmt: skip
Dim = Annotated[int, Field(ge=ANY, le=(1 << 46) - 1)]
ModelVersion = Annotated[int, Field(ge=1, le=(1 << 31) - 1)]


class _Message(BaseModel):
    model_config = STRICT


class TensorSpec(_Message):
    """A tensor of a kernel: its name, its dtype of the wire, its dims; -1 is a dimension of any length. ``optional``:
    an input that a request may lack."""

    name: Name
    dtype: Dtype
    shape: Annotated[list[Dim], Field(max_length=MAX_DIMS)]
    optional: bool = False


Tensors = Annotated[list[TensorSpec], Field(max_length=MAX_TENSORS)]


class KernelSignature(_Message):
    """What kernel ``name`` takes and returns, in the order of its arguments and results. It is version
    ``model_version`` of ``model``, with these labels. Names of inputs are unique, and so are those of outputs.
    ``sequences``: each request is of a sequence. ``streams``: a request gets a stream of answers, each with these
    outputs. ``parameters``: it asks for the requests' parameters. ``has_more``: a message with further tensors follows,
    see `parts`. (A field ``version`` would be the protocol's.)"""

    kind: Literal["kernel_signature"] = "kernel_signature"
    name: Name
    model: Name
    model_version: ModelVersion = 1
    labels: Annotated[list[Name], Field(max_length=MAX_LABELS)] = []
    inputs: Tensors
    outputs: Tensors
    sequences: bool = False
    streams: bool = False
    parameters: bool = False
    has_more: bool = False

    @property
    def tensor_count(self) -> int:
        """Inputs and outputs."""
        return len(self.inputs) + len(self.outputs)


def parts(signature: KernelSignature) -> list[KernelSignature]:
    """The messages of a signature: as many tensors as fit one, in order, the inputs first; all but the last have
    ``has_more``."""
    inputs, outputs = signature.inputs, signature.outputs
    made = []
    for at in range(0, max(signature.tensor_count, 1), TENSORS_OF_PART):
        end = at + TENSORS_OF_PART
        some = {
            "inputs": inputs[at:end],
            "outputs": outputs[max(at - len(inputs), 0) : max(end - len(inputs), 0)],
            "has_more": end < signature.tensor_count,
        }
        made.append(signature.model_copy(update=some))
    return made


def joined(former: KernelSignature, part: KernelSignature) -> KernelSignature:
    """A signature whose ``part`` has arrived behind others. Raises: ValueError: it is of another one, or they have more
    tensors together than a kernel may."""
    both = {"inputs": [*former.inputs, *part.inputs], "outputs": [*former.outputs, *part.outputs]}
    if max(map(len, both.values())) > MAX_TENSORS:
        raise ValueError(f"has more than {MAX_TENSORS} inputs or outputs")
    whole = part.model_copy(update=both)
    if whole != former.model_copy(update={**both, "has_more": part.has_more}):
        raise ValueError("has parts that differ")
    return whole


def has_a_name_twice(signature: KernelSignature) -> bool:
    """Whether two labels, two inputs or two outputs have one name, which no signature may."""
    lists = (signature.labels, [one.name for one in signature.inputs], [one.name for one in signature.outputs])
    return any(len(set(each)) < len(each) for each in lists)


def matches(shape: tuple[int, ...], declared: list[int]) -> bool:
    """Whether a tensor's dims are those declared."""
    return len(shape) == len(declared) and all(d in (ANY, s) for s, d in zip(shape, declared, strict=True))
