"""A streaming kernel at work: its values one by one, on its lane's stream."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final

from offpath.host_helper.arguments import on_stream
from offpath.host_helper.kernels import NOTHING_ASKED, Asked, Kernel, begin_kernel

END: Final = object()
"""See `Values.next`."""


class Values:
    """The values of one launch. ``stream``: handle of the lane's CUDA stream, 0 in host memory."""

    def __init__(self, kernel: Kernel, tensors: Sequence[Any], stream: int, asked: Asked = NOTHING_ASKED) -> None:
        """Nothing of the kernel runs before the first `next`, except ``pre``. Raises: what ``pre`` raises."""
        self.kernel = kernel
        self._stream = stream
        with on_stream(kernel, stream):
            self._values: Generator[Any, None, None] = begin_kernel(kernel, tensors, asked)

    def next(self) -> Any:
        """The next value, after ``post``; `END`: there is none. Raises: what the kernel raises."""
        with on_stream(self.kernel, self._stream):
            value = next(self._values, END)
            return value if value is END or self.kernel.post is None else self.kernel.post(value)

    def close(self) -> None:
        """End the kernel where it is: its generator gets GeneratorExit. Idempotent. Raises: what the kernel raises."""
        with on_stream(self.kernel, self._stream):
            self._values.close()
