"""The ledger: which instances migd created, so that after a restart it tells its own from foreign ones.

One JSON file on a tmpfs, replaced as a whole, so that a reader sees the old or the new one. A record is written before
and after each step on the GPU. Its ``state`` says how far the work can have gone when migd is killed:

| state | the GPU holds |
| --- | --- |
| intended | nothing, or a GPU instance without a compute instance |
| cut | the GPU instance, perhaps with a compute instance |
| ready | the whole instance; the client may have its UUID |
| destroying | the whole instance, perhaps without its compute instance |
| stripped | the GPU instance without a compute instance, or nothing |
| quarantined | the whole or the stripped instance, which could not be destroyed |

Instances do not survive a reboot, so a ledger of another boot is worth nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from offpath.bindings import faults
from offpath.bindings.errors import PlaceUnusable
from offpath.host_helper.migd.protocol import Handle, ProfileName, Slices, Start, Uid, Uuid

logger = logging.getLogger(__name__)
MAX_ENTRIES: Final = 256
KERNELS_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_MAX_BYTES: Final = 1 << 20
State = Literal["intended", "cut", "ready", "destroying", "stripped", "quarantined"]


class Entry(BaseModel):
    """One instance of migd's. ``gpu_instance`` and ``compute_instance`` are -1 until they are known.

    ``kind``: a lease of ``uid``, or part of a layout. ``is_borrowed``: the instance existed before, or is the whole
    GPU: it is never cut or destroyed, only given out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    handle: Handle
    kind: Literal["lease", "layout"]
    uid: Uid
    gpu: Uuid
    profile: ProfileName
    start: Start
    size: Slices
    generation: Annotated[int, Field(ge=1, le=1 << 62)]
    state: State
    is_borrowed: bool = False
    gpu_instance: Annotated[int, Field(ge=-1, le=0xFFFF)] = -1
    compute_instance: Annotated[int, Field(ge=-1, le=0xFFFF)] = -1
    uuid: Annotated[str, Field(max_length=96)] = ""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: Literal[1] = 1
    boot: Annotated[str, Field(max_length=64)]
    generation: Annotated[int, Field(ge=0, le=1 << 62)]
    entries: Annotated[list[Entry], Field(max_length=MAX_ENTRIES)]


def kernels_boot_id(path: str = KERNELS_BOOT_ID) -> str:
    """The kernel's id of this boot. Raises: PlaceUnusable: it cannot be read."""
    try:
        with open(path, encoding="ascii") as file:
            found = file.read(64).strip()
    except (OSError, UnicodeDecodeError) as fault:
        raise PlaceUnusable(f"{path}: {fault}; migd must know the boot that its ledger belongs to") from None
    if not found:
        raise PlaceUnusable(f"{path} is empty; migd must know the boot that its ledger belongs to")
    return found


class Ledger:
    """The entries in memory and in the file, which agree after every call. Calls may come from any thread."""

    def __init__(self, path: str, boot: str) -> None:
        """Read the file, if there is one. An unreadable one is moved aside, and what it listed counts as foreign.

        Raises: PlaceUnusable: the folder cannot be written.
        """
        self._path = path
        self._boot = boot
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._generation = 0
        found = self._read()
        if found is not None and found.boot == boot:
            self._entries = {entry.handle: entry for entry in found.entries}
            self._generation = found.generation
        self._write(self._entries, self._generation)

    def entries(self, gpu: str | None = None) -> list[Entry]:
        """All entries, or those of one GPU, oldest first."""
        with self._lock:
            found = list(self._entries.values())
        return [entry for entry in found if gpu in (None, entry.gpu)]

    def get(self, handle: str) -> Entry | None:
        """The entry with this handle."""
        with self._lock:
            return self._entries.get(handle)

    def next_generation(self) -> int:
        """A number that was not given before in this boot."""
        with self._lock:
            self._write(self._entries, self._generation + 1)
            self._generation += 1
            return self._generation

    def put(self, entry: Entry) -> None:
        """Add or replace an entry. Raises: PlaceUnusable: it was not written, and nothing changed."""
        with self._lock:
            self._store({**self._entries, entry.handle: entry})

    def remove(self, handle: str) -> None:
        """Idempotent. Raises: PlaceUnusable: as `put`."""
        with self._lock:
            if handle in self._entries:
                self._store({key: entry for key, entry in self._entries.items() if key != handle})

    def _store(self, entries: dict[str, Entry]) -> None:
        if len(entries) > MAX_ENTRIES:
            raise PlaceUnusable(f"the ledger holds {MAX_ENTRIES} instances, its limit")
        self._write(entries, self._generation)
        self._entries = entries

    def _read(self) -> _File | None:
        try:
            with open(self._path, "rb") as file:
                text = file.read(_MAX_BYTES)
        except FileNotFoundError:
            return None
        except OSError as fault:
            raise PlaceUnusable(f"{self._path}: {fault.strerror or fault}") from None
        try:
            return _File.model_validate_json(text)
        except ValidationError as fault:
            aside = self._path + ".unreadable"
            logger.warning("ledger unreadable, moved to %s: %s faults", aside, fault.error_count())
            os.replace(self._path, aside)
            return None

    def _write(self, entries: dict[str, Entry], generation: int) -> None:
        text = _File(boot=self._boot, generation=generation, entries=list(entries.values())).model_dump_json().encode()
        new = self._path + ".new"
        try:
            with open(new, "wb", opener=_private) as file:
                file.write(text[: len(text) // 2])
                if faults.armed:
                    file.flush()
                    faults.hit("migd.ledger")
                file.write(text[len(text) // 2 :])
            os.replace(new, self._path)
        except OSError as fault:
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise PlaceUnusable(f"{self._path}: {fault.strerror or fault}") from None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
