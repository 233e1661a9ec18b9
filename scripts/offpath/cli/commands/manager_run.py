"""`offpath manager run`: runs the job manager, which places jobs on GPUs and has an engine run them."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from offpath.bindings.runtime import runtime_directory

if TYPE_CHECKING:
    from offpath.dpu_daemon.manager.shell import ManagerShell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--config", required=True, metavar="FILE", help="TOML configuration (docs/jobs.md)")
    parser.add_argument("--runtime-dir", metavar="DIR", help="directory of its socket (default: see README)")


def main(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; jobs continue. Exit code 78 (EX_CONFIG): the configuration has faults."""
    from offpath.dpu_daemon.manager.config import load
    from offpath.dpu_daemon.manager.serve import run

    directory = runtime_directory(arguments.runtime_dir)

    def ready(shell: ManagerShell) -> None:
        print(f"job manager ready in {directory} (engine {shell.engine.name})", file=sys.stderr, flush=True)

    run(load(arguments.config), directory, ready)
    return 0
