"""python -m tests.simulation.run SEED … | --schedules N [--from SEED] [--jobs N]: live through schedules, say what broke."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time

from .world import TokenFiles, live, quiet_collector, total


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run", description=__doc__)
    parser.add_argument("seeds", nargs="*", type=int, help="schedules to live through with a trace")
    parser.add_argument("--schedules", type=int, default=0)
    parser.add_argument("--start", type=int, default=0)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        tokens = TokenFiles(folder)
        failed = 0
        for seed in given.seeds:
            outcome = live(seed, tokens, trace=True)
            print("\n".join(outcome.lines))
            print(f"seed {seed}: {outcome.fault or 'nothing broken'}; {outcome.steps} steps")
            failed += outcome.fault is not None
        if given.schedules:
            quiet_collector()
            began = time.monotonic()
            outcomes = []
            for seed in range(given.start, given.start + given.schedules):
                outcomes.append(outcome := live(seed, tokens))
                if outcome.fault is not None:
                    failed += 1
                    print(f"seed {seed}: {outcome.fault}")
            took = time.monotonic() - began
            print(f"{given.schedules} schedules, {failed} failed, {1e3 * took / given.schedules:.1f} ms each")
            print(dict(sorted(total(outcomes).items())), sum(o.steps for o in outcomes))
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
