"""`offpath switch inc`: runs an emulated switch that takes in-network services (HIRE)."""

from __future__ import annotations

import argparse
import os

from offpath.cli import switch_process


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--control", required=True, metavar="PATH", help="Unix socket for the job manager")
    parser.add_argument("--name", default="switch", help="its name (%(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address of its data plane (%(default)s)")
    parser.add_argument("--features", default="", metavar="NAME,…", help="as p4-14,sharp")
    parser.add_argument("--services", default="", metavar="NAME,…", help="what it may run (all whose features it has)")
    parser.add_argument("--recirculation", type=int, default=100, help="percent (%(default)s)")
    parser.add_argument("--stages", type=int, default=48, help="match-action stages (%(default)s)")
    parser.add_argument("--sram-kib", type=int, default=22 * 1024, help="SRAM (%(default)s)")
    parser.add_argument("--most-services", type=int, default=3, help="different services at a time (%(default)s)")
    switch_process.add_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    switch_process.prepare(arguments)
    from offpath.dpu_daemon.switch.inc.serve import run
    from offpath.sched.inc.errors import DemandInvalid
    from offpath.sched.inc.resources import SwitchSpec
    from offpath.sched.inc.units import SWITCH_DIMENSIONS, vector

    def ready(path: str) -> None:
        switch_process.ready(f"INC switch {arguments.name} ready at {path}")

    try:
        amounts = (arguments.recirculation, arguments.stages, arguments.sram_kib)
        spec = SwitchSpec(
            frozenset(filter(None, arguments.features.split(","))), vector(amounts, SWITCH_DIMENSIONS, "the switch"),
            frozenset(filter(None, arguments.services.split(","))) or None, max(0, arguments.most_services),
        )  # fmt: skip
    except DemandInvalid as fault:
        return switch_process.refused(fault)
    statistics = run(arguments.name, spec, os.path.abspath(arguments.control), ready, host=arguments.host,
                     log=arguments.log)  # fmt: skip
    return switch_process.closed(arguments, statistics)
