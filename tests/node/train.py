"""A rank of `cluster`'s training: it goes on until the switch has summed for it, and then for some more steps.

The decision to end is part of the training: a rank that stopped by itself would leave the other one waiting.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from offpath.host_helper.ina.hook import register
from offpath.host_helper.ina.runtime import Runtime

_MORE_STEPS = 40
_LONGEST_S = 1_200.0


def main() -> int:
    """0: some all-reduces were summed by the switch, and both ranks hold the same weights."""
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = DistributedDataParallel(torch.nn.Linear(64, 10))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    runtime = Runtime.start(trace=True)
    register(model, runtime)
    ends_at, left = time.monotonic() + _LONGEST_S, _MORE_STEPS
    while left and time.monotonic() < ends_at:
        images = torch.randn(16, 64)
        loss = torch.nn.functional.cross_entropy(model(images), images[:, :10].argmax(1))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        summed = torch.tensor([sum(entry.how == "ina" for entry in runtime.timeline.entries())])
        dist.all_reduce(summed, dist.ReduceOp.MIN)
        left -= bool(summed)
        time.sleep(0.05)  # a larger model computes for as long
    weights = torch.cat([each.detach().flatten() for each in model.parameters()])
    both = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(both, weights)
    counts = Counter(str(entry.how) for entry in runtime.timeline.entries())
    runtime.close()
    dist.destroy_process_group()
    are_same = all(torch.equal(each, both[0]) for each in both)
    print(json.dumps({"all_reduces": dict(counts), "same_weights": are_same}), flush=True)
    return 0 if counts["ina"] and are_same and not left else 1


if __name__ == "__main__":
    sys.exit(main())
