"""`offpath config check FILE`: what `offpath daemon run` would say of this configuration, without running it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offpath.dpu_daemon.config import Fault


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("file", metavar="FILE", help="TOML configuration; the environment counts too")
    add_overrides(parser)
    parser.add_argument("--json", action="store_true", help="print faults and warnings as one JSON object")


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """``--set KEY=VALUE``, for every command that reads a configuration."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
        help="override a value, e.g. leasing.lanes=3",
    )  # fmt: skip


def main(arguments: argparse.Namespace) -> int:
    """Exit code 0, or 78 (EX_CONFIG) when the daemon would not start with it."""
    from offpath.dpu_daemon.config import ConfigError, Fault
    from offpath.dpu_daemon.config.sources import process_sources

    faults: tuple[Fault, ...] = ()
    warnings: tuple[Fault, ...] = ()
    text = ""
    try:
        warnings = process_sources(arguments.file, arguments.overrides).read().warnings
    except ConfigError as fault:
        text, faults = str(fault), fault.faults or (Fault("", str(fault)),)
    if arguments.json:
        said = {"is_valid": not faults, "faults": _plain(faults), "warnings": _plain(warnings)}
        print(json.dumps(said))
    else:
        for warning in warnings:
            print(f"warning: {warning.path}: {warning.text}", file=sys.stderr)
        print(text or f"{arguments.file}: ok", file=sys.stderr if text else sys.stdout)
    return os.EX_CONFIG if faults else 0


def _plain(faults: tuple[Fault, ...]) -> list[dict[str, str]]:
    return [{"path": fault.path, "text": fault.text} for fault in faults]
