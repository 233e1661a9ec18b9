"""`offpath demo venn`: real Flower jobs share nodes of four classes, by random matching and by Venn."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import Any, Final

_ROUNDS: Final = 3
_QUICK_ROUNDS: Final = 2
_WORK_MS: Final = 8_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--json", action="store_true", help="print one JSON object, and nothing else, to stdout")
    parser.add_argument("--rounds", type=int, choices=range(1, 101), metavar="N", help=f"of each job ({_ROUNDS})")
    parser.add_argument("--work-ms", type=int, choices=range(600_001), metavar="MS", default=_WORK_MS,
                        help="how long a node works for a round: emulated (%(default)s)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the models (%(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_ROUNDS} rounds")


def main(arguments: argparse.Namespace) -> int:
    """0: `report.OK` holds; 1: not, and stderr has the reason."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from offpath.cli.demo import frame
    from offpath.cli.demo.venn import report, story

    rounds = arguments.rounds or (_QUICK_ROUNDS if arguments.quick else _ROUNDS)

    def play(folder: str) -> dict[str, Any]:
        say = partial(frame.say, "venn")
        return report.build(story.play(Path(folder), rounds, arguments.work_ms, arguments.seed, say))

    return frame.run("venn", play, report.render, is_json=arguments.json)
