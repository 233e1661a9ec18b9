"""The configuration in force. A reload replaces it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offpath.dpu_daemon.config.tables import DaemonConfig


class ConfigInForce:
    """``generation`` counts the configurations since the start, beginning with 1."""

    def __init__(self, config: DaemonConfig) -> None:
        self.config = config
        self.generation = 1
        self.is_last_good = False
        """The sources were refused at this start and the last good configuration is used; no reload succeeded since."""
        self.on_changed: list[Callable[[], None]] = []

    def replace(self, config: DaemonConfig) -> None:
        """``config`` is in force from here on. Does not call `on_changed`: the daemon does, once its parts know."""
        self.config = config
        self.generation += 1
        self.is_last_good = False
