"""``python -m tests.suites``: the slow suites of ./scripts/test.

run [--size slow|full] [--stale] [--most-minutes M] [--no-record] [SUITE…]
    runs these suites (default: all), cheapest first, and keeps their verdicts; a run that was stopped goes on
status [--json]
    for each suite: fresh, stale, part (of its tests) or never; when, how long, how many tests
page
    the tables of docs/testing.md
due --seconds S
    prints the stale suites that fit, cheapest first; says on stderr which do not
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from . import hunts, page, records, run
from .sources import digest, keep_cache
from .table import REST, Suite, suites


def main(words: list[str] | None = None) -> int:
    """Exit code: 0; 1: a suite failed; 2: a wrong word."""
    options = _parser().parse_args(words)
    try:
        return int(options.do(options) or 0)
    finally:
        keep_cache()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./scripts/test", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True)
    each = verbs.add_parser("run")
    each.add_argument("--size", choices=records.SIZES, default="slow")
    each.add_argument("--stale", action="store_true", help="only those whose sources changed since their verdict")
    each.add_argument("--most-minutes", type=float, help="stop then; the next call goes on")
    each.add_argument("--no-record", action="store_true", help="keep no verdict")
    each.add_argument("--quiet", action="store_true", help="of each suite that passes, its last line only")
    each.add_argument("suite", nargs="*", metavar="SUITE")
    each.set_defaults(do=run_them)
    each = verbs.add_parser("status")
    each.add_argument("--json", action="store_true")
    each.set_defaults(do=status)
    each = verbs.add_parser("page")
    each.set_defaults(do=lambda _: print(page.tables()))
    each = verbs.add_parser("due")
    each.add_argument("--seconds", type=float, required=True)
    each.set_defaults(do=due)
    return parser


def seconds_of(suite: Suite, size: str = "slow") -> float:
    """How long the suite takes: as recorded, else as the table says; of planted bugs, the part that is due."""
    kept = records.read(suite.name, records.size_of(suite, size))
    if suite.hunts or kept is None:
        return suite.minutes * 60 * hunts.part_due(suite)
    return kept.seconds


def chosen(names: list[str], size: str, *, stale: bool) -> list[Suite]:
    """The suites of these names, cheapest first. Raises: SystemExit: there is no such suite."""
    known = suites()
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"offpath: no suite {', '.join(unknown)}; ./scripts/test --status lists them")
    wanted = [known[name] for name in names] or [each for each in known.values() if each.name != REST or size == "full"]
    if stale:
        wanted = [suite for suite in wanted if not records.is_fresh(suite, size)]
    return sorted(wanted, key=seconds_of)


def run_them(options: argparse.Namespace) -> int:
    """Run suites one after the other; one that fails does not stop the others."""
    ends = time.monotonic() + options.most_minutes * 60 if options.most_minutes else None
    todo = chosen(options.suite, options.size, stale=options.stale)
    failed, left = [], []
    for number, suite in enumerate(todo, 1):
        most_s = ends - time.monotonic() if ends else None
        if most_s is not None and most_s <= 0:
            left.append(suite.name)
            continue
        minutes = seconds_of(suite) / 60
        _say(f"{number} of {len(todo)}: {suite.name} ({options.size}, about {minutes:.1f} min): {suite.what}")
        size = records.size_of(suite, options.size)
        ran = run.run(suite, size, most_s=most_s, is_kept=not options.no_record, quiet=options.quiet)
        keep_cache()
        if ran.is_over_time:
            left.append(suite.name)
        elif ran.code == run._NO_TESTS:
            _say(f"{suite.name}: nothing could run here; needs {suite.needs or 'what its skips name'}")
        elif ran.code:
            failed.append(suite.name)
        elif ran.verdict:
            _say(f"{suite.name}: {len(ran.verdict.tests)} passed in {ran.verdict.seconds:.0f} s")
    if left:
        _say(f"not finished: {', '.join(left)}; the same command goes on")
    _say(f"failed: {', '.join(failed)}" if failed else f"{len(todo) - len(left)} suites, none failed")
    return 1 if failed else 0


def state_of(suite: Suite, size: str) -> dict[str, Any]:
    """A row of the table of `status`."""
    size = records.size_of(suite, size)
    kept = records.read(suite.name, size)
    if kept is None:
        head, *lines = records.part(suite.name, size) or [{}]
        if head.get("sources") != digest(suite.sources):
            return {"state": "never"}
        return {"state": "part", "passed": sum(line.get("outcome") == "passed" for line in lines)}
    state = "fresh" if kept.sources == digest(suite.sources) else "stale"
    return {
        "state": state, "date": kept.date, "commit": kept.commit + ("" if kept.is_clean else "+"),
        "passed": len(kept.tests), "skipped": sum(kept.skipped.values()), "seconds": kept.seconds,
    }  # fmt: skip


def status(options: argparse.Namespace) -> int:
    """Print which record is of which sources."""
    rows = {suite.name: {size: state_of(suite, size) for size in records.SIZES} for suite in suites().values()}
    if options.json:
        print(json.dumps(rows, indent=1))
        return 0
    head = ("suite", "slow", "date", "commit", "passed", "s", "full", "date", "passed")
    print("{:22} {:6} {:10} {:13} {:>6} {:>6}   {:6} {:10} {:>6}".format(*head))
    for name, row in rows.items():
        slow, full = row["slow"], row["full"]
        cells = [slow.get(key, "") for key in ("state", "date", "commit", "passed", "seconds")]
        cells += [full.get(key, "") for key in ("state", "date", "passed")]
        print("{:22} {:6} {:10} {:13} {:>6} {:>6}   {:6} {:10} {:>6}".format(name, *cells))
    print("a commit with + had changes that were not committed; what a suite depends on: tests/suites.toml")
    return 0


def due(options: argparse.Namespace) -> int:
    """The stale suites that fit into the time, cheapest first, a name per line."""
    spent, left = 0.0, []
    for suite in chosen([], "slow", stale=True):
        spent += seconds_of(suite)
        if spent <= options.seconds:
            print(suite.name)
        else:
            left.append(suite.name)
    if left:
        _say(f"stale, and beyond {options.seconds:.0f} s: {' '.join(left)}")
    return 0


def _say(text: str) -> None:
    print(f"offpath: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
