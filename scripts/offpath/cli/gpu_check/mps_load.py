"""Work for `mps`, as a program: products of matrices and a small model with torch, as rates on standard output."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import orjson

_SECONDS: Final = 2.0
_BATCH: Final = 20


def main() -> None:
    """Print products and inferences per second."""
    import torch

    matrix = torch.rand(4096, 4096, device="cuda", dtype=torch.bfloat16)
    layer = torch.nn.Linear
    model = torch.nn.Sequential(layer(64, 512), torch.nn.ReLU(), layer(512, 512), torch.nn.ReLU(), layer(512, 10))
    model = model.cuda().eval()
    images = torch.rand(256, 64, device="cuda")
    with torch.inference_mode():
        found = {
            "products of 4096² bf16, per s": _rate(torch, lambda: matrix @ matrix),
            "small model, batches of 256 per s": _rate(torch, lambda: model(images)),
        }
    print(orjson.dumps(found).decode())


def _rate(torch: Any, work: Callable[[], Any]) -> float:
    for _ in range(_BATCH):
        work()
    torch.cuda.synchronize()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < _SECONDS:
        for _ in range(_BATCH):
            work()
        torch.cuda.synchronize()
        count += _BATCH
    return round(count / (time.perf_counter() - began), 1)


if __name__ == "__main__":
    main()
