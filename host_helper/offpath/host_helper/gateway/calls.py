"""An inference request of either protocol, checked against its model: what HTTP and gRPC have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offpath.bindings.errors import OptionRefused
from offpath.bindings.wire.header import DTYPE_CODES, MAX_DIMS, MAX_TENSORS
from offpath.bindings.wire.signatures import matches
from offpath.host_helper.dtypes import numpy_dtype
from offpath.host_helper.gateway import texts
from offpath.host_helper.gateway.batch_sizes import BATCH_NOTE, check_batch
from offpath.host_helper.gateway.classification import check_kind
from offpath.host_helper.gateway.datatypes import BYTES, BYTES_EACH, NO_JSON, WIRE
from offpath.host_helper.gateway.errors import invalid, unparsable
from offpath.host_helper.gateway.models import Model, Spec
from offpath.host_helper.gateway.regions import Region, Regions
from offpath.host_helper.gateway.sequences import sequence_of
from offpath.host_helper.request_arrays import ABSENT, Array
from offpath.host_helper.slots import Options
from offpath.host_helper.strings import Strings

MOST_TENSORS: Final = MAX_TENSORS
"""Inputs, and outputs, of a request: as many as the wire carries."""
MOST_PARAMETERS: Final = 64
"""Of a request, and of a tensor."""
_MOST_ID: Final = 256
_MOST_DIM: Final = (1 << 32) - 1
"""Of the wire."""
_MOST_BUDGET_MS: Final = (1 << 32) - 1
_RESERVED: Final = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output")
)
"""Parameters that are not the kernel's."""
_LEAST_PRIORITY: Final = 255
"""The protocol's priority 1 is the most urgent, and numbers above it are less; the wire's 255 is the most urgent."""
_JSON_TYPES: Final[dict[str, set[type]]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}}
"""JSON's types of values for numpy's kinds of dtypes."""


@dataclass(frozen=True, slots=True)
class InRegion:
    """Where a tensor's bytes are: ``offset`` counts in the region."""

    region: str
    offset: int
    nbytes: int


Content = memoryview | bytes | slice | InRegion | NDArray[Any] | Strings


@dataclass(frozen=True, slots=True)
class Given:
    """An input as the client sent it. ``content``: its bytes, its place, its numbers, as many as its dims say, or its
    strings in one row; a slice of the bytes behind a header, until they are there."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    content: Content


@dataclass(frozen=True, slots=True)
class Asked:
    """An output that the client wants. ``place``: where its bytes are to go; None: into the answer. ``classes``: how
    many of the greatest values it wants in their place; 0: all."""

    name: str
    is_binary: bool
    place: InRegion | None = None
    classes: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """An output, and where it goes. ``at``: the place in the region's object, which has room for ``nbytes``.
    ``classes``: as of `Asked`."""

    name: str
    is_binary: bool
    region: Region | None = None
    at: int = 0
    nbytes: int = 0
    classes: int = 0


@dataclass(frozen=True, slots=True)
class FromRegion:
    """An input in shared memory, read into the slot (`offpath.host_helper.slots.Source`)."""

    region: Region
    at: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int

    def read_into(self, room: memoryview) -> None:
        """See `Source.read_into`."""
        self.region.read_into(room, self.at)


@dataclass(slots=True)
class Call:
    """A request that can be submitted. ``timeout_s``: the client's; None: it has none."""

    model: Model
    id: str
    arrays: list[Array]
    wanted: list[Wanted]
    options: Options
    timeout_s: float | None
    _regions: Regions
    _borrowed: list[Region] = field(default_factory=list)

    def end(self) -> None:
        """Give back the regions. Idempotent."""
        while self._borrowed:
            self._regions.give_back(self._borrowed.pop())


def checked(
    model: Model, regions: Regions, request_id: str, inputs: Sequence[Given], outputs: Sequence[Asked],
    parameters: Mapping[str, Any], *, is_binary: bool = False,
) -> Call:  # fmt: skip
    """The request against its model. ``is_binary``: of outputs, where none is named. `Call.end` must be called.

    Raises: Refused: the model has no such tensors, or the request no such regions.
    """
    if len(request_id) > _MOST_ID:
        raise invalid(f"a request id has at most {_MOST_ID} characters")
    options, timeout_s = _options(model, parameters)
    call = Call(model, request_id, [], [], options, timeout_s, regions)
    try:
        by_name = _by_name(model, inputs)
        check_batch(model, {name: given.shape for name, given in by_name.items()})
        for spec in model.inputs.values():
            given = by_name.get(spec.name)
            call.arrays.append(ABSENT if given is None else _array(model, spec, given, call))
        if not outputs:
            outputs = [Asked(name, is_binary) for name in model.outputs]
        for asked in outputs:
            call.wanted.append(_wanted(model, asked, call))
    except BaseException:
        call.end()
        raise
    return call


