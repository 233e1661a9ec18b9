"""The client of the admin socket, and helpers of its commands: flags, identifiers, tables, JSON."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Final, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from offpath.bindings.errors import DaemonNotTrusted, OffpathError, OptionRefused, ProtocolError
from offpath.bindings.invalid import listed
from offpath.bindings.runtime import ADMIN_SOCKET, local_socket
from offpath.bindings.trust import connect_daemon
from offpath.bindings.wire import admin, control
from offpath.bindings.wire.frames import FrameReader, frame
from offpath.cli.exits import DaemonUnreachable, NotPermitted

ANSWER_S: Final = 10.0
_R = TypeVar("_R", bound=BaseModel)


class Refused(OffpathError):
    """The daemon refused the request; ``code`` is stable."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


class AdminClient:
    """One connection to a daemon's admin socket, or to the socket ``name`` of another service, which answers in
    messages of ``replies``. Raises: DaemonUnreachable, NotPermitted; DaemonNotTrusted: another user listens there.
    """

    def __init__(
        self, runtime_dir: str | None = None, name: str = ADMIN_SOCKET,
        replies: TypeAdapter[Any] = admin.FROM_ADMIN,
    ) -> None:  # fmt: skip
        self.path = local_socket(name, runtime_dir)
        self._replies = replies
        self._reader = FrameReader()
        try:
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        except OSError as fault:  # too many open files
            raise DaemonUnreachable(f"no socket to connect to {self.path}: {fault.strerror or fault}") from None
        try:
            connect_daemon(self._sock, self.path, ANSWER_S)
            self._sock.settimeout(ANSWER_S)
        except (DaemonNotTrusted, OptionRefused):
            self._sock.close()
            raise
        except OSError as fault:
            self._sock.close()
            if isinstance(fault, PermissionError):
                raise NotPermitted(f"{self.path}: this user may not connect") from None
            raise DaemonUnreachable(f"no daemon answers at {self.path}: {fault.strerror or fault}") from None

    def query(self, request: BaseModel, wanted: type[_R]) -> _R:
        """Raises: Refused, DaemonUnreachable, NotPermitted."""
        frames: list[bytes] = []
        try:
            self._sock.sendall(frame(control.encode(request)))
            while not frames:
                data = self._sock.recv(65536)
                if not data:
                    raise DaemonUnreachable("the daemon closed the connection")
                frames += self._reader.feed(data)
            reply = control.decode(self._replies, frames[0])
        except TimeoutError:
            raise DaemonUnreachable(f"no answer from the daemon within {ANSWER_S:g} s") from None
        except BrokenPipeError:
            raise NotPermitted(f"{self.path}: only operators may connect") from None
        except (OSError, ProtocolError) as fault:
            raise DaemonUnreachable(f"{self.path}: {fault}") from None
        if isinstance(reply, admin.Fault):
            if reply.code == "denied":
                raise NotPermitted(reply.detail)
            raise Refused(reply.code, reply.detail)
        if not isinstance(reply, wanted):
            raise DaemonUnreachable(f"the daemon answered {type(reply).__name__}, not {wanted.__name__}")
        return reply

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def has_socket(name: str, runtime_dir: str | None) -> bool:
    """A service has its socket in the runtime directory. Raises: NotPermitted: this user may not search it."""
    path = local_socket(name, runtime_dir)
    try:
        os.stat(path)
    except PermissionError:
        raise NotPermitted(f"{path}: this user may not connect") from None
    except OSError:
        return False
    return True


def all_leases(client: AdminClient) -> Iterator[admin.LeaseLine]:
    """Every lease, page by page."""
    after = 0
    while True:
        page = client.query(admin.LeasesRequest(after=after), admin.Leases)
        yield from page.leases
        if not page.next:
            return
        after = page.next


def all_tenants(client: AdminClient) -> tuple[admin.Statistics, list[admin.TenantLine]]:
    """The counters (of the last page) and every tenant."""
    tenants: list[admin.TenantLine] = []
    after = ""
    while True:
        page = client.query(admin.StatisticsRequest(after=after), admin.Statistics)
        tenants += page.tenants
        if not page.next:
            return page, tenants
        after = page.next


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of every command that queries a daemon."""
    parser.add_argument("--runtime-dir", metavar="DIR", help="where the daemon's sockets are")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def add_id(parser: argparse.ArgumentParser) -> None:
    """The job's identifier."""
    parser.add_argument("id", metavar="ID", type=job_id, help="a job's number, or SESSION/REQUEST")


def request(kind: type[_R], **words: Any) -> _R:
    """A request from command-line words. Raises: OffpathError: a word is out of its range, or has a wrong form."""
    try:
        return kind(**words)
    except ValidationError as fault:
        raise OffpathError("; ".join(listed(fault))) from None


def job_id(text: str) -> dict[str, int]:
    """Fields of an admin request that identify the job. Raises: argparse.ArgumentTypeError."""
    parts = text.split("/")
    if len(parts) in (1, 2) and all(part.isascii() and part.isdigit() and len(part) <= 20 for part in parts):
        numbers = [int(part) for part in parts]
        if max(numbers) >= 1 << 64 or (len(numbers) == 2 and not numbers[1]):
            raise argparse.ArgumentTypeError(f"{text!r} is out of range: 64 bits, and no request has the id 0")
        return {"job": numbers[0]} if len(numbers) == 1 else {"session": numbers[0], "request_id": numbers[1]}
    raise argparse.ArgumentTypeError(f"{text!r} is neither a job's number nor SESSION/REQUEST")


def print_json(document: Any) -> None:
    """Print the only document on stdout."""
    if isinstance(document, BaseModel):
        document = document.model_dump(mode="json", exclude={"kind"})
    print(json.dumps(document, ensure_ascii=False))


def table(rows: Sequence[Sequence[object]], head: Sequence[str]) -> str:
    """Columns; numbers are right-aligned."""
    cells = [list(head), *[[str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[n]) for row in cells) for n in range(len(head))]
    is_number = [all(_is_number(row[n]) for row in cells[1:]) and len(cells) > 1 for n in range(len(head))]
    lines = [
        "  ".join(c.rjust(w) if right else c.ljust(w) for c, w, right in zip(row, widths, is_number, strict=True))
        for row in cells
    ]
    return "\n".join(line.rstrip() for line in lines)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace("-", "", 1).isdigit() or text in ("-", "")


def echo(text: str) -> None:
    """Print on stderr, for people."""
    print(text, file=sys.stderr)
