"""The controller's configuration: one TOML file, validated by pydantic, with all faults reported at once."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from offpath.bindings.errors import HostChannelError
from offpath.bindings.invalid import said
from offpath.bindings.plausible import with_port
from offpath.bindings.zeromq.keys import read_allowed
from offpath.dpu_daemon.config import ConfigError, Fault, config_error, zmq_secret
from offpath.dpu_daemon.config.tables import FilePath, Uid
from offpath.sched.errors import SchedError
from offpath.sched.gpu.plugin import PREFIX
from offpath.sched.placement.registry import PLACEMENTS
from offpath.sched.topology import imported
from offpath.sched.topology.graph import Topology

MOST_TOPOLOGY_BYTES: Final = 64 << 20
_PLUGIN: Final = rf"{PREFIX}[A-Za-z0-9._-]{{1,64}}"


def _known_placement(name: str) -> str:
    if name not in PLACEMENTS and not name.startswith(PREFIX):
        raise ValueError(f"must be one of {', '.join(PLACEMENTS)}, or {PREFIX}NAME for the entry point of a plug-in")
    return name


def _with_port(address: str) -> str:
    return with_port(address) if address.startswith("tcp://") else address


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class AgentsTable(_Table):
    """``[agents]``: the address for agents and the keys that they may use. ``allowed``: a folder with a HOST.pub file
    per host, or a file of lines HOST KEY; HOST is the host's name in the topology."""

    bind: Annotated[
        str, StringConstraints(pattern=r"^(tcp://.+:[0-9]{1,5}|ipc:///.{1,100})$"), AfterValidator(_with_port)
    ]
    key_file: FilePath
    allowed: FilePath
    domain: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "offpath"


class SwitchTable(_Table):
    """``[[switch]]``: a switch of the topology that aggregates. ``address``: for ranks and child switches; ``control``:
    for the controller."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=255)]
    address: Annotated[str, StringConstraints(min_length=1, max_length=255)]
    control: Annotated[str, StringConstraints(min_length=1, max_length=255)]


class PolicyTable(_Table):
    """``[policy]``: the policies in use. ``mode``: how jobs share a root at start. ``plugin:NAME``: an entry point."""

    placement: Annotated[str, AfterValidator(_known_placement)] = "fragments"
    tree_builder: Annotated[str, StringConstraints(pattern=rf"^(mina|{_PLUGIN})$")] = "mina"
    mode: Annotated[str, StringConstraints(pattern=rf"^(none|all|exclusive|alternate|trylock|shared|{_PLUGIN})$")] = (
        "shared"
    )
    candidates: Annotated[int, Field(ge=1, le=64)] = 5
    """Trees considered for each job (the paper's k)."""
    capacity: Annotated[int, Field(ge=1, le=64)] = 1
    """Operations that a switch runs concurrently, in every mode but ``all``."""
    all_capacity: Annotated[int, Field(ge=1, le=64)] = 2
    """… in the mode ``all``."""
    link_bytes_per_s: Annotated[float, Field(gt=0, le=1e15)] = 12.5e9
    """Bandwidth of a rank's link, per direction, that the Plan assumes."""
    latency_us: Annotated[float, Field(ge=0, le=1e6)] = 50.0
    """Latency of any all-reduce, in addition to its bytes."""
    alternate_ms: Annotated[int, Field(ge=10, le=3_600_000)] = 1000
    """Length of a turn in the mode ``alternate``."""
    plugin_ms: Annotated[int, Field(ge=1, le=60_000)] = 250


class OperationTable(_Table):
    """``[operation]``: logging and operator access. ``state``: file of a cache; empty: none."""

    state: Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")] = ""
    log: Literal["text", "json"] = "text"
    admin_uids: Annotated[list[Uid], Field(max_length=1024)] = []


class ControllerConfig(_Table):
    """The whole file. ``topology``: a file's name, or the description of a regular one such as ``leaf-spine:4x1x1``."""

    topology: FilePath
    ranks_per_host: Annotated[int, Field(ge=1, le=1024)] = 8
    """Ranks of all jobs together that a host accepts."""
    ina_directory: Annotated[str, StringConstraints(max_length=4096)] = ""
    """Directory of the ranks' state files, the same on every host; `offpath job submit` passes it on. Empty: their
    runtime directory."""
    agents: AgentsTable
    switch: Annotated[list[SwitchTable], Field(max_length=65_536)] = []
    policy: PolicyTable = PolicyTable()
    operation: OperationTable = OperationTable()


@dataclass(frozen=True, slots=True)
class Loaded:
    """A validated configuration. ``text``: contents of the topology file, or the description of a regular topology."""

    config: ControllerConfig
    topology: Topology
    text: str


def load(path: str) -> Loaded:
    """Read and check the file and all files it names. Raises: ConfigError: every fault with its key path."""
    try:
        with open(path, "rb") as file:
            raw = tomllib.load(file)
        config = ControllerConfig.model_validate(raw)
    except OSError as fault:
        raise ConfigError(f"{path}: {fault.strerror}") from None
    except ValidationError as fault:
        found = [Fault(".".join(str(place)[:80] for place in e["loc"]), said(e)) for e in fault.errors()]
        raise config_error(path, found, {}) from None
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as fault:
        raise ConfigError(f"{path}: {fault}") from None
    faults: list[Fault] = []
    topology, text = _topology(config.topology, faults)
    if topology is not None:
        known = set(topology.names[topology.hosts :])
        seen: set[str] = set()
        for at, switch in enumerate(config.switch):
            if switch.name not in known:
                faults.append(Fault(f"switch.{at}.name", f"the topology has no switch named {switch.name!r}"))
            if switch.name in seen:
                faults.append(Fault(f"switch.{at}.name", f"{switch.name!r} is listed twice"))
            seen.add(switch.name)
    for key, read in (("key_file", zmq_secret), ("allowed", read_allowed)):
        try:
            read(getattr(config.agents, key))
        except (ConfigError, HostChannelError) as fault:
            faults.append(Fault(f"agents.{key}", str(fault)))
    if faults or topology is None:
        raise config_error(path, faults, {})
    return Loaded(config, topology, text)


def _topology(given: str, faults: list[Fault]) -> tuple[Topology | None, str]:
    try:
        if imported.is_regular(given):
            return imported.regular(given), given
        with open(given, encoding="utf-8") as file:
            text = file.read(MOST_TOPOLOGY_BYTES)
        return imported.read(text), text
    except (OSError, ValueError, SchedError) as fault:
        faults.append(Fault("topology", f"{given}: {fault}"))
        return None, ""
