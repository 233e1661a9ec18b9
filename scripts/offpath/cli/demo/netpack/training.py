"""The training of the demo's jobs: a network of one hidden layer on digits, data-parallel, in numpy.

Everything is drawn by seed, step and rank alone, and gradients are summed as int32. So the same training in one
process, without a network, must give bit-identical weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from offpath.cli.demo.samples import PIXELS, load_digits
from offpath.host_helper.ina.statistical import fixed_point

_CLASSES: Final = 10
BATCH: Final = 16
"""Images per GPU and step."""
_RATE: Final = np.float32(0.2)
_WHITE: Final = 16.0


@dataclass(frozen=True, slots=True)
class Training:
    """``shares``: GPUs of each worker, by rank. ``data_bytes``: of the gradients of a step, about."""

    seed: int
    shares: tuple[int, ...]
    data_bytes: int
    steps: int

    @property
    def hidden(self) -> int:
        """Width of the hidden layer that gives about ``data_bytes``."""
        return max(4, round(self.data_bytes / 4 / (PIXELS + _CLASSES + 1)))

    @property
    def parameters(self) -> int:
        """Elements of a gradient."""
        return self.hidden * (PIXELS + 1 + _CLASSES) + _CLASSES

    def weights(self) -> NDArray[np.float32]:
        """The first weights, shape [parameters]."""
        noise = np.random.default_rng(self.seed)
        spread = np.concatenate([
            np.full(PIXELS * self.hidden, (2 / PIXELS) ** 0.5), np.zeros(self.hidden),
            np.full(self.hidden * _CLASSES, (1 / self.hidden) ** 0.5), np.zeros(_CLASSES),
        ])  # fmt: skip
        found: NDArray[np.float32] = (noise.standard_normal(self.parameters) * spread).astype(np.float32)
        return found

    def gradient(self, weights: NDArray[np.float32], step: int, rank: int) -> NDArray[np.int32]:
        """A rank's part of the step's gradient, in fixed point. Raises: GradientOutOfRange."""
        digits = load_digits()
        size = BATCH * self.shares[rank]
        chosen = np.random.default_rng([self.seed, step, rank]).integers(0, len(digits.train_labels), size)
        images = digits.train_images[chosen].astype(np.float32) / np.float32(_WHITE)
        w1, b1, w2, b2 = self._layers(weights)
        before = images @ w1 + b1
        active = np.maximum(before, np.float32(0))
        error = _softmax(active @ w2 + b2)
        error[np.arange(size), digits.train_labels[chosen]] -= np.float32(1)
        error /= np.float32(BATCH * sum(self.shares))
        below = (error @ w2.T) * (before > 0)
        parts = (images.T @ below, below.sum(0), active.T @ error, error.sum(0))
        return fixed_point.encode(np.concatenate([part.ravel() for part in parts]), len(self.shares))

    def accuracy(self, weights: NDArray[np.float32]) -> float:
        """On the held-out digits."""
        digits = load_digits()
        w1, b1, w2, b2 = self._layers(weights)
        images = digits.held_images.astype(np.float32) / np.float32(_WHITE)
        scores = np.maximum(images @ w1 + b1, np.float32(0)) @ w2 + b2
        return float((scores.argmax(1) == digits.held_labels).mean())

    def _layers(self, weights: NDArray[np.float32]) -> Sequence[NDArray[np.float32]]:
        first = PIXELS * self.hidden
        w1, b1, w2, b2 = np.split(weights, np.cumsum([first, self.hidden, self.hidden * _CLASSES]))
        return w1.reshape(PIXELS, self.hidden), b1, w2.reshape(self.hidden, _CLASSES), b2


def _softmax(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    raised = np.exp(scores - scores.max(1, keepdims=True))
    found: NDArray[np.float32] = np.divide(raised, raised.sum(1, keepdims=True))
    return found


def step(weights: NDArray[np.float32], total: NDArray[np.int32]) -> NDArray[np.float32]:
    """The weights after a step with the summed gradient."""
    found: NDArray[np.float32] = weights - _RATE * fixed_point.decode(total)
    return found


def fingerprint(weights: NDArray[np.float32]) -> str:
    """A hash of the weights' bits."""
    return hashlib.sha256(weights.tobytes()).hexdigest()


def alone(training: Training) -> NDArray[np.float32]:
    """The whole training in this process, without a network."""
    weights = training.weights()
    for number in range(training.steps):
        parts = [training.gradient(weights, number, rank) for rank in range(len(training.shares))]
        weights = step(weights, np.sum(parts, axis=0, dtype=np.int32))
    return weights
