"""A request that a tenant has admitted, in its turn: what is left of its time."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace

from offpath.host_helper.errors import RequestTimeout
from offpath.host_helper.gateway.calls import budget_ms
from offpath.host_helper.gateway.models import Model
from offpath.host_helper.slots import Options


@dataclass(slots=True)
class Turn:
    """``ends_s``: when its time ends, by the loop's clock; None: it has no limit. ``session``: the number of the one
    that it was sent to; 0: of none."""

    model: Model
    sequence_id: int
    ends_s: float | None
    begun_ns: int = field(default_factory=time.perf_counter_ns)
    session: int = 0

    def left(self, options: Options) -> tuple[float | None, Options]:
        """The time that is left, in seconds, and the options with it as the budget. Raises: RequestTimeout: none."""
        if self.ends_s is None:
            return None, options
        left_s = self.ends_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            raise RequestTimeout("the time ended before the request was sent")
        return left_s, replace(options, budget_ms=budget_ms(left_s))

    @property
    def took_ns(self) -> int:
        """Since it was admitted."""
        return time.perf_counter_ns() - self.begun_ns
