"""`offpath daemon run`: the daemon with loopback ports."""

from __future__ import annotations

import argparse
import json
import os
import sys

from offpath.bindings.runtime import runtime_directory
from offpath.cli.config_check import add_overrides
from offpath.dpu_daemon.config import ConfigError
from offpath.dpu_daemon.config.sources import process_sources
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.serve import run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--config", required=True, metavar="FILE", help="TOML configuration")
    add_overrides(parser)
    parser.add_argument("--runtime-dir", metavar="DIR", help="where the sockets go (default: see README)")
    parser.add_argument("--cpu", type=int, metavar="N", help="pin the daemon to this core")
    parser.add_argument("--json", action="store_true", help="print closing statistics as one JSON object")


def main(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; SIGHUP reads the configuration again. Exit code 78 (EX_CONFIG): it has faults."""
    sources = process_sources(arguments.config, arguments.overrides)
    try:
        loaded = sources.read()
    except ConfigError as fault:
        print(f"offpath: {fault}", file=sys.stderr)
        return os.EX_CONFIG
    for warning in loaded.warnings:
        print(f"offpath: warning: {warning.path}: {warning.text}", file=sys.stderr)
    if arguments.cpu is not None:
        os.sched_setaffinity(0, {arguments.cpu})
    directory = runtime_directory(arguments.runtime_dir)

    def ready(daemon: Daemon) -> None:
        print(f"offpathd ready in {directory} (lineage {daemon.lineage})", file=sys.stderr, flush=True)

    statistics = run(loaded.config, directory, ready, sources)
    if arguments.json:
        print(json.dumps(statistics))
    return 0
