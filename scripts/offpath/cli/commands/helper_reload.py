"""`offpath helper reload`: a running helper loads its Python file anew and keeps its leases."""

from __future__ import annotations

import argparse

from offpath.cli import admin_client
from offpath.host_helper.reload import TRIAL_S, outcome
from offpath.host_helper.reload_socket import request_reload

_MARGIN_S = 60.0
"""For the file's execution after its trial, and the daemon's reply."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--name", metavar="NAME", default="", help="the helper's name (default: helper)")
    parser.add_argument("--runtime-dir", metavar="DIR", help="where the helper's socket is: its --runtime-dir, or its "
                        "RUNTIME_DIRECTORY (default: this user's own, then /run/offpath-helper)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def main(arguments: argparse.Namespace) -> int:
    """Reload, and print what changed. An error in the file leaves the helper as it was."""
    from offpath.host_helper.helper import helper_name  # late, because it imports numpy

    reloaded = request_reload(helper_name(arguments.name), arguments.runtime_dir, TRIAL_S + _MARGIN_S)
    if arguments.json:
        admin_client.print_json(reloaded)
    else:
        print(outcome(reloaded))
        if not reloaded.is_joined:
            admin_client.echo("no daemon is joined: it serves these kernels when the helper joins it")
    return 0
