"""`offpath gateway run`: serves kernels as models to clients of the Open Inference Protocol, over HTTP and gRPC."""

from __future__ import annotations

import argparse
import json
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("config", metavar="FILE", help="TOML configuration (docs/gateway.md)")
    parser.add_argument("--json", action="store_true", help="print the addresses as one JSON document on stdout")


def main(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT. Exit code 78 (EX_CONFIG): the configuration has faults."""
    from offpath.host_helper.gateway.serve import run

    def ready(addresses: dict[str, str]) -> None:
        if arguments.json:
            print(json.dumps(addresses), flush=True)
        else:
            text = ", ".join(f"{protocol} at {address}" for protocol, address in addresses.items())
            print(f"offpath gateway ready: {text}", file=sys.stderr, flush=True)

    run(arguments.config, ready)
    return 0
