"""Live through schedules, say what broke: python -m tests.simulation.run SEED … | --schedules N [--start SEED].

With seeds: each with its trace. With ``--schedules``: all of them, one line per broken one, the figures as JSON last.
``--until-broken`` stops at the first; ``--packages FOLDER`` makes sure that the code under test comes from there.
``--moments BLOW`` strikes a short life at each of its moments instead.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from pathlib import Path

from offpath import bindings, dpu_daemon, sched

from .lives import Outcome, TokenFiles, live, quiet_collector, total
from .moments import BLOWS, first_broken

_COLLECT_EVERY = 500


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run", description=__doc__)
    parser.add_argument("seeds", nargs="*", type=int, help="schedules to live through with a trace")
    parser.add_argument("--schedules", type=int, default=0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--until-broken", action="store_true")
    parser.add_argument("--packages")
    parser.add_argument("--moments", metavar="BLOW", choices=["any", *(blow.__name__ for blow in BLOWS)])
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    for package in (bindings, dpu_daemon, sched):
        if given.packages and not Path(str(package.__file__)).is_relative_to(given.packages):
            print(f"{package.__name__} comes from {package.__file__}", file=sys.stderr)
            return 2
    with tempfile.TemporaryDirectory() as folder:
        if given.moments:
            broken = first_broken(Path(folder), given.moments)
            print(broken or "nothing broken")
            return int(broken is not None)
        tokens = TokenFiles(folder)
        outcomes = [_traced(seed, tokens) for seed in given.seeds]
        quiet_collector()
        for seed in range(given.start, given.start + given.schedules):
            outcomes.append(outcome := live(seed, tokens))
            if outcome.fault is not None:
                print(f"seed {seed}: {outcome.fault}", flush=True)
                if given.until_broken:
                    break
            if seed % _COLLECT_EVERY == 0:
                quiet_collector()
    print(json.dumps(figures(outcomes)))
    return int(any(outcome.fault is not None for outcome in outcomes))


def _traced(seed: int, tokens: TokenFiles) -> Outcome:
    outcome = live(seed, tokens, trace=True)
    print("\n".join(outcome.lines))
    print(f"seed {seed}: {outcome.fault or 'nothing broken'}; {outcome.steps} steps")
    return outcome


def figures(outcomes: list[Outcome]) -> dict[str, int]:
    """What was lived through."""
    return {
        "schedules": len(outcomes),
        "broken": sum(outcome.fault is not None for outcome in outcomes),
        "steps": sum(outcome.steps for outcome in outcomes),
        "virtual_s": sum(outcome.virtual_ns for outcome in outcomes) // 10**9,
        **dict(sorted(total(outcomes).items())),
    }


if __name__ == "__main__":
    sys.exit(main())
