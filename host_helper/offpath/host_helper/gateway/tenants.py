"""The gateway's tenants: a session with the daemon each, its models, regions and statistics; and who a client is."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from typing import Final

from offpath.bindings.errors import OffpathError, PeerGone
from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.header import Stages
from offpath.host_helper.aio import AsyncRequester
from offpath.host_helper.errors import PayloadTooLarge, RequestFailed, RequestTimeout, UnknownKernel
from offpath.host_helper.gateway.anonymous import Anonymous
from offpath.host_helper.gateway.answers import Output, Results, with_classes
from offpath.host_helper.gateway.batch_sizes import rows_of
from offpath.host_helper.gateway.calls import Call
from offpath.host_helper.gateway.config import GatewayFile, TenantTable, bearers, users
from offpath.host_helper.gateway.errors import (
    GatewayConfigInvalid,
    Refused,
    of_request,
    too_large,
    unauthenticated,
    unavailable,
)
from offpath.host_helper.gateway.models import Model, Models, model_of
from offpath.host_helper.gateway.readers import Reader, ReaderProcess
from offpath.host_helper.gateway.regions import Regions
from offpath.host_helper.gateway.sequences import Begun, Lines, not_started, state_lost
from offpath.host_helper.gateway.statistics import Statistics
from offpath.host_helper.gateway.turns import Turn
from offpath.host_helper.negotiate import Tls
from offpath.host_helper.slots import DEFAULT_OPTIONS, Options, Result

logger = logging.getLogger(__name__)
_LOOK_S: Final = 0.25
"""How often a tenant looks for other kernels."""
_ASKED_PER_S: Final = 64
"""Kernels that the daemon describes to a session in the long run."""
AWAY_S: Final = 60.0
"""After the daemon's start, the time in which its former models may come back with their helpers."""
_PAUSES_S: Final = (0.2, 5.0)
"""Least and longest pause between attempts to reach the daemon."""


