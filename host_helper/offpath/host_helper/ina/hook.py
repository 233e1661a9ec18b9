"""The one line in training code: DDP's gradients go through a `Runtime`.

    runtime = Runtime.start()
    register(model, runtime)

DDP averages itself no more once it has a hook: this one does, as DDP does (it multiplies by 1/n before the sum), so
that weights are the same bit for bit as without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from offpath.host_helper.ina.runtime import Runtime

Hook = Callable[[Any, Any], Any]
"""(state, bucket) → a future of one tensor, as DDP has it."""


def register(model: Any, runtime: Runtime, hook: Hook | None = None, state: Any = None) -> None:
    """Send the buckets of a `DistributedDataParallel` through ``runtime``; with ``hook``: through that, see `wrap`.

    Once per model, before its first step. Raises: RuntimeError: it has a hook already.
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


all_reduce_hook.__annotations__ = {}  # DDP takes its own types as annotations or none, and no text


def wrap(hook: Hook, runtime: Runtime) -> Hook:
    """``hook`` with ``runtime`` under it: whatever it all-reduces on the group that it is given goes through it.

    For hooks whose state is the process group, or has one as ``process_group`` (torch's fp16, bf16 and PowerSGD hooks):
    they get one that stands for the runtime. What they do to the gradients stays theirs, averaging included. A
    collective.
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
