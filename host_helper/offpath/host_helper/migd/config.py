"""migd's configuration: which GPUs it manages and how, and which users it serves."""

from __future__ import annotations

import grp
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from offpath.bindings.nvml.records import GpuInfo
from offpath.host_helper.config_file import read_model, user_numbers
from offpath.host_helper.migd.errors import MigdConfigInvalid
from offpath.host_helper.migd.protocol import Mode

ALL: Final = "all"
DEFAULT_HOLD_MS: Final = 3_600_000
DEFAULT_DESTROY_WAIT_MS: Final = 5000
_User = Annotated[str, Field(min_length=1, max_length=64)] | Annotated[int, Field(ge=0, le=0xFFFF_FFFE)]
_Users = Annotated[list[_User], Field(max_length=64)]


class MigdFile(BaseModel):
    """The TOML file. Users are names or numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    gpus: Annotated[dict[str, Mode], Field(min_length=1, max_length=64)] = {ALL: "mig"}
    """UUID or PCI address of a GPU, or ``all``, to its mode. A GPU that no key matches is not managed."""
    uids: _Users = []
    """Users that may hold instances, beside root: the helpers'."""
    operators: _Users = []
    """Users that may change layouts, beside root and migd's own user."""
    node_uids: _Users = []
    """Users that device nodes may be made for, beside the caller: the workers'."""
    group: Annotated[str, Field(max_length=64)] = ""
    """Group of the socket. Empty: the socket belongs to migd's own group."""
    hold_ms: Annotated[int, Field(ge=0, le=86_400_000)] = DEFAULT_HOLD_MS
    """How long a lease without a connection is kept."""
    destroy_wait_ms: Annotated[int, Field(ge=0, le=60_000)] = DEFAULT_DESTROY_WAIT_MS
    """How long destroying an instance in use is repeated before it is quarantined."""


@dataclass(frozen=True, slots=True)
class MigdConfig:
    """The configuration with users as numbers. ``gid`` -1: the group is left as it is."""

    gpus: Mapping[str, Mode]
    uids: frozenset[int]
    operators: frozenset[int]
    node_uids: frozenset[int]
    gid: int
    hold_ms: int
    destroy_wait_ms: int

    def mode(self, gpu: GpuInfo) -> Mode | None:
        """The GPU's mode; None: migd does not manage it. A UUID goes before a PCI address, and that before ``all``."""
        for key in (gpu.uuid, _key(gpu.pci), ALL):
            if key in self.gpus:
                return self.gpus[key]
        return None

    def may_connect(self, uid: int) -> bool:
        """Whether this user is served at all."""
        return uid in self.uids or self.is_operator(uid)

    def is_operator(self, uid: int) -> bool:
        """Whether this user may change layouts and the instances of others."""
        return uid == 0 or uid in self.operators


def load_config(path: str | None, overrides: Mapping[str, Any]) -> MigdConfig:
    """Read the TOML file ``path``, if any; ``overrides`` replace its keys. Raises: MigdConfigInvalid: all faults."""
    file_ = read_model(MigdFile, path, MigdConfigInvalid, overrides)
    where = path or "the command line"
    return MigdConfig(
        gpus={_key(key): mode for key, mode in file_.gpus.items()},
        uids=user_numbers(file_.uids, where, MigdConfigInvalid),
        operators=user_numbers(file_.operators, where, MigdConfigInvalid)
        | {os.geteuid()},  # migd's own user is an operator
        node_uids=user_numbers(file_.node_uids, where, MigdConfigInvalid),
        gid=_group(file_.group, where),
        hold_ms=file_.hold_ms,
        destroy_wait_ms=file_.destroy_wait_ms,
    )


def _key(text: str) -> str:
    """A PCI address in one spelling: NVML writes its domain with eight digits, the kernel with four."""
    if text == ALL or text.startswith("GPU-"):
        return text
    domain, colon, rest = text.lower().partition(":")
    return f"{domain[-4:]}{colon}{rest}"


def _group(name: str, where: str) -> int:
    if not name:
        return -1
    try:
        return grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        raise MigdConfigInvalid(f"{where}: no such group: {name!r}") from None
