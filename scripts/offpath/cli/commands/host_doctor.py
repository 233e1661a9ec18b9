"""`offpath doctor` on a host: reports what it lacks for a helper or a requester; exit code 1: a helper cannot run."""

from __future__ import annotations

import argparse
import os

from offpath.bindings.runtime import HOST_SOCKET, local_socket
from offpath.cli.findings_text import show
from offpath.host_helper.doctor import check_host


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--host", action="store_true", help="check what hosts need (always so in offpath-host)")
    parser.add_argument("--runtime-dir", metavar="DIR", help="where the daemon's sockets are")
    parser.add_argument("--doca-path", metavar="DIR", default="", help="the folder of DOCA's libraries")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def main(arguments: argparse.Namespace) -> int:
    """Check and print the findings."""
    directory = os.path.dirname(local_socket(HOST_SOCKET, arguments.runtime_dir))  # the path that `helper run` uses
    findings = check_host(directory, arguments.doca_path)
    return show(findings, as_json=arguments.json, who="helper")
