"""`offpath demo hire`: requests for servers and switches; a switch dies, and its tasks fall back to servers."""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import Any, Final

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
    from offpath.cli.demo import frame
    from offpath.cli.demo.hire import cluster, report, story
    from offpath.cli.local import engines

    def play(folder: str) -> dict[str, Any]:
        with (
            engines.started(arguments.engine, folder, cluster.SERVERS) as engine,
            cluster.running(folder, engine) as here,
        ):
            told = story.tell(here, partial(frame.say, "hire"), _QUICK_S if arguments.quick else _STEADY_S)
        return {**report.build(told), "engine": arguments.engine}

    return frame.run("hire", play, report.render, is_json=arguments.json)
