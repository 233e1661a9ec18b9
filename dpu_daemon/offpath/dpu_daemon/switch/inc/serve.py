"""Runs an emulated INC switch: its control socket, and one UDP socket for each task with a data plane."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
from collections.abc import Callable
from typing import Any

from offpath.bindings.errors import PlaceUnusable
from offpath.bindings.wire import control
from offpath.bindings.wire.admin import Fault
from offpath.dpu_daemon.listening.places import Places
from offpath.dpu_daemon.operation import logs
from offpath.dpu_daemon.operation.admin_socket import AdminHandlers, AdminSocket
from offpath.dpu_daemon.switch.inc import messages
from offpath.dpu_daemon.switch.inc.admission import Admission, Demand, TaskRefused
from offpath.dpu_daemon.switch.inc.endpoint import Endpoint, bound, keys_of, service_of
from offpath.sched.inc.errors import IncError
from offpath.sched.inc.resources import SwitchSpec

logger = logging.getLogger(__name__)


class IncSwitch:
    """One switch. ``host``: address of its data plane."""

    def __init__(self, name: str, spec: SwitchSpec, host: str = "127.0.0.1") -> None:
        self.admission = Admission(name, spec)
        self.life = secrets.token_hex(8)
        self.counters = {"started": 0, "refused": 0, "stopped": 0, "dropped": 0}
        self._host = host
        self._endpoints: dict[str, Endpoint] = {}
        self._addresses: dict[str, str] = {}
        self._lock = asyncio.Lock()

    async def answer(self, request: messages.ToSwitch, uid: int) -> messages.FromSwitch:
        """To the manager."""
        async with self._lock:
            match request:
                case messages.StartTask():
                    return await self._start(request)
                case messages.StopTask():
                    self._stop(request.identity)
                    return messages.Stopped()
                case messages.StatusRequest():
                    return self.status()

    async def _start(self, request: messages.StartTask) -> messages.FromSwitch:
        demand = Demand(request.service, tuple(request.demand), tuple(request.shared), frozenset(request.features))
        try:
            if len(self.admission.identities) >= messages.MOST_TASKS:
                raise TaskRefused(f"{messages.MOST_TASKS} tasks run")
            if self.admission.start(request.identity, demand):
                await self._open(request)
                self.counters["started"] += 1
        except (TaskRefused, PlaceUnusable) as refused:
            return Fault(code="switch_full", detail=self._refused(request.identity, refused))
        except IncError as refused:
            return Fault(code="never_fits", detail=self._refused(request.identity, refused))
        return messages.Started(address=self._addresses.get(request.identity, ""))

    def _refused(self, identity: str, why: Exception) -> str:
        self.counters["refused"] += 1
        logger.info("task %s refused: %s", identity, why, extra={"code": "task_refused"})
        return str(why)[:400]

    async def _open(self, request: messages.StartTask) -> None:
        """Raises: PlaceUnusable: no socket; the task's resources are given back."""
        if not request.data_plane:
            return
        most = keys_of(request.demand[2])
        endpoint = Endpoint(service_of(request.data_plane, most), bytes.fromhex(request.token), self._dropped)
        try:
            address = await endpoint.open(bound(f"{self._host}:0"))
        except PlaceUnusable:
            self.admission.stop(request.identity)
            raise
        self._endpoints[request.identity], self._addresses[request.identity] = endpoint, address

    def _dropped(self) -> None:
        self.counters["dropped"] += 1

    def _stop(self, identity: str) -> None:
        if self.admission.stop(identity):
            self.counters["stopped"] += 1
            self._addresses.pop(identity, None)
            endpoint = self._endpoints.pop(identity, None)
            if endpoint is not None:
                endpoint.close()

    def status(self) -> messages.Status:
        """What runs here, and what was counted."""
        served: dict[str, int] = {}
        for endpoint in self._endpoints.values():
            for name, count in endpoint.service.counters.items():
                served[name] = served.get(name, 0) + count
        return messages.Status(
            life=self.life, tasks=self.admission.identities, services=self.admission.services,
            free=list(self.admission.free), counters={**self.counters, **served},
        )  # fmt: skip

    def close(self) -> None:
        """End all tasks."""
        for identity in self.admission.identities:
            self._stop(identity)


async def serve(
    name: str, spec: SwitchSpec, path: str, ready: Callable[[str], None], *, host: str = "127.0.0.1", log: str = "text"
) -> dict[str, Any]:
    """Serve at the control socket ``path`` until SIGTERM or SIGINT; returns the final status. Raises: PlaceUnusable."""
    logs.set_up(log)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(logs.loop_fault)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    switch = IncSwitch(name, spec, host)
    places = Places()
    handlers = AdminHandlers(lambda body: control.decode(messages.TO_SWITCH, body), switch.answer, tuple)
    users = AdminSocket(handlers, path, places=places)
    try:
        try:
            await users.start()
            places.open()
        except OSError as fault:
            raise PlaceUnusable(f"{fault.filename or path}: {fault.strerror or fault}") from None
        ready(path)
        await stop.wait()
        return switch.status().model_dump(exclude={"kind"})
    finally:
        places.close()
        await users.close()
        switch.close()


async def serve_alone(service: str, address: str, token: bytes, most_keys: int, ready: Callable[[str], None]) -> None:
    """A service in a process of its own, on a server, until SIGTERM. Raises: PlaceUnusable, ValueError."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    endpoint = Endpoint(service_of(service, most_keys), token)
    ready(await endpoint.open(bound(address)))
    try:
        await stop.wait()
    finally:
        endpoint.close()


def run(*arguments: Any, **options: Any) -> dict[str, Any]:
    """Blocking `serve`."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return asyncio.run(serve(*arguments, **options))
