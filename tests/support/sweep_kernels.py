"""Kernels of the kill sweep beside `tally` and `tallies`: one that batches, one of sequences. Each writes down what it
was launched with, before it works."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offpath.host_helper import Helper, SequenceContext

Array = NDArray[Any]
ROW = 64
"""Bytes of a request of `tally-rows`: a tag and dots."""


def offer_forms(helper: Helper, tally_file: Callable[[], int]) -> None:
    """``tally_file``: the descriptor that launches are written to."""

    @helper.kernel(
        "tally-rows", demand=14, max_batch=8, max_queue_delay_us=3_000,
        inputs={"tag": ("uint8", [-1, ROW])}, outputs={"same": ("uint8", [-1, ROW])},
    )  # fmt: skip
    def tally_rows(tags: Array) -> Array:
        """Answers each row with itself; the rows of a launch are written down at once."""
        os.write(tally_file(), b"".join(row.tobytes().rstrip(b".") + b"\n" for row in tags))
        time.sleep(0.002)
        return tags.copy()

    @helper.kernel("tally-steps", demand=14, sequences=True)
    def tally_steps(tag: Array, *, sequence: SequenceContext) -> Array:
        """Answers with the step's number, counted in the sequence's state, and the tag."""
        os.write(tally_file(), tag.tobytes() + b"\n")
        time.sleep(0.002)
        sequence.state["steps"] = sequence.state.get("steps", 0) + 1
        return np.frombuffer(b"%d " % sequence.state["steps"] + tag.tobytes(), np.uint8)
