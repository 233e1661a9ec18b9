"""Compares a launch's tensors with what its kernel declares, in the worker: every way of a request ends there."""

from __future__ import annotations

from typing import Final

from offpath.bindings.wire import host
from offpath.bindings.wire.header import ABSENT, DTYPES, FLAG_PARAMETERS, unpack_tensors
from offpath.bindings.wire.signatures import TensorSpec, matches
from offpath.host_helper.kernels import Kernel

_KNOWN: Final = 256
_ABSENT: Final = "absent"


class Declared:
    """Of one worker. Callers repeat their shapes, so what was found right is known."""

    def __init__(self) -> None:
        self._right: set[tuple[int, bytes, int]] = set()

    def fault(self, kernel: Kernel, launch: host.Launch) -> str | None:
        """Why the launch does not fit the declaration; None: it does, or there is none. Raises: HeaderError: a
        descriptor breaks a rule."""
        declared = kernel.signature
        has_parameters = launch.flags & FLAG_PARAMETERS
        if declared is None or (key := (launch.kernel_id, launch.tensors, has_parameters)) in self._right:
            return None
        described = unpack_tensors(launch.tensors, launch.payload_bytes)
        if has_parameters:
            described = described[:-1]
        given = [(_name(each.dtype), each.dims) for each in described]
        if not given and launch.payload_bytes and not has_parameters:
            given = [("uint8", (launch.payload_bytes,))]
            key = (launch.kernel_id, b"%d" % launch.payload_bytes, 0)
        skip = 1 if kernel.batching is not None else 0  # rows of several requests may be stacked
        lacking = declared.inputs[len(given) :]
        is_right = (
            len(given) <= len(declared.inputs)
            and all(spec.optional for spec in lacking)
            and all(_fits(dtype, dims, spec, skip) for (dtype, dims), spec in zip(given, declared.inputs, strict=False))
        )
        if not is_right:
            wanted = ", ".join(map(_said, declared.inputs)) or "nothing"
            got = ", ".join(f"{dtype} {list(dims)}" for dtype, dims in given) or "nothing"
            return f"TypeError: kernel {kernel.name} takes {wanted}; got {got}"
        if len(self._right) >= _KNOWN:
            self._right.clear()
        self._right.add(key)
        return None


def _fits(dtype: str, dims: tuple[int, ...], spec: TensorSpec, skip: int) -> bool:
    """``skip``: how many dims at the beginning may be others than those declared."""
    if dtype == _ABSENT:
        return spec.optional
    return dtype == spec.dtype and len(dims) == len(spec.shape) and matches(dims[skip:], spec.shape[skip:])


def _name(code: int) -> str:
    return _ABSENT if code == ABSENT else DTYPES[code][0]


def _said(spec: TensorSpec) -> str:
    return f"{spec.name}: {spec.dtype} {spec.shape}{' or nothing' if spec.optional else ''}"
