"""`offpath collab token DEVICE`: prints the token with which a device checks in."""

from __future__ import annotations

import argparse

from pydantic import TypeAdapter, ValidationError

from offpath.bindings.errors import OffpathError
from offpath.bindings.wire.collab import DeviceName


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--config", required=True, metavar="FILE", help="the controller's, which names the key's file")
    parser.add_argument("device", metavar="DEVICE", help="the device's name: letters, digits, '.', '_' and '-'")


def main(arguments: argparse.Namespace) -> int:
    """Print the token, derived from the name and the first key. Exit code 78: the configuration has faults."""
    from offpath.dpu_daemon.collab.config import token_key
    from offpath.dpu_daemon.collab.tokens import Tokens

    try:
        device = TypeAdapter(DeviceName).validate_python(arguments.device)
    except ValidationError:
        raise OffpathError("a device's name has 1 to 128 letters, digits, '.', '_' and '-'") from None
    print(Tokens([token_key(arguments.config)]).of(device))
    return 0
