"""The gateway's configuration: where it listens, its daemon, and the tenants that clients are."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Annotated, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from offpath.bindings.errors import TokenRefused
from offpath.bindings.plausible import with_port
from offpath.bindings.tokens import read_token_file
from offpath.bindings.wire.fields import Name
from offpath.host_helper.config_file import read_model, user_numbers
from offpath.host_helper.gateway.anonymous import is_loopback, one_spelling
from offpath.host_helper.gateway.errors import GatewayConfigInvalid

HTTP_LISTEN: Final = "127.0.0.1:8000"
GRPC_LISTEN: Final = "127.0.0.1:8001"
MOST_JSON_BYTES: Final = 4 << 20
"""Of a JSON header, or of a whole body that is JSON. Reading it holds Python's lock, which all tenants share."""
_HEADER_BYTES: Final = 1 << 20
"""Of a header beside the tensors."""
_STRICT: Final = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)
_Path = Annotated[str, Field(min_length=1, max_length=4096)]
_User = Annotated[str, Field(min_length=1, max_length=64)] | Annotated[int, Field(ge=0, le=0xFFFF_FFFE)]
_ADDRESS: Final = re.compile(r"\[[0-9A-Fa-f:.]+\]:[0-9]+|[A-Za-z0-9_.-]+:[0-9]+")


def _listen(address: str) -> str:
    """Raises: ValueError: it is not empty, and no address with a port."""
    if address and _ADDRESS.fullmatch(address) is None:
        raise ValueError("must be HOST:PORT, [ADDRESS]:PORT for IPv6, or empty; 0.0.0.0:PORT is every interface")
    return with_port(address)


def _proxy(address: str) -> str:
    """Raises: ValueError: it is no IP address."""
    try:
        return one_spelling(address)
    except ValueError:
        raise ValueError("must be an IP address, without a port") from None


_Proxy = Annotated[str, Field(max_length=64), AfterValidator(_proxy)]
_Listen = Annotated[str, Field(max_length=256), AfterValidator(_listen)]


class TlsFiles(BaseModel):
    """PEM files. With ``client_ca_file`` a client's certificate, whose URI name is ``offpath://tenant/NAME``, stands in
    the place of a token; over gRPC each client then needs one."""

    model_config = _STRICT
    cert_file: _Path
    key_file: _Path
    client_ca_file: Annotated[str, Field(max_length=4096)] = ""


class DaemonTls(BaseModel):
    """For a daemon at ``tls:HOST:PORT``: its authority, and the tenant's certificate and key."""

    model_config = _STRICT
    ca_file: _Path
    cert_file: _Path
    key_file: _Path
    server_name: Annotated[str, Field(min_length=1, max_length=253)] = "offpathd"


class TenantTable(BaseModel):
    """A tenant: how it proves itself to the daemon, and how its clients do to the gateway."""

    model_config = _STRICT
    name: Name
    token_file: Annotated[str, Field(max_length=4096)] = ""
    """The daemon's token of the tenant; empty: ``tls`` proves it."""
    tls: DaemonTls | None = None
    bearer_files: Annotated[list[_Path], Field(max_length=16)] = []
    """Files with one token each; a client sends one of them. Several: while one is replaced by another."""
    uids: Annotated[list[_User], Field(max_length=64)] = []
    """Users whose objects in /dev/shm the tenant may register; empty: it has no system shared memory."""
    slots: Annotated[int, Field(ge=1, le=1024)] = 64
    """Requests at the daemon at once; more wait here."""
    payload_bytes: Annotated[int, Field(ge=1, le=1 << 40)] = 1 << 20
    result_bytes: Annotated[int, Field(ge=1, le=1 << 40)] = 1 << 20
    """Both are the daemon's defaults: it refuses a session that needs more than its lanes have."""
    max_pending: Annotated[int, Field(ge=1, le=65_536)] = 1024
    """Requests in the gateway at once."""

    @property
    def most_body(self) -> int:
        """The longest body or message of a request: its tensors in binary, or all of it JSON."""
        return max(self.payload_bytes + _HEADER_BYTES, MOST_JSON_BYTES)

    @model_validator(mode="after")
    def _has_a_proof(self) -> Self:
        if bool(self.token_file) == (self.tls is not None):
            raise ValueError("give either token_file or tls")
        return self


