"""The messages that welcome a helper."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from offpath.bindings.wire import control, host


def host_welcome_messages(welcome: control.HostWelcome, revision: int = 0) -> Iterator[BaseModel]:
    """The welcome; if it is too long for the host channel, a second message carries the kernels' numbers. Each message
    then fits, whatever the limits allow (tests/dpu_daemon/test_largest_welcome.py). ``revision``: of the helper's
    hello."""
    if len(control.encode(welcome)) > host.MAX_MESSAGE_BYTES:
        yield welcome.model_copy(update={"kernel_ids": {}})
        yield control.HostKernels(kernel_ids=welcome.kernel_ids, revision=revision)
    else:
        yield welcome
