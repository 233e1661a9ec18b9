"""`offpath config check FILE`: validates a configuration as `offpath daemon run` would, without running it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from offpath.bindings.runtime import ADMIN_SOCKET, local_socket
from offpath.cli.exits import DaemonUnreachable

if TYPE_CHECKING:
    from offpath.dpu_daemon.config import Fault, Loaded, Sources


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("file", metavar="FILE", help="TOML configuration; environment variables override it")
    add_overrides(parser)
    parser.add_argument("--reload", action="store_true", help="also check whether the running daemon could reload it")
    parser.add_argument("--runtime-dir", metavar="DIR", help="--reload: where the daemon's sockets are")
    parser.add_argument("--json", action="store_true", help="print faults and warnings as one JSON object")


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """``--set KEY=VALUE``, for every command that reads a configuration."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
        help="override a value, e.g. leasing.lanes=3",
    )  # fmt: skip


def main(arguments: argparse.Namespace) -> int:
    """Exit code 0, or 78 (EX_CONFIG) if the daemon would not start with it; with ``--reload``, or would not
    reload it.
    """
    from offpath.dpu_daemon.config import ConfigError, Fault
    from offpath.dpu_daemon.config.sources import process_sources

    sources = process_sources(arguments.file, arguments.overrides)

    faults: tuple[Fault, ...] = ()
    warnings: tuple[Fault, ...] = ()
    text = ""
    try:
        loaded = sources.read()
        warnings = loaded.warnings
        if arguments.reload:
            _check_reload(sources, loaded, arguments.runtime_dir)
    except ConfigError as fault:
        text, faults = str(fault), fault.faults or (Fault("", str(fault)),)
    if arguments.json:
        document = {"is_valid": not faults, "faults": _plain(faults), "warnings": _plain(warnings)}
        print(json.dumps(document))
    else:
        for warning in warnings:
            print(f"warning: {warning.path}: {warning.text}", file=sys.stderr)
        print(text or f"{arguments.file}: ok", file=sys.stderr if text else sys.stdout)
    return os.EX_CONFIG if faults else 0


def _check_reload(sources: Sources, loaded: Loaded, runtime_dir: str | None) -> None:
    """Raises: ConfigError: what a reload would refuse. DaemonUnreachable: no daemon's configuration is there."""
    import asyncio  # here, because a service manager imports this module and must stay small

    from offpath.dpu_daemon.config import Fault, config_error, lastgood
    from offpath.dpu_daemon.policy.plugins import PluginError, started

    directory = os.path.dirname(local_socket(ADMIN_SOCKET, runtime_dir))
    in_force = lastgood.kept(directory)
    if in_force is None:
        raise DaemonUnreachable(f"{directory}: no running daemon's configuration (one without a journal keeps none)")
    sources.check_reload(in_force[1], loaded)
    try:
        plugin = asyncio.run(started(loaded.config))
    except PluginError as fault:
        raise config_error(sources.file, [Fault("leasing.policy", str(fault))], loaded.origins) from None
    if plugin is not None:
        plugin.close()


def _plain(faults: tuple[Fault, ...]) -> list[dict[str, str | int]]:
    more = ("line", "tenant")
    return [
        {"path": fault.path, "text": fault.text} | {key: getattr(fault, key) for key in more if getattr(fault, key)}
        for fault in faults
    ]
