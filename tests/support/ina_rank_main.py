"""One rank of a training job: told by lines of JSON what to train, and how; it answers with a line each.

    ina_rank_main.py STORE RANK RANKS [BACKEND]

``train``: a small network by SGD. ``by``: ddp (DDP alone), hook, fp16 (torch's hook alone), wrap (the same over the
runtime). ``sum``: all-reduces of whole numbers, where any order of sums is the right one; answers with what was wrong.
``odd``: tensors that training code seldom has, each compared with gloo's own all-reduce; answers by name with how each
ended, and with how each operation ran.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from offpath.host_helper.ina.carried import TensorRejected
from offpath.host_helper.ina.hook import register
from offpath.host_helper.ina.runtime import Runtime


def emit(**words: Any) -> None:
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
        emit(incarnation=runtime.incarnation)
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

    def odd(self, said: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, str] = {}
        with self.start(said) as runtime:
            # Until the grant is applied, if there is to be one; at the same step on all ranks.
            for _ in range(said.get("steps", 0)):
                runtime.step_boundary()
                runtime.all_reduce(torch.ones(8)).wait()
                time.sleep(said.get("pause_s", 0.0))
            for _ in range(said.get("rounds", 1)):
                runtime.step_boundary()
                for name, make in ODD.items():
                    how = compared(runtime, make(self.rank))
                    if found.get(name, how) == how:
                        found[name] = how
                    else:
                        found[name] += f", then {how}"
            told = self.told(runtime)
        return {"found": found, **told}

    def threads(self, said: dict[str, Any]) -> dict[str, Any]:
        """Two threads that take turns, in one order on all ranks; then both at once with equal tensors."""
        wrong: list[int] = []
        turn = [threading.Event(), threading.Event()]

        def work(me: int, count: int, ordered: bool) -> None:
            for n in range(count):
                if ordered:
                    turn[me].wait()
                    turn[me].clear()
                tensor = torch.full((1000,), 2 * n + me if ordered else 7, dtype=torch.int32)
                future = runtime.all_reduce(tensor)
                if ordered:
                    turn[1 - me].set()
                future.wait()
                if not (tensor == self.ranks * (2 * n + me if ordered else 7)).all():
                    wrong.append(n)

        with self.start(said) as runtime:
            for ordered in (True, False):
                both = [threading.Thread(target=work, args=(me, said["steps"], ordered)) for me in (0, 1)]
                for each in both:
                    each.start()
                turn[0].set()
                for each in both:
                    each.join()
            told = self.told(runtime)
        return {"wrong": wrong, **told}


def _f32(*values: float) -> Any:
    return torch.tensor(values)


ODD: dict[str, Callable[[int], Any]] = {
    "empty": lambda rank: torch.zeros(0),
    "empty of two dimensions": lambda rank: torch.zeros(3, 0),
    "no dimension": lambda rank: torch.tensor(float(rank)),
    "one element, odd strides": lambda rank: torch.full((9,), float(rank))[::9],
    "slice": lambda rank: torch.full((64,), float(rank))[7:40],
    "float64": lambda rank: torch.full((5,), 2.0**60 + rank, dtype=torch.float64),
    "int8 over its range": lambda rank: torch.full((5,), 100 + rank, dtype=torch.int8),
    "uint8 over its range": lambda rank: torch.full((5,), 200 + rank, dtype=torch.uint8),
    "int32 over its range": lambda rank: torch.full((5,), 2**31 - 1 - rank, dtype=torch.int32),
    "int64 over its range": lambda rank: torch.full((5,), 2**63 - 1 - rank),
    "bool": lambda rank: torch.tensor([True, rank == 1, False]),
    "complex64": lambda rank: torch.tensor([1 + 2j, rank * 1j]),
    "complex128": lambda rank: torch.tensor([1 + 2j, rank * 1j], dtype=torch.complex128),
    "not finite": lambda rank: _f32(math.nan, math.inf, -math.inf if rank else math.inf, float(rank)),
    "NaN of one rank": lambda rank: _f32(math.nan if rank == 1 else 1.0, 1.0),
    "subnormal": lambda rank: _f32(1e-42, -1e-45, 2.0**-149),
    "fp16 over its range": lambda rank: torch.full((4,), 60000.0, dtype=torch.float16),
    "fp16 subnormal": lambda rank: torch.full((4,), 6e-8, dtype=torch.float16),
    "bf16 of odd count": lambda rank: torch.full((3,), float(rank), dtype=torch.bfloat16),
    "requires a gradient": lambda rank: torch.full((3,), float(rank), requires_grad=True),
    "result of a graph": lambda rank: torch.ones(3, requires_grad=True) * rank,
    "parameter": lambda rank: torch.nn.Parameter(torch.full((3,), float(rank))),
    "strided view": lambda rank: torch.arange(8.0)[::2],
    "transposed": lambda rank: torch.arange(6.0).view(2, 3).t(),
    "expanded": lambda rank: torch.ones(1).expand(4),
    "2 TiB declared": lambda rank: torch.ones(1).expand(1 << 39),
    "channels last": lambda rank: torch.ones(1, 2, 2, 4).to(memory_format=torch.channels_last),
    "sparse": lambda rank: _f32(0.0, 1.0).to_sparse(),
    "conjugated": lambda rank: torch.tensor([1 + 2j]).conj(),
    "negated view": lambda rank: torch.tensor([1 + 2j]).conj().imag,
    "int16": lambda rank: torch.ones(3, dtype=torch.int16),
    "float8": lambda rank: torch.ones(3).to(torch.float8_e4m3fn),
    "uint64": lambda rank: torch.ones(3, dtype=torch.int64).view(torch.uint64),
    "quantized": lambda rank: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    "meta": lambda rank: torch.ones(3, device="meta"),
    "a list": lambda rank: [1.0],
    "None": lambda rank: None,
}
"""By name: makes it, for a rank."""


def compared(runtime: Runtime, tensor: Any) -> str:
    """``same`` as gloo's to the bit (any NaN is any other), ``rejected``, or what else went on."""
    is_small = isinstance(tensor, torch.Tensor) and tensor.numel() < 1 << 20
    own = tensor.detach().clone() if is_small else tensor
    try:
        (result,) = runtime.all_reduce(tensor).wait()
    except TensorRejected:
        return "rejected"
    except Exception as fault:
        return f"{type(fault).__name__}: {fault}"
    if result is not tensor:
        return "not the tensor that was given"
    dist.all_reduce(own)
    return "same" if torch.equal(_bits(own), _bits(tensor.detach())) else f"differs: {tensor} and {own}"


def _bits(tensor: Any) -> Any:
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    if real.dtype is torch.bool:  # gloo adds up bytes: any but 0 is True
        return real.view(torch.uint8) != 0
    if real.is_floating_point():
        real = real.where(~real.isnan(), torch.full_like(real, math.nan))
    return real.contiguous().view(-1).view(torch.uint8)


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
    emit(ready=True)
    for line in sys.stdin:
        said = json.loads(line)
        try:
            emit(**getattr(me, said.pop("do"))(said))
        except RuntimeError as fault:
            emit(failed=str(fault)[:200])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
