"""The backend "offpath": training code that changes nothing but the name does what it did with gloo."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from ...support.training import needs_torch

pytestmark = needs_torch
RANKS = 2
BOUND_S = 240  # torch alone takes half a minute to import on a busy machine
PROGRAM = """
import hashlib, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
if sys.argv[1] == "offpath":
    import offpath.host_helper.ina.backend
dist.init_process_group(sys.argv[1], init_method="file://" + sys.argv[2], rank=int(sys.argv[3]), world_size=2)
rank = dist.get_rank()
torch.manual_seed(3)
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256), torch.nn.Linear(256, 10))
model = DistributedDataParallel(net, bucket_cap_mb=0.05)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
noise = torch.Generator().manual_seed(rank)
for step in range(6):
    model(torch.randn(8, 64, generator=noise)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
said = [hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in net.parameters())).hexdigest()[:16]]
small = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32)))
run = torch.compile(small, backend="eager") if sys.argv[1] == "offpath" else small  # its tracer meets the group
for step in range(2):
    run(torch.randn(8, 64, generator=noise)).square().mean().backward()
said += [sum(each.grad.double().abs().sum().item() for each in small.parameters())]
most = torch.tensor([float(rank)])
dist.all_reduce(most, op=dist.ReduceOp.MAX)
total = torch.tensor([rank + 1.0])
work = dist.all_reduce(total, async_op=True)
work.wait()
slanted = torch.arange(6.0).view(2, 3).t()
dist.all_reduce(slanted)
said += [most.item(), total.item(), slanted.sum().item()]
parts = [torch.zeros(2) for _ in range(2)]
dist.all_gather(parts, torch.full((2,), float(rank)))
objects = [None, None]
dist.all_gather_object(objects, {"rank": rank})
told = [rank]
dist.broadcast_object_list(told, src=1)
other = dist.new_group([0, 1])
more = torch.ones(3)
dist.all_reduce(more, group=other)
dist.barrier()
said += [[each.tolist() for each in parts], objects, told, more.tolist()]
dist.destroy_process_group()
dist.init_process_group(sys.argv[1], init_method="file://" + sys.argv[2] + "again", rank=rank, world_size=2)
again = torch.ones(1)
dist.all_reduce(again)
dist.destroy_process_group()
print(said + [again.item()])
"""


def spoken(ranks: list[subprocess.Popen[str]]) -> list[tuple[str, str]]:
    """What each printed, once all have ended; none outlives this."""
    try:
        return [each.communicate(timeout=BOUND_S) for each in ranks]
    finally:
        for each in ranks:
            each.kill()


def run(backend: str, folder: Path) -> list[str]:
    """What each rank printed."""
    folder.mkdir()
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", PROGRAM, backend, str(folder / "store")]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        for rank in range(RANKS)
    ]
    said = spoken(ranks)
    assert [each.returncode for each in ranks] == [0] * RANKS, said
    return [out for out, _ in said]


def test_by_its_name_alone_everything_comes_out_as_with_gloo(tmp_path: Path) -> None:
    """Weights to the bit; other collectives, other operators, other groups; and a second life after the first."""
    assert run("offpath", tmp_path / "ours") == run("gloo", tmp_path / "gloo")


DEATH = """
import os, sys, torch, torch.distributed as dist
import offpath.host_helper.ina.backend
dist.init_process_group("offpath", init_method="file://" + sys.argv[2], rank=int(sys.argv[3]), world_size=2)
first = torch.ones(2)
dist.all_reduce(first)
assert first.tolist() == [2.0, 2.0]
if dist.get_rank() == 1:
    os._exit(9)
said = []
for is_async in (False, True, False):
    tensor = torch.ones(2)
    try:
        work = dist.all_reduce(tensor, async_op=is_async)
        if is_async:
            work.wait()
        said.append(tensor.tolist())
    except RuntimeError:
        said.append("raised")
try:
    odd = torch.ones(2, dtype=torch.int16)
    dist.all_reduce(odd)
    said.append(odd.tolist())
except RuntimeError:
    said.append("raised")
print(said, flush=True)
os._exit(0)
"""


def test_a_ranks_death_is_raised_and_no_sum_is_silently_left_out(tmp_path: Path) -> None:
    """torch's work over a future waits for its end and does not raise what it holds."""
    command = [sys.executable, "-c", DEATH, "offpath", str(tmp_path / "store")]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True, env=env) for rank in range(RANKS)
    ]
    said = spoken(ranks)
    assert [each.returncode for each in ranks] == [0, 9]
    assert said[0][0].strip() == str(["raised"] * 4)


VIEWS = """
import faulthandler, sys, torch, torch.distributed as dist
import offpath.host_helper.ina.backend
faulthandler.dump_traceback_later(float(sys.argv[2]), exit=True)
dist.init_process_group("offpath", init_method="file://" + sys.argv[1], rank=0, world_size=1)
for _ in range(10_000):
    dist._broadcast_coalesced(dist.group.WORLD, [torch.zeros(64)[:32] for _ in range(3)], 128, 0)
dist.destroy_process_group()
print("done")
"""


def test_a_collective_that_torch_begins_itself_waits_for_gloo_without_the_interpreters_lock(
    tmp_path: Path,
) -> None:
    """DDP's broadcast of buffers: gloo's thread, which holds the lock of its queue, wants the interpreter's to drop a
    view, and torch, which held the interpreter's, wanted the queue's."""
    command = [sys.executable, "-c", VIEWS, str(tmp_path / "store"), str(BOUND_S / 2)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S)
    assert done.stdout == "done\n", done.stderr


def test_every_function_that_torch_looks_for_in_python_is_overridden() -> None:
    """As torch's own header names them; what this torch has no function for cannot be called."""
    import torch
    from torch import distributed as dist

    from offpath.host_helper.ina.backend import CARRIED, RuntimeGroup

    header = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d/PyProcessGroup.hpp"
    text = header.read_text().split("using ProcessGroup::ProcessGroup;")[1]
    names = set(re.findall(r"WORK_OVERRIDE\((?:\s*//[^\n]*)*\s*ProcessGroup,[^\n]*\n\s*(\w+)", text))
    names |= set(re.findall(r'get_override\(\s*static_cast<const ProcessGroup\*>\(this\),\s*"(\w+)"', text))
    assert {"allreduce", "broadcast", "send", "recv", "alltoall_base", "reduce_scatter_single_coalesced"} <= names
    assert names == {*CARRIED, "allreduce"}
    missing = {name for name in names if name not in vars(RuntimeGroup)}
    assert [name for name in missing if hasattr(dist.ProcessGroup, name)] == []
