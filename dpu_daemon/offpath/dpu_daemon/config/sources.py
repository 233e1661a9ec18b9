"""Reads the configuration sources by precedence: flag, environment, file, default.

Environment: ``OFFPATH_<TABLE>_<KEY>`` (``OFFPATH_LEASING_LANES=3``), ``OFFPATH_MAX_JOBS`` and ``OFFPATH_HOST_UIDS``.
Tenants and pinned leases can be set in the file only. Lists are comma-separated, or a TOML array. A relative path in
the file is relative to the file's folder; one in the environment or a flag is relative to the working directory.
"""

from __future__ import annotations

import os
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from offpath.dpu_daemon.config import checks, words
from offpath.dpu_daemon.config.faults import ConfigError, Fault
from offpath.dpu_daemon.config.files import file_faults, place_paths, read_text
from offpath.dpu_daemon.config.places import Places, nearest
from offpath.dpu_daemon.config.restart import restart_faults
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
MAX_FILE_BYTES: Final = 1 << 20
MAX_LINE: Final = 16_384
"""Most characters in a line: a key is on one line, and Python's TOML parser takes quadratic time for its parts."""
MAX_DEPTH: Final = 8
MAX_ITEMS: Final = 65_536
"""Most keys and list entries in the whole file."""
MOST_SHOWN: Final = 100
"""Most faults that a message lists."""
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
    **{
        key: DaemonConfig.model_fields[key]
        for key in ("host_uids", "helper_names", "max_helpers", "max_jobs", "max_sequences")
    },
}
"""Every key that a flag or the environment may set, by its path."""
_VARIABLES: Final = {PREFIX + path.replace(".", "_").upper(): path for path in KEYS}
_NAMESPACE: Final = tuple(f"{PREFIX}{table.upper()}_" for table in (*_TABLES, *_FROM_FILE_ONLY))
_WHOLE: Final = re.compile(r"[+-]?[0-9][0-9_]{0,40}")


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a value: ``default``, ``file``, ``environment`` or ``flag``; and its place for messages."""

    kind: str
    where: str = ""

    def __str__(self) -> str:
        return self.where or self.kind


@dataclass(frozen=True, slots=True)
class Loaded:
    """A validated configuration with the origin of each value by key path."""

    config: DaemonConfig
    origins: Mapping[str, Origin]
    warnings: tuple[Fault, ...] = ()
    refused: str = ""
    """Why the sources were refused, if this is the last good configuration; else empty."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources to read; `read` gives the same result while none of them changes.

    ``flags`` are ``KEY=VALUE`` with KEY a path such as ``leasing.lanes``.
    """

    file: str
    environment: Mapping[str, str] = field(default_factory=dict)
    flags: Sequence[str] = ()

    def read(self) -> Loaded:
        """Parse and check everything, including the files it names. Raises: ConfigError: with every fault."""
        raw, places = _read_file(self.file)
        lines = ((path, places.line(path)) for path, _ in _leaves(raw, ""))
        origins = {path: Origin("file", f"{self.file}:{line}" if line else self.file) for path, line in lines}
        faults: list[Fault] = []
        for path, text, origin in (*self._environment(faults), *self._flags(faults)):
            table, _, key = path.rpartition(".")
            into = raw.setdefault(table, {}) if table else raw
            if isinstance(into, dict):  # otherwise validation reports the file's fault
                into[key] = _typed(KEYS[path].annotation, text)
                origins[path] = origin
        faults += _faults_of(raw)
        if faults:
            raise config_error(self.file, faults, origins, places, raw)
        config = DaemonConfig.model_validate(raw)
        if faults := list(file_faults(config)):
            raise config_error(self.file, faults, origins, places, raw)
        every = {path: origins.get(path, Origin("default")) for path, _ in values(config)}
        return Loaded(config, every, checks.warnings(config))

    def check_reload(self, in_force: DaemonConfig, loaded: Loaded) -> None:
        """Raises: ConfigError: ``loaded``, read from these sources, has changed values that need a restart."""
        if faults := restart_faults(in_force, loaded.config):
            places = _read_file(self.file)[1]
            raise config_error(self.file, faults, loaded.origins, places)

    def _environment(self, faults: list[Fault]) -> Iterator[tuple[str, str, Origin]]:
        for name in sorted(self.environment):
            if name in _VARIABLES:
                yield _VARIABLES[name], self.environment[name], Origin("environment", name)
            elif name.startswith(_NAMESPACE) or name in (f"{PREFIX}TENANT", f"{PREFIX}LEASE"):
                is_table = name.startswith(tuple(f"{PREFIX}{table.upper()}" for table in _FROM_FILE_ONLY))
                text = "can be set in the file only" if is_table else f"is not a key{nearest(name, _VARIABLES)}"
                faults.append(Fault(name, text))

    def _flags(self, faults: list[Fault]) -> Iterator[tuple[str, str, Origin]]:
        for flag in self.flags:
            path, equals, text = flag.partition("=")
            if not equals:
                faults.append(Fault(f"--set {flag[:80]}", "expected KEY=VALUE"))
            elif path not in KEYS:
                is_table = path.split(".")[0] in _FROM_FILE_ONLY
                text = "can be set in the file only" if is_table else f"is not a key{nearest(path, KEYS)}"
                faults.append(Fault(f"--set {path[:80]}", text))
            else:
                yield path, text, Origin("flag", f"--set {path}")


def _typed(annotation: Any, text: str) -> Any:
    """``text`` converted to the key's type; unchanged if it cannot be, so that validation reports the fault."""
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
            except (ValueError, RecursionError):  # no TOML, a number of thousands of digits, or lists without end
                return text
        return [_typed(element, word.strip()) for word in text.split(",")] if text.strip() else []
    return text


