"""`offpath inc serve SERVICE`: a key-value service on a server; the job manager starts it by an engine."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import Final

from offpath.bindings.errors import OptionRefused

SERVICES: Final = ("store", "cache", "chain")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("service", choices=SERVICES, help="which")
    parser.add_argument("--listen", metavar="HOST:PORT", default=os.environ.get("OFFPATH_INC_ADDRESS", ""),
                        help="its UDP address (default: $OFFPATH_INC_ADDRESS)")  # fmt: skip
    parser.add_argument("--keys", type=int, default=65_536, metavar="N", help="most keys that it holds (%(default)s)")


def main(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM. $OFFPATH_INC_TOKEN, in hexadecimal, is what its control datagrams must carry."""
    from offpath.dpu_daemon.switch.inc.packets import TOKEN_BYTES
    from offpath.dpu_daemon.switch.inc.serve import serve_alone

    try:
        token = bytes.fromhex(os.environ.get("OFFPATH_INC_TOKEN", ""))
    except ValueError:
        token = b""
    if len(token) != TOKEN_BYTES:
        raise OptionRefused(f"OFFPATH_INC_TOKEN: {TOKEN_BYTES} bytes in hexadecimal are needed")
    if not arguments.listen or arguments.keys < 1:
        raise OptionRefused("--listen HOST:PORT and a positive --keys are needed")

    def ready(address: str) -> None:
        print(f"offpath {arguments.service} ready at {address}", file=sys.stderr, flush=True)

    asyncio.run(serve_alone(arguments.service, arguments.listen, token, arguments.keys, ready))
    return 0
