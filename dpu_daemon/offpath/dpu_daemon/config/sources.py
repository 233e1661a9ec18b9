"""Where a configuration comes from: flag, environment, file, default, the first that speaks counts.

Environment: ``OFFPATH_<TABLE>_<KEY>`` (``OFFPATH_LEASING_LANES=3``), ``OFFPATH_MAX_JOBS`` and ``OFFPATH_HOST_UIDS``.
Tenants and pinned leases come from the file only. Lists are comma-separated, or a TOML array.
"""

from __future__ import annotations

import os
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from offpath.dpu_daemon.config import checks
from offpath.dpu_daemon.config.faults import ConfigError, Fault
from offpath.dpu_daemon.config.files import file_faults
from offpath.dpu_daemon.config.tables import (
    DaemonConfig,
    DatapathTable,
    DocaTable,
    DurabilityTable,
    InaTable,
    LeasingTable,
    LimitsTable,
    OperationTable,
    RdmaTable,
    TlsTable,
    ZmqTable,
)

PREFIX: Final = "OFFPATH_"
MAX_FILE_BYTES: Final = 4 << 20
_TABLES: Final[dict[str, type[BaseModel]]] = {
    "leasing": LeasingTable, "tls": TlsTable, "durability": DurabilityTable, "limits": LimitsTable,
    "datapath": DatapathTable,
    "rdma": RdmaTable,
    "zmq": ZmqTable,
    "doca": DocaTable,
    "ina": InaTable,
    "operation": OperationTable,
}  # fmt: skip
_FROM_FILE_ONLY: Final = ("tenant", "lease")
KEYS: Final[dict[str, Any]] = {
    **{f"{table}.{key}": info for table, model in _TABLES.items() for key, info in model.model_fields.items()},
    **{key: DaemonConfig.model_fields[key] for key in ("host_uids", "max_jobs")},
}
"""Every key that a flag or the environment may set, by its path."""
_VARIABLES: Final = {PREFIX + path.replace(".", "_").upper(): path for path in KEYS}
_NAMESPACE: Final = tuple(f"{PREFIX}{table.upper()}_" for table in (*_TABLES, *_FROM_FILE_ONLY))
_WHOLE: Final = re.compile(r"[+-]?[0-9][0-9_]{0,40}")


@dataclass(frozen=True, slots=True)
class Origin:
    """Who set a value: ``default``, ``file``, ``environment`` or ``flag``; and where, as people look for it."""

    kind: str
    where: str = ""

    def __str__(self) -> str:
        return self.where or self.kind


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration that passed every check, with the origin of each value by key path."""

    config: DaemonConfig
    origins: Mapping[str, Origin]
    warnings: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class Sources:
    """The places to read; `read` gives the same answer while none of them changes.

    ``flags`` are ``KEY=VALUE`` with KEY a path such as ``leasing.lanes``.
    """

    file: str
    environment: Mapping[str, str] = field(default_factory=dict)
    flags: Sequence[str] = ()

    def read(self) -> Loaded:
        """Parse and check everything, files that are named included. Raises: ConfigError: with every fault."""
        raw, lines = _read_file(self.file)
        origins = {path: Origin("file", f"{self.file}:{line}" if line else self.file) for path, line in lines}
        faults: list[Fault] = []
        for path, text, origin in (*self._environment(faults), *self._flags(faults)):
            table, _, key = path.rpartition(".")
            into = raw.setdefault(table, {}) if table else raw
            if isinstance(into, dict):  # else the file's own fault is reported
                into[key] = _typed(KEYS[path].annotation, text)
                origins[path] = origin
        faults += _faults_of(raw)
        if faults:
            raise config_error(self.file, faults, origins)
        config = DaemonConfig.model_validate(raw)
        if faults := list(file_faults(config)):
            raise config_error(self.file, faults, origins)
        every = {path: origins.get(path, Origin("default")) for path, _ in values(config)}
        return Loaded(config, every, checks.warnings(config))

    def _environment(self, faults: list[Fault]) -> Iterator[tuple[str, str, Origin]]:
        for name in sorted(self.environment):
            if name in _VARIABLES:
                yield _VARIABLES[name], self.environment[name], Origin("environment", name)
            elif name.startswith(_NAMESPACE) or name in (f"{PREFIX}TENANT", f"{PREFIX}LEASE"):
                is_table = name.startswith(tuple(f"{PREFIX}{table.upper()}" for table in _FROM_FILE_ONLY))
                faults.append(Fault(name, "comes from the file only" if is_table else "names no key"))

    def _flags(self, faults: list[Fault]) -> Iterator[tuple[str, str, Origin]]:
        for flag in self.flags:
            path, equals, text = flag.partition("=")
            if not equals:
                faults.append(Fault(f"--set {flag[:80]}", "want KEY=VALUE"))
            elif path not in KEYS:
                is_table = path.split(".")[0] in _FROM_FILE_ONLY
                faults.append(Fault(f"--set {path[:80]}", "comes from the file only" if is_table else "names no key"))
            else:
                yield path, text, Origin("flag", f"--set {path}")


def _typed(annotation: Any, text: str) -> Any:
    """``text`` as the key's type, or as it is: the gate then says what is wrong with it."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _typed(typing.get_args(annotation)[0], text)
    if annotation is int and _WHOLE.fullmatch(text):
        return _whole(text)
    if origin is list:
        (element,) = typing.get_args(annotation)
        if text.lstrip().startswith("["):
            try:
                return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
            except tomllib.TOMLDecodeError:
                return text
        return [_typed(element, word.strip()) for word in text.split(",")] if text.strip() else []
    return text


