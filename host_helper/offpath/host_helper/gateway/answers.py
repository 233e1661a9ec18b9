"""Results on their way to the client: checked against the model, into its regions or into the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from offpath.bindings.wire.header import DTYPE_CODES, DTYPES, Tensor
from offpath.bindings.wire.signatures import matches
from offpath.host_helper.dtypes import numpy_dtype
from offpath.host_helper.gateway.calls import Call, Wanted
from offpath.host_helper.gateway.classification import classified
from offpath.host_helper.gateway.datatypes import BYTES, WIRE
from offpath.host_helper.gateway.errors import Refused
from offpath.host_helper.gateway.models import Model, Spec
from offpath.host_helper.gateway.texts import to_json


@dataclass(frozen=True, slots=True)
class Output:
    """An output of an answer. ``content``: its bytes; None: they are in the client's region."""

    wanted: Wanted
    datatype: str
    shape: tuple[int, ...]
    nbytes: int
    content: bytes | None

    def in_json(self) -> np.ndarray[Any, Any] | list[str]:
        """Its numbers or texts in one row. Raises: Refused: strings that are no text."""
        assert self.content is not None
        if self.datatype == BYTES:
            return to_json(self.wanted.name, self.content, self.shape)
        return np.frombuffer(self.content, numpy_dtype(DTYPE_CODES[WIRE[self.datatype]]))


class Results:
    """Takes the result of one request out of the session's memory (`offpath.host_helper.slots.Taker`)."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.outputs: list[Output] = []

    def __call__(self, tensors: tuple[Tensor, ...], view: memoryview) -> None:
        """Raises: Refused: the kernel returned something else than it declares, or a region is too small."""
        model = self._call.model
        if len(tensors) != len(model.outputs):
            raise _broken(model.kernel, f"returned {len(tensors)} tensors, and declares {len(model.outputs)}")
        by_name = dict(zip(model.outputs, tensors, strict=True))
        for spec in model.outputs.values():
            _check(model.kernel, spec, by_name[spec.name])
        for wanted in self._call.wanted:
            _fits(wanted, by_name[wanted.name])  # before the first one is written
        self.outputs = [
            _put(model, wanted, model.outputs[wanted.name].datatype, by_name[wanted.name], view)
            for wanted in self._call.wanted
        ]


def _check(kernel: str, spec: Spec, tensor: Tensor) -> None:
    name, _ = DTYPES.get(tensor.dtype, ("nothing", 0))
    if name != WIRE[spec.datatype]:
        raise _broken(kernel, f"returned {name} for output '{spec.name}', and declares {WIRE[spec.datatype]}")
    if not matches(tensor.dims, [*spec.shape]):
        raise _broken(kernel, f"returned shape {[*tensor.dims]} for output '{spec.name}', and declares {[*spec.shape]}")


def _fits(wanted: Wanted, tensor: Tensor) -> None:
    if wanted.region is not None and tensor.nbytes > wanted.nbytes:
        raise Refused(
            500, "INTERNAL",
            f"shared memory size specified with the request for output '{wanted.name}' ({wanted.nbytes} bytes) should "
            f"be at least {tensor.nbytes} bytes to hold the results",
        )  # fmt: skip


def _put(model: Model, wanted: Wanted, datatype: str, tensor: Tensor, view: memoryview) -> Output:
    part = view[tensor.offset : tensor.offset + tensor.nbytes]
    if wanted.classes:
        has_batch = model.batching is not None
        content, shape = classified(wanted.name, datatype, tensor.dims, part, wanted.classes, has_batch=has_batch)
        return Output(wanted, BYTES, shape, len(content), content)
    if wanted.region is None:
        return Output(wanted, datatype, tensor.dims, tensor.nbytes, bytes(part))
    if tensor.nbytes:
        wanted.region.write(part, wanted.at)
    return Output(wanted, datatype, tensor.dims, tensor.nbytes, None)


def _broken(kernel: str, how: str) -> Refused:
    return Refused(500, "INTERNAL", f"kernel '{kernel}' {how}")
