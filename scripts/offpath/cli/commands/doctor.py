"""`offpath doctor`: reports what this machine lacks for a daemon, and the fix; exit code 1: a daemon cannot run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

from offpath.bindings.errors import OffpathError
from offpath.bindings.faults import POINTS
from offpath.bindings.findings import Finding, Severity, ok
from offpath.bindings.runtime import runtime_directory
from offpath.bindings.wire import admin
from offpath.cli.admin_client import AdminClient
from offpath.cli.commands import host_doctor
from offpath.cli.findings_text import show
from offpath.dpu_daemon.config import load_config
from offpath.dpu_daemon.doctor.doca import check_doca
from offpath.dpu_daemon.doctor.findings import CODES
from offpath.dpu_daemon.doctor.keys import check_keys
from offpath.dpu_daemon.doctor.machine import check_machine
from offpath.dpu_daemon.doctor.place import check_directory, check_helper_user, check_limits, memlock_bytes
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
    findings += _served_gpus(arguments.runtime_dir)
    findings += check_rdma(config)
    findings += check_doca(config)
    if config is not None:
        findings += check_limits(config)
        findings += check_helper_user(config)
        findings += check_keys(config)
        findings += check_plugin(config)
    return show(findings, as_json=arguments.json, who="daemon")


def _served_gpus(directory: str | None) -> Iterator[Finding]:
    """Whether the GPUs of a running daemon are emulated; nothing if none answers, which another check reports."""
    try:
        with AdminClient(directory) as client:
            gpus = client.query(admin.StatusRequest(), admin.Status).gpus
    except OffpathError:
        return
    emulated = ", ".join(f"{gpu.gpu} ({gpu.model})" for gpu in gpus if gpu.is_emulated)
    if emulated:
        yield Finding(
            "gpu", Severity.WARNING, f"the daemon serves EMULATED GPUs: {emulated}; a host's CPU computes",
            "where GPUs are expected, read what `offpath helper run` prints on the host",
        )  # fmt: skip
    elif gpus:
        yield ok("gpu", f"the daemon serves {', '.join(f'{gpu.gpu} ({gpu.model})' for gpu in gpus)}")


def _list(entries: dict[str, str], as_json: bool) -> None:
    if as_json:
        print(json.dumps(entries, indent=2))
        return
    width = max(map(len, entries))
    for name, text in entries.items():
        print(f"{name:{width}}  {text}")
