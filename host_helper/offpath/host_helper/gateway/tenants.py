"""The gateway's tenants: a session with the daemon each, its models, regions and statistics; and who a client is."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from offpath.bindings.errors import OffpathError, PeerGone
from offpath.bindings.wire.codes import Reason
from offpath.bindings.wire.header import Stages
from offpath.host_helper.aio import AsyncRequester
from offpath.host_helper.errors import PayloadTooLarge, RequestFailed, RequestTimeout, UnknownKernel
from offpath.host_helper.gateway.answers import Output, Results
from offpath.host_helper.gateway.calls import Call
from offpath.host_helper.gateway.config import GatewayFile, TenantTable, bearers, users
from offpath.host_helper.gateway.errors import (
    GatewayConfigInvalid,
    Refused,
    not_found,
    of_request,
    too_large,
    unauthenticated,
    unavailable,
)
from offpath.host_helper.gateway.models import Models, model_of
from offpath.host_helper.gateway.readers import Reader, ReaderProcess
from offpath.host_helper.gateway.regions import Regions
from offpath.host_helper.gateway.sequences import Lines, not_started
from offpath.host_helper.gateway.statistics import Statistics
from offpath.host_helper.negotiate import Tls

logger = logging.getLogger(__name__)
_LOOK_S: Final = 0.25
"""How often a tenant looks for other kernels."""
_ASKED_PER_S: Final = 64
"""Kernels that the daemon describes to a session in the long run."""
_PAUSES_S: Final = (0.2, 5.0)
"""Least and longest pause between attempts to reach the daemon."""


_NO_STAGES: Final = Stages()


@dataclass(slots=True)
class _Counted:
    """A request that runs, and how long its stages took."""

    requester: AsyncRequester
    stages: Stages = _NO_STAGES


class Tenant:
    """One tenant. Its session is opened anew for as long as it runs."""

    def __init__(self, table: TenantTable, daemon: str, process: ReaderProcess) -> None:
        self.table = table
        self.reader = Reader(process)
        self.regions = Regions(users(table.uids))
        self.statistics = Statistics()
        self._lines = Lines()
        self._models: Models | None = None
        self._daemon = daemon
        self._requester: AsyncRequester | None = None
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

    async def infer(self, call: Call) -> Sequence[Output]:
        """Run the request. Raises: Refused."""
        results = Results(call)
        with self._counted(call) as counted:
            async with self._lines.turn(call.model.kernel, call.options.sequence_id, call.timeout_s):
                done = await counted.requester.submit(
                    call.model.kernel, call.arrays, timeout=call.timeout_s, options=call.options, taker=results
                )
            counted.stages = done.stages
        return results.outputs

    async def stream(self, call: Call) -> AsyncGenerator[Sequence[Output], None]:
        """Run the request of a model that streams: its answers in order. Close it, or the request runs on. Raises:
        Refused: after the answers before."""
        results = Results(call)
        with self._counted(call) as counted:
            answers = counted.requester.stream(
                call.model.kernel, call.arrays, timeout=call.timeout_s, options=call.options, taker=results
            )
            turn = self._lines.turn(call.model.kernel, call.options.sequence_id, call.timeout_s)
            async with turn, contextlib.aclosing(answers):
                async for done in answers:
                    counted.stages = done.stages
                    yield results.outputs

    @contextlib.contextmanager
    def _counted(self, call: Call) -> Iterator[_Counted]:
        """Counts a request that runs. Raises: Refused: it cannot begin, or in the place of what ended it."""
        begun_ns = time.perf_counter_ns()
        self._pending += 1
        try:
            if self._pending > self.table.max_pending:
                raise unavailable(f"tenant has {self.table.max_pending} requests here, as many as it may")
            if self._requester is None:
                raise unavailable("the daemon cannot be reached")
            counted = _Counted(self._requester)
            yield counted
        except BaseException as fault:
            self.statistics.failed(call.model, time.perf_counter_ns() - begun_ns)
            refused = _refusal(fault, call)
            if refused is None:
                raise
            raise refused from None
        finally:
            self._pending -= 1
        self.statistics.succeeded(call.model, counted.stages, time.perf_counter_ns() - begun_ns)

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
                self._requester = requester
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
        pause_s = _LOOK_S
        while True:
            try:
                found = await requester.revision()
                pause_s = _LOOK_S
                if found != seen:
                    pause_s = max(pause_s, len(await requester.kernels()) / _ASKED_PER_S)
                    self._serve(await self._declared(requester))
                    seen = found
            except (PeerGone, UnknownKernel):
                if requester.is_lost:
                    raise
            await asyncio.sleep(pause_s)

    async def _declared(self, requester: AsyncRequester) -> Models:
        models = []
        for name in list(await requester.kernels()):
            signature = await requester.signature(name)
            model = model_of(signature) if signature is not None else None
            if model is not None:
                models.append(model)
        return Models(models)

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
        self.statistics.keep(models.all())


def _refusal(fault: BaseException, call: Call) -> Refused | None:
    """What the client is told; None: the fault passes."""
    if isinstance(fault, RequestFailed):
        if fault.reason is Reason.SEQUENCE_UNKNOWN:
            return not_started(call.model, call.options.sequence_id)
        return of_request(fault)
    if isinstance(fault, RequestTimeout):
        return Refused(504, "DEADLINE_EXCEEDED", "Request timeout expired")
    if isinstance(fault, UnknownKernel):
        return not_found(f"Request for unknown model: '{call.model.name}' is not found")
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

    def identified(self, token: str, certified: str | None) -> Tenant:
        """``certified``: the tenant that the client's certificate names. Raises: Refused: no proof, or two that
        differ."""
        by_token = self.of_token(token)
        by_certificate = self.by_name.get(certified) if certified is not None else None
        if not token and certified is None:
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
