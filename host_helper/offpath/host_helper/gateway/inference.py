"""Inference requests and answers in HTTP's form: a JSON header, then the binary tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from offpath.bindings.errors import ControlError
from offpath.bindings.wire.header import MAX_DIMS
from offpath.host_helper.gateway import nonfinite
from offpath.host_helper.gateway.answers import Output
from offpath.host_helper.gateway.buffers import AT_ONCE_BYTES, Place, placed, seen, shared
from offpath.host_helper.gateway.calls import (
    MOST_PARAMETERS,
    MOST_TENSORS,
    Asked,
    Call,
    Content,
    Given,
    InRegion,
    checked,
    numbers,
    of_raw,
)
from offpath.host_helper.gateway.classification import count_of
from offpath.host_helper.gateway.config import MOST_JSON_BYTES
from offpath.host_helper.gateway.datatypes import BYTES, NO_JSON, WIRE
from offpath.host_helper.gateway.errors import Refused, invalid, unparsable
from offpath.host_helper.gateway.models import Model
from offpath.host_helper.gateway.readers import Reader
from offpath.host_helper.gateway.regions import Regions

_MOST_NUMBERS: Final = 16_384
"""Of an output that is written as JSON on the loop."""
HEADER_LENGTH: Final = "inference-header-content-length"
_CONTENTS: Final = ("data", "binary_data_size", "shared_memory_region")
"""What says where the bytes of an input are."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A body, read. ``raw``: it has no header and is the bytes of the only input. ``left``: bytes behind the
    tensors. It can be pickled before `with_bytes`."""

    id: str = ""
    inputs: Sequence[Given] = ()
    outputs: Sequence[Asked] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    is_binary: bool = False
    raw: memoryview | None = None
    left: int = 0

    def with_bytes(self, behind: memoryview) -> Parsed:
        """With the tensors that follow the header in the place of their slices."""
        inputs = [
            replace(each, content=behind[each.content]) if isinstance(each.content, slice) else each
            for each in self.inputs
        ]
        return replace(self, inputs=inputs)

    def call(self, model: Model, regions: Regions) -> Call:
        """The request of this model. Raises: Refused: it has no such tensors, or there are no such regions."""
        if self.raw is not None:
            return checked(model, regions, "", [of_raw(model, self.raw)], [], {}, is_binary=True)
        if self.left:
            raise invalid(f"unexpected additional input data for model '{model.name}'")
        given = self.inputs, self.outputs, self.parameters
        return checked(model, regions, self.id, *given, is_binary=self.is_binary)


def _json_bytes(nbytes: int, header_length: str | None) -> int:
    """How much of a body of ``nbytes`` is JSON. Raises: Refused: the header is no length, or more than there is, or
    more than is served."""
    length = nbytes if header_length is None else _length(nbytes, header_length)
    if length > MOST_JSON_BYTES:
        raise Refused(413, "RESOURCE_EXHAUSTED", f"the JSON part has at most {MOST_JSON_BYTES} bytes")
    return length


def _length(nbytes: int, header_length: str) -> int:
    if (
        not (header_length.isascii() and header_length.isdigit() and len(header_length) < 20)
        or int(header_length) > nbytes
    ):
        raise invalid(f"inference header size should be in range (0, {nbytes}), got: {header_length[:32]}")
    return int(header_length)


async def parse_by(reader: Reader, body: memoryview, header_length: str | None) -> Parsed:
    """As `parse`; a long JSON part is read by ``reader``."""
    length = _json_bytes(body.nbytes, header_length)
    if length <= AT_ONCE_BYTES:
        return parse(body, header_length)
    text = body[:length]
    return (await reader.run(_read_there, placed(text), body.nbytes - length, of=(text,))).with_bytes(body[length:])


def _read_there(source: Place | bytes, behind: int) -> Parsed:
    """As `read`, in the reading process."""
    with seen(source) as text:
        return read(bytes(text), behind)


def parse(body: memoryview, header_length: str | None) -> Parsed:
    """Read a body. ``header_length``: the header `HEADER_LENGTH`. Raises: Refused."""
    length = _json_bytes(body.nbytes, header_length)
    if header_length is not None and not length:
        return Parsed(raw=body)
    return read(bytes(body[:length]), body.nbytes - length).with_bytes(body[length:])


def read(text: bytes, behind: int) -> Parsed:
    """Read the JSON part, with ``behind`` bytes of tensors behind it. Raises: Refused."""
    if not text:
        raise invalid("the request has no body")
    try:
        header = nonfinite.read(text)
    except ControlError as fault:
        raise unparsable(f"failed to parse the request JSON buffer: {fault.detail[:100]}") from None
    if not isinstance(header, dict):
        raise unparsable("failed to parse the request JSON buffer: it is not an object")
    parameters = _parameters(header)
    is_binary = _flag(parameters, "binary_data_output")
    inputs, left = _inputs(header, behind)
    outputs = [_asked(each, is_binary) for each in _list(header, "outputs")]
    request_id = header.get("id", "")
    if not isinstance(request_id, str):
        raise unparsable("Unable to parse 'id': not a string")
    return Parsed(request_id, inputs, outputs, parameters, is_binary, left=left)


async def written_by(reader: Reader, call: Call, outputs: Sequence[Output]) -> tuple[bytes, list[bytes]]:
    """As `written`; many strings or numbers become JSON by ``reader``. If it has ended, they do so here: the answer is
    there, and may not be lost."""
    found = {}
    for output in outputs:
        if output.content is None or output.wanted.is_binary or output.datatype in NO_JSON or not _is_long(output):
            continue
        content = shared(output.content)
        try:
            text = await reader.run(_in_json_there, placed(content), replace(output, content=None), of=(content,))
        except Refused as refused:
            if refused.grpc != "UNAVAILABLE":
                raise
        else:
            found[output.wanted.name] = orjson.Fragment(text)
    return written(call, outputs, found)


def _is_long(output: Output) -> bool:
    """Whether writing it takes more than a millisecond."""
    return output.nbytes > AT_ONCE_BYTES if output.datatype == BYTES else math.prod(output.shape) > _MOST_NUMBERS


def _in_json_there(source: Place | bytes, output: Output) -> bytes:
    """The output's texts or numbers, in the reading process."""
    with seen(source) as content:
        return nonfinite.written(replace(output, content=bytes(content)).in_json())


