"""The backend "offpath" of `torch.distributed`: training code only changes the backend's name.

    import offpath.host_helper.ina.backend
    torch.distributed.init_process_group("offpath")

All-reduces (SUM) of the first group, the job's, go through its `Runtime`; other operations and groups use gloo.
"""

from __future__ import annotations

import functools
import types
import weakref
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from offpath.host_helper.ina.carried import rejection
from offpath.host_helper.ina.runtime import Runtime

NAME: Final = "offpath"
_eval_frame: Final = torch._C._dynamo.eval_frame


def _uncompiled(function: Any) -> Any:
    """Python functions that torch's C++ calls under `torch.compile` would be traced, and a process group cannot be. As
    `torch.compiler.disable`, which would import the compiler (3 s) into each rank.
    """

    def uncompiled(*args: Any, **kwargs: Any) -> Any:
        tracer = _eval_frame.set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            _eval_frame.set_eval_frame(tracer)

    _skip(uncompiled.__code__)
    return functools.wraps(function)(uncompiled)


def _skip(code: types.CodeType) -> None:
    """The tracer leaves calls of this code alone. Of two releases of torch."""
    if hasattr(_eval_frame, "skip_code"):
        _eval_frame.skip_code(code)
    else:
        action = _eval_frame._FrameAction
        _eval_frame.set_code_exec_strategy(code, _eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT))


class FutureWork(dist._Work):
    """A `Work` over a runtime's future. torch's own (`_create_work_from_future`) waits for the end and raises nothing:
    after a rank's death, training would continue with sums that were never computed.
    """

    def __init__(self, future: Any) -> None:
        super().__init__()
        self._future = future

    @_uncompiled
    def wait(self, timeout: Any = None) -> bool:
        """Wait until it is done. Raises: RuntimeError: the all-reduce failed. ``timeout`` is ignored: the group's
        applies.
        """
        self._future.wait()
        return True

    @_uncompiled
    def is_completed(self) -> bool:
        """True also after a failure."""
        return bool(self._future.done())

    @_uncompiled
    def get_future(self) -> Any:
        """A future of a list of one tensor."""
        return self._future


class RuntimeGroup(dist.ProcessGroup):
    """A process group whose all-reduces are the runtime's; other operations are ``gloo``'s.

    torch calls a virtual function of a Python process group with the GIL held, even one that Python does not override.
    gloo's threads may wait for the GIL while they hold the mutex of their work queue, and a new collective waits for
    that mutex: a deadlock, observed in DDP's broadcast of buffers. So this class overrides every such function
    (`CARRIED`) and forwards it to ``_plain``, a C++ process group over the same gloo, whose Python bindings release the
    GIL.
    """

    def __init__(self, runtime: Runtime, gloo: Any) -> None:
        super().__init__(runtime.rank, runtime.ranks)
        self.runtime = runtime
        self._gloo = gloo
        self._plain = dist.ProcessGroup(runtime.rank, runtime.ranks)
        for each in (self, self._plain):
            each._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
            each._set_default_backend(dist.ProcessGroup.BackendType.GLOO)

    @_uncompiled
    def getBackendName(self) -> str:
        """Called by torch."""
        return NAME

    @_uncompiled
    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """SUM of one tensor that the runtime accepts: the runtime's. Everything else is gloo's, in its own order. What
        gloo cannot sum either raises RuntimeError at the work's `wait`, as with gloo.
        """
        each = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        if len(each) == 1 and op == dist.ReduceOp.SUM and not rejection(each[0]):
            return FutureWork(self.runtime.all_reduce(each[0]))
        return self._gloo.allreduce(each, dist.AllreduceOptions() if opts is None else opts)

    @_uncompiled
    def shutdown(self) -> None:
        """`destroy_process_group`."""
        self.runtime.close()


CARRIED: Final = (
    "all_gather_single_coalesced", "all_to_all_single", "allgather", "allgather_into_tensor_coalesced",
    "allreduce_coalesced", "alltoall_base", "barrier", "broadcast", "recv", "reduce_scatter",
    "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "send",
)  # fmt: skip
"""The methods that torch's Python group (`PyProcessGroup`) looks up, beside `allreduce`; old names and new ones."""


def _plainly(name: str) -> Any:
    def collective(self: RuntimeGroup, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._plain, name)(*args, **kwargs)

    return _uncompiled(collective)


for _name in CARRIED:
    if hasattr(dist.ProcessGroup, _name):
        setattr(RuntimeGroup, _name, _plainly(_name))


def create(store: Any, rank: int, ranks: int, timeout: timedelta) -> Any:
    """Called by torch for each group of this backend: the first is the job's, all others are gloo's."""
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, ranks, timeout)
    if any((runtime := each()) is not None and not runtime.is_closed for each in _first):
        return gloo
    runtime = Runtime(dist.PrefixStore("ina", store), rank, ranks, timeout=timeout)
    _first[:] = [weakref.ref(runtime)]
    return RuntimeGroup(runtime, gloo)


_first: list[weakref.ref[Runtime]] = []

if not hasattr(dist.Backend, NAME.upper()):
    dist.Backend.register_backend(NAME, create, devices=["cpu"])
