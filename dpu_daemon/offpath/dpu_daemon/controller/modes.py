"""Changes the sharing mode of a running controller, with its sharing policy and the switches' capacity."""

from __future__ import annotations

import logging

from offpath.dpu_daemon.controller.config import PolicyTable
from offpath.dpu_daemon.controller.jobs import JobRefused
from offpath.dpu_daemon.controller.plugin_child import INA_SHARING
from offpath.dpu_daemon.controller.plugin_slots import PluginSlot, SharingOut
from offpath.dpu_daemon.controller.shell import ControllerShell
from offpath.sched.gpu.plugin import PREFIX
from offpath.sched.ina.sharing.planner import Settings, settings_of
from offpath.sched.ina.sharing.policies import MODES, Mode, Sharing, TreeBuilder
from offpath.sched.placement.port import Placement

logger = logging.getLogger(__name__)


def settings(table: PolicyTable) -> Settings:
    """The settings at the controller's start."""
    capacity = table.all_capacity if table.mode == "all" else table.capacity
    return Settings(table.mode, capacity, table.alternate_ms, table.link_bytes_per_s, table.latency_us)


def sharing_slot(table: PolicyTable) -> PluginSlot[Sharing]:
    """Raises: PluginError."""
    built_in = Mode("shared" if table.mode.startswith(PREFIX) else table.mode)
    return PluginSlot.of(INA_SHARING, table.mode, built_in, table.plugin_ms / 1e3)


class Modes:
    """Changes the mode while the controller runs."""

    def __init__(
        self, shell: ControllerShell, table: PolicyTable, sharing: SharingOut,
        placing: PluginSlot[Placement], building: PluginSlot[TreeBuilder],
    ) -> None:  # fmt: skip
        self._shell, self._table = shell, table
        self._sharing = sharing
        self._slots = (placing, building)
        self._faults = 0

    @property
    def faults(self) -> int:
        """Number of plug-in quarantines."""
        return self._faults + self._sharing.slot.faults + sum(slot.faults for slot in self._slots)

    def set(self, mode: str, link_bytes_per_s: float | None) -> None:
        """Set the mode; "" keeps the current one. A plug-in mode must be the configured one. Raises: JobRefused."""
        planner = self._shell.planner
        mode = mode or planner.settings.mode
        if mode not in MODES and mode != self._table.mode:
            raise JobRefused("unknown_mode", f"{mode}: one of {', '.join(MODES)}")
        if mode != planner.settings.mode and mode in MODES:
            self._faults += self._sharing.slot.faults
            self._sharing.slot.close()
            self._sharing = SharingOut(PluginSlot(INA_SHARING, Mode(mode)))
        elif mode != planner.settings.mode:
            self._sharing = SharingOut(sharing_slot(self._table))
        capacity = self._table.all_capacity if mode == "all" else self._table.capacity
        planner.set(settings_of(planner.settings, mode, capacity, link_bytes_per_s), self._sharing)
        self._shell.switches.set_capacity(capacity)
        logger.warning("sharing mode %s, switch capacity %d", mode, capacity, extra={"code": "mode_changed"})
        self._shell.plan_again()

    def close(self) -> None:
        """Stop the processes of all plug-ins."""
        self._sharing.slot.close()
        for slot in self._slots:
            slot.close()
