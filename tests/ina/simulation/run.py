"""Live schedules and say what came of them: ``python -m tests.ina.simulation.run --schedules 1000``."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from offpath.sched.ina.protocol import rank

from .world import World


@dataclass(slots=True)
class Lived:
    """What was lived through, and what broke: by seed."""

    schedules: int = 0
    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    broken: dict[int, str] = field(default_factory=dict)


def live(start: int, schedules: int, until_broken: bool = False) -> Lived:
    """Seeds ``start`` and up."""
    lived = Lived()
    for seed in range(start, start + schedules):
        world = World(seed)
        try:
            world.live()
        except Exception as fault:  # whatever a machine raises is as bad as a broken promise
            lived.broken[seed] = f"{type(fault).__name__}: {fault}"
        lived.schedules += 1
        lived.steps += world.steps
        lived.counts.update(world.judge.counts)
        if lived.broken and until_broken:
            break
    return lived


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", type=int, default=1)
    parser.add_argument("--schedules", type=int, default=100)
    parser.add_argument("--until-broken", action="store_true")
    parser.add_argument("--packages", default="", help="fail unless the machines are those of this folder")
    given = parser.parse_args()
    if given.packages and not Path(rank.__file__).is_relative_to(given.packages):
        print(f"{rank.__file__} is not in {given.packages}", file=sys.stderr)
        return 2
    lived = live(given.start, given.schedules, given.until_broken)
    for seed, fault in lived.broken.items():
        print(f"seed {seed}: {fault}")
    print(json.dumps({"schedules": lived.schedules, "broken": len(lived.broken), "steps": lived.steps, **lived.counts}))
    return int(bool(lived.broken))


if __name__ == "__main__":
    sys.exit(main())