class Tenant:
    """One tenant. Its session is opened anew for as long as it runs."""

    def __init__(self, table: TenantTable, daemon: str, process: ReaderProcess) -> None:
        self.table = table
        self.reader = Reader(process)
        self.regions = Regions(users(table.uids))
        self.statistics = Statistics()
        self._lines = Lines()
        self._begun = Begun()
        self._models: Models | None = None
        self._daemon = daemon
        self._requester: AsyncRequester | None = None
        self._sessions = 0
        """How many were opened so far."""
        self._away_until_s = 0.0
        self._pending = 0
        self._pause_s = _PAUSES_S[0]
        self._task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The tenant's name at the daemon."""
        return self.table.name

    @property
    def is_ready(self) -> bool:
        """Whether it has a session and knows its models."""
        return self._models is not None and self._requester is not None and self._requester.is_connected

    @property
    def models(self) -> Models:
        """Raises: Refused: the daemon was not reached yet, so it is not known what there is."""
        if self._models is None:
            raise unavailable("the daemon cannot be reached")
        return self._models

    def start(self) -> None:
        """Reach for the daemon from now on."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"gateway-{self.name}")

    async def close(self) -> None:
        """End the session; requests end with it."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self.regions.close()

    @contextlib.asynccontextmanager
    async def turn(self, model: Model, sequence_id: int, timeout_s: float | None) -> AsyncIterator[Turn]:
        """Admit a request, and wait for its turn in its sequence; ``sequence_id`` 0: it is of none. `infer` or `stream`
        runs it then. ``timeout_s``: the client's, from now on. Raises: Refused."""
        turn = Turn(model, sequence_id, None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s)
        self._pending += 1
        try:
            if self._pending > self.table.max_pending:
                self.statistics.failed(model, turn.took_ns)
                raise unavailable(f"tenant has {self.table.max_pending} requests here, as many as it may")
            if not sequence_id:
                yield turn
                return
            async with contextlib.AsyncExitStack() as line:
                with self._counted(turn):
                    await line.enter_async_context(self._lines.turn(model.kernel, sequence_id, timeout_s))
                yield turn
        finally:
            self._pending -= 1

    async def infer(self, call: Call, turn: Turn) -> Sequence[Output]:
        """Run the request in its turn. Raises: Refused."""
        results = Results(call)
        with self._counted(turn, call.options):
            requester = self._present(call, turn)
            timeout_s, options = turn.left(call.options)
            done = await requester.submit(
                call.model.kernel, call.arrays, timeout=timeout_s, options=options, taker=results
            )
            outputs = await with_classes(self.reader, call, results.outputs)
        self.statistics.succeeded(call.model, rows_of(call.arrays), done, turn.took_ns)
        return outputs

    async def stream(self, call: Call, turn: Turn) -> AsyncGenerator[Sequence[Output], None]:
        """Run the request of a model that streams in its turn: its answers in order. Close it, or the request runs on.
        Raises: Refused: after the answers before."""
        results = Results(call)
        done = Result((), Stages(), 0, 0)
        with self._counted(turn, call.options):
            requester = self._present(call, turn)
            timeout_s, options = turn.left(call.options)
            answers = requester.stream(
                call.model.kernel, call.arrays, timeout=timeout_s, options=options, taker=results
            )
            async with contextlib.aclosing(answers):
                async for answer in answers:
                    done = answer
                    yield await with_classes(self.reader, call, results.outputs)
        self.statistics.succeeded(call.model, rows_of(call.arrays), done, turn.took_ns)

    @contextlib.contextmanager
    def _counted(self, turn: Turn, options: Options = DEFAULT_OPTIONS) -> Iterator[None]:
        """Counts a request that fails. Raises: Refused: in the place of what ended it."""
        try:
            yield
        except BaseException as fault:
            self.statistics.failed(turn.model, turn.took_ns)
            refused = self._refusal(fault, turn)
            if refused is None:
                raise
            raise refused from None
        finally:
            if options.sequence_end and turn.session:
                self._begun.ended(turn.model.kernel, turn.sequence_id)

    def _present(self, call: Call, turn: Turn) -> AsyncRequester:
        """The session for a request whose turn it is: another may have been there when it came. Raises: Refused: there
        is none."""
        if self._requester is None:
            raise unavailable("the daemon cannot be reached")
        turn.session = self._sessions
        if call.options.sequence_start:
            self._begun.started(turn.model.kernel, turn.sequence_id, turn.session)
        return self._requester

    def _refusal(self, fault: BaseException, turn: Turn) -> Refused | None:
        """What the client is told; None: the fault passes."""
        kernel, number = turn.model.kernel, turn.sequence_id
        if isinstance(fault, RequestFailed):
            if fault.reason is Reason.SEQUENCE_UNKNOWN:
                is_lost = self._begun.is_lost(kernel, number, turn.session)
                return (state_lost if is_lost else not_started)(turn.model, number)
            if fault.reason is Reason.SEQUENCE_LOST or fault.status is Status.OUTCOME_UNKNOWN:
                self._begun.lost(kernel, number)
        return _refusal(fault, turn.model)

    # -- the session ----------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        is_told = False
        while True:
            try:
                requester = await self._open()
            except Exception as fault:
                if not is_told:
                    self._log_fault("no session", fault)
                    is_told = True
            else:
                is_told = False
                self._begin(requester)
                session = requester.welcome.session
                logger.info("tenant %s: session %d", self.name, session, extra={"code": "gateway_session"})
                try:
                    await self._look(requester)
                except Exception as fault:
                    self._log_fault("its session is lost", fault)
                finally:
                    self._requester = None
                    await requester.close()
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, _PAUSES_S[1])

    def _begin(self, requester: AsyncRequester) -> None:
        self._requester = requester
        self._sessions += 1

    def _log_fault(self, what: str, fault: Exception) -> None:
        """One that is not expected with its traceback."""
        is_ours = isinstance(fault, OffpathError)
        logger.warning(
            "tenant %s: %s: %s", self.name, what, fault, exc_info=None if is_ours else fault,
            extra={"code": "gateway_no_session" if is_ours else "gateway_bug"},
        )  # fmt: skip

    async def _open(self) -> AsyncRequester:
        table = self.table
        tls = None if table.tls is None else Tls(**table.tls.model_dump())
        return await AsyncRequester.open(
            self._daemon or None, tenant=table.name, token_file=table.token_file or None, tls=tls, slots=table.slots,
            payload_bytes=table.payload_bytes, result_bytes=table.result_bytes,
        )  # fmt: skip

    async def _look(self, requester: AsyncRequester) -> None:
        """Keep the models as the daemon's kernels are. Raises: PeerGone: the session is lost for good."""
        seen: tuple[int, int] | None = None
        loop, pause_s = asyncio.get_running_loop(), _LOOK_S
        while True:
            try:
                found = await requester.revision()
                pause_s = _LOOK_S
                if found != seen:
                    pause_s = max(pause_s, len(await requester.kernels()) / _ASKED_PER_S)
                    declared = await self._declared(requester)
                    is_new = seen is None or seen[0] != found[0]
                    self._serve(Models(declared, self._away(loop.time(), is_new=is_new)))
                    seen = found
                elif self._models is not None and self._models.away and not self._away(loop.time()):
                    self._serve(Models(self._models.all()))
            except (PeerGone, UnknownKernel):
                if requester.is_lost:
                    raise
            await asyncio.sleep(pause_s)

    def _away(self, now_s: float, *, is_new: bool = False) -> list[Model]:
        """Models that were served before the session began or was resumed, and are not back: the daemon may have been
        started again, and its helpers come after it. ``is_new``: that was now."""
        if self._models is None:
            return []
        if is_new:
            self._away_until_s = now_s + AWAY_S
            return [*self._models.all(), *self._models.away]
        return self._models.away if now_s < self._away_until_s else []

    async def _declared(self, requester: AsyncRequester) -> list[Model]:
        models = []
        for name in list(await requester.kernels()):
            model = model_of(await requester.described(name))
            if model is not None:
                models.append(model)
        return models

    def _serve(self, models: Models) -> None:
        for model in models.twice:
            logger.warning(
                "tenant %s: kernel %s is version %d of model %s, as another one is: it is left out", self.name,
                model.kernel, model.version, model.name, extra={"code": "gateway_model_twice"},
            )  # fmt: skip
        self._models = models
        self._pause_s = _PAUSES_S[0]
        names = ", ".join(f"{model.name} {model.version}" for model in models.all()) or "none"
        logger.info("tenant %s, gateway: models %s", self.name, names, extra={"code": "gateway_models"})
        self.statistics.keep([*models.all(), *models.away])


