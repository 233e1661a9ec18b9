"""The client of a job manager's socket, and helpers of its commands."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from offpath.bindings.errors import OffpathError
from offpath.bindings.plausible import LEAST_QUOTA
from offpath.bindings.runtime import MANAGER_SOCKET
from offpath.bindings.wire import work_admin
from offpath.cli import admin_client, controller_client

HEAD: Final = ("job", "state", "GPUs", "model", "nodes", "server", "INA", "Gbit/s", "since s")
_UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def client(runtime_dir: str | None) -> admin_client.AdminClient:
    """Raises: DaemonUnreachable, NotPermitted."""
    return admin_client.AdminClient(runtime_dir, MANAGER_SOCKET, work_admin.FROM_MANAGER)


def is_here(runtime_dir: str | None) -> bool:
    """A job manager has its socket in the runtime directory. Raises: NotPermitted."""
    return admin_client.has_socket(MANAGER_SOCKET, runtime_dir)


def add_job_arguments(parser: argparse._ActionsContainer) -> None:
    """What a job needs."""
    parser.add_argument("--model", default="", metavar="MODEL", help="its model's name, which the job manager knows")
    parser.add_argument(
        "--data",
        type=nbytes,
        default=0,
        metavar="BYTES",
        help="gradients of an iteration, as 528MB (default: the model's)",
    )
    parser.add_argument("--value", type=float, default=1.0, help="its weight against other jobs (%(default)s)")


def nbytes(text: str) -> int:
    """A number of bytes, with a unit. Raises: argparse.ArgumentTypeError: no number, or one that cannot be meant."""
    number = text.rstrip("BKMGi")
    unit = text[len(number) :]
    try:
        found = round(float(number) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r}: a number of bytes, as 528MB or 1GiB") from None
    if 0 < found < LEAST_QUOTA:
        raise argparse.ArgumentTypeError(f"{text!r} is {found} bytes; write a unit, as 528MB or 1GiB")
    return found


def found(name: str, runtime_dir: str | None, kind: type[work_admin.ExplainRequest | work_admin.CancelRequest]) -> (
    work_admin.Explanation | None
):  # fmt: skip
    """The job manager's answer about its job. None: it has no such job, or there is no job manager here: the job may be
    the controller's."""
    if not is_here(runtime_dir):
        return None
    try:
        with client(runtime_dir) as here:
            return here.query(admin_client.request(kind, job=name), work_admin.Explanation)
    except admin_client.Refused as refused:
        if refused.code == "unknown_job" and controller_client.is_here(runtime_dir):
            return None
        raise


def all_jobs(runtime_dir: str | None, *, is_ended: bool) -> Iterator[work_admin.JobLine]:
    """Every job, page by page; none if there is no job manager here."""
    if not is_here(runtime_dir):
        return
    with client(runtime_dir) as here:
        for page in controller_client.pages(
            lambda after: here.query(work_admin.ListRequest(after=after, is_ended=is_ended), work_admin.JobLines), 0
        ):
            yield from page.jobs


def row(job: work_admin.JobLine) -> tuple[object, ...]:
    """A job in a table."""
    rate = f"{job.rate_bps / 1e9:.1f}" if job.rate_bps else "-"
    ina = ("yes" if job.uses_ina else "no") if job.server else "-"
    return (
        job.job,
        job.state,
        job.gpus,
        job.model,
        shares_text(job.shares),
        job.server or "-",
        ina,
        rate,
        f"{job.age_s:.1f}",
    )


def shares_text(shares: list[work_admin.ShareLine]) -> str:
    """Nodes with their numbers of GPUs."""
    return ",".join(f"{share.node}:{share.count}" for share in shares if share.count) or "-"


def text(found: work_admin.Explanation) -> str:
    """A job with the reasons for its state."""
    job = found.job
    lines = [f"job {job.job} ({job.identity}): {job.state}; {job.gpus} GPUs for {job.model}, value {job.value:g}"]
    lines.append(f"  {found.where}")
    if job.shares:
        server = (
            f", parameter server on {job.server}, aggregation {'on' if job.uses_ina else 'off'}" if job.server else ""
        )
        lines.append(f"  on {shares_text(job.shares)}{server}")
    if job.rate_bps:
        lines.append(
            f"  estimated {job.rate_bps / 1e9:.2f} Gbit/s for each worker, limited by {found.bottleneck};"
            f" {found.comm_s * 1e3:.1f} ms of traffic in each iteration"
        )
    lines += [f"  - {reason}" for reason in found.reasons]
    if found.detail:
        lines.append(f"  engine: {found.detail}")
    return "\n".join(lines)


def print_it(found: work_admin.Explanation, *, is_json: bool) -> None:
    """Print a job, as one JSON object or as text."""
    if is_json:
        admin_client.print_json(found)
    else:
        print(text(found))


def missing_command() -> OffpathError:
    """A job on GPUs needs a command."""
    return OffpathError("give the job's command after --, for example: -- python3 train.py")
