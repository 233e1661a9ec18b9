"""Helpers of `offpath inc`: the client of the job manager, requests from TOML files, tables."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Final

from offpath.bindings.errors import OffpathError
from offpath.bindings.runtime import MANAGER_SOCKET
from offpath.bindings.wire import inc_admin
from offpath.cli import admin_client, controller_client

HEAD: Final = ("request", "tenant", "state", "tasks", "running", "chosen", "since s")
TASK_HEAD: Final = ("composite", "flavor", "where", "slot", "state", "address")
_MOST_BYTES: Final = 1 << 20


def client(runtime_dir: str | None) -> admin_client.AdminClient:
    """Raises: DaemonUnreachable, NotPermitted."""
    return admin_client.AdminClient(runtime_dir, MANAGER_SOCKET, inc_admin.FROM_MANAGER)


def read(path: str) -> inc_admin.SubmitRequest:
    """A request from a TOML file. Raises: OffpathError: it is none; the text names what is wrong."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise OffpathError(f"{path}: more than {_MOST_BYTES} bytes")
        found = tomllib.loads(data.decode())
    except OSError as fault:
        raise OffpathError(f"{path}: {fault.strerror}") from None
    except (ValueError, RecursionError) as fault:
        raise OffpathError(f"{path}: {fault}"[:400]) from None
    if not all(isinstance(key, str) and key.isidentifier() for key in found):
        raise OffpathError(f"{path}: a key is no field of a request")
    return admin_client.request(inc_admin.SubmitRequest, **found)


def shown(name: str, runtime_dir: str | None) -> inc_admin.Shown:
    """A request with all its tasks. Raises: Refused, DaemonUnreachable."""
    with client(runtime_dir) as here:
        found = here.query(admin_client.request(inc_admin.ShowRequest, name=name), inc_admin.Shown)
        tasks, after = list(found.tasks), found.next
        while after:
            page = here.query(inc_admin.ShowRequest(name=name, after=after), inc_admin.Shown)
            tasks, after = tasks + page.tasks, page.next
    return found.model_copy(update={"tasks": tasks, "next": 0})


def all_requests(runtime_dir: str | None, *, is_ended: bool) -> Iterator[inc_admin.RequestLine]:
    """Page by page."""
    with client(runtime_dir) as here:
        for page in controller_client.pages(
            lambda after: here.query(inc_admin.ListRequest(after=after, is_ended=is_ended), inc_admin.RequestLines), 0
        ):
            yield from page.requests


def row(request: inc_admin.RequestLine) -> tuple[object, ...]:
    """A request in a table."""
    chosen = ",".join(f"{composite}={name}" for composite, name in sorted(request.chosen.items())) or "-"
    return (
        request.name, request.tenant, request.state, request.tasks, request.running, chosen, f"{request.age_s:.1f}",
    )  # fmt: skip


def text(found: inc_admin.Shown) -> str:
    """A request with its tasks."""
    rows = [(each.composite, each.flavor, each.where, each.slot, each.state, each.address or "-")
            for each in found.tasks]  # fmt: skip
    head = f"request {found.request.name} of {found.request.tenant}: {found.request.state}\n  {found.where}"
    return f"{head}\n{admin_client.table(rows, TASK_HEAD)}" if rows else head


def explained(found: inc_admin.Shown) -> str:
    """Why it is as it is."""
    lines = [f"request {found.request.name} of {found.request.tenant}: {found.request.state}", f"  {found.where}"]
    lines += [f"  {composite}: {reason}" for composite, reason in sorted(found.reasons.items())]
    for task in found.tasks:
        lines.append(f"  - {task.group} slot {task.slot} on {task.where}, {task.state}: {task.reason}")
    lines += [f"  waits: {group}: {why}" for group, why in sorted(found.waits.items())]
    lines += [f"  before: {line}" for line in found.history]
    return "\n".join(lines)


def print_it(found: inc_admin.Shown, *, is_json: bool, is_explained: bool = False) -> None:
    """As one JSON object or as text."""
    if is_json:
        admin_client.print_json(found)
    else:
        print(explained(found) if is_explained else text(found))
