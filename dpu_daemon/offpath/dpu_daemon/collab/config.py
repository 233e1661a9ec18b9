"""The collaboration controller's configuration: one TOML file, validated by pydantic, all faults reported at once."""

from __future__ import annotations

import ipaddress
import ssl
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from offpath.bindings.errors import HostChannelError
from offpath.bindings.invalid import said
from offpath.bindings.plausible import with_port
from offpath.bindings.zeromq.keys import read_allowed
from offpath.dpu_daemon.config import ConfigError, Fault, config_error, device_context, read_token, zmq_secret
from offpath.dpu_daemon.config.restart import restart_faults
from offpath.dpu_daemon.config.tables import Address, FilePath, Uid
from offpath.sched.collab.policies import COLLAB_POLICIES, MOST_EPSILON, epsilon_fault

_MOST_KEYS: Final = 4
NEEDS_RESTART: Final = (
    "devices.remembered", "http.listen", "http.plain", "gateways.bind", "gateways.key_file", "gateways.domain",
    "policy.period_s", "operation.state", "operation.metrics_listen",
)  # fmt: skip
"""Open sockets and files depend on them, the table of last messages, or in which period a device has worked."""


def _known_policy(name: str) -> str:
    if name not in COLLAB_POLICIES:
        raise ValueError(f"must be one of {', '.join(COLLAB_POLICIES)}")
    return name


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DevicesTable(_Table):
    """``[devices]``: who may check in, and how often.

    ``token_keys``: files of the keys that tokens are made with: the first one makes new tokens, all are accepted.
    ``per_minute``, ``burst``: messages of one device. ``per_second``: of all devices. ``remembered``: devices whose
    last message is remembered, 24 bytes each; the longest silent one is forgotten first.
    """

    token_keys: Annotated[list[FilePath], Field(min_length=1, max_length=_MOST_KEYS)]
    skew_s: Annotated[int, Field(ge=1, le=3_600)] = 60
    """By how much a device's clock may differ."""
    per_minute: Annotated[int, Field(ge=1, le=60_000)] = 30
    burst: Annotated[int, Field(ge=1, le=1_000)] = 5
    per_second: Annotated[int, Field(ge=1, le=1_000_000)] = 50_000
    remembered: Annotated[int, Field(ge=1_024, le=1 << 26)] = 1 << 20
    retry_s: Annotated[int, Field(ge=1, le=86_400)] = 60
    """After which a device that no job needs checks in again."""


