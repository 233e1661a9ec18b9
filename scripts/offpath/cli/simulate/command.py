"""`offpath simulate EXPERIMENT`: one module per experiment in this package.

An experiment module has ``DESCRIPTION`` and ``run(arguments) -> Report``. Finished pieces are kept in ``--out``; the
same command continues after an interruption.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from dataclasses import dataclass
from typing import Any, Final

from offpath.cli.simulate.sweep import ENGINES

DATA: Final = "../shared/data"
NAMES: Final = {"conspirator": "conspirator", "hire": "hire", "mina": "mina", "netpack": "netpack", "venn": "venn"}
FIGURES: Final = {
    "conspirator": ("2", "8a", "8b", "8c"),
    "hire": ("7", "8a", "8b", "8c", "8d", "8e", "8f", "8g", "8h", "8i", "8j"),
    "mina": ("2", "3", "4", "5", "11", "12", "13", "14", "table1"),
    "netpack": ("6", "7", "8", "9", "10", "11", "12", "13"),
    "venn": ("3", "11", "12", "13", "14"),
}
"""The parts of each paper."""
TABLES: Final = {"conspirator": ("4",), "hire": (), "mina": (), "netpack": (), "venn": ("1", "2", "3", "4")}
"""MINA's table I is one of its figures above."""


@dataclass(slots=True)
class Report:
    """``data`` for JSON, ``text`` for people."""

    data: dict[str, Any]
    text: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("experiment", nargs="?", choices=sorted(NAMES), help="the experiment; without it: list them")
    parser.add_argument("--quick", action="store_true", help="a small run with the inputs shipped with offpath")
    parser.add_argument("--data", metavar="DIR", help=f"the traces (default {DATA}; "
                        "conspirator's figure 2: the shipped files)")  # fmt: skip
    parser.add_argument(
        "--out", default="out/simulate", metavar="DIR", help="results and pictures (default %(default)s)"
    )
    parser.add_argument("--fresh", action="store_true", help="discard the results of earlier runs")
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--only", metavar="PART", action="append", help="only this part of the plan")
    some.add_argument(
        "--figure", metavar="N", choices=sorted({each for some in FIGURES.values() for each in some}), action="append",
        help="only this figure of the paper; may be given several times ("
        + "; ".join(f"{name}: {', '.join(some)}" for name, some in FIGURES.items()) + ")",
    )  # fmt: skip
    some.add_argument(
        "--table", metavar="N", choices=sorted({each for some in TABLES.values() for each in some}), action="append",
        help="only this table of the paper (conspirator: 4; venn: 1 to 4)",
    )  # fmt: skip
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="number of seeds (mina, netpack and venn; default: 10; hire: 3)"
    )
    parser.add_argument(
        "--policy", metavar="NAME", action="append",
        help="only this policy (hire and venn), also one of the entry points `offpath.inc` or `offpath.collab`; may be"
        " given several times",
    )  # fmt: skip
    parser.add_argument("--trace", metavar="FILE", help="jobs or pods instead of those of --data (hire only)")
    parser.add_argument(
        "--first-seed", type=int, default=0, metavar="N",
        help="the first of the seeds (netpack only): others than those on which a policy was chosen",
    )  # fmt: skip
    parser.add_argument(
        "--draws", choices=("own", "llvm"), default="own",
        help="source of random numbers (mina only): Python's generator, or the authors' one in their order",
    )  # fmt: skip
    parser.add_argument(
        "--engine", choices=ENGINES, default="local",
        help="what runs the pieces (netpack only): two processes, or tasks of a Ray cluster, with the same rows",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def main(arguments: argparse.Namespace) -> int:
    """Run one experiment, or list them."""
    if arguments.experiment is None:
        for name, module in sorted(NAMES.items()):
            print(f"{name:16} {_module(module).DESCRIPTION}")
        return 0
    wrong = [each for each in arguments.figure or () if each not in FIGURES[arguments.experiment]]
    mina, netpack = arguments.experiment == "mina", arguments.experiment == "netpack"
    hire, venn = arguments.experiment == "hire", arguments.experiment == "venn"
    wrong = [f"--figure {each}" for each in wrong]
    wrong += [f"--table {each}" for each in arguments.table or () if each not in TABLES[arguments.experiment]]
    if arguments.seeds is not None and (arguments.seeds < 1 or not (mina or netpack or hire or venn)):
        wrong.append(f"--seeds {arguments.seeds}")
    if arguments.first_seed < 0 or (arguments.first_seed and not netpack):
        wrong.append(f"--first-seed {arguments.first_seed}")
    if arguments.draws != "own" and not mina:
        wrong.append(f"--draws {arguments.draws}")
    if arguments.engine != "local" and not netpack:
        wrong.append(f"--engine {arguments.engine}")
    if arguments.policy and not (hire or venn):
        wrong.append(f"--policy {arguments.policy[0]}")
    if arguments.trace is not None and not hire:
        wrong.append(f"--trace {arguments.trace}")
    if wrong:
        print(f"offpath simulate: {arguments.experiment} has no {wrong[0]}", file=sys.stderr)
        return 2
    report: Report = _module(NAMES[arguments.experiment]).run(arguments)
    if arguments.json:
        print(json.dumps(report.data))
    print(report.text, file=sys.stderr if arguments.json else sys.stdout)
    return 0


def _module(name: str) -> Any:
    return importlib.import_module(f"offpath.cli.simulate.{name}")
