"""`offpath ina mode [MODE]`: how jobs share a root, from now on."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import ina_admin
from offpath.cli import ask, ask_controller


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    ask_controller.add_arguments(parser)
    parser.add_argument(
        "mode", metavar="MODE", nargs="?", default="",
        help="none, all, exclusive, alternate, trylock, shared, or that of the configuration; nothing: say which it is",
    )  # fmt: skip
    parser.add_argument("--link", type=float, metavar="BYTES_PER_S", help="a rank's link, which the Plan reckons with")


def main(arguments: argparse.Namespace) -> int:
    """Set it, if one is given, and print it."""
    asked = ask.asked(ina_admin.ModeRequest, mode=arguments.mode, link_bytes_per_s=arguments.link)
    with ask_controller.client(arguments.runtime_dir) as client:
        now = client.ask(asked, ina_admin.ModeNow)
    if arguments.json:
        ask.print_json(now)
    else:
        print(f"mode {now.mode}: room for {now.capacity} at a switch, links of {now.link_bytes_per_s:g} bytes/s")
    return 0
