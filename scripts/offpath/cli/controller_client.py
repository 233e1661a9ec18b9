"""The client of a controller's admin socket, and helpers of its commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from offpath.bindings.runtime import CONTROLLER_SOCKET
from offpath.bindings.wire import ina_admin
from offpath.cli import admin_client


def client(runtime_dir: str | None) -> admin_client.AdminClient:
    """Raises: DaemonUnreachable, NotPermitted."""
    return admin_client.AdminClient(runtime_dir, CONTROLLER_SOCKET, ina_admin.FROM_CONTROLLER_ADMIN)


def is_here(runtime_dir: str | None) -> bool:
    """A controller has its socket in the runtime directory. Raises: NotPermitted."""
    return admin_client.has_socket(CONTROLLER_SOCKET, runtime_dir)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of every command that queries a controller."""
    parser.add_argument("--runtime-dir", metavar="DIR", help="where the sockets of controller and job manager are")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def pages(turn: Callable[[Any], Any], first: Any) -> Iterator[Any]:
    """Every page: ``turn`` requests the page after a position; 0 or empty ends it."""
    after = first
    while True:
        page = turn(after)
        yield page
        if not page.next:
            return
        after = page.next


def job_text(job: ina_admin.InaJobLine) -> str:
    """A job in two lines."""
    tree = f"may use {job.tree}" if job.tree else "without a tree"
    only = "" if job.switches is None else f", restricted to {', '.join(job.switches) or 'no switches'}"
    return (
        f"job {job.job}: {job.state}, {tree}{only}\n"
        f"  {job.ranks_per_host} ranks on each of {', '.join(job.hosts) or 'no hosts'}; {job.ranks} live;"
        f" since {job.age_ms / 1e3:.1f} s"
    )
