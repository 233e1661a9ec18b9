"""`offpath request list`: lists requests with an unread answer; with ``--state``, ended ones too."""

from __future__ import annotations

import argparse
import itertools
import re
from collections import deque
from collections.abc import Iterator

from offpath.bindings.wire import admin
from offpath.bindings.wire.codes import Status
from offpath.cli import admin_client

_HEAD = ("job", "request", "tenant", "kernel", "R", "priority", "state", "reason", "lease", "age s")
_STATES = (
    "only this state: queued, copying, copied, launched; ended (of the last 4096), or one end: completed, failed, "
    "cancelled, expired, rejected, …"
)
_ENDS = frozenset({"ended", *(status.name.lower() for status in Status)})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    admin_client.add_arguments(parser)
    parser.add_argument("--tenant", metavar="NAME", help="only this tenant's")
    parser.add_argument("--session", type=int, metavar="N", help="only this session's")
    parser.add_argument("--state", metavar="STATE", help=_STATES)
    parser.add_argument("--limit", type=_count, default=100, metavar="N", help="at most this many (default 100)")


def _count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a number of requests")
    return int(text)


def main(arguments: argparse.Namespace) -> int:
    """Print the requests, oldest first; of ended ones the newest, if there are more than ``--limit``."""
    with admin_client.AdminClient(arguments.runtime_dir) as client:
        pages, limit = _pages(client, arguments), arguments.limit
        is_ended = (arguments.state or "").lower() in _ENDS
        found = list(deque(pages, limit) if is_ended else itertools.islice(pages, limit))
    if arguments.json:
        admin_client.print_json([job.model_dump(mode="json") for job in found])
    else:
        print(admin_client.table([_row(job) for job in found], _HEAD))
    return 0


def _pages(client: admin_client.AdminClient, arguments: argparse.Namespace) -> Iterator[admin.JobLine]:
    after = 0
    while True:
        request = admin_client.request(
            admin.JobsRequest, tenant=arguments.tenant, session=arguments.session, state=arguments.state, after=after
        )
        page = client.query(request, admin.Jobs)
        yield from page.jobs
        if not page.next:
            return
        after = page.next


def _row(job: admin.JobLine) -> tuple[object, ...]:
    return (
        job.job, f"{job.session}/{job.request_id}", job.tenant, job.kernel, job.demand, job.priority, job.state,
        job.reason if job.reason not in ("", "none") else "-", job.lease or "-", f"{job.age_ms / 1e3:.3f}",
    )  # fmt: skip
