"""A DDP communication hook that sends gradients through a `Runtime`: one line in training code.

    runtime = Runtime.start()
    register(model, runtime)

DDP does not average once it has a hook. This hook averages as DDP does (it multiplies by 1/n before the sum), so
that weights are bit-identical to a run without it.

A model with a hook can be pickled and copied: a checkpoint, or a copy whose weights are averaged over time. The runtime
stays where it is; a copy that is to train needs `register` again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from offpath.host_helper.ina.runtime import Runtime

Hook = Callable[[Any, Any], Any]
"""(state, bucket) → a future of one tensor, as DDP defines it."""


def register(model: Any, runtime: Runtime, hook: Hook | None = None, state: Any = None) -> None:
    """Send the buckets of a `DistributedDataParallel` through ``runtime``; ``hook``: through that hook, see `wrap`.

    Once per model, before its first step. Raises: RuntimeError: the model has a hook already.
    """
    if hook is None:
        model.register_comm_hook(runtime, all_reduce_hook)
    else:
        model.register_comm_hook(state, wrap(hook, runtime))


def all_reduce_hook(state: Runtime, bucket: Any) -> Any:
    """DDP's own all-reduce, by ``state``."""
    if bucket.index() == 0:
        state.step_boundary()
    tensor = bucket.buffer()
    tensor.mul_(1.0 / state.ranks)
    if tensor.is_sparse:  # of ``Embedding(sparse=True)``: no switch sums indices
        return state.other_group().allreduce([tensor], dist.AllreduceOptions()).get_future().then(_first)
    return state.all_reduce(tensor).then(_first)


all_reduce_hook.__annotations__ = {}  # DDP accepts its own types as annotations or none, but no strings


def wrap(hook: Hook, runtime: Runtime) -> Hook:
    """``hook`` over ``runtime``: its all-reduces on the group that it receives go through the runtime.

    For hooks with the process group as their state, or as its ``process_group`` (torch's fp16, bf16 and PowerSGD
    hooks): they receive a group that represents the runtime. Their processing of gradients, including averaging, is
    unchanged. A collective.
    """
    return _Wrapped(hook, runtime)


class _Wrapped:
    """See `wrap`. In a copy the runtime is absent."""

    def __init__(self, hook: Hook, runtime: Runtime) -> None:
        from offpath.host_helper.ina.backend import RuntimeGroup

        self._hook = hook
        self._runtime = runtime
        self._group = RuntimeGroup(runtime, runtime.other_group())
        self._name_it()

    def __call__(self, state, bucket):  # type: ignore[no-untyped-def]  # DDP accepts its own annotations or none
        if bucket.index() == 0:
            self._runtime.step_boundary()
        if hasattr(state, "process_group"):
            state.process_group = self._group
            return self._hook(state, bucket)
        return self._hook(self._group, bucket)

    def __getstate__(self) -> dict[str, Any]:
        return {"_hook": self._hook, "_runtime": self._runtime, "_group": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._name_it()

    def _name_it(self) -> None:
        """DDP asks a hook for its name."""
        self.__name__ = self.__qualname__ = getattr(self._hook, "__name__", "hook")


def _first(future: Any) -> Any:
    return future.value()[0]
