"""`offpath daemon run`: runs the daemon, or with ``--keep`` its service manager.

With ``--keep`` it imports little, because a service manager must stay small.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from offpath.bindings.runtime import runtime_directory
from offpath.cli.commands.config_check import add_overrides
from offpath.cli.pin import pin

if TYPE_CHECKING:
    from offpath.dpu_daemon.daemon import Daemon


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--config", required=True, metavar="FILE", help="TOML configuration")
    add_overrides(parser)
    parser.add_argument("--runtime-dir", metavar="DIR", help="directory of the sockets (default: see README)")
    parser.add_argument("--cpu", type=int, metavar="N", help="pin the daemon to this core")
    parser.add_argument("--json", action="store_true", help="print closing statistics as one JSON object")
    parser.add_argument("--keep", action="store_true", help="run a service manager that restarts it, as systemd would")
    parser.add_argument("--watchdog-s", type=float, metavar="S", default=10.0, help="--keep: watchdog timeout; 0: none")
    parser.add_argument("--starts", type=int, metavar="N", default=5, help="--keep: most starts in 10 s; 0: no limit")


def main(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; SIGHUP reloads the configuration. Exit code 78 (EX_CONFIG): it has faults."""
    directory = runtime_directory(arguments.runtime_dir)
    if arguments.keep:
        return _keep(arguments, directory)
    return _serve(arguments, directory)


def _keep(arguments: argparse.Namespace, directory: str) -> int:
    from offpath.dpu_daemon.durability.service_manager import ServiceManager, ServiceManagerSettings

    command = [sys.executable, "-P", "-m", "offpath.cli.main", *["-v"] * arguments.verbose, "daemon", "run"]
    command += ["--config", arguments.config, "--runtime-dir", directory]
    command += [f"--set={override}" for override in arguments.overrides]
    command += ["--cpu", str(arguments.cpu)] if arguments.cpu is not None else []
    command += ["--json"] if arguments.json else []
    settings = ServiceManagerSettings(watchdog_s=arguments.watchdog_s, starts=arguments.starts)
    return ServiceManager(directory, command, settings).run()


def _serve(arguments: argparse.Namespace, directory: str) -> int:
    import faulthandler

    from offpath.dpu_daemon.config.lastgood import read_or_last_good
    from offpath.dpu_daemon.config.sources import process_sources
    from offpath.dpu_daemon.serve import run

    sources = process_sources(arguments.config, arguments.overrides)
    loaded = read_or_last_good(sources, directory)
    for warning in loaded.warnings:
        print(f"offpath: warning: {warning.path}: {warning.text}", file=sys.stderr)
    pin(arguments.cpu)
    faulthandler.enable()  # a watchdog's SIGABRT then prints where the daemon hung

    def ready(daemon: Daemon) -> None:
        print(f"offpathd ready in {directory} (lineage {daemon.identity.lineage})", file=sys.stderr, flush=True)

    statistics = run(loaded.config, directory, ready, sources, loaded.refused)
    if arguments.json:
        print(json.dumps(statistics))
    return 0