def _whole(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:  # underscores where Python takes none
        return text


def _read_file(path: str) -> tuple[dict[str, Any], list[tuple[str, int]]]:
    """The file's tables, and the line of each key where that is known. Raises: ConfigError."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB")
        text = data.decode()
        raw = tomllib.loads(text)
    except OSError as fault:
        raise ConfigError(f"{path}: {fault.strerror}") from None
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as fault:  # ValueError: not UTF-8, a NUL in the name
        raise ConfigError(f"{path}: {fault}") from None
    lines = _lines(text)
    return raw, [(key, lines.get(key, 0)) for key, _ in _leaves(raw, "")]


def _lines(text: str) -> dict[str, int]:
    """Line of each key, as far as a look at line beginnings tells: none when a string goes over several lines."""
    if '"""' in text or "'''" in text:
        return {}
    found: dict[str, int] = {}
    count: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if head := re.match(r"\s*\[\[\s*(\w+)\s*\]\]", line):
            count[head[1]] = count.get(head[1], -1) + 1
            table = f"{head[1]}.{count[head[1]]}."
        elif head := re.match(r"\s*\[\s*(\w+)\s*\]", line):
            table = f"{head[1]}."
        elif key := re.match(r"\s*([A-Za-z0-9_.-]+)\s*=", line):
            found.setdefault(table + key[1], number)
    return found


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Keys with their values; a list of tables is walked, a list of plain values is one value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value and all(isinstance(inner, dict) for inner in value):
        for at, inner in enumerate(value):
            yield from _leaves(inner, f"{path}.{at}")
    else:
        yield path, value


def values(config: DaemonConfig) -> Iterator[tuple[str, Any]]:
    """Every effective value with its key path, in the file's order."""
    yield from _leaves(config.model_dump(), "")


def _faults_of(raw: dict[str, Any]) -> list[Fault]:
    """What the gate says; and only if it lets everything through, what does not go together."""
    try:
        config = DaemonConfig.model_validate(raw)
    except ValidationError as fault:
        return [Fault(".".join(str(place)[:80] for place in e["loc"]), e["msg"]) for e in fault.errors()]
    return list(checks.semantic_faults(config))


def config_error(where: str, faults: Sequence[Fault], origins: Mapping[str, Origin]) -> ConfigError:
    """One line per fault; a value that is not the file's is named with the variable or flag that set it."""
    lines = []
    for fault in faults:
        origin = origins.get(fault.path) or origins.get(fault.path.rpartition(".")[0])  # or the list it is in
        by = f"{origin} ({fault.path})" if origin is not None and origin.kind in ("environment", "flag") else fault.path
        lines.append(f"  {by or '(file)'}: {fault.text}")
    return ConfigError(f"{where}:\n" + "\n".join(lines), faults)


def parse_config(raw: dict[str, Any], where: str) -> DaemonConfig:
    """Tables without a file around them; files that they name are not opened.

    Raises: ConfigError: every fault with its key path.
    """
    if faults := _faults_of(raw):
        raise config_error(where, faults, {})
    return DaemonConfig.model_validate(raw)


def load_config(path: str) -> DaemonConfig:
    """The file alone. Raises: ConfigError: unreadable, not TOML, or invalid."""
    return parse_config(_read_file(path)[0], path)


def process_sources(file: str, flags: Sequence[str] = ()) -> Sources:
    """The file, this process's environment as it is now, and flags."""
    return Sources(file, {k: v for k, v in os.environ.items() if k.startswith(PREFIX)}, tuple(flags))
