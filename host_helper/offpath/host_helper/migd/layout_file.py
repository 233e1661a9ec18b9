"""Reads layout files of NVIDIA's mig-parted (``version: v1``), which count instances per profile, with one key more.

``mig-devices`` says how many instances of each profile a GPU gets. ``offpath-starts``, a key of offpath's own, says
where they start; mig-parted refuses files that have it. Without it `offpath.host_helper.migd.layout_plan` chooses
places.

One file has layouts for all cards of the vendor. Only the chosen one is checked, as others may be for cards that are
newer than this reader.
Source: mig-parted, api/spec/v1/spec.go (2026-08); names of profiles: go-nvlib, pkg/nvlib/device/mig_profile.go.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator

from offpath.bindings.invalid import listed
from offpath.host_helper.migd.errors import LayoutInvalid

MAX_BYTES: Final = 1 << 20
_MOST_FAULTS: Final = 8
_PROFILE: Final = re.compile(r"(?:(\d+)c\.)?\d+g\.\d+gb(?:[+-][a-z][a-z0-9.]*(?:,[a-z][a-z0-9.]*)*)*")
"""``1g.5gb``, with attributes that the instance has (``+me``, ``+me.all``, ``+gfx``) or lacks (``-me``)."""
_Label = Annotated[str, Field(min_length=1, max_length=128)]
_Count = Annotated[int, Field(ge=0, le=64)]
_Counts = Annotated[dict[str, _Count], Field(max_length=64)]
_Starts = Annotated[dict[str, Annotated[list[Annotated[int, Field(ge=0, le=63)]], Field(max_length=64)]],
                    Field(max_length=64)]  # fmt: skip
_Filter = Annotated[str, Field(pattern=r"^0[xX][0-9A-Fa-f]{1,8}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class LayoutEntry(_Strict):
    """One entry of a layout: its GPUs, and what they get. A later entry for a GPU replaces an earlier one."""

    device_filter: _Filter | Annotated[list[_Filter], Field(max_length=64)] | None = Field(
        default=None, alias="device-filter"
    )
    devices: Literal["all"] | Annotated[list[Annotated[int, Field(ge=0, le=255)]], Field(max_length=256)]
    mig_enabled: bool = Field(alias="mig-enabled")
    mig_devices: _Counts | None = Field(default=None, alias="mig-devices")
    starts: _Starts | None = Field(default=None, alias="offpath-starts")

    @field_validator("mig_devices", "starts")
    @classmethod
    def _names_profiles(cls, value: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        for name in value or {}:
            found = _PROFILE.fullmatch(name)
            if found is None:
                raise ValueError(f"{name[:64]!r} is not a profile such as 1g.5gb")
            if found[1] is not None:
                raise ValueError(f"{name!r}: offpath gives each GPU instance one compute instance")
        return value

    @model_validator(mode="after")
    def _is_whole(self) -> LayoutEntry:
        counts = self.mig_devices
        if self.mig_enabled and counts is None:
            raise ValueError("mig-devices is missing")
        if not self.mig_enabled and counts:
            raise ValueError("mig-devices must be empty where mig-enabled is false")
        if counts and not any(counts.values()):
            raise ValueError("mig-devices: every count is 0")
        if self.starts is not None:
            places = {name: len(starts) for name, starts in self.starts.items()}
            if places != dict(counts or {}):
                raise ValueError("offpath-starts must name as many starts for each profile as mig-devices counts")
        return self

    def is_for(self, index: int, pci_device_id: int) -> bool:
        """Whether the entry is for the GPU with this NVML index and PCI device id."""
        filters = [self.device_filter] if isinstance(self.device_filter, str) else self.device_filter
        if filters and pci_device_id not in {int(each, 16) for each in filters}:
            return False
        return self.devices == "all" or index in self.devices


class _File(_Strict):
    version: Literal["v1"]
    configs: Annotated[dict[_Label, Any], Field(alias="mig-configs", min_length=1, max_length=256)]


_ENTRIES: Final = TypeAdapter[list[LayoutEntry]](
    Annotated[list[LayoutEntry], Field(min_length=1, max_length=256)], config=ConfigDict(strict=True)
)


@dataclass(frozen=True, slots=True)
class Layout:
    """One label of a file."""

    label: str
    entries: tuple[LayoutEntry, ...]

    def of(self, index: int, pci_device_id: int) -> LayoutEntry | None:
        """The entry for a GPU: the last one that matches; None: the layout says nothing about it."""
        found = [entry for entry in self.entries if entry.is_for(index, pci_device_id)]
        return found[-1] if found else None


def read_layout(path: str, label: str | None = None) -> Layout:
    """One layout of the file. Without ``label`` the file must have only one.

    Raises: LayoutInvalid: the file cannot be read, the layout breaks a rule, or there is no such label.
    """
    try:
        with open(path, "rb") as file:
            body = file.read(MAX_BYTES + 1)
    except OSError as fault:
        raise LayoutInvalid(f"{path}: {fault.strerror or fault}") from None
    if len(body) > MAX_BYTES:
        raise LayoutInvalid(f"{path}: longer than {MAX_BYTES} bytes")
    try:
        return parse_layout(body, label)
    except LayoutInvalid as fault:
        raise LayoutInvalid(f"{path}: {fault}") from None


def parse_layout(body: bytes, label: str | None = None) -> Layout:
    """One layout of a file's content, see `read_layout`. Raises: LayoutInvalid, with all faults."""
    with _faults():
        configs = _File.model_validate(_yaml(body)).configs
    if label is None and len(configs) > 1:
        raise LayoutInvalid(f"{len(configs)} layouts: choose one with -c ({', '.join(sorted(configs))})")
    chosen = label if label is not None else next(iter(configs))
    if chosen not in configs:
        raise LayoutInvalid(f"no layout {chosen!r}; known layouts: {', '.join(sorted(configs))}")
    with _faults("mig-configs", chosen):
        return Layout(chosen, tuple(_ENTRIES.validate_python(configs[chosen])))


@contextlib.contextmanager
def _faults(*where: str) -> Iterator[None]:
    try:
        yield
    except ValidationError as fault:
        raise LayoutInvalid("; ".join(listed(fault, _MOST_FAULTS, where=where, whole="file"))) from None


def _yaml(body: bytes) -> Any:
    """The document. Aliases are refused, because a short file with them can describe a value of any size; so are
    repeated keys, of which the parser would keep one."""
    try:
        import yaml
    except ImportError:
        raise LayoutInvalid('PyYAML is not installed: pip install "offpath[gpu]"') from None

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise LayoutInvalid(f"line {self.peek_event().start_mark.line + 1}: aliases are not supported")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            if any(not isinstance(key, str) for key in keys) or len(set(keys)) != len(keys):
                raise LayoutInvalid(f"line {node.start_mark.line + 1}: keys must be texts, each once")
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(body, Loader)  # a SafeLoader: it makes no objects
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as fault:
        mark = getattr(fault, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise LayoutInvalid(f"{where}not YAML: {getattr(fault, 'problem', None) or type(fault).__name__}") from None