def written(
    call: Call, outputs: Sequence[Output], found: Mapping[str, orjson.Fragment] | None = None
) -> tuple[bytes, list[bytes]]:
    """The answer: its JSON header, and the binary tensors behind it. ``found``: outputs that are JSON already. Raises:
    Refused: a datatype that JSON lacks."""
    shown: list[dict[str, Any]] = []
    binary: list[bytes] = []
    for output in outputs:
        wanted = output.wanted
        one: dict[str, Any] = {"name": wanted.name, "datatype": output.datatype, "shape": output.shape}
        if wanted.region is not None:
            pass  # no parameters, as Triton has it: perf_analyzer takes them for those of bytes
        elif wanted.is_binary:
            assert output.content is not None
            one["parameters"] = {"binary_data_size": output.nbytes}
            binary.append(output.content)
        elif output.datatype in NO_JSON:
            raise invalid(f"sending {output.datatype} data via JSON is not supported. Please use the binary data "
                          f"format for output '{wanted.name}'")  # fmt: skip
        else:
            one["data"] = found[wanted.name] if found and wanted.name in found else output.in_json()
        shown.append(one)
    header: dict[str, Any] = {"model_name": call.model.name, "model_version": str(call.model.version), "outputs": shown}
    if call.id:
        header["id"] = call.id
    return nonfinite.written(header), binary


