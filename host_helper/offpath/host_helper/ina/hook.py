"""A DDP communication hook that sends gradients through a `Runtime`: one line in training code.

    runtime = Runtime.start()
    register(model, runtime)

DDP does not average once it has a hook. This hook averages as DDP does (it multiplies by 1/n before the sum), so
that weights are bit-identical to a run without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    return state.all_reduce(tensor).then(_first)


all_reduce_hook.__annotations__ = {}  # DDP accepts its own types as annotations or none, but no strings


def wrap(hook: Hook, runtime: Runtime) -> Hook:
    """``hook`` over ``runtime``: its all-reduces on the group that it receives go through the runtime.

    For hooks with the process group as their state, or as its ``process_group`` (torch's fp16, bf16 and PowerSGD
    hooks): they receive a group that represents the runtime. Their processing of gradients, including averaging, is
    unchanged. A collective.
    """
    from offpath.host_helper.ina.backend import RuntimeGroup

    group = RuntimeGroup(runtime, runtime.other_group())

    def wrapped(state: Any, bucket: Any) -> Any:
        if bucket.index() == 0:
            runtime.step_boundary()
        if hasattr(state, "process_group"):
            state.process_group = group
            return hook(state, bucket)
        return hook(group, bucket)

    wrapped.__annotations__ = {}
    return wrapped


def _first(future: Any) -> Any:
    return future.value()[0]
