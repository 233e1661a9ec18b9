"""The batch of a request, as Triton counts it: the first dimension of each tensor, where a model has one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from offpath.host_helper.gateway.datatypes import BYTES_EACH
from offpath.host_helper.gateway.errors import invalid
from offpath.host_helper.gateway.models import Model
from offpath.host_helper.request_arrays import Array

BATCH_NOTE: Final = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)
"""What Triton adds to a refusal of a shape."""


def rows_of(arrays: Sequence[Array]) -> int:
    """The first dimension of a request's arrays; at least 1, as Triton counts a request without a batch."""
    return max((array.shape[0] for array in arrays if array.shape), default=1) or 1


def check_batch(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check the first dimensions of the inputs, by name. Raises: Refused: they differ, or are no size of a batch; the
    texts are Triton's."""
    if model.batching is None:
        return
    rows: int | None = None
    for name, shape in shapes.items():
        if not shape:
            raise invalid(f"input '{name}' has no shape but model requires batch dimension for '{model.name}'")
        rows = shape[0] if rows is None else rows
        if shape[0] != rows:
            raise invalid(f"input '{name}' batch size does not match other inputs for '{model.name}'")
    if rows is not None and rows > model.max_batch:
        raise invalid(f"inference request batch-size must be <= {model.max_batch} for '{model.name}'")
    if rows == 0:
        name, shape = next(iter(shapes.items()))
        row_bytes = BYTES_EACH.get(model.inputs[name].datatype, 1) * math.prod(max(dim, 0) for dim in shape[1:])
        raise invalid(
            f"input byte size mismatch for input '{name}' for model '{model.name}'. Expected {row_bytes}, got 0"
        )
