"""The demo's network in torch, on whichever device its images are: the same exact arithmetic as `model.Network`."""

from __future__ import annotations

from typing import Any

import torch

from offpath.cli.demo.model import Network

_ACTIVATION = 255.0


class TorchNetwork:
    """Weights move to a device at the first images there: in a worker, after its fork."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._scale = float(network.scale)
        self._weights: dict[Any, tuple[Any, ...]] = {}

    def classify(self, images: Any) -> tuple[Any, Any]:
        """Digits [n] of uint8 and the winning score of each [n], as `model.Network.classify`. No TF32: its products
        would not be exact."""
        w1, b1, w2, b2 = self._on(images.device)
        hidden = torch.clamp(torch.floor((images @ w1 + b1) * self._scale), 0.0, _ACTIVATION)
        scores = hidden @ w2 + b2
        return scores.argmax(1).to(torch.uint8), scores.amax(1)

    def _on(self, device: Any) -> tuple[Any, ...]:
        weights = self._weights.get(device)
        if weights is None:
            torch.backends.cuda.matmul.allow_tf32 = False
            network = self._network
            weights = tuple(torch.from_numpy(w).to(device) for w in (network.w1, network.b1, network.w2, network.b2))
            self._weights[device] = weights
        return weights