def _refusal(fault: BaseException, model: Model) -> Refused | None:
    """What the client is told; None: the fault passes."""
    if isinstance(fault, RequestFailed):
        return of_request(fault)
    if isinstance(fault, RequestTimeout):
        return Refused(504, "DEADLINE_EXCEEDED", "Request timeout expired")
    if isinstance(fault, UnknownKernel):
        return unavailable(f"model '{model.name}' is not served now")  # it was a moment ago
    if isinstance(fault, PayloadTooLarge):
        return too_large(str(fault))
    if isinstance(fault, PeerGone):
        return unavailable("the daemon cannot be reached")
    return None


class Tenants:
    """Who a client is, by its token or its certificate."""

    def __init__(self, config: GatewayFile) -> None:
        """Raises: GatewayConfigInvalid: a token cannot be read, or two tenants have the same."""
        self.by_name: dict[str, Tenant] = {}
        self._reader = ReaderProcess()
        self._by_digest: dict[bytes, Tenant] = {}
        self._anonymous = Anonymous()
        self._apply(config, {})

    def reload(self, config: GatewayFile) -> list[Tenant]:
        """Serve these tenants from now on. Returns those that are to be closed. Raises: as the constructor; nothing is
        changed then."""
        before = dict(self.by_name)
        self._apply(config, before)
        for tenant in self.by_name.values():
            if before.get(tenant.name) is not tenant:
                tenant.start()
        return [tenant for name, tenant in before.items() if self.by_name.get(name) is not tenant]

    def _apply(self, config: GatewayFile, before: dict[str, Tenant]) -> None:
        tokens = {table.name: bearers(table) for table in config.tenant}
        every = [token for each in tokens.values() for token in each]
        if len(set(every)) < len(every):
            raise GatewayConfigInvalid("one bearer token is given twice")
        kept = {"bearer_files", "uids", "max_pending"}
        made = {}
        for table in config.tenant:
            tenant = before.get(table.name)
            if tenant is None or tenant.table.model_dump(exclude=kept) != table.model_dump(exclude=kept):
                tenant = Tenant(table, config.daemon, self._reader)
            else:
                tenant.table = table
                tenant.regions.allow(users(table.uids))
            made[table.name] = tenant
        self.by_name = made
        self._by_digest = {_digest(token): made[name] for name, each in tokens.items() for token in each}
        self._anonymous = Anonymous(config.anonymous, config.anonymous_from)

    @property
    def has_anonymous(self) -> bool:
        """Whether some clients need no token: which, is known with their address."""
        return bool(self._anonymous.tenant)

    def start(self) -> None:
        """Reach for the daemon from now on."""
        for tenant in self.by_name.values():
            tenant.start()

    async def close(self) -> None:
        """End all sessions."""
        self._reader.close()
        await close_all(self.by_name.values())

    def of_token(self, token: str) -> Tenant | None:
        """Compares digests, whose time tells nothing about a token."""
        return self._by_digest.get(_digest(token)) if token else None

    def identified(
        self,
        token: str,
        certified: str | None,
        peer: str = "",
        host: str = "localhost",
        origin: str = "",
        site: str = "",
    ) -> Tenant:
        """``certified``: the tenant that the client's certificate names. The others: see `Anonymous.serves`. Raises:
        Refused: no proof where one is needed, a wrong one, or two that differ."""
        by_token = self.of_token(token)
        by_certificate = self.by_name.get(certified) if certified is not None else None
        if not token and certified is None:
            if self._anonymous.serves(peer, host, origin, site):
                return self.by_name[self._anonymous.tenant]
            raise unauthenticated()
        if token and certified is not None and by_token is not by_certificate:
            raise unauthenticated()
        tenant = by_token if token else by_certificate
        if tenant is None:
            raise unauthenticated()
        return tenant

    @property
    def is_ready(self) -> bool:
        """Whether a tenant has a session."""
        return any(tenant.is_ready for tenant in self.by_name.values())


async def close_all(tenants: Iterable[Tenant]) -> None:
    """End their sessions at once."""
    await asyncio.gather(*(tenant.close() for tenant in tenants))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
