"""`offpath controller run`: runs the controller, which assigns aggregation trees."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from offpath.bindings.runtime import runtime_directory

if TYPE_CHECKING:
    from offpath.dpu_daemon.controller.shell import ControllerShell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--config", required=True, metavar="FILE", help="TOML configuration (docs/controller.md)")
    parser.add_argument("--runtime-dir", metavar="DIR", help="directory of its admin socket (default: see README)")


def main(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT. Exit code 78 (EX_CONFIG): the configuration has faults."""
    from offpath.dpu_daemon.controller.config import load
    from offpath.dpu_daemon.controller.serve import run

    directory = runtime_directory(arguments.runtime_dir)

    def ready(shell: ControllerShell) -> None:
        print(f"controller ready in {directory} (term {shell.machine.term})", file=sys.stderr, flush=True)

    run(load(arguments.config), directory, ready)
    return 0
