"""`offpath collab run CONFIG`: runs the collaboration controller, which gives devices to federated jobs."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from offpath.bindings.runtime import runtime_directory

if TYPE_CHECKING:
    from offpath.dpu_daemon.collab.running import Running


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("config", metavar="CONFIG", help="TOML configuration (docs/collab.md)")
    parser.add_argument("--runtime-dir", metavar="DIR", help="directory of its socket (default: see README)")


def main(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; leases stay. SIGHUP reads CONFIG again. Exit code 78: it has faults."""
    from offpath.dpu_daemon.collab.config import load
    from offpath.dpu_daemon.collab.serve import run

    directory = runtime_directory(arguments.runtime_dir)

    def ready(running: Running) -> None:
        print(f"collaboration controller ready in {directory}; devices: {running.places}", file=sys.stderr, flush=True)

    run(load(arguments.config), directory, ready, arguments.config)
    return 0
