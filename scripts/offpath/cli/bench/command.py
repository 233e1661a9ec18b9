"""`offpath bench NAME`: one module per NAME in this package.

A benchmark module has ``DESCRIPTION`` and ``run(arguments) -> Report``. JSON is printed even if a bar is missed; the
exit code is 1 only if a ratio of this run misses its bar.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from dataclasses import dataclass, field
from typing import Any, Final

NAMES: Final = {
    "batching": "batching",
    "daemon": "daemon",
    "gpu": "gpu.benchmark",
    "gpu-policy": "gpu_policy",
    "ina": "ina",
    "ina-live": "ina_live",
    "hire": "hire",
    "host-channel": "host_channel",
    "neighbours": "serving.neighbours",
    "netpack": "netpack",
    "request-path": "request_path.benchmark",
    "serving": "serving.benchmark",
    "sessions": "sessions",
    "venn": "venn",
    "verbs": "verbs",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A measured figure and its bound; ``is_upper``: the figure must not exceed it."""

    name: str
    value: float
    bound: float
    is_upper: bool = True
    aim: float | None = None
    """A further bound that the figure should meet; missing it is no failure."""

    @property
    def is_accepted(self) -> bool:
        """True if the figure meets its bound."""
        return self.value <= self.bound if self.is_upper else self.value >= self.bound

    def line(self) -> str:
        """As text."""
        word, sign = ("met " if self.is_accepted else "MISS"), ("≤" if self.is_upper else "≥")
        aim = f" (aim {self.aim:g})" if self.aim is not None else ""
        return f"  {word}  {self.name}: {self.value:.4g} {sign} {self.bound:g}{aim}"


@dataclass(slots=True)
class Report:
    """A benchmark's result: ``data`` for JSON, ``text`` for people, bars for the exit code."""

    data: dict[str, Any]
    text: str
    bars: list[Bar] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("name", nargs="?", choices=sorted(NAMES), help="the benchmark; without it: list them")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller blocks")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--plot", metavar="PATH", help="file of the picture (default: bench-out/NAME.svg)")
    parser.add_argument("--only", metavar="PART", action="append", help="only this part of the plan (for development)")
    parser.add_argument(
        "--spin", type=int, default=0, metavar="US", help="request-path, sessions: set datapath.spin_us of the daemons"
    )
    path = parser.add_argument_group("request-path")
    path.add_argument("--profile", action="store_true", help="print the daemon's time by stage instead of the ratios")
    path.add_argument(
        "--against", metavar="DIR", help="compare with the build in the checkout DIR, in alternating blocks"
    )
    path.add_argument(
        "--against-spin", type=int, default=0, metavar="US", help="datapath.spin_us of that build's daemon"
    )


def main(arguments: argparse.Namespace) -> int:
    """Run one benchmark, or list them."""
    if arguments.name is None:
        for name, module in sorted(NAMES.items()):
            print(f"{name:16} {_module(module).DESCRIPTION}")
        return 0
    if arguments.name != "request-path" and (arguments.profile or arguments.against):
        print("offpath bench: --profile and --against are flags of request-path", file=sys.stderr)
        return 2
    if arguments.spin and arguments.name not in ("request-path", "sessions"):
        print("offpath bench: --spin is a flag of request-path and sessions", file=sys.stderr)
        return 2
    report: Report = _module(NAMES[arguments.name]).run(arguments)
    report.data["bars"] = [
        {
            "name": b.name,
            "value": b.value,
            "bound": b.bound,
            "aim": b.aim,
            "kind": "max" if b.is_upper else "min",
            "met": b.is_accepted,
        }
        for b in report.bars
    ]
    if arguments.json:
        print(json.dumps(report.data))
    out = sys.stderr if arguments.json else sys.stdout
    print(report.text, file=out)
    for bar in report.bars:
        print(bar.line(), file=out)
    return 0 if all(bar.is_accepted for bar in report.bars) else 1


def _module(name: str) -> Any:
    return importlib.import_module(f"offpath.cli.bench.{name}")
