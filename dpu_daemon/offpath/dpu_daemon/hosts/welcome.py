"""The messages that welcome a helper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import BaseModel

from offpath.bindings.wire import control, host
from offpath.bindings.wire.fields import MAX_LISTED


def host_welcome_messages(welcome: control.HostWelcome, revision: int = 0) -> Iterator[BaseModel]:
    """The welcome; if it is too long for the host channel, further messages carry the kernels' numbers. Each message
    then fits, whatever the limits allow (tests/dpu_daemon/test_largest_welcome.py). ``revision``: of the helper's
    hello."""
    if len(control.encode(welcome)) > host.MAX_MESSAGE_BYTES:
        yield welcome.model_copy(update={"kernel_ids": {}})
        yield from kernel_numbers(welcome.kernel_ids, revision)
    else:
        yield welcome


def kernel_numbers(kernel_ids: Mapping[str, int], revision: int) -> Iterator[control.HostKernels]:
    """The messages with the numbers of a helper's kernels."""
    every = list(kernel_ids.items())
    for at in range(0, max(len(every), 1), MAX_LISTED):
        end = at + MAX_LISTED
        yield control.HostKernels(kernel_ids=dict(every[at:end]), revision=revision, has_more=end < len(every))
