"""The client of a collaboration controller's socket, and helpers of its commands."""

from __future__ import annotations

import argparse
from typing import Final

from offpath.bindings.errors import OffpathError
from offpath.bindings.runtime import COLLAB_SOCKET
from offpath.bindings.wire import collab_admin
from offpath.cli import admin_client

HEAD: Final = ("job", "tenant", "state", "round", "devices", "answered", "rounds done", "last end", "since s")


def client(runtime_dir: str | None) -> admin_client.AdminClient:
    """Raises: DaemonUnreachable, NotPermitted."""
    return admin_client.AdminClient(runtime_dir, COLLAB_SOCKET, collab_admin.FROM_COLLAB)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of every command that queries the controller."""
    parser.add_argument("--runtime-dir", metavar="DIR", help="where the controller's socket is")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def add_requirement(parser: argparse.ArgumentParser) -> None:
    """What a job requires of its devices."""
    parser.add_argument(
        "--least",
        action="append",
        default=[],
        metavar="NAME=N",
        help="a device's number is at least N; may be repeated",
    )
    parser.add_argument(
        "--version-least", action="append", default=[], metavar="NAME=1.2", help="a version is at least this"
    )
    parser.add_argument("--label", action="append", default=[], metavar="LABEL", help="a device has this label")


def requirement(arguments: argparse.Namespace) -> collab_admin.Requirement:
    """From the flags. Raises: OffpathError: a flag is not NAME=VALUE, or out of its range."""
    numbers = {name: _number(name, value) for name, value in _pairs("--least", arguments.least)}
    versions = dict(_pairs("--version-least", arguments.version_least))
    return admin_client.request(
        collab_admin.Requirement, numbers=numbers, versions=versions, labels=list(arguments.label)
    )


def _pairs(flag: str, given: list[str]) -> list[tuple[str, str]]:
    found = [each.partition("=") for each in given]
    if wrong := [name for name, equals, _ in found if not equals]:
        raise OffpathError(f"{flag} {wrong[0]}: give NAME=VALUE")
    return [(name, value) for name, _, value in found]


def _number(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 16):
        raise OffpathError(f"--least {name}: want a whole number from 0 to 2^53")
    return int(value)


def print_job(answer: collab_admin.JobAnswer, *, is_json: bool) -> None:
    """Print a job, as one JSON object or as text."""
    if is_json:
        admin_client.print_json(answer.job)
    else:
        print(text(answer.job))


def text(job: collab_admin.JobLine) -> str:
    """A job in two lines."""
    if job.state == "idle":
        now = f"no round runs; the last one, {job.round}, ended: {job.last_end}" if job.last_end else "no round yet"
    else:
        now = (
            f"round {job.round}: {job.leased} devices work, {job.done} of {job.demand} have answered,"
            f" {job.deadline_s:.0f} s to its deadline"
        )
    return f"job {job.job} of {job.tenant}: {job.state}; requires {job.requirement}\n  {now}"


def row(job: collab_admin.JobLine) -> tuple[object, ...]:
    """A job in a table."""
    return (
        job.job, job.tenant, job.state, job.round if job.round >= 0 else "-",
        f"{job.leased}/{job.demand}", job.done, job.rounds_completed, job.last_end or "-", f"{job.age_s:.0f}",
    )  # fmt: skip
