"""The backend "offpath" of `torch.distributed`: training code changes the backend's name and nothing else.

    import offpath.host_helper.ina.backend
    torch.distributed.init_process_group("offpath")

All-reduces (SUM) of the first group, the job's, go through its `Runtime`; all else, and all other groups, is gloo's.
"""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from offpath.host_helper.ina.runtime import Runtime

NAME: Final = "offpath"


class RuntimeGroup(dist.ProcessGroup):
    """A process group whose all-reduces are the runtime's; all else is ``gloo``'s."""

    def __init__(self, runtime: Runtime, gloo: Any) -> None:
        super().__init__(runtime.rank, runtime.ranks)
        self.runtime = runtime
        self._gloo = gloo
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)

    def getBackendName(self) -> str:
        """As torch asks for it."""
        return NAME

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """SUM of one tensor: the runtime's. Else gloo's, in an order of its own."""
        each = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        if len(each) == 1 and op == dist.ReduceOp.SUM and each[0].is_contiguous():
            return torch._C._distributed_c10d._create_work_from_future(self.runtime.all_reduce(each[0]))
        return self._gloo.allreduce(each, dist.AllreduceOptions() if opts is None else opts)

    def shutdown(self) -> None:
        """`destroy_process_group`."""
        self.runtime.close()


def create(store: Any, rank: int, ranks: int, timeout: timedelta) -> Any:
    """What torch calls for each group of this backend: the first is the job's, all others are gloo's."""
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, ranks, timeout)
    if any((runtime := each()) is not None and not runtime.is_closed for each in _first):
        return gloo
    runtime = Runtime(dist.PrefixStore("ina", store), rank, ranks, timeout=timeout)
    _first[:] = [weakref.ref(runtime)]
    return RuntimeGroup(runtime, gloo)


_first: list[weakref.ref[Runtime]] = []

if not hasattr(dist.Backend, NAME.upper()):
    dist.Backend.register_backend(NAME, create, devices=["cpu"])
