"""The helper's connection, and what was ordered of it, as data."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import BaseModel

from offpath.bindings.ports import HostConnection
from offpath.bindings.wire import control
from offpath.dpu_daemon.hosts.heartbeat import Heartbeat
from offpath.sched.gpu.geometry import GpuSpec
from offpath.sched.jobs import commands


@dataclass(slots=True, eq=False)
class HelperLink:
    """The helper's supervisor: its channel and what it said of itself."""

    number: int
    connection: HostConnection
    hello: control.HelperHello
    gpus: list[GpuSpec] = field(default_factory=list)
    held: list[control.InstanceHeld] = field(default_factory=list)
    is_joined: bool = False
    heartbeat: Heartbeat | None = None
    is_lost: bool = False
    """A message did not reach it: nothing may follow."""
    outbox: list[BaseModel] | None = None
    """Held back until its welcome is sent; None: nothing is."""


@dataclass(slots=True)
class Order:
    """An instance asked for: who may connect as its workers."""

    command: commands.OpenLease
    token: str
    gpu_index: int
    is_closing: bool = False
