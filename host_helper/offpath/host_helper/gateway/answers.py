"""Results on their way to the client: checked against the model, into its regions or into the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from offpath.bindings.wire.header import DTYPE_CODES, DTYPES, Tensor
from offpath.bindings.wire.signatures import matches
from offpath.host_helper.dtypes import numpy_dtype
from offpath.host_helper.gateway.buffers import Place, placed, seen, shared
from offpath.host_helper.gateway.calls import Call, Wanted
from offpath.host_helper.gateway.classification import classified, is_long, number_of
from offpath.host_helper.gateway.datatypes import BYTES, WIRE
from offpath.host_helper.gateway.errors import Refused
from offpath.host_helper.gateway.models import Model, Spec
from offpath.host_helper.gateway.readers import Reader
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
    """Takes the result of one request out of the session's memory (`offpath.host_helper.slots.Taker`). Its outputs need
    `with_classes`: here nothing may take long."""

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


async def with_classes(reader: Reader, call: Call, outputs: Sequence[Output]) -> Sequence[Output]:
    """The outputs, with classes in the place of values where the client wants them: what takes long by ``reader``. If
    it has ended, here: the answer is there, and may not be lost."""
    has_batch = call.model.batching is not None
    found = []
    for output in outputs:
        if not output.wanted.classes or output.datatype == BYTES:
            found.append(output)
            continue
        assert output.content is not None
        content = shared(output.content)
        bare = replace(output, content=None)
        try:
            made = await reader.run(_classified_there, placed(content), bare, has_batch, of=(content,))
        except Refused as refused:
            if refused.grpc != "UNAVAILABLE":
                raise
            made = _classified(content, bare, has_batch=has_batch)
        found.append(_in_classes(output, *made))
    return found


def _classified_there(source: Place | bytes, output: Output, has_batch: bool) -> tuple[bytes, tuple[int, ...]]:
    """In the reading process."""
    with seen(source) as content:
        return _classified(content, output, has_batch=has_batch)


def _classified(content: memoryview, output: Output, *, has_batch: bool) -> tuple[bytes, tuple[int, ...]]:
    wanted = output.wanted
    return classified(wanted.name, output.datatype, output.shape, content, wanted.classes, has_batch=has_batch)


def _in_classes(output: Output, content: bytes, shape: tuple[int, ...]) -> Output:
    return replace(output, datatype=BYTES, shape=shape, nbytes=len(content), content=content)


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
        rows, count = number_of(wanted.name, tensor.dims, wanted.classes, has_batch=model.batching is not None)
        output = Output(wanted, datatype, tensor.dims, tensor.nbytes, None)
        if is_long(tensor.nbytes, rows * count):
            return replace(output, content=bytes(part))
        return _in_classes(output, *_classified(part, output, has_batch=model.batching is not None))
    if wanted.region is None:
        return Output(wanted, datatype, tensor.dims, tensor.nbytes, bytes(part))
    if tensor.nbytes:
        wanted.region.write(part, wanted.at)
    return Output(wanted, datatype, tensor.dims, tensor.nbytes, None)


def _broken(kernel: str, how: str) -> Refused:
    return Refused(500, "INTERNAL", f"kernel '{kernel}' {how}")
