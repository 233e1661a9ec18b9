"""The digits: each node has a part of them, the server those that nobody trains on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

FILE: Final = "optdigits_test.npz"
TRAINED_ON: Final = 1_000
_BRIGHTEST: Final = 16.0
Samples = tuple[NDArray[np.float64], NDArray[Any]]


def part(folder: str, number: int, parts: int) -> Samples:
    """Images, shape [n, 64], 0 to 1, and labels, shape [n]: every ``parts``-th one of the first thousand."""
    images, labels = _read(folder)
    return images[number:TRAINED_ON:parts], labels[number:TRAINED_ON:parts]


def held(folder: str) -> Samples:
    """Those that nobody trains on."""
    images, labels = _read(folder)
    return images[TRAINED_ON:], labels[TRAINED_ON:]


def _read(folder: str) -> Samples:
    with np.load(Path(folder) / FILE) as file:
        return file["images"] / _BRIGHTEST, file["labels"]
