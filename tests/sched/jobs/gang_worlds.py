"""What a world draws whose helper has whole GPUs, so that jobs may need gangs of them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from offpath.sched.gpu.geometry import GpuSpec, Profile
from offpath.sched.jobs.settings import TenantSpec

from ..gpus import MIB

WHOLE = Profile("whole", 7, 8, 40_192 * MIB, (0,), 1)
SHARES = (0, 14, 57, 100, 200, 200, 300, 400)


def gpus(random: Random) -> tuple[GpuSpec, ...]:
    """Two to four GPUs of one model, some of them linked."""
    count = random.choice((2, 3, 4))
    names = [f"gpu-{number}" for number in range(count)]
    links = {name: tuple((other, random.choice((0, 1, 4))) for other in names if other != name) for name in names}
    return tuple(GpuSpec(name, "A100-40GB", 7, 8, (WHOLE,), links=links[name]) for name in names)


def tenants(random: Random, specs: tuple[TenantSpec, ...]) -> tuple[TenantSpec, ...]:
    """Some may have gangs."""
    return tuple(
        replace(spec, max_demand=random.choice((100, 200, 1_600)), max_share=random.choice((100, 200, 300, 1_000)))
        for spec in specs
    )
