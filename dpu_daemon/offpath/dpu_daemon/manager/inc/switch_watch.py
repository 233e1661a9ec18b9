"""Queries each switch for its tasks. One that does not reply is lost; a task that the book does not have is stopped."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from offpath.bindings.wire.admin import Fault
from offpath.dpu_daemon.manager.inc.config import SwitchTable
from offpath.dpu_daemon.manager.inc.links import LinkAway, query_switch
from offpath.dpu_daemon.manager.inc.looks import Looks
from offpath.dpu_daemon.switch.inc import messages
from offpath.sched.inc.live.book import Book
from offpath.sched.inc.live.records import Command, TaskState

logger = logging.getLogger(__name__)
LOOK_S: Final = 0.5
"""Between two queries of a switch."""
_MISSES: Final = 2
"""A switch is lost after so many queries in a row without a reply."""
_NO_REPLY_YET: Final = "no reply to a status request yet"


class SwitchWatch:
    """``lock``: of the book. ``carry``: carries commands out; it raises PlaceUnusable. ``faults``: why a switch takes
    no task, by name; empty: it does."""

    def __init__(
        self, switches: Sequence[SwitchTable], book: Book, looks: Looks, lock: asyncio.Lock,
        carry: Callable[[Iterable[Command]], Awaitable[None]], now_ms: Callable[[], int], counters: Counter[str],
    ) -> None:  # fmt: skip
        self._controls = {each.name: each.control for each in switches if each.control}
        self.faults = dict.fromkeys(self._controls, _NO_REPLY_YET)
        self._book, self._looks, self._lock, self._carry = book, looks, lock, carry
        self._now_ms, self._counters = now_ms, counters

    async def run(self, name: str) -> None:
        """Of one switch, without end. Raises: PlaceUnusable."""
        misses = 0
        while True:
            look = self._looks.begin()
            try:
                status = await query_switch(self._controls[name], messages.StatusRequest(), messages.Status)
                if isinstance(status, Fault):
                    raise LinkAway(f"switch {name}: {status.detail}")
                misses = 0
                async with self._lock:
                    orphans = await self._here(name, status, look.stale)
                await self._stop_orphans(name, orphans)
            except LinkAway as fault:
                misses += 1
                if misses >= _MISSES:
                    async with self._lock:
                        await self._away(name, str(fault))
            finally:
                self._looks.end(look)
            await asyncio.sleep(LOOK_S)

    async def _here(self, name: str, status: messages.Status, stale: set[str]) -> set[str]:
        """Carry the reply into the book. Returns: tasks that only the switch has. Raises: PlaceUnusable."""
        if self.faults[name]:
            logger.info("switch %s answers", name, extra={"code": "inc_switch_there"})
        self.faults[name] = ""
        self._book.node_back(name)
        there = set(status.tasks)
        mine: set[str] = set()
        for request, each in list(self._book.requests.items()):
            for task in [task for task in each.tasks.values() if task.is_inc and task.node == name]:
                mine.add(task.identity)
                is_gone = task.identity not in there and task.identity not in stale
                if is_gone and task.state in (TaskState.RUNNING, TaskState.STOPPING):
                    why = f"switch {name} does not run it"
                    await self._carry(self._book.lost(request, task.identity, why, self._now_ms()))
        return there - mine - stale

    async def _stop_orphans(self, name: str, orphans: Iterable[str]) -> None:
        """Without the lock, because a switch may take seconds to reply. An identity is given once, so the book cannot
        get one of these tasks meanwhile."""
        for identity in sorted(orphans):
            self._counters["orphans"] += 1
            try:
                await query_switch(self._controls[name], messages.StopTask(identity=identity), messages.Stopped)
            except LinkAway:
                return  # the next look finds it again

    async def _away(self, name: str, fault: str) -> None:
        if self.faults[name] in ("", _NO_REPLY_YET):
            logger.warning("switch %s does not answer: %s", name, fault, extra={"code": "inc_switch_away"})
        self.faults[name] = fault[:400]
        await self._carry(self._book.node_lost(name, self._now_ms()))
