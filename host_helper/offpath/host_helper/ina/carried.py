"""Which tensors a `Runtime` accepts, and in which form: checked before anything is counted or sent.

An error that only gloo or a switch detects ends the runtime, because the operation already has its place in the order
of all ranks. Tensors with the same properties are rejected on every rank alike, and the next all-reduce is unaffected.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from offpath.bindings.errors import OffpathError

_DTYPES: Final = frozenset({
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool,
})  # fmt: skip
"""The types that gloo sums (ProcessGroupGloo's GENERATE_ALL_TYPES), beside complex numbers as pairs of real ones."""
_DEVICES: Final = ("cpu", "cuda")


class TensorRejected(OffpathError):
    """The runtime cannot all-reduce the tensor. Nothing was sent; the runtime stays usable."""


def rejection(tensor: Any) -> str:
    """The reason why a runtime rejects ``tensor``; empty: it is accepted."""
    if not isinstance(tensor, torch.Tensor):
        return f"{type(tensor).__name__}, not a tensor"
    if tensor.layout != torch.strided:
        return f"layout {tensor.layout}, not torch.strided; use to_dense()"
    if tensor.device.type not in _DEVICES:
        return f"on device {tensor.device.type}, not on cpu"
    if tensor.is_conj() or tensor.is_neg():
        return "a conjugated or negated view; use resolve_conj() or resolve_neg()"
    if tensor.dtype not in _DTYPES and tensor.dtype not in (torch.complex64, torch.complex128):
        return f"{tensor.dtype}, which gloo cannot sum"
    if not tensor.is_contiguous():
        return f"shape {tuple(tensor.shape)} with strides {tensor.stride()}, not contiguous; use contiguous()"
    return ""


def check(tensor: Any) -> None:
    """Raises: TensorRejected: a runtime does not accept ``tensor``."""
    if why := rejection(tensor):
        raise TensorRejected(f"all-reduce rejected: {why}")


def flat(tensor: Any) -> Any:
    """The same memory in one dimension, as real numbers and without a gradient's history, as switches need it. A
    dimension of one element may have any stride, which `view` to bytes does not accept.
    """
    plain = tensor.detach()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    return plain.as_strided((plain.numel(),), (1,))
