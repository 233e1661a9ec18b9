"""`offpath request list`: the requests a daemon holds, until their answers are taken."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator

from pydantic import ValidationError

from offpath.bindings.errors import OffpathError
from offpath.bindings.wire import admin
from offpath.cli import ask

_HEAD = ("job", "request", "tenant", "kernel", "R", "priority", "state", "lease", "age s")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    ask.add_arguments(parser)
    parser.add_argument("--tenant", metavar="NAME", help="only this tenant's")
    parser.add_argument("--session", type=int, metavar="N", help="only this session's")
    parser.add_argument("--state", metavar="STATE", help="only these: queued, copying, launched, completed, …")
    parser.add_argument("--limit", type=int, default=100, metavar="N", help="at most so many (default 100)")


def main(arguments: argparse.Namespace) -> int:
    """Print the requests, oldest first."""
    with ask.AdminClient(arguments.runtime_dir) as client:
        found = list(itertools.islice(_pages(client, arguments), max(0, arguments.limit)))
    if arguments.json:
        ask.print_json([job.model_dump(mode="json") for job in found])
    else:
        print(ask.table([_row(job) for job in found], _HEAD))
    return 0


def _pages(client: ask.AdminClient, arguments: argparse.Namespace) -> Iterator[admin.JobLine]:
    after = 0
    while True:
        try:
            request = admin.JobsRequest(
                tenant=arguments.tenant, session=arguments.session, state=arguments.state, after=after
            )
        except ValidationError as fault:
            raise OffpathError("; ".join(f"{e['loc'][0]}: {e['msg']}" for e in fault.errors())) from None
        page = client.ask(request, admin.Jobs)
        yield from page.jobs
        if not page.next:
            return
        after = page.next


def _row(job: admin.JobLine) -> tuple[object, ...]:
    return (
        job.job, f"{job.session}/{job.request_id}", job.tenant, job.kernel, job.demand, job.priority, job.state,
        job.lease or "-", f"{job.age_ms / 1e3:.3f}",
    )  # fmt: skip
