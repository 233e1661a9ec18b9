"""Keeps the built-in key-value services of the requests configured: who their peers are, and a chain's entries.

A cache learns the stores of the composites that it is connected to. A chain changes its members in four steps, each
repeated until it is done: all members are closed; the entries of those that were members are read; the new members get
them; all are opened. While one is closed no write is acknowledged, and every write that was acknowledged before is at
each member, so none is lost as long as one survives. What a chain held is kept in the file before its last tasks stop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import orjson

from offpath.dpu_daemon.manager.inc.links import LinkAway, ServiceLinks
from offpath.dpu_daemon.manager.store import JobsFile
from offpath.dpu_daemon.switch.inc import messages
from offpath.sched.inc.live.book import Book
from offpath.sched.inc.live.records import Program, Request, Service, Task, TaskState

logger = logging.getLogger(__name__)
MOST_ENTRIES: Final = 65_536
"""Of one chain that are carried over."""
Kept = dict[str, tuple[int, str]]
"""Version and value by key, in hexadecimal."""


@dataclass(slots=True)
class _Chain:
    """``members``: addresses, as they were opened last."""

    members: tuple[str, ...] = ()
    identities: tuple[str, ...] = ()
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Services:
    """``epoch``: a number that only rises, also across restarts."""

    def __init__(self, book: Book, links: ServiceLinks, store: JobsFile, epoch: Callable[[], int]) -> None:
        self._book, self._links, self._store, self._epoch = book, links, store, epoch
        self._configured: dict[str, tuple[str, ...]] = {}
        """The stores that each cache was configured with last, by identity."""
        self._chains: dict[tuple[str, str], _Chain] = {}
        self._kept: dict[tuple[str, str], Kept] = {
            key: {name: (int(version), str(value)) for name, (version, value) in orjson.loads(data).items()}
            for key, data in store.inc_kept().items()
        }

    async def converge(self) -> None:
        """Configure what has changed. Raises: PlaceUnusable."""
        known = {identity for request in self._book.requests.values() for identity in request.tasks}
        self._configured = {each: to for each, to in self._configured.items() if each in known}
        work = [self._caches(request) for request in self._open()]
        for request in self._open():
            programs = request.spec.programs.items()
            work += [self._chain(request, name) for name, program in programs if program.service is Service.CHAIN]
        await asyncio.gather(*work)
        self._forget_ended()

    def _open(self) -> list[Request]:
        return [each for each in self._book.requests.values() if not each.state.is_final]

    def _forget_ended(self) -> None:
        names = {each.spec.name for each in self._open()}
        for key in [key for key in self._kept if key[0] not in names]:
            del self._kept[key]
            self._store.keep_inc(*key, "")
        self._chains = {key: each for key, each in self._chains.items() if key[0] in names}

    # -- caches ----------------------------------------------------------------------------------------------------
    async def _caches(self, request: Request) -> None:
        for task in list(request.tasks.values()):
            if not _is_service(request, task, Service.CACHE) or task.state is not TaskState.RUNNING:
                continue
            stores = tuple(stores_of(request, task.composite))
            if self._configured.get(task.identity) == stores or not task.address:
                continue
            try:
                await self._configure(task.address, task.identity, messages.Configure(
                    epoch=self._epoch(), stores=list(stores)))  # fmt: skip
                self._configured[task.identity] = stores
            except LinkAway as fault:
                logger.info("service %s: %s", task.identity, fault, extra={"code": "service_away"})

    async def _configure(self, address: str, identity: str, request: messages.Configure) -> None:
        await self._links.query(address, identity, request, messages.Done)

    # -- chains ----------------------------------------------------------------------------------------------------
    async def _chain(self, request: Request, composite: str) -> None:
        key = (request.spec.name, composite)
        chain = self._chains.setdefault(key, _Chain())
        async with chain.lock:
            tasks = sorted(
                (each for each in request.tasks.values() if each.composite == composite
                 and _is_service(request, each, Service.CHAIN) and each.state is not TaskState.STOPPING),
                key=lambda each: each.slot,
            )  # fmt: skip
            running = [each for each in tasks if each.state is TaskState.RUNNING and each.address]
            members = tuple(each.address for each in running)
            is_first = not chain.members
            if not running or members == chain.members or (is_first and len(running) < self._wanted(request, running)):
                return
            try:
                await self._change(key, chain, running)
            except LinkAway as fault:
                logger.info("service %s: %s", f"{key[0]}/{composite}", fault, extra={"code": "service_away"})

    def _wanted(self, request: Request, running: list[Task]) -> int:
        job = self._book.scheduler.jobs[request.spec.name]
        return job.request.by_id[(request.spec.name, running[0].group)].tasks

    async def _change(self, key: tuple[str, str], chain: _Chain, running: list[Task]) -> None:
        """Raises: LinkAway: a running member does not answer; it is tried again, or the switch is found to be gone."""
        entries: Kept = dict(self._kept.get(key, {}))
        for task in running:
            await self._close(task)
        for task in running:  # after a restart it is not known who was a member: each may hold entries
            _merge(entries, await self._entries(task))
        pairs = [messages.Entry(key=each, version=version, value=value) for each, (version, value) in entries.items()]
        for task in running:
            for at in range(0, len(pairs), messages.MOST_ENTRIES):
                part = messages.Load(entries=pairs[at : at + messages.MOST_ENTRIES])
                await self._links.query(task.address, task.identity, part, messages.Done)
        members = [each.address for each in running]
        for task in reversed(running):  # the tail first: what the head sends on finds it open
            opened = messages.Configure(epoch=self._epoch(), chain=members)
            await self._configure(task.address, task.identity, opened)
        chain.members = tuple(members)
        chain.identities = tuple(each.identity for each in running)
        if self._kept.pop(key, None) is not None:
            self._store.keep_inc(*key, "")
        logger.info("service %s: chain of %d members", f"{key[0]}/{key[1]}", len(members),
                    extra={"code": "chain_changed"})  # fmt: skip

    async def _close(self, task: Task) -> None:
        await self._configure(task.address, task.identity, messages.Configure(epoch=self._epoch(), is_open=False))

    async def _entries(self, task: Task) -> Kept:
        found: Kept = {}
        after = ""
        while len(found) < MOST_ENTRIES:
            page = await self._links.query(task.address, task.identity, messages.Pull(after=after), messages.Entries)
            found |= {each.key: (each.version, each.value) for each in page.entries}
            if page.is_last or not page.entries:
                break
            after = page.entries[-1].key
        return found

    async def before_stop(self, request: Request, task: Task) -> None:
        """A task is to be stopped, and its request goes on: keep what a chain's member holds. Raises: PlaceUnusable."""
        key = (request.spec.name, task.composite)
        chain = self._chains.get(key)
        is_member = _is_service(request, task, Service.CHAIN) and bool(task.address)
        if request.state.is_final or not is_member or chain is None:
            return
        async with chain.lock:
            try:
                await self._close(task)
                entries = self._kept.setdefault(key, {})
                _merge(entries, await self._entries(task))
            except LinkAway as fault:
                logger.info("service %s: %s", task.identity, fault, extra={"code": "service_away"})
                return
            self._store.keep_inc(*key, orjson.dumps(entries).decode())
            chain.members = ()


def stores_of(request: Request, composite: str) -> list[str]:
    """Addresses by slot, over all stores that the composite is connected to; empty: it does not run."""
    ends = [(each.source, each.target) for each in request.spec.request.connections]
    beside = [b if a == composite else a for a, b in ends if composite in (a, b)]
    found: list[str] = []
    for name in dict.fromkeys(beside):
        if request.spec.programs[name].service is Service.STORE:
            tasks = [each for each in request.tasks.values() if each.composite == name]
            count = next(each.servers.instances for each in request.spec.request.composites if each.name == name)
            running = {each.slot: each.address for each in tasks if each.state is TaskState.RUNNING}
            found += [running.get(slot, "") for slot in range(count)]
    return found


def _merge(into: Kept, more: Kept) -> None:
    for key, entry in more.items():
        if entry[0] > into.get(key, (0, ""))[0]:
            into[key] = entry


def _is_service(request: Request, task: Task, service: Service) -> bool:
    """It runs the built-in data plane."""
    program = request.spec.programs.get(task.composite, Program())
    return program.service is service and (task.is_inc or not program.argv)