def _by_name(model: Model, inputs: Sequence[Given]) -> dict[str, Given]:
    by_name: dict[str, Given] = {}
    for given in inputs:
        if given.name not in model.inputs:
            raise invalid(f"unexpected inference input '{given.name}' for model '{model.name}'")
        if given.name in by_name:
            raise invalid(f"input '{given.name}' already exists in request")
        by_name[given.name] = given
    missing = [spec.name for spec in model.inputs.values() if not spec.is_optional and spec.name not in by_name]
    if missing:
        got, lacks = ", ".join(f"'{name}'" for name in by_name), ", ".join(f"'{name}'" for name in missing)
        raise invalid(
            f"{_expected(model)} but got {len(by_name)} inputs for model '{model.name}'. "
            f"Got input(s) [{got}], but missing required input(s) [{lacks}]. Please provide all required input(s)."
        )
    return by_name


def _expected(model: Model) -> str:
    """How many inputs a request has, in Triton's words."""
    most = len(model.inputs)
    least = sum(not spec.is_optional for spec in model.inputs.values())
    return f"expected {most} inputs" if least == most else f"expected number of inputs between {least} and {most}"


def _array(model: Model, spec: Spec, given: Given, call: Call) -> Array:
    if given.datatype != spec.datatype:
        raise invalid(
            f"inference input '{spec.name}' data-type is '{given.datatype}', but model '{model.name}' expects "
            f"'{spec.datatype}'"
        )
    shape = given.shape
    if len(shape) > MAX_DIMS or any(not 0 <= dim <= _MOST_DIM for dim in shape) or not matches(shape, [*spec.shape]):
        raise invalid(
            f"unexpected shape for input '{spec.name}' for model '{model.name}'. Expected {_dims(spec.shape)}, got "
            f"{_dims(shape)}. {BATCH_NOTE if model.batching is not None else ''}".rstrip()
        )
    if spec.datatype == BYTES:
        return _strings(model, spec, given, call)
    dtype = numpy_dtype(DTYPE_CODES[WIRE[spec.datatype]])
    nbytes = BYTES_EACH[spec.datatype] * math.prod(shape)
    content = given.content
    if isinstance(content, np.ndarray):
        return _shaped(content, spec, shape)
    assert not isinstance(content, slice | Strings)
    source: FromRegion | None = None
    if isinstance(content, InRegion):
        region = _borrow(call, content)
        source = FromRegion(region, region.part(content.offset, content.nbytes), dtype, shape, nbytes)
    got = content.nbytes if isinstance(content, InRegion) else len(content)
    if got != nbytes:
        raise invalid(
            f"input byte size mismatch for input '{spec.name}' for model '{model.name}'. Expected {nbytes}, got {got}"
        )
    if source is not None:
        return source
    assert not isinstance(content, InRegion)
    return _shaped(np.frombuffer(content, dtype) if nbytes else np.empty(0, dtype), spec, shape)


def _strings(model: Model, spec: Spec, given: Given, call: Call) -> Array:
    """Raises: Refused: they are not as many as the dims say."""
    where = f"inference input '{spec.name}' for model '{model.name}'"
    content, shape = given.content, given.shape
    if isinstance(content, Strings):
        return texts.shaped(content, shape, where)
    if not isinstance(content, InRegion):
        assert isinstance(content, memoryview | bytes)
        texts.check(content, math.prod(shape), spec.name, model.name)
        return Strings(shape, [content], len(content))
    region, count = _borrow(call, content), math.prod(shape)
    at = region.part(content.offset, content.nbytes)
    if BYTES_EACH[BYTES] * count > content.nbytes or (content.nbytes and not count):
        raise invalid(f"{count} string elements of {where} do not fill {content.nbytes} bytes")
    return texts.StringsInRegion(region, at, shape, content.nbytes, spec.name, model.name)


def _shaped(array: NDArray[Any], spec: Spec, shape: tuple[int, ...]) -> NDArray[Any]:
    """Raises: Refused: an empty array with dims beyond numpy's."""
    try:
        return array.reshape(shape)
    except ValueError:
        raise invalid(f"the dims {_dims(shape)} of input '{spec.name}' are too large") from None


