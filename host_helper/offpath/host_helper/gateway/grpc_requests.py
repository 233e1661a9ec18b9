"""Inference requests as they come over gRPC: bounded before a message is made of their bytes.

A message of 4 MiB can have two million parts, which cost a second of all tenants' time and 160 MB. So the parts of the
bytes are counted first, at most some hundred; what is long beside raw contents is left to the reading process.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from offpath.host_helper.gateway.buffers import AT_ONCE_BYTES
from offpath.host_helper.gateway.calls import MOST_PARAMETERS, MOST_TENSORS
from offpath.host_helper.gateway.errors import invalid, too_large
from offpath.host_helper.gateway.messages import classes
from offpath.host_helper.gateway.protobuf_fields import Field, broken, fields

MOST_HEAD_BYTES: Final = 64 * 1024
"""Names, id and parameters of a request."""
MOST_OTHER_BYTES: Final = 64 * 1024
"""A message of any other method."""
_MOST_FIELDS: Final = 512
"""Of a tensor: more than `MOST_PARAMETERS`, dims one by one and contents in some pieces."""
_PARAMETERS, _INPUTS, _OUTPUTS, _RAW = 4, 5, 6, 7
"""Fields of ModelInferRequest (`messages.FIELDS`); those before `_INPUTS` are its head."""
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
    """The message of these bytes, a `Long` one if it takes long to read. Raises: Refused: it has too many parts, or is
    no message."""
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
    if len(data) - raw_bytes <= AT_ONCE_BYTES:
        return message(data)
    return Long(message(b"".join(data[each.at : each.end] for each in heads)), data)


def check_tensors(data: bytes) -> None:
    """Whether each tensor of the request has a number of parts that may be walked. Raises: Refused."""
    for field in _counted(data):
        if field.number in (_INPUTS, _OUTPUTS):
            for count, _ in enumerate(fields(data, field.value, field.end)):
                if count == _MOST_FIELDS:
                    raise invalid(f"a tensor of the request has more than {_MOST_FIELDS} parts")


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
