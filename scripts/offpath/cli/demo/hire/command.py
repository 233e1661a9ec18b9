"""`offpath demo hire`: requests for servers and switches; a switch dies, and its tasks fall back to servers."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from typing import Final

from offpath.bindings.errors import OffpathError

ENGINES: Final = ("local", "slurm", "ray")
_STEADY_S: Final = 3.0
_QUICK_S: Final = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--json", action="store_true", help="print one JSON object, and nothing else, to stdout")
    parser.add_argument("--engine", choices=ENGINES, default="local", help="what starts the tasks on servers "
                        "(%(default)s)")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="shorter phases")


def main(arguments: argparse.Namespace) -> int:
    """0: all happened, and no read was wrong; 1: not, and stderr has the reason."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from offpath.cli.demo.hire import cluster, report, story
    from offpath.cli.local import engines

    folder = tempfile.mkdtemp(prefix="offpath-hire-")
    began = time.monotonic()
    is_ok = False
    try:
        with (
            engines.started(arguments.engine, folder, cluster.SERVERS) as engine,
            cluster.running(folder, engine) as here,
        ):
            told = story.tell(here, _echo, _QUICK_S if arguments.quick else _STEADY_S)
        made = report.build(told)
        made["engine"] = arguments.engine
        made["seconds"] = round(time.monotonic() - began, 1)
        is_ok = bool(made["ok"])
    except OffpathError as fault:
        raise OffpathError(f"demo hire: {fault}") from None
    finally:
        if is_ok:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            _echo(f"logs are kept in {folder}")
    print(json.dumps(made) if arguments.json else report.render(made))
    for each in made["faults"]:
        print(f"demo hire: FAILED: {each}", file=sys.stderr)
    return 0 if is_ok else 1


def _echo(text: str) -> None:
    print(f"demo hire: {text}", file=sys.stderr, flush=True)
