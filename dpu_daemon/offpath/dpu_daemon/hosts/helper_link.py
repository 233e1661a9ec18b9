"""Data of a helper's connection and of the instances ordered from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel

from offpath.bindings.ports import HostConnection
from offpath.bindings.wire import control
from offpath.bindings.wire.signatures import KernelSignature
from offpath.dpu_daemon.hosts.heartbeat import Heartbeat
from offpath.dpu_daemon.hosts.offers import KernelMessage, are_whole, kernel_of, take_detail, with_more
from offpath.sched.gpu.geometry import GpuSpec
from offpath.sched.jobs import commands, events


@dataclass(slots=True, eq=False)
class ReloadedKernels:
    """A helper's message about its new kernels, and what has arrived of their needs and signatures, by name."""

    message: control.KernelsReloaded
    needs: dict[str, control.KernelNeeds] = field(default_factory=dict)
    signatures: dict[str, KernelSignature] = field(default_factory=dict)

    def take(self, message: KernelMessage) -> None:
        """Record what follows the message. Raises: ProtocolError."""
        if isinstance(message, control.MoreKernels):
            self.message = with_more(self.message, message)
        else:
            take_detail(message, self.message.kernels, self.needs, self.signatures)

    @property
    def is_complete(self) -> bool:
        """True if everything that the message announces has arrived."""
        message = self.message
        has_kernels = not message.more_kernels and len(self.needs) >= message.needs_count
        return has_kernels and are_whole(self.signatures, message.signature_count)


@dataclass(slots=True, eq=False)
class HelperLink:
    """A helper's supervisor: its channel, its hello and its offers. ``number``: its generation. ``needs`` and
    ``signatures``: of its kernels, by name."""

    number: int
    connection: HostConnection
    hello: control.HelperHello
    gpus: list[GpuSpec] = field(default_factory=list)
    emulated: dict[str, bool] = field(default_factory=dict)
    """Whether a GPU is emulated, by its identity."""
    needs: dict[str, control.KernelNeeds] = field(default_factory=dict)
    signatures: dict[str, KernelSignature] = field(default_factory=dict)
    reload: ReloadedKernels | None = None
    """What it reloads, until all of it has arrived."""
    held: list[control.InstanceHeld] = field(default_factory=list)
    is_joined: bool = False
    heartbeat: Heartbeat | None = None
    is_lost: bool = False
    """A message did not reach it: no further message may be sent."""
    outbox: list[BaseModel] | None = None
    """Messages queued until its welcome is sent; None: messages are sent at once."""

    def take(self, message: KernelMessage) -> None:
        """Record what follows its hello. Raises: ProtocolError."""
        if isinstance(message, control.MoreKernels):
            self.hello = with_more(self.hello, message)
        else:
            take_detail(message, self.hello.kernels, self.needs, self.signatures)

    @property
    def is_complete(self) -> bool:
        """True if everything that its hello announces has arrived."""
        hello = self.hello
        has_kernels = not hello.more_kernels and len(self.needs) >= hello.needs_count
        has_kernels = has_kernels and are_whole(self.signatures, hello.signature_count)
        return has_kernels and len(self.gpus) >= hello.gpu_count and len(self.held) >= hello.held_count

    def numbered(self, ids: Mapping[str, int]) -> tuple[events.Kernel, ...]:
        """Its kernels as the job book knows them, under their numbers."""
        return tuple(kernel_of(k, self.needs.get(k.name), ids[k.name]) for k in self.hello.kernels)

    @property
    def name(self) -> str:
        """The helper's name, which no other connected helper has."""
        return self.hello.name


@dataclass(slots=True)
class Order:
    """An ordered instance, and the token that its workers must present. ``renewed``: tokens of those that replaced
    others, by lane."""

    command: commands.OpenLease
    token: str
    gpu_index: int
    is_closing: bool = False
    renewed: dict[int, str] = field(default_factory=dict)

    def token_of(self, lane: int) -> str:
        """The token of the lane's present worker."""
        return self.renewed.get(lane, self.token)
