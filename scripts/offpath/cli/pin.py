"""Pins a server to one core: the ``--cpu`` flag."""

from __future__ import annotations

import os

from offpath.bindings.errors import OffpathError


def pin(core: int | None) -> None:
    """Pin this process and its future children to ``core``; None: no pinning. Raises: OffpathError."""
    if core is None:
        return
    try:
        os.sched_setaffinity(0, {core})
    except (OSError, ValueError, OverflowError) as fault:
        allowed = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
        raise OffpathError(f"--cpu {core}: {fault}; this process may run on {allowed}") from None
