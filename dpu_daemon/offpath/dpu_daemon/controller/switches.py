"""The controller's way to its switches: told its term again and again, which also tells whether they are there.

Every order is a task of its own: one that takes long (a fence, until nothing is under way) holds up no other. What is
not answered is not repeated here: the machine does that.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from offpath.bindings.errors import ControlError, OffpathError, PeerGone
from offpath.dpu_daemon.controller.config import SwitchTable
from offpath.dpu_daemon.switch.control import SwitchControl, SwitchRefused
from offpath.sched.ina.protocol import events
from offpath.sched.ina.protocol.records import Permission

logger = logging.getLogger(__name__)
LOOK_S: Final = 0.5
_EACH_S: Final = 0.01
"""With many switches: no more than 100 are asked a second."""
MAX_BACKOFF_S: Final = 2.0
MOST_ORDERS: Final = 256
"""Under way at one switch; what is more is said again by the machine."""


class _Link:
    """One switch."""

    def __init__(self, table: SwitchTable) -> None:
        self.name = table.name
        self.control = SwitchControl(table.control)
        self.life = ""
        """That was led in this term; empty: none was."""
        self.capacity = 0
        """As the machine knows it."""
        self.is_up = False
        self.is_notified = False
        self.orders = 0
        self.look = asyncio.Event()


class Switches:
    """``dispatch`` gets what switches say; ``led_elsewhere`` its name and the term, this one or a greater one, that
    it listens to another controller in; False: no controller can have that term. `run` speaks to them."""

    def __init__(
        self, tables: Sequence[SwitchTable], dispatch: Callable[[events.Event], None],
        led_elsewhere: Callable[[str, int], bool], capacity: int,
    ) -> None:  # fmt: skip
        """Raises: FabricAddressError: an address is none."""
        self._links = {table.name: _Link(table) for table in tables}
        self._dispatch, self._led_elsewhere = dispatch, led_elsewhere
        self._capacity = capacity
        self._term = 0
        self._leader = secrets.token_hex(8)
        self._tasks: asyncio.TaskGroup | None = None
        self._all: asyncio.Task[None] | None = None

    def states(self) -> dict[str, bool]:
        """Whether each can be spoken to."""
        return {name: link.is_up for name, link in self._links.items()}

    def lead(self, term: int) -> None:
        """From now on in that term: each is told, and says what it allows."""
        self._term = term
        for link in self._links.values():
            link.life = ""
            link.look.set()

    def set_capacity(self, capacity: int) -> None:
        """From now on; each is told."""
        self._capacity = capacity
        for link in self._links.values():
            link.look.set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for link in self._links.values():
                tasks.create_task(self._keep(link), name=f"switch-{link.name}")

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """`run` as one of ``tasks``; `close` ends it."""
        self._all = tasks.create_task(self.run(), name="switches")

    def close(self) -> None:
        """What is under way is given up."""
        if self._all is not None:
            self._all.cancel()

    async def _keep(self, link: _Link) -> None:
        look_s = max(LOOK_S, len(self._links) * _EACH_S)
        pause_s = look_s
        while True:
            is_there = await self._look(link)
            pause_s = look_s if is_there else min(MAX_BACKOFF_S, pause_s * 2) * (0.5 + random.random() / 2)
            try:
                async with asyncio.timeout(pause_s):
                    await link.look.wait()
            except TimeoutError:
                pass
            link.look.clear()

    async def _look(self, link: _Link) -> bool:
        """Tell it the term; what it allows is news if it, or we, began anew. False: it is not there."""
        term, capacity = self._term, self._capacity
        if not term:
            return True
        try:
            led = await link.control.lead(term, self._leader)
            boot = _boot(led.life)
            if not led.is_led:
                if not self._led_elsewhere(link.name, led.term):
                    self._leave(link, led.term)
                return True
            if led.capacity != capacity:
                await link.control.capacity(capacity)
        except PeerGone as gone:
            if link.is_up or not link.is_notified:
                logger.warning("switch %s disconnected: %s", link.name, gone, extra={"code": "switch_away"})
            if link.is_up:
                self._dispatch(events.SwitchDown(link.name))
            link.is_up, link.is_notified, link.life = False, True, ""
            return False
        except (SwitchRefused, ControlError) as refused:
            logger.warning("switch %s refused a command: %s", link.name, refused, extra={"code": "switch_refuses"})
            return True
        if (term, capacity) != (self._term, self._capacity):
            link.look.set()
        elif link.life != led.life:
            if not link.is_up:
                logger.info("switch %s connected", link.name, extra={"code": "switch_there"})
            link.life, link.capacity, link.is_up, link.is_notified = led.life, capacity, True, False
            self._dispatch(events.SwitchUp(link.name, boot, capacity, led.permissions))
        elif link.capacity != capacity:  # what it allows is known, and may be on its way out
            link.capacity = capacity
            self._dispatch(events.SwitchUp(link.name, boot, capacity))
        return True

    def _leave(self, link: _Link, term: int) -> None:
        """What the switch says makes no sense: nothing is granted through it."""
        if not link.is_notified:
            logger.error(
                "switch %s reports term %d, which no controller can have; not using it until it restarts",
                link.name, term,
                extra={"code": "switch_term_refused"},
            )  # fmt: skip
        if link.is_up:
            self._dispatch(events.SwitchDown(link.name))
        link.is_up, link.is_notified, link.life = False, True, ""

    # -- orders ---------------------------------------------------------------------------------------------------
    def allow(self, switch: str, boot: int, permission: Permission) -> None:
        """Answered by `events.Allowed`, or not at all."""
        if (link := self._links.get(switch)) is not None:
            self._order(link, self._allow(link, boot, permission), f"allow {permission.job} at {switch}")

    def fence(self, switch: str, boot: int, term: int, job: str, incarnation: int, stamp: int) -> None:
        """Answered by `events.Fenced`, or not at all."""
        if (link := self._links.get(switch)) is not None:
            self._order(link, self._fence(link, boot, term, job, incarnation, stamp), f"fence {job} at {switch}")

    def _order(self, link: _Link, order: Coroutine[Any, Any, None], name: str) -> None:
        if self._tasks is None or link.orders >= MOST_ORDERS:
            order.close()
            return
        link.orders += 1
        self._tasks.create_task(self._carry_out(link, order), name=name)

    async def _carry_out(self, link: _Link, order: Coroutine[Any, Any, None]) -> None:
        try:
            await order
        except PeerGone:
            link.look.set()
        except OffpathError as refused:
            logger.warning("switch %s refused a command: %s", link.name, refused, extra={"code": "switch_refuses"})
        finally:
            link.orders -= 1

    async def _allow(self, link: _Link, boot: int, permission: Permission) -> None:
        try:
            await link.control.allow(permission, _life(boot))
            is_allowed = True
        except SwitchRefused as refused:
            logger.warning("switch %s refused a command: %s", link.name, refused, extra={"code": "switch_refuses"})
            is_allowed = False
        it = permission
        self._dispatch(events.Allowed(link.name, boot, it.job, it.incarnation, it.stamp, is_allowed))

    async def _fence(self, link: _Link, boot: int, term: int, job: str, incarnation: int, stamp: int) -> None:
        await link.control.fence(term, job, incarnation, stamp, _life(boot))
        self._dispatch(events.Fenced(link.name, boot, job, incarnation, stamp))


def _boot(life: str) -> int:
    """The number that the machine knows a switch's life by. Raises: ControlError: it is none of a switch's."""
    try:
        return int(life, 16)
    except ValueError:
        raise ControlError("life", life[:80]) from None


def _life(boot: int) -> str:
    return f"{boot:016x}"
