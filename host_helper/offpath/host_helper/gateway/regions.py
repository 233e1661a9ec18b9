"""System shared memory: objects in /dev/shm that a client registers, reads and writes in place of bytes in messages.

A client can name any object, so a tenant may register only those of its users. Objects are never mapped here: another
process may truncate one at any time, which ends the process that touches the mapping. ``preadv`` and ``pwrite`` cost
the same one copy.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from offpath.host_helper.gateway.errors import Refused, invalid, not_found, too_large, unavailable

FOLDER: Final = "/dev/shm"
MOST_REGIONS: Final = 1024
"""Of one tenant; each holds a descriptor."""
_MOST_NAME: Final = 256
_KEY: Final = re.compile(r"/?[A-Za-z0-9_.+:@%=,~-]{1,255}")


@dataclass(slots=True)
class Region:
    """``nbytes`` from ``offset`` of the object ``key``, which is open as ``fd`` (-1: no more) and belongs to ``uid``.
    ``users``: requests that have it."""

    name: str
    key: str
    offset: int
    nbytes: int
    fd: int
    uid: int
    users: int = 0
    is_leaving: bool = False
    """It is unregistered when the last request gives it back."""
    is_dropped: bool = False
    """It is closed when the last request gives it back."""

    def part(self, offset: int, nbytes: int) -> int:
        """The part's place in the object. Raises: Refused: it is not inside the region."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise invalid(f"Invalid offset + byte size for shared memory region: '{self.name}'")
        return self.offset + offset

    def read_into(self, room: memoryview, at: int) -> None:
        """Fill ``room`` from ``at`` of the object. Raises: Refused: the object has become shorter."""
        done, most = 0, room.nbytes
        try:
            while done < most:
                got = os.preadv(self.fd, [room[done:]], at + done)
                if not got:
                    raise invalid(f"shared memory region '{self.name}' has become shorter")
                done += got
        except OSError as fault:
            raise self._failed(fault) from None

    def write(self, content: memoryview, at: int) -> None:
        """Raises: Refused: the object has become shorter, or memory is short."""
        done = 0
        try:
            if os.fstat(self.fd).st_size < at + content.nbytes:  # a write beyond its end would make it longer
                raise invalid(f"shared memory region '{self.name}' has become shorter")
            while done < content.nbytes:
                done += os.pwrite(self.fd, content[done:], at + done)
        except OSError as fault:
            raise self._failed(fault) from None

    def _failed(self, fault: OSError) -> Refused:
        return Refused(500, "INTERNAL", f"shared memory region '{self.name}': {fault.strerror}")

    def drop(self) -> None:
        """Close it, once no request has it."""
        self.is_dropped = True
        if not self.users and self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Regions:
    """The regions of one tenant, by name. ``uids``: whose objects it may register."""

    def __init__(self, uids: Collection[int], folder: str = FOLDER) -> None:
        self.uids = frozenset(uids)
        self._folder = folder
        self._by_name: dict[str, Region] = {}
        self._is_closed = False

    def allow(self, uids: Collection[int]) -> None:
        """From now on only objects of these users: regions of others are forgotten."""
        self.uids = frozenset(uids)
        for region in [one for one in self._by_name.values() if one.uid not in self.uids]:
            del self._by_name[region.name]
            region.drop()

    def register(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """Raises: Refused: a name that is taken, an object that is not there, not the tenant's or too short."""
        if self._is_closed:
            raise unavailable("the tenant's configuration has changed")
        if not 0 < len(name) <= _MOST_NAME:
            raise invalid(f"the name of a shared memory region has 1 to {_MOST_NAME} characters")
        if name in self._by_name:
            raise Refused(400, "ALREADY_EXISTS", f"shared memory region '{name}' already in manager")
        if len(self._by_name) >= MOST_REGIONS:
            raise too_large(f"a tenant registers at most {MOST_REGIONS} shared memory regions")
        if offset < 0 or nbytes < 0:
            raise invalid(f"Invalid offset + byte size for shared memory region: '{name}'")
        missing = Refused(500, "INTERNAL", f"Unable to open shared memory region: '{key[:_MOST_NAME]}'")
        if not _KEY.fullmatch(key) or key.strip("/") in (".", ".."):
            raise missing
        try:
            fd = os.open(
                os.path.join(self._folder, key.removeprefix("/")),
                os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY,
            )
        except OSError:
            raise missing from None
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_uid not in self.uids:
                raise missing  # as one that is not there: nothing about others' objects is told
            if offset + nbytes > found.st_size:
                raise invalid(f"failed to register shared memory region '{name}': invalid args")
        except BaseException:
            os.close(fd)
            raise
        self._by_name[name] = Region(name, key, offset, nbytes, fd, found.st_uid)

    def borrow(self, name: str) -> Region:
        """For a request, until `give_back`. Raises: Refused: it is not registered."""
        region = self._by_name.get(name)
        if region is None:
            raise not_found(f"Unable to find shared memory region: '{name}'")
        region.users += 1
        return region

    def give_back(self, region: Region) -> None:
        """The request has ended."""
        region.users -= 1
        if region.is_leaving and not region.users and self._by_name.get(region.name) is region:
            del self._by_name[region.name]
            region.drop()
        elif region.is_dropped:
            region.drop()

    def unregister(self, name: str) -> None:
        """An unknown name is no fault. While requests have the region, it keeps its name and serves them and others, as
        in Triton."""
        region = self._by_name.get(name)
        if region is None:
            return
        region.is_leaving = True
        if not region.users:
            del self._by_name[name]
            region.drop()

    def unregister_all(self) -> None:
        """As `unregister`, of each."""
        for name in list(self._by_name):
            self.unregister(name)

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """One region, or all. Raises: Refused: it is not registered."""
        if name and name not in self._by_name:
            raise not_found(f"Unable to find system shared memory region: '{name}'")
        return [
            {"name": one.name, "key": one.key, "offset": one.offset, "byte_size": one.nbytes}
            for one in self._by_name.values()
            if not name or one.name == name
        ]

    def close(self) -> None:
        """Close every object; those that requests have, when the last one ends."""
        self._is_closed = True
        for region in self._by_name.values():
            region.drop()
        self._by_name.clear()
