"""Data and compute time of an iteration by model: the six CNNs of NetPack's evaluation (§6.1).

Data: published parameter counts, 4 bytes each. Compute time: 32 images per GPU at the rate of an RTX 2080 Ti in fp32.
ResNet-50's 294 images/s is Lambda's measurement; the other rates are assumptions: ResNet-101 by its operations, the
others of the order that such GPUs reach with plain convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from offpath.sched.errors import SchedError

BATCH: Final = 32
"""Images per GPU and iteration."""


class UnknownModel(SchedError):
    """No model of that name is known."""


@dataclass(frozen=True, slots=True)
class Model:
    """``parameters``: trained ones. ``images_per_s``: of one GPU."""

    name: str
    parameters: int
    images_per_s: float

    @property
    def data_gbit(self) -> float:
        """Gradients that a worker sends per iteration."""
        return self.parameters * 32 / 1e9

    @property
    def compute_s(self) -> float:
        """Compute time of an iteration."""
        return BATCH / self.images_per_s


MODELS: Final = {
    each.name: each
    for each in (
        Model("vgg11", 132_863_336, 260.0),
        Model("vgg16", 138_357_544, 170.0),
        Model("vgg19", 143_667_240, 145.0),
        Model("alexnet", 61_100_840, 2_700.0),
        Model("resnet50", 25_557_032, 294.0),
        Model("resnet101", 44_549_160, 155.0),
    )
}


def model_named(name: str) -> Model:
    """Raises: UnknownModel."""
    if name not in MODELS:
        raise UnknownModel(f"unknown model {name!r:.60}; known models: {', '.join(MODELS)}")
    return MODELS[name]
