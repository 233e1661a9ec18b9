"""The daemon's ends of the host channel: the helper, its lanes, and the instances it was asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import BaseModel

from offpath.bindings.ports import HostConnection, Invitation, Memory
from offpath.bindings.wire import control
from offpath.dpu_daemon.pulse import Pulse
from offpath.sched.gpu.geometry import GpuSpec
from offpath.sched.jobs import commands

if TYPE_CHECKING:
    from offpath.dpu_daemon.sessions import JobRef


@dataclass(slots=True, eq=False)
class LaneLink:
    """A lane's worker: its channel and its memory as the copy engine reaches it."""

    lease: int
    lane: int
    generation: int
    connection: HostConnection
    invitation: Invitation | None = None
    memory: Memory | None = None
    landing_bytes: int = 0
    result_bytes: int = 0
    ref: JobRef | None = None
    """The job whose payload was last sent here."""
    last_job: int = 0
    """Of a worker that came back: the last launch it received."""
    resent: int = 0
    """The job whose result it sends again, because it cannot know whether we had it."""


@dataclass(slots=True, eq=False)
class HelperLink:
    """The helper's supervisor: its channel and what it said of itself."""

    number: int
    connection: HostConnection
    hello: control.HelperHello
    gpus: list[GpuSpec] = field(default_factory=list)
    held: list[control.InstanceHeld] = field(default_factory=list)
    is_joined: bool = False
    pulse: Pulse | None = None
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
