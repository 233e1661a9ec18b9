"""`offpath daemon drain`: take in nothing new, wait until what is there is done, and perhaps end the daemon."""

from __future__ import annotations

import argparse
import time
from typing import Final

from offpath.bindings.wire import admin
from offpath.cli import ask

_LOOK_S: Final = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    ask.add_arguments(parser)
    parser.add_argument("--stop", action="store_true", help="end the daemon afterwards, also when the limit has passed")
    parser.add_argument("--off", action="store_true", help="call the drain off: take in again")
    parser.add_argument("--limit-ms", type=int, metavar="MS", help="longest wait (default: limits.drain_ms)")


def main(arguments: argparse.Namespace) -> int:
    """Drain and wait; 1 when something still runs at the limit."""
    with ask.AdminClient(arguments.runtime_dir) as client:
        if arguments.off:
            state = client.ask(admin.DrainRequest(is_on=False), admin.Drained)
            if arguments.json:
                ask.print_json(state)
            return 0
        state = client.ask(admin.DrainRequest(), admin.Drained)
        limit_ms = state.limit_ms if arguments.limit_ms is None else arguments.limit_ms
        end = time.monotonic() + limit_ms / 1e3
        while not state.is_drained and time.monotonic() < end:
            time.sleep(_LOOK_S)
            state = client.ask(admin.DrainRequest(), admin.Drained)
        if arguments.stop:
            state = client.ask(admin.DrainRequest(stop=True), admin.Drained)
    if arguments.json:
        ask.print_json(state)
    elif state.is_drained:
        ask.say("drained" + (", the daemon ends" if arguments.stop else ""))
    else:
        ask.say(f"{state.unanswered} requests were not done after {limit_ms / 1e3:g} s")
    return 0 if state.is_drained else 1
