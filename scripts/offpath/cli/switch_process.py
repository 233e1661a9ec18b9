"""What the commands that run an emulated switch share: flags, the start, and the closing statistics."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from offpath.cli.pin import pin


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Their common flags, the last ones of each."""
    parser.add_argument("--log", choices=("text", "json"), default="text", help="the log's style")
    parser.add_argument("--cpu", type=int, metavar="N", help="pin the switch to this core")
    parser.add_argument("--json", action="store_true", help="print closing statistics as one JSON object")


def prepare(arguments: argparse.Namespace) -> None:
    """Call it before anything imports numpy, which would start threads. Raises: OffpathError: no such core."""
    pin(arguments.cpu)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def ready(text: str) -> None:
    """Say that it serves; who started it waits for the line."""
    print(f"offpath {text}", file=sys.stderr, flush=True)


def refused(fault: Exception | str) -> int:
    """A flag has an invalid value: the exit code."""
    print(f"offpath: {fault}", file=sys.stderr)
    return 2


def closed(arguments: argparse.Namespace, statistics: dict[str, Any]) -> int:
    """It has ended: the exit code."""
    if arguments.json:
        print(json.dumps(statistics))
    return 0
