"""`offpath switch run`: runs an emulated switch that aggregates all-reduces along trees."""

from __future__ import annotations

import argparse

from offpath.cli import switch_process


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    where = ", unix://PATH or tcp://HOST:PORT"
    parser.add_argument("--listen", required=True, metavar="ADDR", help="address for ranks and other switches" + where)
    parser.add_argument("--control", required=True, metavar="ADDR", help="address for a controller" + where)
    parser.add_argument("--name", required=True, help="the switch's name in its log and statistics")
    parser.add_argument("--capacity", type=int, default=1, metavar="N", help="concurrent operations")
    parser.add_argument("--order", choices=("rank", "arrival"), default="rank",
                        help="order of summation: rank gives reproducible bits")  # fmt: skip
    parser.add_argument("--events", metavar="FILE", help="append one JSON line per event of an operation")
    parser.add_argument("--fault", action="append", default=[], metavar="POINT=ACTION[@N]",
                        help="inject a fault, for a test; see `offpath doctor --fault-points`")  # fmt: skip
    switch_process.add_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    if arguments.capacity < 1:
        return switch_process.refused("--capacity must be 1 or more")
    switch_process.prepare(arguments)
    from offpath.bindings import faults
    from offpath.dpu_daemon.switch.serve import run  # after the line above, because it imports numpy

    if arguments.fault:
        faults.arm(" ".join(arguments.fault))

    def ready(listens: str, control: str) -> None:
        switch_process.ready(f"switch {arguments.name} ready at {listens} (control {control})")

    statistics = run(
        arguments.name, arguments.listen, arguments.control, ready, capacity=arguments.capacity,
        by_rank=arguments.order == "rank", events=arguments.events, log=arguments.log,
    )  # fmt: skip
    return switch_process.closed(arguments, statistics)
