"""Determines the machine's boot id. A journal of another boot cannot be continued: the memory it refers to is lost.

The kernel's file is hidden if ``/proc`` shows processes only (``ProcSubset=pid``). Therefore the unit passes systemd's
``%b`` in ``OFFPATH_BOOT_ID``; `offpath daemon run --keep` passes an id of its own run. Clocks cannot identify a boot,
because the boot time moves with every step of the wall clock.
"""

from __future__ import annotations

import logging
import os
import secrets
import uuid
from collections.abc import Mapping
from typing import Final

logger = logging.getLogger(__name__)
BOOT_ID: Final = "OFFPATH_BOOT_ID"
KERNELS_FILE: Final = "/proc/sys/kernel/random/boot_id"


def boot_id(environment: Mapping[str, str] = os.environ, kernels_file: str = KERNELS_FILE) -> str:
    """The kernel's boot id, else ``OFFPATH_BOOT_ID``, as 36 characters with dashes. Never raises.

    If neither can be read, the id is random. Then no journal is continued: accepted work is lost at a restart, but two
    boots are never confused.
    """
    known = kernels_boot_id(kernels_file) or _as_id(environment.get(BOOT_ID, ""))
    if known:
        return known
    logger.warning(
        "boot id unknown: neither %s nor %s is readable; accepted requests will not survive a restart",
        kernels_file,
        BOOT_ID,
        extra={"code": "boot_id_unknown"},
    )
    return some_boot_id()


def kernels_boot_id(kernels_file: str = KERNELS_FILE) -> str:
    """The kernel's boot id, or "" if its file is hidden."""
    try:
        with open(kernels_file, encoding="ascii") as file:
            return _as_id(file.read(64))
    except (OSError, UnicodeDecodeError):
        return ""


def some_boot_id() -> str:
    """A random id of the same form."""
    return str(uuid.UUID(bytes=secrets.token_bytes(16)))


def _as_id(text: str) -> str:
    """Normalizes 32 hexadecimal digits with or without dashes; "" for anything else."""
    digits = text.strip().replace("-", "")
    if len(digits) != 32:
        return ""
    try:
        return str(uuid.UUID(hex=digits))
    except ValueError:
        return ""
