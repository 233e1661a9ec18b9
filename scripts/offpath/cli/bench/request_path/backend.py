"""What the benchmark asks of a setting, and the sizes that all settings share."""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from offpath.cli.bench.measure import Block

SMALL: Final = 614_400
"""One image of 600 KB."""
LARGEST: Final = 128 * SMALL
DEPTH: Final = 16
"""Most requests in flight."""
Payload = NDArray[np.uint8]


class Backend(Protocol):
    """A setting that serves requests."""

    name: str

    def realtime_pids(self) -> list[int]:
        """Processes that the product can run at real-time priority (`Helper.run(realtime=True)`)."""

    def block(self, payload: Payload, count: int, in_flight: int, kernel_ms: int) -> Block:
        """Run ``count`` requests, ``in_flight`` at a time."""

    def close(self) -> None:
        """End the setting's processes."""
