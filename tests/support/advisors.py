"""Policy plug-ins without a process: the child's own code, asked over plain data, that fails when a seed says so."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import orjson

from offpath.dpu_daemon.policy.plugin_child import ANSWER, PluginHost
from offpath.sched.gpu.plugin import PLACE, PLAN, START, AdvisorError
from offpath.sched.gpu.policy import Policy

NOTHING = [None, None, None]
BAD: tuple[tuple[str, Any], ...] = (
    (START, [[1, 0, False], None, None]),
    (PLACE, NOTHING),
    (PLACE, [[10**6, 0, False], None, None]),
    (PLACE, [[1, -1, False], None, None]),
    (PLACE, [[1, 63, True], None, None]),
    (PLACE, [None, None, [[], []]]),
    (PLACE, "lane 3"),
    (PLACE, orjson.loads("[" * 900 + "]" * 900)),
    (PLACE, [[orjson.loads("[" * 900 + "]" * 900), 0, False], None, None]),
    (PLAN, [None, None, [[orjson.loads("[" * 900 + "]" * 900)], []]]),
    (PLAN, NOTHING),
    (PLAN, [None, ["no-such-gpu", "1g.5gb", 0, 14, []], None]),
    (PLAN, [None, ["g1", "no such profile", 0, 14, []], None]),
    (PLAN, [None, ["g1", "7g.40gb", 3, 100, []], None]),
    (PLAN, [None, None, [["no such obstacle"], []]]),
    (PLAN, [[1, 0, False], None, None]),
)
"""Answers that are right at no time."""


class Hosted:
    """Implements `offpath.sched.gpu.plugin.Advisor`. ``fault``: the part of answers that fail or make no sense."""

    def __init__(self, make: Callable[[], Policy], random: Random, fault: float = 0.0) -> None:
        self._host = PluginHost(make)
        self._random = random
        self._fault = fault
        self.is_dismissed = False
        self.asked = 0

    @property
    def plugin(self) -> Policy:
        """The plug-in as it is now."""
        return self._host._policy

    def _heard(self, kind: str, *arguments: Any) -> Any:
        assert not self.is_dismissed, "asked or told after its end"
        kind, *plain = orjson.loads(orjson.dumps([kind, *arguments]))
        reply = self._host.on_request(kind, plain)
        return orjson.loads(reply) if reply is not None else None

    def notify(self, kind: str, *arguments: Any) -> None:
        self._heard(kind, *arguments)

    def query(self, kind: str, *arguments: Any) -> Any:
        self.asked += 1
        what, said = self._heard(kind, *arguments)
        if self._random.random() < self._fault:
            if self._random.random() < 0.5:
                raise AdvisorError("overrun", "no answer in 5 ms")
            return self._random.choice([wrong for asked, wrong in BAD if asked == kind])
        if what != ANSWER:
            raise AdvisorError("raised", said)
        return said

    def begin(self) -> None:
        pass

    def dismiss(self) -> None:
        self.is_dismissed = True
