"""`offpath daemon drain`: stop accepting requests, wait for accepted ones, and optionally end the daemon."""

from __future__ import annotations

import argparse
import re
import time
from typing import Final

from offpath.bindings.wire import admin
from offpath.cli import admin_client

_LOOK_S: Final = 0.05
_NOTIFY_S: Final = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    admin_client.add_arguments(parser)
    parser.add_argument("--stop", action="store_true", help="end the daemon afterwards, even if the limit has passed")
    parser.add_argument("--off", action="store_true", help="cancel the drain: accept requests again")
    parser.add_argument("--limit-ms", type=_milliseconds, metavar="MS", help="longest wait (default: limits.drain_ms)")


def _milliseconds(text: str) -> int:
    if not re.fullmatch("[0-9]{1,12}", text):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a number of milliseconds")
    return int(text)


def main(arguments: argparse.Namespace) -> int:
    """Drain and wait; 1 if something still runs at the limit."""
    with admin_client.AdminClient(arguments.runtime_dir) as client:
        if arguments.off:
            state = client.query(admin.DrainRequest(is_on=False), admin.Drained)
            if arguments.json:
                admin_client.print_json(state)
            return 0
        state = client.query(admin.DrainRequest(), admin.Drained)
        limit_ms = state.limit_ms if arguments.limit_ms is None else arguments.limit_ms
        end = time.monotonic() + limit_ms / 1e3
        printed, notified_s = "", 0.0
        while not state.is_drained and (left_s := end - time.monotonic()) > 0:
            if (now := left_text(state)) != printed and time.monotonic() - notified_s >= _NOTIFY_S:
                admin_client.echo(f"draining: {now}; at most {left_s:.0f} s more")
                printed, notified_s = now, time.monotonic()
            time.sleep(_LOOK_S)
            state = client.query(admin.DrainRequest(), admin.Drained)
        if arguments.stop:
            state = client.query(admin.DrainRequest(stop=True), admin.Drained)
    if arguments.json:
        admin_client.print_json(state)
    elif state.is_drained:
        admin_client.echo("drained" + (", the daemon ends" if arguments.stop else ""))
    else:
        ending = ", the daemon ends anyway" if arguments.stop else ""
        admin_client.echo(f"not drained after {limit_ms / 1e3:g} s: {left_text(state)}{ending}")
    return 0 if state.is_drained else 1


def left_text(state: admin.Drained) -> str:
    """What is left to finish."""
    still = f", {state.leaving} answered ones still on their lanes" if state.leaving else ""
    return f"{state.unanswered} requests unanswered{still}"
