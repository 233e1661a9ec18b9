"""Compares a launch's tensors with what its kernel declares, in the worker: every way of a request ends there."""

from __future__ import annotations

from typing import Final

from offpath.bindings.wire import host
from offpath.bindings.wire.header import DTYPES, unpack_tensors
from offpath.bindings.wire.signatures import TensorSpec, matches
from offpath.host_helper.kernels import Kernel

_KNOWN: Final = 256


class Declared:
    """Of one worker. Callers repeat their shapes, so what was found right is known."""

    def __init__(self) -> None:
        self._right: set[tuple[int, bytes]] = set()

    def fault(self, kernel: Kernel, launch: host.Launch) -> str | None:
        """Why the launch does not fit the declaration; None: it does, or there is none. Raises: HeaderError: a
        descriptor breaks a rule."""
        declared = kernel.signature
        if declared is None or (key := (launch.kernel_id, launch.tensors)) in self._right:
            return None
        given = [(DTYPES[each.dtype][0], each.dims) for each in unpack_tensors(launch.tensors, launch.payload_bytes)]
        if not given and launch.payload_bytes:
            given = [("uint8", (launch.payload_bytes,))]
            key = (launch.kernel_id, b"%d" % launch.payload_bytes)
        skip = 1 if kernel.batching is not None else 0  # rows of several requests may be stacked
        is_right = len(given) == len(declared.inputs) and all(
            dtype == spec.dtype and len(dims) == len(spec.shape) and matches(dims[skip:], spec.shape[skip:])
            for (dtype, dims), spec in zip(given, declared.inputs, strict=True)
        )
        if not is_right:
            wanted = ", ".join(map(_said, declared.inputs)) or "nothing"
            got = ", ".join(f"{dtype} {list(dims)}" for dtype, dims in given) or "nothing"
            return f"TypeError: kernel {kernel.name} takes {wanted}; got {got}"
        if len(self._right) >= _KNOWN:
            self._right.clear()
        self._right.add(key)
        return None


def _said(spec: TensorSpec) -> str:
    return f"{spec.name}: {spec.dtype} {spec.shape}"
