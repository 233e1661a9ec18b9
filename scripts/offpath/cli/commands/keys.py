"""`offpath keys NAME`: creates a CURVE key pair for the host channel over ZeroMQ, for a daemon or for a host."""

from __future__ import annotations

import argparse

from offpath.bindings.zeromq.keys import make_keys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("name", help="name of the files, and of the host in the daemon's log")
    parser.add_argument("--directory", default=".", metavar="DIR", help="folder of the files (%(default)s)")


def main(arguments: argparse.Namespace) -> int:
    """Write NAME.key (0600) and NAME.pub; never overwrites a file."""
    secret, public = make_keys(arguments.name, arguments.directory)
    print(f"{secret}  keep it where it is, mode 0600\n{public}  give it to the other side")
    return 0
