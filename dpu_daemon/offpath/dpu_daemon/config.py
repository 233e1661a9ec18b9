"""Configuration of the daemon: a TOML file through one pydantic gate, then frozen records.

All faults are reported at once, each with its key path. "Trust" adds environment, origins and reload.
"""

from __future__ import annotations

import os
import re
import tomllib
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from offpath.bindings.errors import OffpathError
from offpath.sched.jobs.records import MS, BookSettings, PinnedLease, TenantSpec

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{16,256}")
_CREDENTIAL: Final = re.compile(r"\$(?:CREDENTIALS_DIRECTORY|\{CREDENTIALS_DIRECTORY\})/(.*)", re.DOTALL)
TenantName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]


class ConfigError(OffpathError):
    """The configuration cannot be used; the message lists every fault."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TenantTable(_Table):
    """``[[tenant]]``: who may come in, and with how much. Sizes in bytes, shares in percent of a GPU."""

    name: TenantName
    token_file: str | None = None
    uids: list[int] = []
    weight: Annotated[int, Field(ge=1, le=1000)] = 1
    max_sessions: Annotated[int, Field(ge=1, le=4096)] = 64
    max_slots: Annotated[int, Field(ge=1, le=1024)] = 64
    max_bytes: Annotated[int, Field(ge=1)] = 4 << 30
    max_jobs: Annotated[int, Field(ge=1, le=65536)] = 256
    max_share: Annotated[int, Field(ge=14)] = 100_000
    max_demand: Annotated[int, Field(ge=1, le=100)] = 100
    profile: str | None = None


class LeaseTable(_Table):
    """``[[lease]]``: a lease that is opened when the helper joins and stays."""

    tenant: TenantName
    gpu: Annotated[int, Field(ge=0, le=15)] = 0
    profile: str
    start: Annotated[int, Field(ge=0, le=15)] = 0


class LeasingTable(_Table):
    """``[leasing]``: the leasing loop's numbers; see `offpath.sched.jobs.records.BookSettings`."""

    lanes: Annotated[int, Field(ge=1, le=64)] = 2
    landing_bytes: Annotated[int, Field(ge=4096)] = 1 << 20
    result_bytes: Annotated[int, Field(ge=4096)] = 1 << 20
    keep_warm_ms: Annotated[int, Field(ge=0)] = 5000
    grow_after_ms: Annotated[int, Field(ge=1)] = 20
    reclaim_after_ms: Annotated[int, Field(ge=1)] = 100
    min_hold_ms: Annotated[int, Field(ge=0)] = 200


class TlsTable(_Table):
    """``[tls]``: the TCP carrier. Off unless ``listen`` names an address."""

    listen: Annotated[str, StringConstraints(pattern=r"^.+:[0-9]{1,5}$")]
    ca_file: str
    cert_file: str
    key_file: str


class DurabilityTable(_Table):
    """``[durability]``: what outlives the daemon's process. ``journal_mib`` 0 turns the journal off."""

    journal_mib: Annotated[int, Field(ge=0, le=4096)] = 32
    resume_ttl_s: Annotated[int, Field(ge=0, le=3600)] = 60
    """A session whose connection was lost is kept this long for its requester; 0: not at all."""
    adopt_ms: Annotated[int, Field(ge=0, le=600_000)] = 3000
    """How long the helper and its workers may take to come back to a restarted daemon."""


class LimitsTable(_Table):
    """``[limits]``: how long things may take before they count as failed."""

    kernel_ms: Annotated[int, Field(ge=0)] = 600_000
    """Longest run of a kernel; 0: no limit. Past it its worker is killed and the job FAILED."""
    open_ms: Annotated[int, Field(ge=1)] = 30_000
    scrub_ms: Annotated[int, Field(ge=1)] = 30_000
    helper_ms: Annotated[int, Field(ge=100)] = 5000
    """A helper that is silent for so long is lost."""
    drain_ms: Annotated[int, Field(ge=0)] = 30_000
    """What runs may take to finish when the daemon, or a removed tenant, is drained."""


class OperationTable(_Table):
    """``[operation]``: how the daemon shows itself. ``metrics_listen`` HOST:PORT; empty: off."""

    metrics_listen: Annotated[str, StringConstraints(pattern=r"^(|.+:[0-9]{1,5})$")] = ""
    log: Literal["text", "json"] = "text"
    admin_uids: list[int] = []
    """Who may use the admin socket, besides root and the daemon's own user."""


