"""The last good configuration: what is in force, kept beside the journal for a start that finds the sources refused.

A reload that was refused leaves a broken file behind. If the daemon then crashes, its sessions and jobs wait in the
journal, and a start that ended at the broken file would lose them. So a start that goes on with a journal, of the same
lineage, boot and build, takes the configuration that was in force with it. A first start does not: nothing is lost.

Kept are the effective values, flags and environment included; of tokens and keys only the names of their files. What
is in those files counts as it is now: a tenant whose token file cannot be used is let in by no token until it is
mended, and [tls] is left out while its files cannot be used.
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
    """Write it, mode 0600, whole or not at all. One daemon owns the directory, so the new file has one name: what a
    killed process left is overwritten. Raises: OSError."""
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
    """(lineage, configuration) as `keep` wrote it; None: there is none of this user's that can be read."""
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
    """For root, who looks at another user's daemon."""
    return os.stat(directory).st_uid


def read_or_last_good(sources: Sources, directory: str) -> Loaded:
    """What the sources say; if they are refused and ``directory`` has a journal to go on with, what was in force.

    Raises: ConfigError: the sources are refused, and there is nothing to go on with.
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
        said = [str(refused), *(f"  {each.path}: {each.text}" for each in warnings)]
        return Loaded(config, origins, (), "\n".join(said))


def _usable(config: DaemonConfig) -> tuple[DaemonConfig | None, tuple[Fault, ...]]:
    """Without the secrets that cannot be used now; None: there is no daemon without them."""
    locked: dict[int, str] = {}
    for at, other, text in token_faults(config):
        locked[at] = text
        if other is not None:  # whoever has the token could pass for both: neither is let in
            locked[other] = text
    tenants = [
        tenant.model_copy(update={"token_file": None}) if at in locked else tenant
        for at, tenant in enumerate(config.tenant)
    ]
    config = config.model_copy(update={"tenant": tenants})
    warnings = [
        Fault(f"tenant.{at}.token_file", f"nobody is let in by a token: {text}", tenant=config.tenant[at].name)
        for at, text in sorted(locked.items())
    ]
    faults = list(file_faults(config))
    if any(fault.path == "tls" for fault in faults):
        config = config.model_copy(update={"tls": None})
        warnings += [Fault("tls", f"not served: {fault.text}") for fault in faults if fault.path == "tls"]
    rest = [fault for fault in faults if fault.path != "tls"]
    return (None if rest else config), tuple(warnings)
