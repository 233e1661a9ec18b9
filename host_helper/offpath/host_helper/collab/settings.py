"""Where the collaboration controller is, and the attributes of nodes: the TOML file that ``OFFPATH_COLLAB`` names."""

from __future__ import annotations

import os
import tomllib
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from offpath.bindings.errors import OptionRefused
from offpath.bindings.invalid import listed
from offpath.bindings.plausible import with_port
from offpath.bindings.tokens import read_token_file
from offpath.bindings.wire.collab import Labels, Numbers, Versions
from offpath.bindings.zeromq.keys import read_public, read_secret

VARIABLE: Final = "OFFPATH_COLLAB"
_MOST_BYTES: Final = 16 << 20
_MOST_NODES: Final = 100_000
FilePath = Annotated[str, StringConstraints(max_length=4096, pattern=r"^/[^\x00]*$")]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class NodeTable(_Table):
    """A node's attributes."""

    numbers: Numbers = {}
    versions: Versions = {}
    labels: Labels = []


class Settings(_Table):
    """``gateway``: the controller's address for gateways, with its public key ``server_key`` and the own secret key
    ``key_file`` (`offpath keys NAME` makes a pair). ``token_key``: the file with which the controller makes the tokens
    of devices. A node's name as a device is ``prefix``, a hyphen and its number. ``node``: attributes of nodes, by
    number; others are queried, and ``attributes`` is a file in which their answers are kept for all jobs of this user.
    ``patience_s``: so long a controller may not answer before a round is sampled without it."""

    gateway: Annotated[str, StringConstraints(pattern=r"^tcp://.+:[0-9]{1,5}$"), AfterValidator(with_port)]
    server_key: FilePath
    key_file: FilePath
    token_key: FilePath
    runtime_dir: FilePath | None = None
    prefix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "node"
    patience_s: Annotated[float, Field(gt=0, le=86_400)] = 30.0
    poll_s: Annotated[float, Field(ge=0.05, le=600)] = 1.0
    """Between two check-ins of a node that gets nothing, at least."""
    attributes: FilePath | None = None
    node: Annotated[dict[str, NodeTable], Field(max_length=_MOST_NODES)] = {}

    def keys(self) -> tuple[bytes, bytes, bytes]:
        """The controller's public key, the own secret key, the key of tokens. Raises: OptionRefused, KeyFileRefused."""
        return read_public(self.server_key), read_secret(self.key_file), read_token_file(self.token_key).encode()


def load() -> Settings | None:
    """None: ``OFFPATH_COLLAB`` is not set. Raises: OptionRefused: the file is unreadable or invalid, with faults."""
    path = os.environ.get(VARIABLE, "")
    return read(path) if path else None


def read(path: str) -> Settings:
    """Raises: as `load`."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise OptionRefused(f"{VARIABLE}: {path} has more than {_MOST_BYTES >> 20} MiB")
        return Settings.model_validate(tomllib.loads(data.decode()))
    except OSError as fault:
        raise OptionRefused(f"{VARIABLE}: {path}: {fault.strerror}") from None
    except ValidationError as fault:
        raise OptionRefused(f"{VARIABLE}: {path}: {'; '.join(listed(fault))}"[:1000]) from None
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as fault:
        raise OptionRefused(f"{VARIABLE}: {path}: {fault}"[:400]) from None
