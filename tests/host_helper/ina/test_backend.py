"""The backend "offpath": training code that changes nothing but the name does what it did with gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="no torch: ./scripts/test installs the extra `train`, and then nothing is skipped")
RANKS = 2
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


def run(backend: str, folder: Path) -> list[str]:
    """What each rank printed."""
    folder.mkdir()
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", PROGRAM, backend, str(folder / "store")]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        for rank in range(RANKS)
    ]
    said = [each.communicate(timeout=90) for each in ranks]
    assert [each.returncode for each in ranks] == [0] * RANKS, said
    return [out for out, _ in said]


def test_by_its_name_alone_everything_comes_out_as_with_gloo(tmp_path: Path) -> None:
    """Weights to the bit; other collectives, other operators, other groups; and a second life after the first."""
    assert run("offpath", tmp_path / "ours") == run("gloo", tmp_path / "gloo")
