"""`offpath doctor`: reports what this machine lacks for a daemon, and the fix; exit code 1: a daemon cannot run."""

from __future__ import annotations

import argparse
import json

from offpath.bindings.errors import OffpathError
from offpath.bindings.faults import POINTS
from offpath.bindings.runtime import runtime_directory
from offpath.cli.commands import host_doctor
from offpath.cli.findings_text import show
from offpath.dpu_daemon.config import load_config
from offpath.dpu_daemon.doctor.doca import check_doca
from offpath.dpu_daemon.doctor.findings import CODES
from offpath.dpu_daemon.doctor.keys import check_keys
from offpath.dpu_daemon.doctor.machine import check_machine
from offpath.dpu_daemon.doctor.place import check_directory, check_limits, memlock_bytes
from offpath.dpu_daemon.doctor.plugin import check_plugin
from offpath.dpu_daemon.doctor.rdma import check_rdma


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    host_doctor.add_arguments(parser)
    parser.add_argument("--config", metavar="FILE", help="also check limits and keys against this configuration")
    parser.add_argument("--fault-points", action="store_true", help="list the places that OFFPATH_FAULTS can arm")
    parser.add_argument("--codes", action="store_true", help="list the codes of findings")
    parser.add_argument("--memlock", action="store_true", help="print LimitMEMLOCK= for --config, in bytes")


def main(arguments: argparse.Namespace) -> int:
    """Check and print the findings."""
    if arguments.host:
        return host_doctor.main(arguments)
    if arguments.fault_points or arguments.codes:
        _list(POINTS if arguments.fault_points else CODES, arguments.json)
        return 0
    config = load_config(arguments.config) if arguments.config else None
    if arguments.memlock:
        if config is None:
            raise OffpathError("--memlock needs --config")
        print(memlock_bytes(config))
        return 0
    findings = list(check_machine())
    findings += check_directory(runtime_directory(arguments.runtime_dir), config)
    findings += check_rdma(config)
    findings += check_doca(config)
    if config is not None:
        findings += check_limits(config)
        findings += check_keys(config)
        findings += check_plugin(config)
    return show(findings, as_json=arguments.json, who="daemon")


def _list(entries: dict[str, str], as_json: bool) -> None:
    if as_json:
        print(json.dumps(entries, indent=2))
        return
    width = max(map(len, entries))
    for name, text in entries.items():
        print(f"{name:{width}}  {text}")