class GatewayFile(BaseModel):
    """The TOML file."""

    model_config = _STRICT
    daemon: Annotated[str, Field(max_length=4096)] = ""
    """Address of the daemon, as `Requester` takes it; empty: the local one."""
    http: _Listen = HTTP_LISTEN
    """HOST:PORT, or empty: no HTTP."""
    grpc: _Listen = GRPC_LISTEN
    """HOST:PORT, or empty: no gRPC."""
    tls: TlsFiles | None = None
    """For both. Without it tokens and tensors travel in clear text."""
    connections: Annotated[int, Field(ge=1, le=65_536)] = 1024
    """HTTP connections at once whose clients have sent a valid token."""
    unidentified: Annotated[int, Field(ge=1, le=65_536)] = 256
    """Connections at once without one, of each listener, counted before a handshake."""
    memory_bytes: Annotated[int, Field(ge=1 << 20, le=1 << 42)] = 1 << 30
    """Bodies of HTTP requests held at once. Of several tenants, each has at most half of it. gRPC has as much."""
    idle_s: Annotated[int, Field(ge=1, le=86_400)] = 75
    """After which a connection without a request is closed."""
    grpc_ping_ms: Annotated[int, Field(ge=100, le=7_200_000)] = 500
    """Least time between two pings of a gRPC client, its keep-alive time. One that pings more often loses its calls."""
    grpc_keepalive_s: Annotated[int, Field(ge=10, le=86_400)] = 7200
    """After which a silent gRPC client is pinged; without an answer within 20 s its calls end."""
    grpc_connections: Annotated[int, Field(ge=1, le=65_536)] = 1024
    """gRPC connections at once whose clients have made a call with a valid token."""
    grpc_idle_s: Annotated[int, Field(ge=1, le=86_400)] = 300
    """After which a gRPC connection without a call is closed; its client connects again with its next call."""
    grpc_age_s: Annotated[int, Field(ge=0, le=31_536_000)] = 0
    """After which a gRPC client is to connect again, once its calls have ended; 0: never."""
    anonymous: Annotated[str, Field(max_length=64)] = ""
    """The tenant of clients without a token; empty: they are refused."""
    anonymous_from: Annotated[list[_Proxy], Field(max_length=16)] = []
    """Proxies that authenticate clients: only requests from these addresses need no token. Empty: all from this machine
    need none, and nothing else can reach the gateway."""
    tenant: Annotated[list[TenantTable], Field(min_length=1, max_length=64)]

    @property
    def most_body(self) -> int:
        """The longest body or message of all tenants."""
        return max(tenant.most_body for tenant in self.tenant)

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [tenant.name for tenant in self.tenant]
        if len(set(names)) < len(names):
            raise ValueError("two tenants of one name")
        if self.memory_bytes < 4 * self.most_body:
            raise ValueError("memory_bytes is less than four of the longest bodies")
        if not self.http and not self.grpc:
            raise ValueError("it listens nowhere: give http or grpc")
        return self

    @model_validator(mode="after")
    def _anonymous_is_reached_by_few(self) -> Self:
        if not self.anonymous:
            if self.anonymous_from:
                raise ValueError("anonymous_from without anonymous: name the tenant")
            return self
        if self.anonymous not in [tenant.name for tenant in self.tenant]:
            raise ValueError(f"anonymous: there is no tenant {self.anonymous}")
        reached = [each for each in (self.http, self.grpc) if each and not is_loopback(host_of(each))]
        if reached and not self.anonymous_from:
            raise ValueError(
                f"anonymous: other machines reach {' and '.join(reached)}: listen on 127.0.0.1 only, or give "
                "anonymous_from, the addresses of the proxies that authenticate clients"
            )
        return self


def host_of(listen: str) -> str:
    """The host of an address to listen on, without brackets."""
    return listen.rpartition(":")[0].strip("[]")


def load(path: str) -> GatewayFile:
    """Raises: GatewayConfigInvalid: all faults. No text shows a value."""
    config = read_model(GatewayFile, path, GatewayConfigInvalid)
    for tenant in config.tenant:
        users(tenant.uids, path)
    return config


def users(names: Sequence[str | int], path: str = "uids") -> frozenset[int]:
    """Numbers of the users. Raises: GatewayConfigInvalid: there is no such user."""
    return user_numbers(names, path, GatewayConfigInvalid)


def bearers(tenant: TenantTable) -> list[str]:
    """The tokens of its clients. Raises: GatewayConfigInvalid: a file cannot be used."""
    tokens = []
    for path in tenant.bearer_files:
        try:
            token = read_token_file(os.path.abspath(path))
        except TokenRefused as fault:
            raise GatewayConfigInvalid(f"tenant {tenant.name}: {fault}") from None
        if " " in token:
            raise GatewayConfigInvalid(f"tenant {tenant.name}: {path}: a bearer token has no blank")
        tokens.append(token)
    return tokens
