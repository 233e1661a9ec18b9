"""Datatypes of the Open Inference Protocol and dtypes of the wire."""

from __future__ import annotations

from typing import Final

from offpath.bindings.wire.header import DTYPE_CODES, DTYPES

BYTES: Final = "BYTES"
"""Strings."""
WIRE: Final = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "FP16": "float16", "FP32": "float32", "FP64": "float64", "BF16": "bfloat16", "BYTES": "bytes",
}  # fmt: skip
"""The protocol's names to the wire's."""
NAMES: Final = {wire: name for name, wire in WIRE.items()}
BYTES_EACH: Final = {name: DTYPES[DTYPE_CODES[wire]][1] for name, wire in WIRE.items()}
"""Length of an element; of strings the least."""
NO_JSON: Final = frozenset(("FP16", "BF16"))
"""Datatypes that travel as binary data only, as Triton has it."""