class DaemonConfig(_Table):
    """The whole file."""

    tenant: Annotated[list[TenantTable], Field(min_length=1, max_length=1024)]
    lease: list[LeaseTable] = []
    leasing: LeasingTable = LeasingTable()
    tls: TlsTable | None = None
    durability: DurabilityTable = DurabilityTable()
    limits: LimitsTable = LimitsTable()
    operation: OperationTable = OperationTable()
    host_uids: list[int] = []
    max_jobs: Annotated[int, Field(ge=1, le=1 << 20)] = 65536

    @model_validator(mode="after")
    def _consistent(self) -> DaemonConfig:
        names = [t.name for t in self.tenant]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"tenant named twice: {', '.join(twice)}")
        strangers = sorted({lease.tenant for lease in self.lease} - set(names))
        if strangers:
            raise ValueError(f"lease of an unknown tenant: {', '.join(strangers)}")
        return self

    def tenant_specs(self) -> tuple[TenantSpec, ...]:
        """The tenants as the job book knows them."""
        return tuple(
            TenantSpec(t.name, t.weight, t.max_jobs, t.max_share, t.max_demand, t.profile) for t in self.tenant
        )

    def book_settings(self) -> BookSettings:
        """The leasing loop's numbers in the book's units."""
        table = self.leasing
        return BookSettings(
            lanes=table.lanes,
            landing_bytes=table.landing_bytes,
            result_bytes=table.result_bytes,
            max_jobs=self.max_jobs,
            keep_warm_ns=table.keep_warm_ms * MS,
            grow_after_ns=table.grow_after_ms * MS,
            reclaim_after_ns=table.reclaim_after_ms * MS,
            min_hold_ns=table.min_hold_ms * MS,
        )

    def pins(self) -> tuple[PinnedLease, ...]:
        """Leases that the book opens by itself."""
        return tuple(PinnedLease(lease.tenant, lease.gpu, lease.profile, lease.start) for lease in self.lease)

    def allowed_host_uids(self) -> frozenset[int]:
        """Who may connect as a helper: ourselves and the listed."""
        return frozenset(self.host_uids) | {os.getuid()}


def parse_config(raw: dict[str, Any], where: str) -> DaemonConfig:
    """Raises: ConfigError: every fault with its key path."""
    try:
        return DaemonConfig.model_validate(raw)
    except ValidationError as fault:
        lines = [f"  {'.'.join(str(p) for p in e['loc']) or '(file)'}: {e['msg']}" for e in fault.errors()]
        raise ConfigError(f"{where}:\n" + "\n".join(lines)) from None


def load_config(path: str) -> DaemonConfig:
    """Raises: ConfigError: unreadable, not TOML, or invalid."""
    try:
        with open(path, "rb") as file:
            raw = tomllib.load(file)
    except OSError as fault:
        raise ConfigError(f"{path}: {fault.strerror}") from None
    except tomllib.TOMLDecodeError as fault:
        raise ConfigError(f"{path}: {fault}") from None
    return parse_config(raw, path)


def secret_path(path: str) -> str:
    """``path`` with a leading ``$CREDENTIALS_DIRECTORY/`` (or ``${…}/``) replaced by where the service manager put it.

    Raises: ConfigError: there is no such folder, or the rest is more than a file's name.
    """
    credential = _CREDENTIAL.fullmatch(path)
    if credential is None:
        return path
    folder, name = os.environ.get("CREDENTIALS_DIRECTORY", ""), credential[1]
    if not os.path.isabs(folder):
        raise ConfigError(f"{path}: no service manager has set CREDENTIALS_DIRECTORY (LoadCredential= in the unit)")
    if "/" in name or name in ("", ".", ".."):
        raise ConfigError(f"{path}: {name!r} is no credential's name")
    return os.path.join(folder, name)


def read_token(given: str) -> str:
    """A tenant's token. Raises: ConfigError: unreadable, too short, or readable by others."""
    path = secret_path(given)
    # A manager may let us read a credential by an access list, which shows in the group's bits.
    others = 0o077 if path == given else 0o007
    try:
        with open(path, encoding="ascii") as file:
            if os.fstat(file.fileno()).st_mode & others:
                raise ConfigError(f"{path} may be read by others; chmod 600 it")
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as fault:
        raise ConfigError(f"{path}: {fault}") from None
    if not _TOKEN.fullmatch(token):
        raise ConfigError(f"{path}: a token is 16 to 256 letters, digits, - and _ (`openssl rand -hex 24` makes one)")
    return token
