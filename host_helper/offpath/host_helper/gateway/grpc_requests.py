"""Inference requests as they come over gRPC: bounded before a message is made of their bytes.

A message of 4 MiB can have two million parts, which cost a second of all tenants' time and 160 MB. So the parts of the
bytes are counted first, at most some hundred; what is long beside raw contents is left to the reading process, and has
the bound of JSON over HTTP: an empty string of ``contents`` has two bytes in a message, and costs 240 once it is made.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from offpath.bindings.wire.header import MAX_DIMS
from offpath.host_helper.gateway.buffers import AT_ONCE_BYTES
from offpath.host_helper.gateway.calls import MOST_PARAMETERS, MOST_TENSORS
from offpath.host_helper.gateway.config import MOST_JSON_BYTES
from offpath.host_helper.gateway.errors import invalid, too_large
from offpath.host_helper.gateway.messages import classes
from offpath.host_helper.gateway.protobuf_fields import Field, broken, fields, whole_numbers

MOST_HEAD_BYTES: Final = 64 * 1024
"""Names, id and parameters of a request."""
MOST_OTHER_BYTES: Final = 64 * 1024
"""A message of any other method."""
_MOST_FIELDS: Final = 512
"""Of a tensor: more than `MOST_PARAMETERS`, dims one by one and contents in some pieces."""
MOST_STRINGS: Final = 1 << 18
"""In ``contents`` of all tensors of a request: as long to read as 4 MiB of JSON. Raw contents have no such bound."""
_PARAMETERS, _INPUTS, _OUTPUTS, _RAW = 4, 5, 6, 7
"""Fields of ModelInferRequest (`messages.FIELDS`); those before `_INPUTS` are its head."""
_SHAPE, _CONTENTS, _STRINGS = 3, 5, 8
"""Fields of InferInputTensor, and of its contents."""
_NAMES: Final = {_PARAMETERS: "parameters", _INPUTS: "inputs", _OUTPUTS: "outputs", _RAW: "input contents"}


@dataclass(frozen=True, slots=True)
class Long:
    """A request whose tensors take long to read: its head, and all of its bytes. It stands for a ModelInferRequest
    until `grpc_calls.parse`."""

    head: Any
    data: bytes

    @property
    def model_name(self) -> str:
        """See ModelInferRequest."""
        return str(self.head.model_name)

    @property
    def model_version(self) -> str:
        """See ModelInferRequest."""
        return str(self.head.model_version)

    @property
    def id(self) -> str:
        """See ModelInferRequest."""
        return str(self.head.id)

    @property
    def parameters(self) -> Any:
        """See ModelInferRequest."""
        return self.head.parameters


def received(data: bytes) -> Any:
    """The message of these bytes, a `Long` one if it takes long to read. Raises: Refused: it has too many parts, or too
    many bytes that are no raw contents, or is no message."""
    heads: list[Field] = []
    head_bytes = raw_bytes = 0
    for field in _counted(data):
        if field.number < _INPUTS:
            heads.append(field)
            head_bytes += field.end - field.at
        elif field.number == _RAW:
            raw_bytes += field.end - field.at
    if head_bytes > MOST_HEAD_BYTES:
        raise too_large(f"the names and parameters of a request have at most {MOST_HEAD_BYTES} bytes")
    beside_bytes = len(data) - raw_bytes
    if beside_bytes > MOST_JSON_BYTES:
        raise too_large(f"a request has at most {MOST_JSON_BYTES} bytes beside its raw contents")
    if beside_bytes <= AT_ONCE_BYTES:
        return message(data)
    return Long(message(b"".join(data[each.at : each.end] for each in heads)), data)


def check_tensors(data: bytes) -> None:
    """Whether each tensor of the request has a number of parts that may be walked, and ``contents`` no more strings
    than its shape. Raises: Refused."""
    left = MOST_STRINGS
    for field in _counted(data):
        if field.number in (_INPUTS, _OUTPUTS):
            parts = []
            for count, part in enumerate(fields(data, field.value, field.end)):
                if count == _MOST_FIELDS:
                    raise invalid(f"a tensor of the request has more than {_MOST_FIELDS} parts")
                parts.append(part)
            if field.number == _INPUTS:
                left -= _strings(data, parts, left)


def _strings(data: bytes, parts: Sequence[Field], most: int) -> int:
    """How many strings an input's ``contents`` have. Raises: Refused: more than its shape, or than ``most``."""
    dims: list[int] = []
    for part in parts:
        if part.number == _SHAPE and len(dims) <= MAX_DIMS:  # one too many is refused later
            dims += whole_numbers(data, part, MAX_DIMS + 1 - len(dims))
    expected, count = math.prod(dims), 0
    for contents in (part for part in parts if part.number == _CONTENTS):
        for each in fields(data, contents.value, contents.end):
            count += each.number == _STRINGS
            if count > most:
                raise invalid(f"more than {MOST_STRINGS} strings in the contents of a request: send them raw")
            if count > expected:
                raise invalid(f"unexpected number of string elements {expected + 1} for an input, expecting {expected}")
    return count


def message(data: bytes, name: str = "ModelInferRequest") -> Any:
    """The message of these bytes. Raises: Refused: it is none."""
    return parsed(getattr(classes(), name), data)


def parsed(kind: Any, data: bytes) -> Any:
    """The message of this class. Raises: Refused: the bytes are none."""
    try:
        return kind.FromString(data)
    except Exception as fault:
        if type(fault).__name__ != "DecodeError":  # protobuf's, which is imported with the first message only
            raise
        raise broken() from None


def other(data: bytes, name: str) -> Any:
    """The message of a method that is no inference. Raises: Refused: it is longer than any of them needs."""
    if len(data) > MOST_OTHER_BYTES:
        raise too_large(f"the message of this method has at most {MOST_OTHER_BYTES} bytes")
    return message(data, f"{name}Request")


def _counted(data: bytes) -> list[Field]:
    """The fields of a request. Raises: Refused: there are more than may be, of any kind."""
    counts = Counter[int]()
    found = []
    for field in fields(data):
        kind = field.number if field.number <= _RAW else 0
        counts[kind] += 1
        most = MOST_PARAMETERS if kind == _PARAMETERS else MOST_TENSORS
        if counts[kind] > most:
            raise invalid(f"more than {most} {_NAMES.get(kind, 'fields of a kind')}")
        found.append(field)
    return found
