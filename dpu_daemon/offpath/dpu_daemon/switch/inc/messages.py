"""Control messages: of a manager to an emulated switch, and to the key-value services."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field, TypeAdapter

from offpath.bindings.wire.admin import Fault
from offpath.bindings.wire.fields import STRICT, U32, U64, Name, at_most
from offpath.bindings.wire.work_admin import Identity, Text

Address = Annotated[str, Field(max_length=64)]
Addresses = Annotated[list[Address], Field(max_length=1024)]
Amount = Annotated[int, Field(ge=-(1 << 62), lt=1 << 62)]
Amounts = Annotated[list[Amount], Field(min_length=3, max_length=3)]
Token = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Key = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Value = Annotated[str, Field(pattern=r"^([0-9a-f]{2}){0,128}$")]
MOST_ENTRIES: Final = 64
"""Of one datagram."""
MOST_TASKS: Final = 1_024
"""Of one switch."""
Counters = Annotated[dict[Name, U64], at_most(64)]


class _Message(BaseModel):
    model_config = STRICT


# -- to a switch -------------------------------------------------------------------------------------------------------
class StartTask(_Message):
    """Admit a task and run its data plane. May be repeated. ``demand``, ``shared``: recirculation, stages, SRAM in
    KiB. ``data_plane``: `cache`, `chain`, or empty: none."""

    kind: Literal["start"] = "start"
    identity: Identity
    service: Name
    demand: Amounts
    shared: Amounts
    features: Annotated[list[Name], Field(max_length=64)] = []
    data_plane: Literal["", "cache", "chain"] = ""
    token: Token


class StopTask(_Message):
    """End a task. May be repeated."""

    kind: Literal["stop"] = "stop"
    identity: Identity


class StatusRequest(_Message):
    """What runs here?"""

    kind: Literal["status"] = "status"


class Started(_Message):
    """The task runs; ``address``: of its data plane, empty if it has none."""

    kind: Literal["started"] = "started"
    address: Address


class Stopped(_Message):
    """The task does not run (any more)."""

    kind: Literal["stopped"] = "stopped"


class Status(_Message):
    """``life``: of this process. ``free``: what is left. ``counters``: of packets, since the start."""

    kind: Literal["status"] = "status"
    life: Name
    tasks: Annotated[list[Identity], Field(max_length=MOST_TASKS)]
    services: Annotated[list[Name], Field(max_length=64)]
    free: Annotated[list[U64], Field(min_length=3, max_length=3)]
    counters: Counters


ToSwitch = StartTask | StopTask | StatusRequest
FromSwitch = Started | Stopped | Status | Fault
TO_SWITCH: Final[TypeAdapter[ToSwitch]] = TypeAdapter(Annotated[ToSwitch, Field(discriminator="kind")])
FROM_SWITCH: Final[TypeAdapter[FromSwitch]] = TypeAdapter(Annotated[FromSwitch, Field(discriminator="kind")])


# -- to a key-value service --------------------------------------------------------------------------------------------
class Configure(_Message):
    """``epoch``: rises with each change; a lower one is ignored. ``stores``: of a cache, by slot. ``chain``: all
    members of a chain, head first. ``is_open``: clients are served."""

    kind: Literal["configure"] = "configure"
    epoch: U64
    stores: Addresses = []
    chain: Addresses = []
    is_open: bool = True


class Pull(_Message):
    """Entries of a chain's member after the key ``after``, in the order of keys."""

    kind: Literal["pull"] = "pull"
    after: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")] = ""


class Entry(_Message):
    """A key with its version and value."""

    key: Key
    version: U64
    value: Value


class Load(_Message):
    """Entries that a member of a chain gets before it is opened; lower versions than its own change nothing."""

    kind: Literal["load"] = "load"
    entries: Annotated[list[Entry], Field(max_length=MOST_ENTRIES)]


class Done(_Message):
    """``epoch``: in force. ``counters``: of the service."""

    kind: Literal["done"] = "done"
    epoch: U64
    keys: U32
    counters: Counters


class Entries(_Message):
    """``is_last``: there are no more."""

    kind: Literal["entries"] = "entries"
    entries: Annotated[list[Entry], Field(max_length=MOST_ENTRIES)]
    is_last: bool


class Refused(_Message):
    """The service does not do this."""

    kind: Literal["refused"] = "refused"
    detail: Text


ToService = Configure | Pull | Load
FromService = Done | Entries | Refused
TO_SERVICE: Final[TypeAdapter[ToService]] = TypeAdapter(Annotated[ToService, Field(discriminator="kind")])
FROM_SERVICE: Final[TypeAdapter[FromService]] = TypeAdapter(Annotated[FromService, Field(discriminator="kind")])