def _inputs(header: dict[str, Any], behind: int) -> tuple[list[Given], int]:
    """The inputs, and how many of the bytes ``behind`` the header are no input's."""
    inputs = []
    at = 0
    for each in _list(header, "inputs"):
        name = _text(each, "name", "an input")
        where = f"input '{name}'"
        datatype, shape = _text(each, "datatype", where), _shape(each, where)
        parameters = _object(each, "parameters", where)
        content: Content
        place = _place(parameters, where)
        _check_one("data" in each, "binary_data_size" in parameters, place is not None)
        if place is not None:
            content = place
        elif "binary_data_size" in parameters:
            size = _size(parameters, "binary_data_size", where)
            if size > behind - at:
                raise invalid(f"unexpected size for {where}, expecting {size - behind + at} additional bytes")
            content = slice(at, at := at + size)
        else:
            data = each.get("data")
            if not isinstance(data, list):
                raise unparsable(f"Unable to parse 'data': that of {where} is not an array")
            # A datatype that no model has is refused with the model.
            content = numbers(name, datatype, data, shape) if datatype in WIRE else b""
        inputs.append(Given(name, datatype, shape, content))
    return inputs, behind - at


def _check_one(*are_set: bool) -> None:
    """Whether one of `_CONTENTS` is set. Raises: Refused: none, or several; the text is Triton's."""
    if sum(are_set) != 1:
        found = " ".join(f"'{name}'" for name, is_set in zip(_CONTENTS, are_set, strict=True) if is_set)
        raise invalid(
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            f"'shared_memory_region' in 'parameters'. But {f'set {found}' if found else 'no field is set'}"
        )


def _asked(each: dict[str, Any], is_binary: bool) -> Asked:
    name = _text(each, "name", "an output")
    where = f"output '{name}'"
    parameters = _object(each, "parameters", where)
    return Asked(
        name, _flag(parameters, "binary_data", is_binary), _place(parameters, where), count_of(parameters, name)
    )


def _place(parameters: dict[str, Any], where: str) -> InRegion | None:
    region = parameters.get("shared_memory_region")
    if region is None:
        return None
    if not isinstance(region, str):
        raise unparsable(f"Unable to parse 'shared_memory_region' of {where}: not a string")
    offset = _size(parameters, "shared_memory_offset", where) if "shared_memory_offset" in parameters else 0
    return InRegion(region, offset, _size(parameters, "shared_memory_byte_size", where))


def _list(header: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = header.get(key, [])
    if not isinstance(found, list):
        raise unparsable(f"Unable to parse '{key}': not an array of objects")
    if not all(isinstance(each, dict) for each in found):
        raise invalid(f"'{key}' is an array of objects")
    if len(found) > MOST_TENSORS:
        raise invalid(f"more than {MOST_TENSORS} {key}")
    return found


def _object(header: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    found = header.get(key, {})
    if not isinstance(found, dict):
        raise unparsable(f"Unable to parse '{key}' of {where}: not an object")
    return found


def _parameters(header: dict[str, Any]) -> dict[str, Any]:
    """Those of the request, each one value: they go to the gateway's own process, and a list of a million would cost
    all tenants its time there."""
    found = _object(header, "parameters", "the request")
    if len(found) > MOST_PARAMETERS:
        raise invalid(f"more than {MOST_PARAMETERS} parameters")
    for name, value in found.items():
        if isinstance(value, list | dict):
            raise unparsable(f"Unable to parse 'parameters': '{name[:100]}' is no text, number or boolean")
    return found


def _text(header: dict[str, Any], key: str, where: str) -> str:
    found = header.get(key)
    if not isinstance(found, str):
        raise unparsable(f"Unable to parse '{key}' of {where}: not a string")
    return found


def _shape(header: dict[str, Any], where: str) -> tuple[int, ...]:
    found = header.get("shape")
    if not isinstance(found, list) or any(type(dim) is not int for dim in found[: MAX_DIMS + 1]):
        raise unparsable(f"Unable to parse 'shape' of {where}: not an array of whole numbers")
    if len(found) > MAX_DIMS:
        raise invalid(f"{where} has more than {MAX_DIMS} dimensions")
    return tuple(found)


def _size(header: dict[str, Any], key: str, where: str) -> int:
    found = header.get(key)
    if type(found) is not int or not 0 <= found < 1 << 62:
        raise unparsable(f"Unable to parse '{key}' of {where}: not a number of bytes")
    return found


def _flag(header: dict[str, Any], key: str, default: bool = False) -> bool:
    found = header.get(key, default)
    if not isinstance(found, bool):
        raise unparsable(f"Unable to parse '{key}': not a boolean")
    return found
