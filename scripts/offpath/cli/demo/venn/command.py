"""`offpath demo venn`: real Flower jobs share nodes of four classes, by random matching and by Venn."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from offpath.bindings.errors import OffpathError

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
    """0: each job ended, no node worked for two jobs; 1: not, and stderr has the reason."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from offpath.cli.demo.venn import report, story

    folder = tempfile.mkdtemp(prefix="offpath-venn-")
    rounds = arguments.rounds or (_QUICK_ROUNDS if arguments.quick else _ROUNDS)
    began = time.monotonic()
    is_ok = False
    try:
        made = report.build(story.play(Path(folder), rounds, arguments.work_ms, arguments.seed, _echo))
        made["seconds"] = round(time.monotonic() - began, 1)
        is_ok = bool(made["ok"])
    except OffpathError as fault:
        raise OffpathError(f"demo venn: {fault}") from None
    finally:
        if is_ok:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            _echo(f"logs are kept in {folder}")
    print(json.dumps(made) if arguments.json else report.render(made))
    for each in made["faults"]:
        print(f"demo venn: FAILED: {each}", file=sys.stderr)
    return 0 if is_ok else 1


def _echo(text: str) -> None:
    print(f"demo venn: {text}", file=sys.stderr, flush=True)
