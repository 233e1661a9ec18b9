"""Messages about requests for servers and switches (HIRE), on a job manager's admin socket.

A request in a TOML file has the fields of `SubmitRequest`; in Python these classes are the builder (HIRE, list. 1).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field, TypeAdapter

from offpath.bindings.wire import work_admin
from offpath.bindings.wire.fields import STRICT, U32, U64, Name, at_most
from offpath.bindings.wire.ina_admin import JobName, Page
from offpath.bindings.wire.work_admin import PAGE, AbsolutePath, Text, Word

MOST_COMPOSITES: Final = 64
MOST_TASKS: Final = 128
"""Task lines of one answer."""
Amount = Annotated[int, Field(ge=-(1 << 62), lt=1 << 62)]
"""The job manager's bounds are narrower; it gives the reason for a refusal."""
Plain = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]


class _Message(BaseModel):
    model_config = STRICT


class CompositeBody(_Message):
    """One function of a request. ``instances`` tasks of the implementation on servers, each with ``cpu_milli``
    thousandths of a core and ``memory_mib``. ``among``, ``without``: implementations that may, may not be chosen.
    ``demand``: by implementation and dimension, amounts of a switch within the template's range.

    On servers ``argv`` runs, or the built-in program ``service``: `store`, `cache` or `chain`.
    """

    name: Plain
    template: Name = "server"
    instances: Amount = 1
    cpu_milli: Amount = 100
    memory_mib: Amount = 64
    among: Annotated[list[Name], Field(max_length=16)] = []
    without: Annotated[list[Name], Field(max_length=16)] = []
    demand: Annotated[dict[Name, Annotated[dict[Name, Amount], at_most(8)]], at_most(16)] = {}
    servers_percent: Annotated[dict[Name, Amount], at_most(16)] = {}
    argv: Annotated[list[Word], Field(max_length=256)] = []
    environment: Annotated[dict[Name, Word], at_most(128)] = {}
    directory: AbsolutePath = "/"
    output: Annotated[str, Field(max_length=4096, pattern=r"^(/[^\x00]*)?$")] = ""
    service: Literal["", "store", "cache", "chain"] = ""


class ConnectionBody(_Message):
    """Traffic between two composites. A directed one is a dependency."""

    source: Plain
    target: Plain
    bidirectional: bool = False


class TieBody(_Message):
    """A composite that talks to one of an earlier, open request; with ``same_flavor`` it runs as that one does."""

    composite: Plain
    request: JobName
    to: Plain
    same_flavor: bool = False


class SubmitRequest(_Message):
    """Submit a request. ``priority``: 0 is the highest. ``gang``: its tasks start when all have a place; if they have
    none within ``deadline_s`` (0: no limit), the request ends."""

    kind: Literal["inc_submit"] = "inc_submit"
    name: JobName
    tenant: Name
    priority: Amount = 50
    gang: bool = False
    deadline_s: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    composite: Annotated[list[CompositeBody], Field(min_length=1, max_length=MOST_COMPOSITES)]
    connection: Annotated[list[ConnectionBody], Field(max_length=512)] = []
    tie: Annotated[list[TieBody], Field(max_length=512)] = []


class ListRequest(_Message):
    """A page of requests in the order of submission, from number ``after`` on."""

    kind: Literal["inc_list"] = "inc_list"
    after: U64 = 0
    limit: Page = PAGE
    is_ended: bool = False


class ShowRequest(_Message):
    """One request with its tasks, from task ``after`` on."""

    kind: Literal["inc_show"] = "inc_show"
    name: JobName
    after: U64 = 0


class CancelRequest(_Message):
    """End a request."""

    kind: Literal["inc_cancel"] = "inc_cancel"
    name: JobName


class TemplatesRequest(_Message):
    """What can be requested, and the switches that there are."""

    kind: Literal["inc_templates"] = "inc_templates"


class RequestLine(_Message):
    """A request. ``chosen``: implementation by composite."""

    name: str
    tenant: str
    state: Name
    age_s: float
    tasks: U32
    running: U32
    chosen: dict[str, str]
    is_gang: bool


class RequestLines(_Message):
    """A page of requests. ``next``: ``after`` of the next page; 0: the last page."""

    kind: Literal["inc_list"] = "inc_list"
    requests: list[RequestLine]
    next: U64


class TaskLine(_Message):
    """A task. ``where``: its switch or server. ``flavor``: the implementation. ``address``: HOST:PORT of its data
    plane, empty: none, or not ready. ``slot``: its position among the ``of`` tasks of its group. ``service``: the
    built-in data plane."""

    identity: str
    composite: str
    group: str
    flavor: str
    where: str
    is_inc: bool
    slot: U32
    of: U32
    service: Literal["", "store", "cache", "chain"]
    state: Name
    address: str
    reason: Text


class Shown(_Message):
    """A request with its tasks. ``reasons``: why each composite has its implementation. ``waits``: why the tasks of a
    group wait. ``stores``: by composite that is a cache, addresses of the stores behind it by slot; empty: one that
    does not run. ``history``: what was decided, oldest first. ``next``: ``after`` of the next tasks; 0: no more."""

    kind: Literal["inc_show"] = "inc_show"
    request: RequestLine
    where: Text
    tasks: list[TaskLine]
    reasons: dict[str, Text]
    waits: dict[str, Text]
    stores: dict[str, list[str]]
    history: list[Text]
    next: U64


class TemplateLine(_Message):
    """A template with its implementations; ``demands``: of one instance on a switch, by implementation, as text."""

    name: str
    implementations: list[str]
    demands: dict[str, str]


class SwitchLine(_Message):
    """A switch. ``free``: recirculation in percent, stages, SRAM in KiB. ``fault``: why it takes no task."""

    name: str
    features: list[str]
    services: list[str]
    free: list[U64]
    capacity: list[U64]
    fault: Text


class Templates(_Message):
    """What can be requested."""

    kind: Literal["inc_templates"] = "inc_templates"
    templates: list[TemplateLine]
    switches: list[SwitchLine]


Request = SubmitRequest | ListRequest | ShowRequest | CancelRequest | TemplatesRequest
Reply = RequestLines | Shown | Templates
ToManager = work_admin.Request | Request
FromManager = work_admin.Reply | Reply
TO_MANAGER: Final[TypeAdapter[ToManager]] = TypeAdapter(Annotated[ToManager, Field(discriminator="kind")])
FROM_MANAGER: Final[TypeAdapter[FromManager]] = TypeAdapter(Annotated[FromManager, Field(discriminator="kind")])
"""All messages of a job manager's admin socket."""
