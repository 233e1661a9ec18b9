"""One rank of a request with SHArP: sums whole numbers without end, and writes how each sum ran.

    tree_rank_main.py FOLDER RANKS STATES

``STATES``: folder with a folder for each host, in which its daemon's helper reads rank state files. A line of
``FOLDER/sums.SLOT``: the step, whether the sum was right, and how it ran.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from offpath.bindings.runtime import INA_FOLDER
from offpath.host_helper.ina.runtime import Runtime


def how(runtime: Runtime, number: int) -> str:
    """How the operation ran. torch may end the wait for a plain one before the call that records it."""
    while not (found := [entry.how for entry in runtime.timeline.entries()[-2:] if entry.number == number]):
        time.sleep(0.001)
    return found[0]


def main(folder: str, ranks: int, states: str) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["OFFPATH_INC_SLOT"])
    store = dist.FileStore(f"{folder}/store", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    runtime = Runtime.start(directory=os.path.join(states, os.environ["OFFPATH_NODE"], INA_FOLDER), trace=True)
    with open(f"{folder}/sums.{rank}", "a", encoding="ascii") as file:
        step = 0
        while True:
            runtime.step_boundary()
            tensor = torch.full((30_000,), float(rank + step % 5))
            runtime.all_reduce(tensor).wait()
            is_right = bool((tensor == ranks * (step % 5) + ranks * (ranks - 1) // 2).all())
            print(step, "right" if is_right else "wrong", how(runtime, step), file=file, flush=True)
            step += 1
            time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
