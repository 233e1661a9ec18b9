"""The training of the two jobs: a small network on digits, data-parallel. Needs torch (extra ``train``).

Everything is drawn by job, step and rank alone. So the same training can be repeated in one process, without a
network, and must give bit-identical weights if gradients are summed in the same order.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from offpath.cli.demo.samples import PIXELS, load_digits

HIDDEN: Final = (192,) * 8
BATCH: Final = 16
"""Images per rank and step."""
BUCKET_MB: Final = 0.13
"""DDP's buckets: about one layer each, so that jobs can alternate within a step."""
_CLASSES: Final = 10
_RATE: Final = 0.02
_MOMENTUM: Final = 0.9
_WHITE: Final = 16.0


def one_thread() -> None:
    """Use one thread: the order of sums must be the same everywhere."""
    torch.set_num_threads(1)


def network(seed: int) -> torch.nn.Sequential:
    """The same weights for the same seed: 1.1 MB of float32."""
    torch.manual_seed(seed)
    sizes = (PIXELS, *HIDDEN, _CLASSES)
    layers: list[torch.nn.Module] = []
    for before, after in pairwise(sizes):
        linear = torch.nn.Linear(before, after)
        torch.nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")  # many layers: prevents vanishing activations
        layers += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def optimiser(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Gradient descent with momentum."""
    return torch.optim.SGD(model.parameters(), lr=_RATE, momentum=_MOMENTUM, foreach=False)


@dataclass(frozen=True, slots=True)
class Batch:
    """``images``: float32 [BATCH, 64]; ``labels``: int64 [BATCH]."""

    images: torch.Tensor
    labels: torch.Tensor


def batch(seed: int, step: int, rank: int) -> Batch:
    """A rank's batch in a step."""
    digits = load_digits()
    chosen = np.random.default_rng([seed, step, rank]).integers(0, len(digits.train_labels), BATCH, dtype=np.intp)
    images: NDArray[np.float32] = digits.train_images[chosen].astype(np.float32) / np.float32(_WHITE)
    return Batch(torch.from_numpy(images), torch.from_numpy(digits.train_labels[chosen].astype(np.int64)))


def loss(model: Any, data: Batch) -> torch.Tensor:
    """Cross entropy."""
    return torch.nn.functional.cross_entropy(model(data.images), data.labels)


def accuracy(model: torch.nn.Module) -> float:
    """On the held-out digits."""
    digits = load_digits()
    with torch.no_grad():
        scores = model(torch.from_numpy(digits.held_images.astype(np.float32) / np.float32(_WHITE)))
    return float((scores.argmax(1).numpy() == digits.held_labels).mean())


def fingerprint(model: torch.nn.Module) -> str:
    """A hash of all weights' bits."""
    digest = hashlib.sha256()
    for each in model.state_dict().values():
        digest.update(each.numpy().tobytes())
    return digest.hexdigest()


def alone(seed: int, ranks: int, steps: int) -> torch.nn.Module:
    """The whole training in this process: each rank's gradient one after the other, divided by their number as DDP
    does, added in the order of ranks. No DDP, no network, no INA.
    """
    model = network(seed)
    steering = optimiser(model)
    for step in range(steps):
        total: list[torch.Tensor] = []
        for rank in range(ranks):
            model.zero_grad()
            loss(model, batch(seed, step, rank)).backward()  # type: ignore[no-untyped-call, unused-ignore]
            grads = [each.grad for each in model.parameters() if each.grad is not None]
            mine = [each.mul_(1.0 / ranks) for each in grads]
            if not total:
                total = [each.clone() for each in mine]
            else:
                for sum_, each in zip(total, mine, strict=True):
                    sum_.add_(each)
        for each, sum_ in zip(model.parameters(), total, strict=True):
            each.grad = sum_
        steering.step()
    return model
