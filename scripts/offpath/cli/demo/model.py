"""The demo's model: a small network on digits, trained in a second, then quantised so that arithmetic is exact.

Weights, inputs and hidden values are small whole numbers held in float32, and every sum stays below 2^24. float32
represents each exactly, so the order of a BLAS's additions cannot matter. Two processes that compute the same
job get the same bytes, so a difference is an error of the data path, not of rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offpath.cli.demo.samples import DEMANDS, PIXELS

Float = NDArray[np.float32]
HIDDEN: Final = {14: 32, 28: 64, 42: 128}
"""Hidden units per demand R: a larger demand gets a larger network."""
_CLASSES: Final = 10
_WHITE: Final = 16.0
_WEIGHT: Final = 127.0
_ACTIVATION: Final = 255.0
_EXACT: Final = float(1 << 24)
_STEPS: Final = 250
_RATE: Final = 0.3
_MOMENTUM: Final = 0.9
_DECAY: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Network:
    """Whole numbers as float32: w1 [64, h], b1 [h], w2 [h, 10], b2 [10]; ``scale`` is a power of two."""

    w1: Float
    b1: Float
    w2: Float
    b2: Float
    scale: np.float32

    def classify(self, images: Float) -> tuple[NDArray[np.uint8], Float]:
        """Digits [n] and the winning score of each [n], for images [n, 64] of whole numbers 0..16."""
        hidden: Float = np.matmul(images, self.w1)  # numpy 2.5 takes the type of `@` for float64
        hidden += self.b1
        hidden *= self.scale
        np.floor(hidden, out=hidden)
        np.clip(hidden, 0.0, _ACTIVATION, out=hidden)
        scores: Float = np.matmul(hidden, self.w2)
        scores += self.b2
        digits = scores.argmax(1)
        return digits.astype(np.uint8), scores.max(1)


_FIELDS: Final = tuple(field.name for field in fields(Network))


def train(images: NDArray[np.uint8], labels: NDArray[np.uint8], hidden: int, seed: int) -> Network:
    """Full-batch gradient descent with momentum on the cross entropy, then quantisation."""
    rng = np.random.default_rng([seed, hidden])
    x = images.astype(np.float64) / _WHITE
    truth = np.eye(_CLASSES)[labels]
    weights: list[NDArray[np.float64]] = [
        rng.normal(0.0, np.sqrt(2 / PIXELS), (PIXELS, hidden)),
        np.zeros(hidden),
        rng.normal(0.0, np.sqrt(2 / hidden), (hidden, _CLASSES)),
        np.zeros(_CLASSES),
    ]
    speed = [np.zeros_like(w) for w in weights]
    for _ in range(_STEPS):
        w1, b1, w2, b2 = weights
        h = np.maximum(x @ w1 + b1, 0.0)
        logits = h @ w2 + b2
        p = np.exp(logits - logits.max(1, keepdims=True))
        error = (p / p.sum(1, keepdims=True) - truth) / len(x)
        back = (error @ w2.T) * (h > 0)
        slopes = (x.T @ back + _DECAY * w1, back.sum(0), h.T @ error + _DECAY * w2, error.sum(0))
        for weight, pace, slope in zip(weights, speed, slopes, strict=True):
            pace *= _MOMENTUM
            pace -= _RATE * slope
            weight += pace
    return _quantise(weights, images)


def _quantise(weights: list[NDArray[np.float64]], images: NDArray[np.uint8]) -> Network:
    """Whole-number weights; activations scaled by a power of two into 0..255 on the training images."""
    w1, b1, w2, b2 = weights
    by1 = _WEIGHT / np.abs(w1 / _WHITE).max()
    w1q, b1q = np.rint(w1 / _WHITE * by1), np.rint(b1 * by1)
    largest = float((images.astype(np.float64) @ w1q + b1q).max())
    scale = 2.0 ** -max(0, int(np.ceil(np.log2(largest / _ACTIVATION))))
    by2 = _WEIGHT / np.abs(w2).max()
    w2q, b2q = np.rint(w2 * by2), np.rint(b2 * by2 * by1 * scale)
    for bound in (_WHITE * np.abs(w1q).sum(0) + np.abs(b1q), _ACTIVATION * np.abs(w2q).sum(0) + np.abs(b2q)):
        assert bound.max() < _EXACT, "a sum could leave the whole numbers float32 can hold"
    whole = [a.astype(np.float32) for a in (w1q, b1q, w2q, b2q)]
    return Network(whole[0], whole[1], whole[2], whole[3], np.float32(scale))


def save(networks: dict[int, Network], path: str) -> None:
    """Write one file for all processes of the demo."""
    arrays: dict[str, Any] = {}
    for demand, network in networks.items():
        for name in _FIELDS:
            arrays[f"{name}_{demand}"] = getattr(network, name)
    with Path(path).open("wb") as file:
        np.savez(file, **arrays)


def load(path: str) -> dict[int, Network]:
    """What `save` wrote, by demand."""
    with np.load(path, allow_pickle=False) as arrays:
        return {demand: Network(**{name: arrays[f"{name}_{demand}"] for name in _FIELDS}) for demand in DEMANDS}
