"""One rank of `ina-live`: its only argument is its task, as JSON; its only line of output is the result."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist

from offpath.host_helper.ina.runtime import Runtime

Reduce = Callable[[Any], Any]
_COMPUTE_S: Final = 0.01
"""Between two steps' all-reduces, as in a job; a real one computes for longer."""


def overhead(task: dict[str, Any], runtime: Runtime) -> dict[str, Any]:
    """µs per all-reduce by way, one for each block; the ways alternate step by step, from a common start."""
    raw = runtime.other_group()

    def by_gloo(tensor: Any) -> Any:
        return dist.all_reduce(tensor, async_op=True).get_future()

    def by_raw(tensor: Any) -> Any:
        return raw.allreduce([tensor], dist.AllreduceOptions()).get_future()

    ways: dict[str, Reduce] = {"gloo": by_gloo, "raw": by_raw, "runtime": runtime.all_reduce}
    found: dict[str, list[float]] = {name: [] for name in ways}
    tensors = [torch.zeros(task["elements"]) for _ in range(task["operations"])]
    together = torch.zeros(1)
    layer = torch.randn(256, 256)
    for block in range(-2, task["blocks"]):
        took: dict[str, list[int]] = {name: [] for name in ways}
        for _ in range(task["steps"]):
            for name, way in ways.items():
                until = time.perf_counter() + _COMPUTE_S
                while time.perf_counter() < until:
                    layer = torch.tanh(layer @ layer)
                raw.allreduce([together], dist.AllreduceOptions()).wait()
                begun = time.perf_counter_ns()
                if name == "runtime":
                    runtime.step_boundary()
                for future in [way(tensor) for tensor in tensors]:
                    future.wait()
                took[name].append(time.perf_counter_ns() - begun)
        if block >= 0:  # earlier blocks warm up, and collect the pattern
            for name, each in took.items():
                found[name].append(statistics.quantiles(each, n=10)[0] / 1e3 / len(tensors))
    return found


def steps(task: dict[str, Any], runtime: Runtime) -> dict[str, Any]:
    """Run the steps; returns the begin and epoch of each, and the duration of each operation, µs by way."""
    seen = []
    tensors = [torch.zeros(task["elements"]) for _ in range(task["operations"])]
    for _ in range(task["steps"]):
        begun = time.monotonic_ns()
        for number, tensor in enumerate(tensors):
            if not number:
                runtime.step_boundary()
            runtime.all_reduce(tensor).wait()
        seen.append((begun, runtime.state.applied))
        time.sleep(task["pause_s"])
    entries = runtime.timeline.entries()[20:]
    return {"steps": seen, "timeline": [(each.how, (each.end_ns - each.requested_ns) / 1e3) for each in entries]}


def main() -> None:
    """See the module."""
    task = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{task['store']}", rank=task["rank"], world_size=task["ranks"])
    part = {"overhead": overhead, "steps": steps}[task["part"]]
    with Runtime.start(job=task["job"], directory=task["pages"], trace=task["part"] == "steps") as runtime:
        found = part(task, runtime)
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
