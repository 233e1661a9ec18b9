"""Inference requests and answers in gRPC's form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from offpath.bindings.wire.header import DTYPE_CODES, MAX_DIMS
from offpath.host_helper.dtypes import numpy_dtype
from offpath.host_helper.gateway.answers import Output
from offpath.host_helper.gateway.buffers import Place, placed, seen, shared
from offpath.host_helper.gateway.calls import MOST_PARAMETERS, MOST_TENSORS, Asked, Call, Given, InRegion
from offpath.host_helper.gateway.classification import count_of
from offpath.host_helper.gateway.datatypes import BYTES, WIRE
from offpath.host_helper.gateway.errors import invalid
from offpath.host_helper.gateway.grpc_requests import Long, check_tensors, message
from offpath.host_helper.gateway.inference import Parsed
from offpath.host_helper.gateway.messages import classes
from offpath.host_helper.gateway.readers import Reader
from offpath.host_helper.gateway.texts import serialised
from offpath.host_helper.strings import Strings

_CONTENTS: Final = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


async def parse(reader: Reader, request: Any, left_s: float | None) -> Parsed:
    """The request, as `grpc_requests.received` returns it; a long one by ``reader``. ``left_s``: until the call's
    deadline. Raises: Refused."""
    if not isinstance(request, Long):
        return read(request, left_s)
    data = shared(request.data)
    return await reader.run(_read_there, placed(data), left_s, of=(data,))


def _read_there(source: Place | bytes, left_s: float | None) -> Parsed:
    """As `read`, in the reading process."""
    with seen(source) as view:
        data = bytes(view)
    check_tensors(data)
    return read(message(data), left_s)


def read(request: Any, left_s: float | None) -> Parsed:
    """The request. Raises: Refused."""
    if len(request.inputs) > MOST_TENSORS or len(request.outputs) > MOST_TENSORS:
        raise invalid(f"more than {MOST_TENSORS} inputs or outputs")
    parameters = parameters_of(request, left_s)
    raw = iter(request.raw_input_contents)
    inputs = [_given(tensor, raw, bool(request.raw_input_contents)) for tensor in request.inputs]
    left = sum(1 for _ in raw)
    if left:
        raise invalid(
            f"expected {len(request.raw_input_contents) - left} input contents, got {len(request.raw_input_contents)}"
        )
    outputs = [_asked(tensor) for tensor in request.outputs]
    return Parsed(request.id, inputs, outputs, parameters, is_binary=True)


def parameters_of(request: Any, left_s: float | None) -> dict[str, Any]:
    """The request's, and as its time-out what is left of the call's deadline, if that is less."""
    parameters = _parameters(request.parameters)
    if left_s is not None:
        deadline_us = max(int(left_s * 1e6), 1)
        timeout_us = parameters.get("timeout", 0)
        if not isinstance(timeout_us, int) or not timeout_us or timeout_us > deadline_us:
            parameters["timeout"] = deadline_us
    return parameters


def written(call: Call, outputs: Sequence[Output]) -> Any:
    """The answer's message. A tensor in a region has an empty entry in ``raw_output_contents``: perf_analyzer 2.51 ends
    without it."""
    answer = classes().ModelInferResponse(model_name=call.model.name, model_version=str(call.model.version), id=call.id)
    for output in outputs:
        answer.outputs.add(name=output.wanted.name, datatype=output.datatype, shape=output.shape)
        answer.raw_output_contents.append(output.content or b"")
    return answer


def _given(tensor: Any, raw: Iterator[bytes], has_raw: bool) -> Given:
    parameters = _parameters(tensor.parameters)
    shape = tuple(tensor.shape[: MAX_DIMS + 1])  # one too many is refused with the model, as Triton does
    place = _place(parameters, tensor.name)
    if place is not None:
        return Given(tensor.name, tensor.datatype, shape, place)
    if has_raw:
        content = next(raw, None)
        if content is None:
            raise invalid(f"unable to find data for input '{tensor.name}' in request")
        return Given(tensor.name, tensor.datatype, shape, content)
    return Given(tensor.name, tensor.datatype, shape, _typed(tensor))


def _typed(tensor: Any) -> bytes | Strings:
    """The numbers or strings of ``contents``, as the datatype has them. Those out of its range are refused."""
    field = _CONTENTS.get(tensor.datatype)
    if field is None:
        raise invalid(f"datatype '{tensor.datatype}' of input '{tensor.name}' needs raw contents")
    if tensor.datatype == BYTES:
        found = tensor.contents.bytes_contents
        return serialised(found, len(found))
    numbers = np.array(getattr(tensor.contents, field))
    dtype = numpy_dtype(DTYPE_CODES[WIRE[tensor.datatype]])
    if dtype.kind in "iu" and numbers.size:
        limits = np.iinfo(dtype)
        if int(numbers.min()) < limits.min or int(numbers.max()) > limits.max:
            raise invalid(f"a number is beyond the range of {tensor.datatype} for input '{tensor.name}'")
    return numbers.astype(dtype).tobytes()


def _asked(tensor: Any) -> Asked:
    parameters = _parameters(tensor.parameters)
    return Asked(tensor.name, True, _place(parameters, tensor.name), count_of(parameters, tensor.name))


def _place(parameters: Mapping[str, Any], name: str) -> InRegion | None:
    region = parameters.get("shared_memory_region")
    if region is None:
        return None
    offset, nbytes = parameters.get("shared_memory_offset", 0), parameters.get("shared_memory_byte_size")
    if not isinstance(region, str) or type(offset) is not int or type(nbytes) is not int or offset < 0 or nbytes < 0:
        raise invalid(f"'{name}': a shared memory region needs its name, an offset and 'shared_memory_byte_size'")
    return InRegion(region, offset, nbytes)


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    if len(given) > MOST_PARAMETERS:
        raise invalid(f"more than {MOST_PARAMETERS} parameters")
    return {
        key: getattr(value, choice) for key, value in given.items() if (choice := value.WhichOneof("parameter_choice"))
    }
