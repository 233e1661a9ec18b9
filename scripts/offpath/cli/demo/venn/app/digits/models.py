"""Three models of digits in NumPy, each a list of arrays: softmax regression, a network with a hidden layer, and
softmax regression on random features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
PIXELS: Final = 64
CLASSES: Final = 10
HIDDEN: Final = 32
FEATURES: Final = 128
MODELS: Final = ("softmax", "hidden", "features")
_RATE: Final = 0.5
_WIDTH: Final = 0.3
"""Of the random features: of a Gaussian kernel."""
_BATCH: Final = 16


def first(model: str, seed: int) -> list[Floats]:
    """The arrays before training."""
    random = np.random.default_rng(seed)
    if model == "softmax":
        return [np.zeros((PIXELS, CLASSES)), np.zeros(CLASSES)]
    if model == "features":
        return [np.zeros((FEATURES, CLASSES)), np.zeros(CLASSES)]
    return [
        random.normal(0, PIXELS**-0.5, (PIXELS, HIDDEN)), np.zeros(HIDDEN),
        random.normal(0, HIDDEN**-0.5, (HIDDEN, CLASSES)), np.zeros(CLASSES),
    ]  # fmt: skip


def trained(model: str, arrays: Sequence[Floats], images: Floats, labels: NDArray[Any], epochs: int, seed: int) -> list[
    Floats
]:  # fmt: skip
    """After some epochs of stochastic gradient descent. ``images``: shape [n, 64], 0 to 1; ``labels``: shape [n]."""
    random = np.random.default_rng(seed)
    arrays = [each.copy() for each in arrays]
    inputs, targets = _inputs(model, images), np.eye(CLASSES)[labels]
    for _ in range(epochs):
        order = random.permutation(len(inputs))
        for begin in range(0, len(order), _BATCH):
            batch = order[begin : begin + _BATCH]
            for array, gradient in zip(arrays, _gradients(arrays, inputs[batch], targets[batch]), strict=True):
                array -= _RATE * gradient
    return arrays


def accuracy(model: str, arrays: Sequence[Floats], images: Floats, labels: NDArray[Any]) -> float:
    """The part of the images that are recognised."""
    return float((_outputs(arrays, _inputs(model, images))[-1].argmax(1) == labels).mean())


def _inputs(model: str, images: Floats) -> Floats:
    if model != "features":
        return images
    random = np.random.default_rng(0)  # the same features everywhere
    found: Floats = np.cos(
        images @ random.normal(0, _WIDTH, (PIXELS, FEATURES)) + random.uniform(0, 2 * np.pi, FEATURES)
    )
    return found


def _outputs(arrays: Sequence[Floats], inputs: Floats) -> list[Floats]:
    """Of each layer."""
    if len(arrays) == 2:
        return [_softmax(inputs @ arrays[0] + arrays[1])]
    hidden = np.maximum(0, inputs @ arrays[0] + arrays[1])
    return [hidden, _softmax(hidden @ arrays[2] + arrays[3])]


def _softmax(values: Floats) -> Floats:
    found: Floats = np.exp(values - values.max(1, keepdims=True))
    found /= found.sum(1, keepdims=True)
    return found


def _gradients(arrays: Sequence[Floats], inputs: Floats, targets: Floats) -> list[Floats]:
    outputs = _outputs(arrays, inputs)
    wrong = (outputs[-1] - targets) / len(inputs)
    if len(arrays) == 2:
        return [inputs.T @ wrong, wrong.sum(0)]
    back = (wrong @ arrays[2].T) * (outputs[0] > 0)
    return [inputs.T @ back, back.sum(0), outputs[0].T @ wrong, wrong.sum(0)]
