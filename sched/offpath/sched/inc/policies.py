"""The policies of `sched.inc` by name: HIRE in its readings, and the baselines of its evaluation (§6.1).

A policy is made for a cluster: a callable from `Resources` to `Scheduler`. Other packages offer theirs as entry points
in the group `GROUP`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from offpath.sched.errors import SchedError
from offpath.sched.inc.baselines import Baseline, K8s, Sparrow, Yarn
from offpath.sched.inc.coco import CoCo
from offpath.sched.inc.hire import Hire
from offpath.sched.inc.one_flavor import HireOneFlavor
from offpath.sched.inc.readings import HIRE_CODE, HIRE_PAPER, HIRE_PROSE
from offpath.sched.inc.resources import Resources, ServerSpec, SwitchSpec
from offpath.sched.inc.scheduler import Scheduler
from offpath.sched.inc.variants import Fallback, Mode
from offpath.sched.topology.graph import Topology

GROUP: Final = "offpath.inc"
"""Group of entry points."""


@dataclass(frozen=True, slots=True)
class Policy:
    """``is_shared``: False gives it a cluster that counts sharable demand for every task (§6.1). ``mode``: of a
    baseline; ``fallback_ms`` is an argument of those in `Mode.TIMEOUT`."""

    name: str
    make: Callable[..., Scheduler]
    mode: Mode | None = None
    is_shared: bool = True


def _baseline(kind: type[Baseline], mode: Mode) -> Policy:
    return Policy(kind.name, partial(kind, mode=mode), mode, is_shared=False)


POLICIES: Final[dict[str, Policy]] = {
    "hire": Policy("hire", Hire),
    "hire-one-flavor": Policy("hire-one-flavor", HireOneFlavor),
    "hire-prose": Policy("hire-prose", partial(Hire, reading=HIRE_PROSE)),
    "hire-paper": Policy("hire-paper", partial(Hire, reading=HIRE_PAPER)),
    "hire-code": Policy("hire-code", partial(Hire, reading=HIRE_CODE)),
    CoCo.name: Policy(CoCo.name, CoCo, Mode.TIMEOUT, is_shared=False),
    **{f"{kind.name}/{mode}": _baseline(kind, mode) for kind in (K8s, Yarn, Sparrow) for mode in Mode},
}  # fmt: skip
"""By name; a baseline that runs in two modes is ``NAME/MODE``."""
NINE: Final = (
    "hire", "hire-one-flavor", "coco++", "k8++/concurrent", "k8++/timeout", "yarn++/concurrent", "yarn++/timeout",
    "sparrow++/concurrent", "sparrow++/timeout",
)  # fmt: skip
"""The evaluation's (the authors' artifact)."""


def policy(name: str) -> Policy:
    """Raises: SchedError: unknown name."""
    if name not in POLICIES:
        raise SchedError(f"unknown policy {name!r:.60} for switches; known are {', '.join(POLICIES)}")
    return POLICIES[name]


def make(
    which: Policy,
    topology: Topology,
    servers: Sequence[ServerSpec],
    switches: Sequence[SwitchSpec],
    *,
    fallback_ms: Fallback | None = None,
) -> Scheduler:
    """The policy on an idle cluster. ``fallback_ms``: None: its default. Raises: PlacementInvalid."""
    resources = Resources(topology, servers, switches, is_shared=which.is_shared)
    more: dict[str, Any] = {}
    if which.mode is Mode.TIMEOUT and fallback_ms is not None:
        more["fallback_ms"] = fallback_ms
    return which.make(resources, **more)
