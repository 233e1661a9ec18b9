"""Connects the controller to its switches. Each periodically receives the term, which also checks its reachability.

Every command runs as its own task, so a slow one (a fence waits until nothing is in flight) does not delay others.
Unanswered commands are not repeated here, but by the machine.
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
"""Spacing for many switches: at most 100 requests a second."""
MAX_BACKOFF_S: Final = 2.0
MOST_ORDERS: Final = 256
"""Commands in flight at one switch; the machine repeats those beyond the limit."""


class _Link:
    """State of the connection to one switch."""

    def __init__(self, table: SwitchTable) -> None:
        self.name = table.name
        self.control = SwitchControl(table.control)
        self.life = ""
        """The switch's process that follows this term; "": none."""
        self.capacity = 0
        """The capacity that the machine knows."""
        self.is_up = False
        self.is_notified = False
        self.orders = 0
        self.look = asyncio.Event()


class Switches:
    """``dispatch`` gets the switches' events. ``led_elsewhere`` gets a switch's name and the term, this or a greater
    one, of another controller that it follows; False: no controller can have that term. `run` makes the connections."""

    def __init__(
        self, tables: Sequence[SwitchTable], dispatch: Callable[[events.Event], None],
        led_elsewhere: Callable[[str, int], bool], capacity: int,
    ) -> None:  # fmt: skip
        """Raises: FabricAddressError: an address is invalid."""
        self._links = {table.name: _Link(table) for table in tables}
        self._dispatch, self._led_elsewhere = dispatch, led_elsewhere
        self._capacity = capacity
        self._term = 0
        self._leader = secrets.token_hex(8)
        self._tasks: asyncio.TaskGroup | None = None
        self._all: asyncio.Task[None] | None = None

    def states(self) -> dict[str, bool]:
        """Whether each switch is reachable."""
        return {name: link.is_up for name, link in self._links.items()}

    def lead(self, term: int) -> None:
        """Lead in that term from now on: each switch is notified and replies with its permissions."""
        self._term = term
        for link in self._links.values():
            link.life = ""
            link.look.set()

    def set_capacity(self, capacity: int) -> None:
        """Use this capacity from now on; each switch is notified."""
        self._capacity = capacity
        for link in self._links.values():
            link.look.set()

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for link in self._links.values():
                tasks.create_task(self._keep(link), name=f"switch-{link.name}")

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start `run` as one of ``tasks``; `close` ends it."""
        self._all = tasks.create_task(self.run(), name="switches")

    def close(self) -> None:
        """Cancel everything in flight."""
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
        """Send the term. The permissions are dispatched if the switch or this term is new. False: it is unreachable."""
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
        elif link.capacity != capacity:  # its permissions are known, and newer ones may be in flight
            link.capacity = capacity
            self._dispatch(events.SwitchUp(link.name, boot, capacity))
        return True

    def _leave(self, link: _Link, term: int) -> None:
        """The switch's term is impossible: nothing is granted through it."""
        if not link.is_notified:
            logger.error(
                "switch %s reports term %d, which no controller can have; not using it until it restarts",
                link.name, term,
                extra={"code": "switch_term_refused"},
            )  # fmt: skip
        if link.is_up:
            self._dispatch(events.SwitchDown(link.name))
        link.is_up, link.is_notified, link.life = False, True, ""

    # -- commands -------------------------------------------------------------------------------------------------
    def allow(self, switch: str, boot: int, permission: Permission) -> None:
        """Send a permission; answered by `events.Allowed`, or not at all."""
        if (link := self._links.get(switch)) is not None:
            self._order(link, self._allow(link, boot, permission), f"allow {permission.job} at {switch}")

    def fence(self, switch: str, boot: int, term: int, job: str, incarnation: int, stamp: int) -> None:
        """Send a fence; answered by `events.Fenced`, or not at all."""
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
    """The machine's number for a switch process. Raises: ControlError: ``life`` is not a number."""
    try:
        return int(life, 16)
    except ValueError:
        raise ControlError("life", life[:80]) from None


def _life(boot: int) -> str:
    return f"{boot:016x}"
