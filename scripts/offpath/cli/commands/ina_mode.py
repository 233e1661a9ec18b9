"""`offpath ina mode [MODE]`: prints or changes how jobs share a root."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import ina_admin
from offpath.cli import admin_client, controller_client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    controller_client.add_arguments(parser)
    parser.add_argument(
        "mode", metavar="MODE", nargs="?", default="",
        help="none, all, exclusive, alternate, trylock, shared, or the configured one; without it: print the mode",
    )  # fmt: skip
    parser.add_argument("--link", type=float, metavar="BYTES_PER_S", help="rate of a rank's link, an input of the Plan")


def main(arguments: argparse.Namespace) -> int:
    """Set the mode, if one is given, and print it."""
    request = admin_client.request(ina_admin.ModeRequest, mode=arguments.mode, link_bytes_per_s=arguments.link)
    with controller_client.client(arguments.runtime_dir) as client:
        now = client.query(request, ina_admin.ModeNow)
    if arguments.json:
        admin_client.print_json(now)
    else:
        print(f"mode {now.mode}: room for {now.capacity} at a switch, links of {now.link_bytes_per_s:g} bytes/s")
    return 0
