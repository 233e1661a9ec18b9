"""Serves the admin socket, over which operators inspect a running daemon (`offpath request explain`, `top`, …)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket

from offpath.bindings.wire import admin, control
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.listening.checkup import ANSWER_S, Checkup
from offpath.dpu_daemon.operation.admin_answers import Answers, BadArguments
from offpath.dpu_daemon.operation.admin_socket import IDLE_S, MAX_PEERS, AdminHandlers, AdminSocket
from offpath.dpu_daemon.requests.probe import TESTS

__all__ = ["IDLE_S", "MAX_PEERS", "AdminServer"]
logger = logging.getLogger(__name__)


class AdminServer:
    """Serves the admin socket. `start` listens, `close` stops."""

    def __init__(self, daemon: Daemon, path: str, inherited: socket.socket | None = None) -> None:
        """``inherited``: a socket already listening at ``path``; its file is not removed on close."""
        self._daemon = daemon
        self._answers = Answers(daemon)
        handlers = AdminHandlers(
            self._read, self._answer, lambda: daemon.settings.config.operation.admin_uids, self._done, self._broke
        )
        self._socket = AdminSocket(handlers, path, inherited, daemon.count, places=daemon.places)
        daemon.settings.on_changed.append(self._socket.set_mode)

    async def start(self) -> None:
        """Raises: OSError: the path is taken or cannot be made."""
        await self._socket.start()

    async def close(self) -> None:
        """Stop listening and close every connection."""
        await self._socket.close()

    def _read(self, body: bytes) -> admin.Request:
        return control.decode(admin.TO_ADMIN, body)

    def _broke(self) -> None:
        self._daemon.counters["violations"] += 1

    def _done(self, request: admin.Request) -> None:
        if isinstance(request, admin.DrainRequest) and request.stop:
            logger.warning("stopping on an operator's request")
            os.kill(os.getpid(), signal.SIGTERM)

    async def _answer(self, request: admin.Request, uid: int) -> admin.Reply:
        if isinstance(request, admin.HealthRequest):
            return await self._health()
        try:
            return self._answers.to(request, uid)
        except BadArguments as wrong:
            return admin.Fault(code=wrong.code, detail=wrong.detail)

    async def _health(self) -> admin.Health:
        done = asyncio.Event()
        checkup = Checkup(TESTS, done.set)
        self._daemon.requests.probe.run(checkup)
        try:
            async with asyncio.timeout(ANSWER_S):
                await done.wait()
        except TimeoutError:
            pass  # checks without a result are reported as such in ``checks``
        checks = dict(checkup.checks)
        checks["ready"] = checkup.why_not_ready or "ok"
        return admin.Health(
            is_healthy=checkup.is_healthy, is_ready=checkup.is_healthy and checkup.is_accepting, checks=checks
        )
