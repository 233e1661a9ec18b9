"""Batch policies by name. Apart from `registry`: these modules need NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from offpath.sched.errors import SchedError
from offpath.sched.placement.baselines import FirstN
from offpath.sched.placement.batch_adapter import WholeHosts
from offpath.sched.placement.batch_baselines import NAMES, Ordered
from offpath.sched.placement.batch_port import BatchPlacement
from offpath.sched.placement.fragments import Fragments
from offpath.sched.placement.netpack.policy import NetPack, NetPackPaper

GROUP: Final = "offpath.placement"
"""Group of entry points. A policy there has `BatchPlacement.place_batch`, or `Placement.place`, or both."""
BATCH_PLACEMENTS: Final[dict[str, Callable[[], BatchPlacement]]] = {
    NetPack.name: NetPack,
    NetPackPaper.name: NetPackPaper,
    **{name: partial(Ordered, name) for name in NAMES},
    Fragments.name: lambda: WholeHosts(Fragments()),
    FirstN.name: lambda: WholeHosts(FirstN()),
}


def make(name: str) -> BatchPlacement:
    """Create the policy of that name. Raises: SchedError: unknown name."""
    if name not in BATCH_PLACEMENTS:
        raise SchedError(f"unknown batch placement {name!r}; known placements: {', '.join(BATCH_PLACEMENTS)}")
    return BATCH_PLACEMENTS[name]()
