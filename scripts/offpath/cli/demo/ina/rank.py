"""A rank of one of the demo's jobs, as a process: ``python -m offpath.cli.demo.ina.rank SPEC``. Needs torch.

An ordinary DDP training; one line, `hook.register`, makes it use INA.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from offpath.bindings.ina.rate_limiter import RateLimiter
from offpath.cli.demo.ina import log, training
from offpath.cli.demo.ina.orders import Order, Orders
from offpath.cli.demo.ina.rank_spec import Spec
from offpath.cli.local.child import end_with_parent
from offpath.host_helper.ina import hook
from offpath.host_helper.ina.runtime import Runtime

_TIMEOUT: Final = timedelta(seconds=60)


def main(spec: Spec) -> None:
    """Train until the orders end it; rank 0 writes ``end.json``."""
    training.one_thread()
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{spec.port}", rank=spec.rank, world_size=spec.ranks, timeout=_TIMEOUT
    )
    model = training.network(spec.seed)
    steering = training.optimiser(model)
    begin = _resume(spec, model, steering)
    ddp = DistributedDataParallel(model, bucket_cap_mb=training.BUCKET_MB)
    runtime = Runtime.start(
        job=spec.job, directory=spec.state_files, link=RateLimiter(path=spec.link), deterministic=True, trace=True
    )
    hook.register(ddp, runtime)
    orders = Orders(spec.path("wanted.json"), spec.path("agreed"), spec.rank, Order(**spec.first))
    step = begin
    with open(spec.path(f"steps.{spec.rank}.jsonl"), "a", encoding="ascii") as file:
        while not (order := orders.at(step)).ends:
            began_ns = time.monotonic_ns()
            data = training.batch(spec.seed, step, spec.rank)
            time.sleep(order.padding_s)  # stands for the rest of a real model's forward pass
            steering.zero_grad()
            training.loss(ddp, data).backward()  # type: ignore[no-untyped-call, unused-ignore]
            steering.step()
            log.write(file, log.Step(step, order.number, runtime.state.applied, began_ns, time.monotonic_ns()))
            step += 1
            if spec.checkpoint_every and step % spec.checkpoint_every == 0 and spec.rank == 0:
                _save(spec, model, steering, step)
    runtime.close()
    runtime.timeline.write(spec.path(f"operations.{spec.rank}.jsonl"))
    if spec.rank == 0:
        summary = {
            "steps": step,
            "weights": training.fingerprint(model),
            "accuracy": training.accuracy(model),
            "sent": runtime.link.sent if runtime.link else {},
        }
        Path(spec.path("end.json.new")).write_text(json.dumps(summary), "ascii")
        os.replace(spec.path("end.json.new"), spec.path("end.json"))
    dist.barrier()
    dist.destroy_process_group()


def _save(spec: Spec, model: torch.nn.Module, steering: torch.optim.Optimizer, step: int) -> None:
    torch.save({"model": model.state_dict(), "optimiser": steering.state_dict(), "step": step}, spec.path("saved.new"))
    os.replace(spec.path("saved.new"), spec.path("saved"))


def _resume(spec: Spec, model: torch.nn.Module, steering: torch.optim.Optimizer) -> int:
    """The step to continue with: the checkpoint's, or 0."""
    if not os.path.exists(spec.path("saved")):
        return 0
    saved = torch.load(spec.path("saved"), weights_only=True)
    model.load_state_dict(saved["model"])
    steering.load_state_dict(saved["optimiser"])
    return int(saved["step"])


if __name__ == "__main__":
    end_with_parent()
    main(Spec(**json.loads(Path(sys.argv[1]).read_text("utf-8"))))
