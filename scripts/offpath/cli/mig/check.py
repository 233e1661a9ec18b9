"""`offpath mig assert`: whether a layout is applied, with the exit codes and the text of mig-parted."""

from __future__ import annotations

import argparse

from offpath.bindings.errors import OffpathError
from offpath.cli.admin_client import echo, print_json
from offpath.cli.mig import common
from offpath.host_helper.migd.layout_file import read_layout
from offpath.host_helper.migd.layout_plan import has_mode, is_applied


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    common.add_arguments(parser)
    parser.add_argument("-m", "--mode-only", action="store_true", help="compare the MIG mode only")
    parser.add_argument("-a", "--valid-config", action="store_true", help="only check that the file is valid")


def main(arguments: argparse.Namespace) -> int:
    """0: applied (or valid). 1: not applied, or any error, as with mig-parted."""
    try:
        return _compare(arguments)
    except OffpathError as fault:
        echo(f"offpath: {fault}")
        return 1


def _compare(arguments: argparse.Namespace) -> int:
    if arguments.valid_config:
        read_layout(arguments.config_file, arguments.selected_config)
        return _tell(arguments, "Selected MIG configuration is valid", {})
    with common.client(arguments) as migd:
        found = common.targets(migd, arguments)
    holds = has_mode if arguments.mode_only else is_applied
    differing = [each.found.gpu for each in found if not holds(each.found, each.wanted)]
    if differing:
        if arguments.json:
            print_json({"applied": False, "differing": [gpu.uuid for gpu in differing]})
        else:
            echo("offpath: the layout is not applied to " + ", ".join(f"GPU {gpu.index}" for gpu in differing))
        return 1
    return _tell(arguments, "Selected MIG configuration currently applied", {"applied": True, "differing": []})


def _tell(arguments: argparse.Namespace, text: str, data: dict[str, object]) -> int:
    if arguments.json:
        print_json(data or {"valid": True})
    else:
        print(text)
    return 0
