"""Saves the configuration in force beside the journal, for a restart that finds the configuration sources refused.

A refused reload leaves a broken file behind. If the daemon then crashes, its sessions and jobs wait in the journal, and
a start that failed at the broken file would lose them. So a start that continues a journal of the same lineage, boot
and build uses the configuration that was in force. A first start does not: nothing would be lost.

The effective values are saved, flags and environment included; for tokens and keys only the names of their files, which
are read again. A tenant whose token file cannot be used is not authenticated by token until the file is repaired.
[tls] is left out while its files cannot be used.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Final

from offpath.bindings.runtime import JOURNAL, LAST_GOOD
from offpath.dpu_daemon.config.faults import ConfigError, Fault
from offpath.dpu_daemon.config.files import file_faults, token_faults
from offpath.dpu_daemon.config.sources import Loaded, Origin, Sources, values
from offpath.dpu_daemon.config.tables import DaemonConfig
from offpath.dpu_daemon.durability.boot import boot_id
from offpath.dpu_daemon.durability.journal.log import our_schema
from offpath.dpu_daemon.durability.journal.ring import identity_of

_MOST_BYTES: Final = 16 << 20


def keep(directory: str, lineage: str, config: DaemonConfig) -> None:
    """Write it atomically, mode 0600. The directory has only one daemon, so the temporary file has a fixed name, and a
    file left by a killed process is overwritten. Raises: OSError."""
    data = json.dumps({"lineage": lineage, "config": config.model_dump(mode="json")}).encode()
    path = os.path.join(directory, LAST_GOOD)
    new = f"{path}.new"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(data)
        os.rename(new, path)
    except BaseException:
        os.unlink(new)
        raise


def kept(directory: str) -> tuple[str, DaemonConfig] | None:
    """(lineage, configuration) as written by `keep`; None: the file is missing, invalid or has an untrusted owner."""
    try:
        fd = os.open(os.path.join(directory, LAST_GOOD), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if (
            not stat.S_ISREG(found.st_mode)
            or found.st_mode & 0o077
            or found.st_uid not in (os.getuid(), _owner(directory))
        ):
            return None
        data = file.read(_MOST_BYTES)
    try:
        record = json.loads(data)
        return str(record["lineage"]), DaemonConfig.model_validate(record["config"])
    except (ValueError, KeyError, TypeError, RecursionError):  # ValidationError is a ValueError
        return None


def _owner(directory: str) -> int:
    """The directory's owner, for root inspecting another user's daemon."""
    return os.stat(directory).st_uid


def read_or_last_good(sources: Sources, directory: str) -> Loaded:
    """The configuration of the sources. If refused, and ``directory`` has a journal to continue, the last good one.

    Raises: ConfigError: the sources are refused, and no journal can be continued.
    """
    try:
        return sources.read()
    except ConfigError as refused:
        record = kept(directory)
        journal = identity_of(os.path.join(directory, JOURNAL))
        if record is None or journal is None or journal.lineage != record[0]:
            raise
        if journal.boot != boot_id() or journal.schema != our_schema():
            raise
        config, warnings = _usable(record[1])
        if config is None:
            raise
        origins = dict.fromkeys((path for path, _ in values(config)), Origin("last good"))
        lines = [str(refused), *(f"  {each.path}: {each.text}" for each in warnings)]
        return Loaded(config, origins, (), "\n".join(lines))


def _usable(config: DaemonConfig) -> tuple[DaemonConfig | None, tuple[Fault, ...]]:
    """The configuration without secrets that cannot be used now; None: the daemon cannot run without them."""
    locked: dict[int, str] = {}
    for at, other, text in token_faults(config):
        locked[at] = text
        if other is not None:  # the token authenticates both tenants: neither is accepted
            locked[other] = text
    tenants = [
        tenant.model_copy(update={"token_file": None}) if at in locked else tenant
        for at, tenant in enumerate(config.tenant)
    ]
    config = config.model_copy(update={"tenant": tenants})
    warnings = [
        Fault(f"tenant.{at}.token_file", f"token authentication is disabled: {text}", tenant=config.tenant[at].name)
        for at, text in sorted(locked.items())
    ]
    faults = list(file_faults(config))
    if any(fault.path == "tls" for fault in faults):
        config = config.model_copy(update={"tls": None})
        warnings += [Fault("tls", f"TLS is disabled: {fault.text}") for fault in faults if fault.path == "tls"]
    rest = [fault for fault in faults if fault.path != "tls"]
    return (None if rest else config), tuple(warnings)
