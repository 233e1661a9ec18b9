"""The time by which a controller decides: it is not changed when somebody sets the machine's clock."""

from __future__ import annotations

import time
from collections.abc import Callable


def since_boot_ns() -> int:
    """Nanoseconds since the machine started, those of its sleep included. Nobody sets this clock."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class SteadyClock:
    """Called, it returns nanoseconds since 1970, as this machine believed when the process started, and not before
    ``last_ns``. It never jumps and never goes back, not even in a new process that knows the last time of the former.
    """

    def __init__(
        self, last_ns: int = 0, *, wall_ns: Callable[[], int] = time.time_ns,
        elapsed_ns: Callable[[], int] = since_boot_ns,
    ) -> None:  # fmt: skip
        """``wall_ns``: nanoseconds since 1970, as this machine believes now."""
        self.wall_ns, self._elapsed_ns = wall_ns, elapsed_ns
        self._ahead_ns = max(last_ns, wall_ns()) - elapsed_ns()

    def __call__(self) -> int:
        """Now."""
        return self._ahead_ns + self._elapsed_ns()

    def wall_of(self, then_ns: int) -> int:
        """What the machine's clock will show at this moment, if nobody sets it before."""
        return then_ns - self() + self.wall_ns()