def _whole(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:  # underscores where Python allows none
        return text


def _read_file(path: str) -> tuple[dict[str, Any], Places]:
    """The file's tables and the line of each key. Raises: ConfigError: unreadable, not TOML, or beyond the limits."""
    text = read_text(path, MAX_FILE_BYTES)
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > MAX_LINE:
            raise ConfigError(f"{path}:{number}: the line is longer than {MAX_LINE} characters")
    try:
        raw = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{path}: lists and tables are nested too deeply") from None
    except (tomllib.TOMLDecodeError, ValueError) as fault:
        raise ConfigError(f"{path}: not TOML: {fault}") from None
    _bounded(path, raw)
    place_paths(raw, path)
    return raw, Places(text)


def _bounded(path: str, raw: dict[str, Any]) -> None:
    """Raises: ConfigError: nested too deeply or too large for validation, which recurses and lists every fault."""
    level: list[Any] = [raw]
    count = 0
    for _ in range(MAX_DEPTH):
        inner = [each for value in level for each in (value.values() if isinstance(value, dict) else value)]
        count += len(inner)
        if count > MAX_ITEMS:
            raise ConfigError(f"{path}: more than {MAX_ITEMS} keys and list entries")
        if not (level := [value for value in inner if isinstance(value, (dict, list))]):
            return
    raise ConfigError(f"{path}: lists and tables are nested deeper than {MAX_DEPTH}")


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Keys with their values; walks a list of tables, treats a list of plain values as one value."""
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
    """The validation's faults; only if there are none, those of `checks`."""
    try:
        config = DaemonConfig.model_validate(raw)
    except ValidationError as fault:
        errors = fault.errors(include_url=False)
        return [Fault(".".join(str(place)[:80] for place in e["loc"]), words.text_of(e)) for e in errors]
    return list(checks.semantic_faults(config))


def config_error(
    where: str,
    faults: Sequence[Fault],
    origins: Mapping[str, Origin],
    places: Places | None = None,
    raw: Mapping[str, Any] | None = None,
) -> ConfigError:
    """One line per fault, with the tenant's name and the file's line; for a value from elsewhere, with the variable or
    flag that set it."""
    lines, placed = [], []
    for fault in faults:
        origin = origins.get(fault.path) or origins.get(fault.path.rpartition(".")[0])  # or of the enclosing list
        is_elsewhere = origin is not None and origin.kind in ("environment", "flag")
        line = places.line(fault.path) if places is not None and not is_elsewhere else 0
        placed.append(fault := replace(fault, line=line, tenant=_tenant_at(fault.path, raw or {})))
        by = f"{origin} ({fault.path})" if is_elsewhere else fault.path or "(file)"
        at = [f"tenant {fault.tenant}"] if fault.tenant else []
        at += [f"line {line}"] if line else []
        lines.append(f"  {by}: {fault.text}{_within(at)}")
    if len(lines) > MOST_SHOWN:
        lines[MOST_SHOWN:] = [f"  and {len(lines) - MOST_SHOWN} more"]
    return ConfigError(f"{where}:\n" + "\n".join(lines), placed)


def _within(at: Sequence[str]) -> str:
    return f" ({', '.join(at)})" if at else ""


def _tenant_at(path: str, raw: Mapping[str, Any]) -> str:
    """The name of the tenant in whose table ``path`` is; empty: none, or not a valid name."""
    table, _, rest = path.partition(".")
    tenants, number = raw.get("tenant"), rest.partition(".")[0]
    is_number = number.isascii() and number.isdigit() and len(number) < 10
    if table != "tenant" or not is_number or not isinstance(tenants, list) or int(number) >= len(tenants):
        return ""
    tenant = tenants[int(number)]
    name = tenant.get("name") if isinstance(tenant, dict) else None
    return name if isinstance(name, str) and re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,62}", name) else ""


def parse_config(raw: dict[str, Any], where: str) -> DaemonConfig:
    """Validate tables without a file; files that they name are not opened.

    Raises: ConfigError: every fault with its key path.
    """
    if faults := _faults_of(raw):
        raise config_error(where, faults, {}, None, raw)
    return DaemonConfig.model_validate(raw)


def load_config(path: str) -> DaemonConfig:
    """The file alone. Raises: ConfigError: unreadable, not TOML, or invalid."""
    return parse_config(_read_file(path)[0], path)


def process_sources(file: str, flags: Sequence[str] = ()) -> Sources:
    """The file, this process's current environment, and flags."""
    return Sources(file, {k: v for k, v in os.environ.items() if k.startswith(PREFIX)}, tuple(flags))