class HttpTable(_Table):
    """``[http]``: the address for devices. Without a certificate tokens are readable on the way: then ``listen`` is a
    loopback address, or ``plain`` says that a proxy with TLS stands before it."""

    listen: Annotated[Address, AfterValidator(with_port)]
    cert_file: FilePath | None = None
    key_file: FilePath | None = None
    plain: bool = False
    connections: Annotated[int, Field(ge=16, le=65_536)] = 1_024
    """Of devices that have sent a valid token; the longest silent one is closed for a further one."""
    idle_s: Annotated[int, Field(ge=1, le=3_600)] = 60

    @model_validator(mode="after")
    def _check(self) -> HttpTable:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("a certificate and its key come together")
        if self.cert_file is None and not self.plain and not _is_loopback(self.place[0]):
            raise ValueError("without a certificate listen is a loopback address, or plain = true")
        return self

    @property
    def place(self) -> tuple[str, int]:
        """Address and port."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


class GatewaysTable(_Table):
    """``[gateways]``: ZeroMQ with CURVE, for gateways that collect the messages of many devices. ``allowed``: a folder
    with a NAME.pub file per gateway, or a file of lines NAME KEY (`offpath keys NAME` makes a pair)."""

    bind: Annotated[str, StringConstraints(pattern=r"^tcp://.+:[0-9]{1,5}$"), AfterValidator(with_port)]
    key_file: FilePath
    allowed: FilePath
    domain: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "offpath"


class PolicyTable(_Table):
    """``[policy]``: who decides. ``epsilon``: fairness between jobs (Venn §4.4), 0: none. ``lease_s``: how long a
    device may work for a round at most. ``period_s``: a device gets one job in each: of UTC's days, if it is not
    stated."""

    name: Annotated[str, AfterValidator(_known_policy)] = "venn"
    epsilon: Annotated[float, Field(ge=0, le=MOST_EPSILON, allow_inf_nan=False)] = 0.0
    lease_s: Annotated[int, Field(ge=1, le=86_400)] = 3_600
    period_s: Annotated[int, Field(ge=1, le=366 * 86_400)] = 86_400

    @model_validator(mode="after")
    def _check(self) -> PolicyTable:
        if fault := epsilon_fault(self.name, self.epsilon):
            raise ValueError(fault)
        return self


class OperationTable(_Table):
    """``[operation]``: logging, metrics and access. ``state``: the file of jobs and leases, on a local disk.
    ``metrics_listen`` HOST:PORT; empty: off. ``uids``: users that may open jobs, besides root and the controller's
    own."""

    state: FilePath
    metrics_listen: Annotated[str, StringConstraints(pattern=r"^(|.+:[0-9]{1,5})$"), AfterValidator(with_port)] = ""
    log: Literal["text", "json"] = "text"
    uids: Annotated[list[Uid], Field(max_length=1024)] = []


class CollabConfig(_Table):
    """The whole file."""

    devices: DevicesTable
    http: HttpTable | None = None
    gateways: GatewaysTable | None = None
    policy: PolicyTable = PolicyTable()
    operation: OperationTable

    @model_validator(mode="after")
    def _check(self) -> CollabConfig:
        if self.http is None and self.gateways is None:
            raise ValueError("devices need [http] or [gateways]")
        return self


@dataclass(frozen=True, slots=True)
class Loaded:
    """A validated configuration, with the contents of the files that it names. No error or ``repr`` shows the keys."""

    config: CollabConfig
    token_keys: tuple[bytes, ...]
    tls: ssl.SSLContext | None
    gateway_key: bytes
    gateways: Mapping[bytes, str]

    def __repr__(self) -> str:
        return f"Loaded({self.config!r})"


def load(path: str) -> Loaded:
    """Read and check the file and all files it names. Raises: ConfigError: every fault with its key path."""
    config = _read(path)
    faults: list[Fault] = []
    keys: list[bytes] = []
    for at, name in enumerate(config.devices.token_keys):
        try:
            keys.append(read_token(name).encode())
        except ConfigError as fault:
            faults.append(Fault(f"devices.token_keys.{at}", str(fault)))
    tls = _tls(config.http, faults)
    key, allowed = b"", dict[bytes, str]()
    if config.gateways is not None:
        try:
            key = zmq_secret(config.gateways.key_file)
        except (ConfigError, HostChannelError) as fault:
            faults.append(Fault("gateways.key_file", str(fault)))
        try:
            allowed = read_allowed(config.gateways.allowed)
        except HostChannelError as fault:
            faults.append(Fault("gateways.allowed", str(fault)))
    if faults:
        raise config_error(path, faults, {})
    return Loaded(config, tuple(keys), tls, key, allowed)


def check_reload(path: str, in_force: Loaded, found: Loaded) -> None:
    """Raises: ConfigError: ``found``, read from ``path``, has changed values that need a restart."""
    before, after = in_force.config, found.config
    faults = restart_faults(before, after, NEEDS_RESTART)
    if (in_force.tls is None) != (found.tls is None):
        faults.append(Fault("http.cert_file", "needs a restart: TLS begins or ends"))
    if in_force.gateway_key != found.gateway_key and before.gateways is not None and after.gateways is not None:
        faults.append(Fault("gateways.key_file", "needs a restart: another key is in force"))
    if faults:
        raise config_error(path, faults, {})


def token_key(path: str) -> bytes:
    """The key that new tokens are made with. Raises: ConfigError."""
    return read_token(_read(path).devices.token_keys[0]).encode()


def _read(path: str) -> CollabConfig:
    try:
        with open(path, "rb") as file:
            return CollabConfig.model_validate(tomllib.load(file))
    except OSError as fault:
        raise ConfigError(f"{path}: {fault.strerror}") from None
    except ValidationError as fault:
        found = [Fault(".".join(str(place)[:80] for place in e["loc"]), said(e)) for e in fault.errors()]
        raise config_error(path, found, {}) from None
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as fault:
        raise ConfigError(f"{path}: {fault}") from None


def _tls(table: HttpTable | None, faults: list[Fault]) -> ssl.SSLContext | None:
    if table is None or table.cert_file is None or table.key_file is None:
        return None
    try:
        return device_context(table.cert_file, table.key_file)
    except ConfigError as fault:
        faults.append(Fault("http.cert_file", str(fault)))
        return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
