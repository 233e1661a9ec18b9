"""Running on one core alone: the ``--cpu`` of whatever serves."""

from __future__ import annotations

import os

from offpath.bindings.errors import OffpathError


def pin(core: int | None) -> None:
    """This process and what it starts from here on; None: wherever the kernel puts it. Raises: OffpathError."""
    if core is None:
        return
    try:
        os.sched_setaffinity(0, {core})
    except (OSError, ValueError, OverflowError) as fault:
        allowed = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
        raise OffpathError(f"--cpu {core}: {fault}; this process may run on {allowed}") from None
