"""Checks the policy plug-in: starts it as the daemon would, and stops it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from offpath.dpu_daemon.config import DaemonConfig
from offpath.dpu_daemon.doctor.findings import Finding, Severity, ok
from offpath.dpu_daemon.policy.plugins import PluginError, started


def check_plugin(config: DaemonConfig) -> Iterator[Finding]:
    """No finding if no plug-in is configured."""
    try:
        process = asyncio.run(started(config))
    except PluginError as fault:
        fix = "install its package where offpath is installed, fix it, or name another leasing.policy"
        yield Finding("plugin", Severity.ERROR, str(fault), fix)
        return
    if process is not None:
        process.close()
        yield ok("plugin", f"{config.leasing.policy} starts")
