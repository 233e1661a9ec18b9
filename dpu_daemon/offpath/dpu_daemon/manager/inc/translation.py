"""Between the messages, the file's rows, and the book's records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import orjson
from pydantic import ValidationError

from offpath.bindings.wire import control
from offpath.bindings.wire.inc_admin import CompositeBody, SubmitRequest
from offpath.sched.errors import PlainError
from offpath.sched.inc.live.records import Program, Request, RequestState, Service, Spec, Task, TreeJob
from offpath.sched.inc.request import Composite, CompReq, Connection, Servers, Tie
from offpath.sched.plain import from_plain, to_plain

_SERVICES: Final = {"cache": Service.CACHE, "coordinator": Service.CHAIN}
"""The built-in data plane of a template's tasks."""


@dataclass(frozen=True, slots=True)
class _Row:
    """What a row keeps of a request beside its message."""

    user: str
    state: RequestState
    tasks: tuple[Task, ...]
    chosen: dict[str, str]
    reasons: dict[str, str]
    history: tuple[str, ...]
    failures: int = field(default=0)
    trees: dict[str, TreeJob] = field(default_factory=dict)


def spec_of(message: SubmitRequest, user: str) -> Spec:
    """A submitted request."""
    request = CompReq(
        message.name,
        tuple(_composite(each) for each in message.composite),
        tuple(Connection(each.source, each.target, each.bidirectional) for each in message.connection),
        tuple(Tie(each.composite, each.request, each.to, each.same_flavor) for each in message.tie),
        message.priority,
    )
    programs = {each.name: _program(each) for each in message.composite}
    body = control.encode(message).decode()
    return Spec(request, message.tenant, programs, body, message.gang, round(message.deadline_s * 1e3), user)


def _composite(body: CompositeBody) -> Composite:
    servers = Servers(body.instances, body.cpu_milli, body.memory_mib)
    return Composite(
        body.name, body.template, servers, tuple(body.among), tuple(body.without), body.demand, body.servers_percent
    )


def _program(body: CompositeBody) -> Program:
    service = Service(body.service) if body.service else _SERVICES.get(body.template, Service.NONE)
    environment = tuple(sorted(body.environment.items()))
    return Program(tuple(body.argv), environment, body.directory, body.output, service)


def row_of(request: Request) -> str:
    """For the file."""
    row = _Row(
        request.spec.user, request.state, tuple(request.tasks.values()), request.chosen, request.reasons,
        tuple(request.history), request.failures, request.trees,
    )  # fmt: skip
    return orjson.dumps({"request": request.spec.body, "row": to_plain(row)}).decode()


def request_of(text: str) -> Request:
    """A row of the file. Raises: ValueError: it is none."""
    try:
        data = orjson.loads(text)
        message = SubmitRequest.model_validate_json(data["request"])
        row = from_plain(_Row, data["row"])
    except (KeyError, TypeError, PlainError, ValidationError, orjson.JSONDecodeError) as fault:
        raise ValueError(f"request for servers and switches: {fault!r:.200}") from None
    return Request(
        spec_of(message, row.user), 0, 0, row.state, {each.identity: each for each in row.tasks}, row.chosen,
        row.reasons, history=list(row.history), failures=row.failures, trees=row.trees,
    )  # fmt: skip
