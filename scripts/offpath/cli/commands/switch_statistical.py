"""`offpath switch statistical`: runs an emulated rack whose switch all jobs share packet by packet (NetPack §2.2)."""

from __future__ import annotations

import argparse

from offpath.cli import switch_process

_PACKET_BYTES = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--listen", required=True, metavar="ADDR",
                        help="address for the jobs' processes, unix://PATH or tcp://HOST:PORT")  # fmt: skip
    parser.add_argument("--servers", required=True, metavar="NAME,…", help="the rack's servers")
    parser.add_argument("--aggregators", type=int, required=True, metavar="N",
                        help="packets that the switch's memory holds; 0: it aggregates nothing")  # fmt: skip
    parser.add_argument("--link-mbps", type=float, default=20.0, help="of each server, each direction (%(default)s)")
    parser.add_argument("--rtt-ms", type=float, default=40.0, help="without queues (%(default)s)")
    parser.add_argument("--mark-packets", type=float, default=24.0, metavar="N",
                        help="a queue above N packets of 4 KiB is marked (%(default)s)")  # fmt: skip
    parser.add_argument("--drop-packets", type=float, default=256.0, metavar="N",
                        help="a queue above N packets of 4 KiB drops (%(default)s)")  # fmt: skip
    parser.add_argument("--stale-ms", type=float, default=2000.0,
                        help="an aggregator untouched so long goes to the next packet (%(default)s)")  # fmt: skip
    parser.add_argument("--events", metavar="FILE", help="append the statistics as a JSON line, four times a second")
    switch_process.add_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    switch_process.prepare(arguments)
    from offpath.dpu_daemon.switch.statistical.rack import RackSettings
    from offpath.dpu_daemon.switch.statistical.serve import run  # after the line above, because it imports numpy

    def ready(listens: str) -> None:
        switch_process.ready(f"statistical switch ready at {listens}")

    try:
        settings = RackSettings(
            tuple(arguments.servers.split(",")), arguments.aggregators, arguments.link_mbps * 1e6,
            round(arguments.rtt_ms * 1e6), arguments.mark_packets * _PACKET_BYTES,
            arguments.drop_packets * _PACKET_BYTES, round(arguments.stale_ms * 1e6),
        )  # fmt: skip
        statistics = run(settings, arguments.listen, ready, events=arguments.events, log=arguments.log)
    except (ValueError, OverflowError, OSError) as fault:
        return switch_process.refused(fault)
    return switch_process.closed(arguments, statistics)
