"""The job manager's configuration: one TOML file, validated by pydantic, with all faults reported at once."""

from __future__ import annotations

import tomllib
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from offpath.bindings.engines.port import Gpu, NodeInfo
from offpath.bindings.invalid import said
from offpath.bindings.plausible import with_port
from offpath.bindings.wire.fields import Name
from offpath.dpu_daemon.config import ConfigError, Fault, config_error
from offpath.dpu_daemon.config.tables import FilePath, Uid
from offpath.dpu_daemon.manager.inc.config import IncTable
from offpath.sched.errors import SchedError
from offpath.sched.gpu.plugin import PREFIX
from offpath.sched.ina.statistical.network import pat_gbps
from offpath.sched.placement.batch_registry import BATCH_PLACEMENTS
from offpath.sched.placement.models import MODELS, Model
from offpath.sched.workload.information import Links

_MOST_NODES: Final = 1_024
_IMAGES: Final = 32
"""Images of an iteration, by which `Model` counts its compute time."""


def _known_policy(name: str) -> str:
    if name not in BATCH_PLACEMENTS and not name.startswith(PREFIX):
        raise ValueError(f"must be one of {', '.join(BATCH_PLACEMENTS)} or {PREFIX}NAME")
    return name


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class NodeTable(_Table):
    """``[[engine.node]]``: a node that the engine ``local`` pretends to be."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$")]
    gpus: Annotated[int, Field(ge=0, le=1024)]
    switch: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{0,255}$")] = ""

    def info(self) -> NodeInfo:
        """As the engine's port has it."""
        return NodeInfo(self.name, tuple(Gpu(index) for index in range(self.gpus)), self.switch)


class EngineTable(_Table):
    """``[engine]``: what starts, supervises and ends the jobs' processes.

    ``folder``: state of the engine ``local``; of ``ray`` the jobs' records on each node. ``bin``: folder of Slurm's
    programs, if they are not in PATH; ``conf``: Slurm's configuration, if it is not where its programs look.
    ``address``: HOST:PORT of Ray's GCS, if this machine is a node of several Rays; ``python``: the interpreter that has
    Ray, if the job manager's has not; ``token``: Ray's token file, if it is not where Ray looks.
    """

    kind: Literal["local", "slurm", "ray"]
    folder: Annotated[str, StringConstraints(max_length=4096, pattern=r"^(/[^\x00]*)?$")] = ""
    node: Annotated[list[NodeTable], Field(max_length=_MOST_NODES)] = []
    bin: Annotated[str, StringConstraints(max_length=4096, pattern=r"^(/[^\x00]*)?$")] = ""
    conf: Annotated[str, StringConstraints(max_length=4096, pattern=r"^(/[^\x00]*)?$")] = ""
    address: Annotated[
        str, StringConstraints(max_length=300, pattern=r"^([A-Za-z0-9._-]+:[0-9]{1,5})?$"), AfterValidator(with_port)
    ] = ""
    python: Annotated[str, StringConstraints(max_length=4096, pattern=r"^(/[^\x00]*)?$")] = ""
    token: Annotated[str, StringConstraints(max_length=4096, pattern=r"^(/[^\x00]*)?$")] = ""
    partition: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{0,64}$")] = ""
    settle_s: Annotated[float, Field(ge=0, le=600)] = 7.0
    """How long Slurm must know a job as running before its command starts, see docs/engines.md."""
    poll_ms: Annotated[int, Field(ge=50, le=600_000)] = 1_000
    """How often nodes and jobs are read from the engine."""

    @model_validator(mode="after")
    def _check(self) -> EngineTable:
        if self.kind == "local" and not self.folder:
            raise ValueError("the engine local needs a folder")
        names = [node.name for node in self.node]
        if len(set(names)) < len(names):
            raise ValueError("a node is listed twice")
        return self


class NetworkTable(_Table):
    """``[network]``: what the engine does not know of the network. ``switch_memory_mib`` and ``rtt_us`` give a leaf
    switch's peak aggregation throughput (NetPack §4.1); 0 memory: the switches do not aggregate."""

    link_gbps: Annotated[float, Field(gt=0, le=1e6)] = 100.0
    oversubscription: Annotated[float, Field(gt=0, le=1e4)] = 1.0
    switch_memory_mib: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    rtt_us: Annotated[float, Field(gt=0, le=1e9)] = 50.0
    switches: Annotated[dict[str, str], Field(max_length=4096)] = {}
    """Address for jobs of each leaf switch, by its name at the engine."""

    def links(self) -> Links:
        """As the placement has it."""
        return Links(
            self.link_gbps, self.oversubscription, pat_gbps(self.switch_memory_mib * 2**20, self.rtt_us * 1e-6)
        )


class PolicyTable(_Table):
    """``[policy]``: who decides, and how often."""

    name: Annotated[str, AfterValidator(_known_policy)] = "netpack"
    batch_ms: Annotated[int, Field(ge=10, le=3_600_000)] = 1_000
    """Pause between two batches. What is submitted meanwhile is decided together."""
    plugin_ms: Annotated[int, Field(ge=1, le=600_000)] = 10_000
    """Deadline of a plug-in's answer to a batch."""


class ModelTable(_Table):
    """``[[model]]``: a model beside the built-in ones: gradients and compute time of an iteration."""

    name: Name
    data_bytes: Annotated[int, Field(ge=0, le=1 << 50)]
    compute_ms: Annotated[float, Field(ge=0.001, le=1e9)]

    def model(self) -> Model:
        """As the placement has it: 4 bytes for each parameter."""
        return Model(self.name, self.data_bytes // 4, _IMAGES / (self.compute_ms / 1e3))


class OperationTable(_Table):
    """``[operation]``: logging and access. ``state``: the jobs' file, on a local disk. ``uids``: users that may submit
    and cancel jobs, besides root and the job manager's own; the engine runs a job as its submitter, or refuses it."""

    state: FilePath
    log: Literal["text", "json"] = "text"
    uids: Annotated[list[Uid], Field(max_length=1024)] = []


class ManagerConfig(_Table):
    """The whole file."""

    engine: EngineTable
    network: NetworkTable = NetworkTable()
    policy: PolicyTable = PolicyTable()
    model: Annotated[list[ModelTable], Field(max_length=1024)] = []
    inc: IncTable | None = None
    operation: OperationTable

    @property
    def models(self) -> dict[str, Model]:
        """All models by name; the file's replace built-in ones."""
        return {**MODELS, **{table.name: table.model() for table in self.model}}


def load(path: str) -> ManagerConfig:
    """Read and check the file. Raises: ConfigError: every fault with its key path."""
    try:
        with open(path, "rb") as file:
            config = ManagerConfig.model_validate(tomllib.load(file))
        config.network.links()
        if config.inc is not None:
            config.inc.resources()
        return config
    except OSError as fault:
        raise ConfigError(f"{path}: {fault.strerror}") from None
    except ValidationError as fault:
        found = [Fault(".".join(str(place)[:80] for place in e["loc"]), said(e)) for e in fault.errors()]
        raise config_error(path, found, {}) from None
    except (tomllib.TOMLDecodeError, ValueError, RecursionError, SchedError) as fault:
        raise ConfigError(f"{path}: {fault}") from None