def numbers(name: str, datatype: str, data: list[Any], shape: tuple[int, ...]) -> NDArray[Any] | Strings:
    """The numbers or strings of a JSON array, flat or nested, in one row. Raises: Refused: other values, or another
    count."""
    if datatype in NO_JSON:
        raise invalid(f"sending {datatype} data via JSON is not supported. Please use the binary data format for input "
                      f"'{name}'")  # fmt: skip
    flat = data
    while flat and isinstance(flat[0], list):
        if not all(isinstance(each, list) for each in flat):
            raise unparsable(f"Unable to parse 'data': not an array of numbers for input '{name}'")
        flat = list(chain.from_iterable(flat))
    if datatype == BYTES:
        return texts.of_json(name, flat)
    if len(flat) != math.prod(shape):
        raise unparsable("Unable to parse 'data': Shape does not match true shape of 'data' field")
    dtype = numpy_dtype(DTYPE_CODES[WIRE[datatype]])
    # numpy would take text for numbers, and make room for the longest one in the place of each.
    if not set(map(type, flat)) <= _JSON_TYPES[dtype.kind]:
        raise unparsable(f"Unable to parse 'data': not {datatype} numbers for input '{name}'")
    if flat and dtype.kind in "iu":  # numpy 1 would wrap
        limits = np.iinfo(dtype)
        if min(flat) < limits.min or max(flat) > limits.max:
            raise unparsable(f"Unable to parse 'data': beyond the range of {datatype} for input '{name}'")
    with np.errstate(over="ignore"):
        return np.array(flat, dtype)


def _wanted(model: Model, asked: Asked, call: Call) -> Wanted:
    if asked.name not in model.outputs:
        raise invalid(f"unexpected inference output '{asked.name}' for model '{model.name}'")
    if any(wanted.name == asked.name for wanted in call.wanted):
        raise invalid(f"output '{asked.name}' already exists in request")
    if asked.classes:
        check_kind(asked.name, model.outputs[asked.name].datatype)
    if asked.place is None:
        return Wanted(asked.name, asked.is_binary, classes=asked.classes)
    if asked.classes:
        raise invalid("Output can't set both 'shared_memory_region' and 'classification'")
    region = _borrow(call, asked.place)
    return Wanted(asked.name, True, region, region.part(asked.place.offset, asked.place.nbytes), asked.place.nbytes)


def _borrow(call: Call, place: InRegion) -> Region:
    region = call._regions.borrow(place.region)
    call._borrowed.append(region)
    return region


def timeout_of(parameters: Mapping[str, Any]) -> float | None:
    """The client's, in seconds; None: it has none. Raises: Refused: it is no number of microseconds."""
    return _whole(parameters, "timeout") / 1e6 or None


def budget_ms(timeout_s: float | None) -> int:
    """A time-out as the daemon takes it; 0: none."""
    return 0 if timeout_s is None else min(max(math.ceil(timeout_s * 1e3), 1), _MOST_BUDGET_MS)


def _options(model: Model, parameters: Mapping[str, Any]) -> tuple[Options, float | None]:
    sequence_id, is_start, is_end = sequence_of(model, parameters)
    priority, timeout_s = _whole(parameters, "priority"), timeout_of(parameters)
    urgency = max(_LEAST_PRIORITY + 1 - priority, 1) if priority else 0
    try:
        options = Options(
            priority=urgency, budget_ms=budget_ms(timeout_s), sequence_id=sequence_id, sequence_start=is_start,
            sequence_end=is_end, parameters=_own(parameters) if model.parameters else {},
        )  # fmt: skip
    except OptionRefused as refused:
        raise invalid(str(refused)) from None
    return options, timeout_s


def _own(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Those for the kernel: not what the protocol and Triton give a meaning."""
    return {
        name: value for name, value in parameters.items() if name not in _RESERVED and not name.startswith("triton_")
    }


def _whole(parameters: Mapping[str, Any], key: str) -> int:
    value = parameters.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 64:
        raise invalid(f"parameter '{key}' is a whole number from 0")
    return value


def of_raw(model: Model, content: memoryview) -> Given:
    """A body without a header: all of it is the only input's bytes. Raises: Refused: the model has several, or the
    shape does not follow from the length."""
    if len(model.inputs) != 1:
        raise invalid(f"Raw request must only have 1 input (found {len(model.inputs)}) to be deduced for model "
                      f"'{model.name}'")  # fmt: skip
    (spec,) = model.inputs.values()
    free = [at for at, dim in enumerate(spec.shape) if dim < 0]
    each = BYTES_EACH[spec.datatype] * math.prod(dim for dim in spec.shape if dim >= 0)
    shape = list(spec.shape)
    if model.batching is not None:  # Triton takes the bytes for a batch of one
        shape[0] = 1
        free.remove(0)
    if spec.datatype == BYTES:  # the body is the only string, without its length
        if len(free) > 1:
            raise invalid(
                f"The shape of the raw input '{spec.name}' can not be deduced because there are more than one "
                "variable-sized dimension"
            )
        if free or shape[-1:] != [1] or math.prod(shape) != 1:
            raise invalid(f"For BYTE datatype raw input '{spec.name}', the model must have input shape [1]")
        return Given(spec.name, spec.datatype, tuple(shape), texts.serialised([bytes(content)], 1))
    if len(free) == 1 and each and content.nbytes % each == 0:
        shape[free[0]] = content.nbytes // each
    elif free:
        raise invalid(f"The shape of Raw request of model '{model.name}' can not be deduced from its length")
    return Given(spec.name, spec.datatype, tuple(shape), content)


def _dims(shape: Sequence[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"
