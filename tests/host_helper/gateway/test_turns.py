"""A tenant's requests of one sequence: the time that each has, the session that gets it, and when it is read."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.header import Stages
from offpath.bindings.wire.negotiating import Described
from offpath.bindings.wire.signatures import KernelSignature
from offpath.host_helper.errors import RequestFailed
from offpath.host_helper.gateway import grpc_calls
from offpath.host_helper.gateway.calls import Call, checked
from offpath.host_helper.gateway.config import TenantTable
from offpath.host_helper.gateway.errors import Refused
from offpath.host_helper.gateway.messages import classes
from offpath.host_helper.gateway.models import Model, Models, model_of
from offpath.host_helper.gateway.readers import ReaderProcess
from offpath.host_helper.gateway.regions import Regions
from offpath.host_helper.gateway.sequences import Begun
from offpath.host_helper.gateway.tenants import Tenant
from offpath.host_helper.slots import Options, Result

DONE = Result((), Stages(), 1, 1)


@dataclass
class Sent:
    """A request that a session got."""

    timeout: float | None
    options: Options


@dataclass
class Session:
    """A requester whose requests end when ``go`` is set, and then as ``ends`` says."""

    go: asyncio.Event = field(default_factory=asyncio.Event)
    sent: list[Sent] = field(default_factory=list)
    ends: Reason = Reason.NONE
    status: Status = Status.REJECTED

    async def submit(self, kernel: str, arrays: Any, *, timeout: float | None, options: Options, taker: Any) -> Result:
        self.sent.append(Sent(timeout, options))
        await self.go.wait()
        if self.ends is not Reason.NONE:
            raise RequestFailed(self.status, self.ends)
        return DONE

    async def stream(self, *given: Any, **more: Any) -> AsyncGenerator[Result, None]:
        yield await self.submit(*given, **more)

    @property
    def flags(self) -> list[tuple[bool, bool]]:
        return [(each.options.sequence_start, each.options.sequence_end) for each in self.sent]


def model(*, streams: bool = False) -> Model:
    signature = KernelSignature(name="k", model="lstm", inputs=[], outputs=[], sequences=True, streams=streams)
    made = model_of(Described(name="k", signature=signature))
    assert made is not None
    return made


@pytest.fixture
def tenant() -> Tenant:
    """With room for four requests."""
    table = TenantTable(name="ada", token_file="t", bearer_files=["b"], max_pending=4)
    return Tenant(table, "", ReaderProcess())


def serve(tenant: Tenant, session: Any) -> Any:
    """As `Tenant._run` does with a session that it has opened."""
    tenant._begin(session)
    return session


def call(start: bool = False, end: bool = False, timeout_s: float | None = None, *, streams: bool = False) -> Call:
    parameters: dict[str, Any] = {"sequence_id": 7, "sequence_start": start, "sequence_end": end}
    if timeout_s is not None:
        parameters["timeout"] = int(timeout_s * 1e6)
    return checked(model(streams=streams), Regions(frozenset()), "", [], [], parameters)


async def run(tenant: Tenant, made: Call) -> None:
    async with tenant.turn(made.model, made.options.sequence_id, made.timeout_s) as turn:
        if made.model.streams:
            _ = [each async for each in tenant.stream(made, turn)]
        else:
            await tenant.infer(made, turn)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("streams", [False, True])
async def test_the_time_behind_others_is_part_of_a_request_s_time_out(tenant: Tenant, streams: bool) -> None:
    session = serve(tenant, Session())
    first = asyncio.ensure_future(run(tenant, call(start=True, streams=streams)))
    second = asyncio.ensure_future(run(tenant, call(timeout_s=20.0, streams=streams)))
    await turns()
    assert [each.timeout for each in session.sent] == [None]
    await asyncio.sleep(0.1)
    session.go.set()
    await asyncio.gather(first, second)
    left_s = session.sent[1].timeout
    assert left_s <= 19.91  # asyncio's clocks may differ by some milliseconds
    assert session.sent[1].options.budget_ms == math.ceil(left_s * 1000)


async def test_a_request_whose_time_ends_behind_others_is_not_sent(tenant: Tenant) -> None:
    session = serve(tenant, Session())
    first = asyncio.ensure_future(run(tenant, call(start=True)))
    await turns()
    with pytest.raises(Refused) as refused:
        await run(tenant, call(timeout_s=0.01))
    assert refused.value.http == 504
    async with asyncio.timeout(20), tenant.turn(model(), 8, 0.01) as turn:
        await asyncio.sleep(0.02)  # it was read for so long
        with pytest.raises(Refused) as refused:
            await tenant.infer(call(), turn)
    assert refused.value.http == 504
    session.go.set()
    await first
    assert len(session.sent) == 1
    shown = tenant.statistics.shown([model()])["model_stats"][0]["inference_stats"]
    assert (shown["success"]["count"], shown["fail"]["count"]) == (1, 2)


@pytest.mark.parametrize("streams", [False, True])
async def test_requests_that_waited_for_their_turn_get_the_session_of_that_moment(
    tenant: Tenant, streams: bool
) -> None:
    lost = serve(tenant, Session())
    first = asyncio.ensure_future(run(tenant, call(start=True, streams=streams)))
    second = asyncio.ensure_future(run(tenant, call(start=True, streams=streams)))
    await turns()
    new = serve(tenant, Session())
    new.go.set()
    lost.go.set()
    await asyncio.gather(first, second)
    assert (len(lost.sent), len(new.sent)) == (1, 1)


async def test_a_sequence_that_was_lost_with_its_session_is_not_called_one_that_was_not_started(tenant: Tenant) -> None:
    def serving(ends: Reason) -> None:
        serve(tenant, Session(ends=ends)).go.set()

    async def refused(*, end: bool = False) -> int:
        with pytest.raises(Refused) as why:
            await run(tenant, call(end=end))
        return why.value.http

    serving(Reason.SEQUENCE_UNKNOWN)
    assert await refused() == 400, "never started"
    serving(Reason.NONE)
    await run(tenant, call(start=True))
    serving(Reason.SEQUENCE_UNKNOWN)
    assert await refused() == 409, "lost"
    assert await refused(end=True) == 409, "still"
    assert await refused() == 400, "ended"
    serving(Reason.NONE)
    await run(tenant, call(start=True))
    await run(tenant, call(end=True))
    serving(Reason.SEQUENCE_UNKNOWN)
    assert await refused() == 400, "ended"


@pytest.mark.parametrize(
    ("status", "reason", "http"),
    [(Status.CANCELLED, Reason.SEQUENCE_LOST, 409), (Status.OUTCOME_UNKNOWN, Reason.WORKER_LOST, 500)],
)
async def test_those_behind_a_request_that_ended_with_the_state_are_not_called_ones_that_were_not_started(
    tenant: Tenant, status: Status, reason: Reason, http: int
) -> None:
    session = serve(tenant, Session())
    session.go.set()
    await run(tenant, call(start=True))
    seen = []
    for session.status, session.ends in ((status, reason), *[(Status.REJECTED, Reason.SEQUENCE_UNKNOWN)] * 2):
        with pytest.raises(Refused) as why:
            await run(tenant, call())
        seen.append(why.value.http)
    assert seen == [http, 409, 409]


def test_the_gateway_remembers_a_bounded_number_of_sequences() -> None:
    begun = Begun()
    for number in range(1, 4099):
        begun.started("k", number, 1)
    begun.started("k", 3, 1)
    begun.started("k", 5000, 1)
    assert [begun.is_lost("k", number, 2) for number in (1, 2, 3, 4, 5, 5000)] == [
        False,
        False,
        True,
        False,
        True,
        True,
    ]


async def test_one_that_the_daemon_has_ended_is_one_that_was_not_started(tenant: Tenant) -> None:
    session = serve(tenant, Session())
    session.go.set()
    await run(tenant, call(start=True))
    session.ends = Reason.SEQUENCE_UNKNOWN
    with pytest.raises(Refused, match="must specify the START flag") as why:
        await run(tenant, call())
    assert why.value.http == 400


def message(number: int = 0, **more: Any) -> Any:
    made = classes().ModelInferRequest(model_name="lstm", id=str(number))
    made.parameters["sequence_id"].int64_param = 7
    for key, value in more.items():
        made.parameters[key].bool_param = value
    return made


CONTEXT = SimpleNamespace(time_remaining=lambda: None)


async def test_a_request_over_grpc_is_read_in_its_turn_and_counts_while_it_waits(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So one that is long to read is not passed by a short one; and those that wait take no more room than they may,
    nor the reading process."""
    pytest.importorskip("grpc")
    from offpath.host_helper.gateway import grpc_methods

    parse, read = grpc_calls.parse, list[str]()

    async def slowly(reader: Any, request: Any, left_s: float | None) -> Any:
        read.append(request.id)
        for _ in range(0 if int(request.id) % 2 else 100):  # the first one takes longer than the second
            await asyncio.sleep(0)
        return await parse(reader, request, left_s)

    monkeypatch.setattr(grpc_calls, "parse", slowly)
    tenant._models = Models([model()])
    session = serve(tenant, Session())
    given = [
        message(0, sequence_start=True), message(1), message(2, sequence_end=True), message(3, sequence_start=True),
    ]  # fmt: skip
    waiting = [asyncio.ensure_future(grpc_methods._unary(tenant, each, CONTEXT)) for each in given]
    await turns(500)
    assert read == ["0"]
    with pytest.raises(Refused, match="as many as it may"):
        await asyncio.wait_for(grpc_methods._unary(tenant, message(4), CONTEXT), 20)
    assert read == ["0"]
    session.go.set()
    answers = await asyncio.gather(*waiting)
    assert [each.id for each in answers] == read == ["0", "1", "2", "3"]
    assert session.flags == [(True, False), (False, False), (False, True), (True, False)]
    assert len(tenant._lines) == tenant._pending == 0


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [
        ("timeout", "string_param", "x"),
        ("sequence_id", "string_param", "x" * 129),
        ("sequence_start", "int64_param", 1),
    ],
)
async def test_a_wrong_parameter_does_not_wait_for_a_turn(tenant: Tenant, key: str, kind: str, value: Any) -> None:
    pytest.importorskip("grpc")
    from offpath.host_helper.gateway import grpc_methods

    tenant._models = Models([model()])
    made = message()
    setattr(made.parameters[key], kind, value)
    async with tenant.turn(model(), 7, None):
        with pytest.raises(Refused) as refused:
            await asyncio.wait_for(grpc_methods._unary(tenant, made, CONTEXT), 20)
    assert refused.value.http in (400, 501)
