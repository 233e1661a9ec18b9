"""One rank of a training job: told by lines of JSON what to train, and how; it answers with a line each.

    ina_rank_main.py STORE RANK RANKS [BACKEND]

``train``: a small network by SGD. ``by``: ddp (DDP alone), hook, fp16 (torch's hook alone), wrap (the same over the
runtime). ``sum``: all-reduces of whole numbers, where any order of sums is the right one; answers with what was wrong.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from offpath.host_helper.ina.hook import register
from offpath.host_helper.ina.runtime import Runtime


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def shape_of(value: Any) -> Any:
    """A list from JSON as the tuple that `Runtime.start` takes."""
    return tuple(map(shape_of, value)) if isinstance(value, list) else value


class Ranked:
    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks

    def start(self, said: dict[str, Any]) -> Runtime:
        runtime = Runtime.start(
            job=said.get("job", ""), directory=(said.get("directories") or [None] * self.ranks)[self.rank],
            deterministic=shape_of(said.get("deterministic", False)), trace=True,
            every=said.get("every", 16), patience_s=said.get("patience_s", 5.0),
        )  # fmt: skip
        say(incarnation=runtime.incarnation)
        return runtime

    def told(self, runtime: Runtime) -> dict[str, Any]:
        state = runtime.state
        return {
            "timeline": sorted([each.number, each.how] for each in runtime.timeline.entries()),
            "applied": state.applied, "held": state.held, "lost": state.lost, "index": state.index,
        }  # fmt: skip

    def train(self, said: dict[str, Any]) -> dict[str, Any]:
        torch.manual_seed(7)
        layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU()]
        net = torch.nn.Sequential(*layers, torch.nn.Linear(256, 10))
        model = DistributedDataParallel(net, bucket_cap_mb=0.1)
        runtime = self.start(said) if said["by"] in ("hook", "wrap") else None
        if runtime is not None:
            register(model, runtime, fp16_compress_hook if said["by"] == "wrap" else None)
        elif said["by"] == "fp16":
            model.register_comm_hook(None, fp16_compress_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        noise = torch.Generator().manual_seed(self.rank)
        for step in range(said["steps"]):
            data = torch.randn(16, 64, generator=noise)
            if said.get("accumulates") and step % 3 == 2:
                with model.no_sync():
                    model(data).square().mean().backward()
            model(data).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(said.get("pause_s", 0.0))
        weights = b"".join(each.detach().numpy().tobytes() for each in net.parameters())
        found: dict[str, Any] = {"weights": hashlib.sha256(weights).hexdigest()[:16]}
        if runtime is not None:
            runtime.close()
            found |= self.told(runtime)
        return found

    def sum(self, said: dict[str, Any]) -> dict[str, Any]:
        wrong = []
        slow = (said.get("slow") or [0.0] * self.ranks)[self.rank]
        with self.start(said) as runtime:
            for step in range(said["steps"]):
                if said.get("has_steps", True):
                    runtime.step_boundary()
                dtypes = [torch.float32, torch.int32, torch.bfloat16, torch.float16, torch.float64]
                tensors = [
                    torch.full((said.get("elements", 30_000),), self.rank + step % 5, dtype=dtypes[n % len(dtypes)])
                    for n in range(said.get("operations", 3))
                ]
                futures = [runtime.all_reduce(each) for each in tensors]
                for n, (tensor, future) in enumerate(zip(tensors, futures, strict=True)):
                    future.wait()
                    if not (tensor == self.ranks * (step % 5) + self.ranks * (self.ranks - 1) // 2).all():
                        wrong.append([step, n])
                if said.get("dies_at") == [self.rank, step]:
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(said.get("pause_s", 0.0) + slow)
            told = self.told(runtime)
        return {"wrong": wrong, **told}


def main() -> None:
    store, rank, ranks, *backend = sys.argv[1:]
    torch.set_num_threads(1)
    if backend:
        import offpath.host_helper.ina.backend  # noqa: F401, training code's one other line, if that
    dist.init_process_group(
        backend[0] if backend else "gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(ranks),
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    me = Ranked(int(rank), int(ranks))
    say(ready=True)
    for line in sys.stdin:
        said = json.loads(line)
        try:
            say(**getattr(me, said.pop("do"))(said))
        except RuntimeError as fault:
            say(failed=str(fault)[:200])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
