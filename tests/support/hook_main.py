"""A rank that trains with DDP: RANK RANKS FILE HOOK. ``HOOK``: none, ours, or fp16. Says the weights after some steps
of a model with a sparse embedding, and what became of the model when it was pickled and copied."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from offpath.host_helper.errors import OffpathError
from offpath.host_helper.ina.hook import register
from offpath.host_helper.ina.runtime import Runtime


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8, sparse=True)
        self.out = nn.Linear(8, 2)

    def forward(self, index: Any) -> Any:
        return self.out(self.embedding(index))


def trained(model: Any, optimizer: Any, seed: int) -> float:
    drawn = torch.Generator().manual_seed(seed)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randint(0, 16, (4,), generator=drawn)).square().sum().backward()
        optimizer.step()
    return float(sum(each.detach().double().abs().sum() for each in model.parameters()))


def travelled(model: Any) -> list[Any]:
    """Copies of the model: by copy, and by a checkpoint."""
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return [copy.deepcopy(model), torch.load(file, weights_only=False)]


def absent(runtime_of_copy: Any) -> str:
    try:
        runtime_of_copy.all_reduce(torch.zeros(1))
    except OffpathError as fault:
        return str(fault)
    return ""


def main() -> None:
    rank, ranks, file, hook = sys.argv[1:]
    torch.manual_seed(0)
    dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=int(rank), world_size=int(ranks), timeout=timedelta(seconds=60)
    )
    model = DistributedDataParallel(Sparse() if hook != "fp16" else nn.Linear(8, 2))
    with contextlib.ExitStack() as stack:
        if hook != "none":
            runtime = stack.enter_context(Runtime.start())
            register(model, runtime, fp16_compress_hook if hook == "fp16" else None)
        said: dict[str, Any] = {}
        if hook != "fp16":
            said["weights"] = trained(model, torch.optim.SGD(model.parameters(), 0.1), 100 + int(rank))
        weights = [each.detach() for each in model.parameters()]
        copies = travelled(model)
        said["equal"] = all(
            torch.equal(mine, theirs)
            for each in copies
            for mine, theirs in zip(weights, each.parameters(), strict=True)
        )
        if hook == "ours":
            said["absent"] = absent(copies[1]._comm_hooks[0][1])
            said["shared"] = copies[0]._comm_hooks[0][1] is runtime
    print(json.dumps(said), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
