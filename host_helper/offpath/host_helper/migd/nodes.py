"""Makes the device nodes by which a worker opens its MIG instance: one for the GPU instance, one for the compute
instance, mode 0400, owned by one uid.

The driver gives every local user access to an instance through nodes of its own making (0444). Workers run under
`NoNewPrivileges`, where the driver's setuid helper cannot make nodes at all, so migd makes them before a worker starts.
The minor numbers are those of ``/proc/driver/nvidia-caps/mig-minors``.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from typing import Final

from offpath.bindings.errors import OffpathError

_MOST_BYTES: Final = 1 << 20
_MAJOR: Final = re.compile(r"^ *(\d+) nvidia-caps$", re.MULTILINE)


class NodeUnusable(OffpathError):
    """A capability node cannot be made: the driver lists no such capability, or the kernel refuses the node."""


@dataclass(frozen=True, slots=True)
class CapabilityNodes:
    """Where the nodes are and where the driver lists their numbers."""

    folder: str = "/dev/nvidia-caps"
    minors: str = "/proc/driver/nvidia-caps/mig-minors"
    devices: str = "/proc/devices"

    def make(self, gpu_minor: int, gpu_instance: int, compute_instance: int, uid: int) -> list[str]:
        """Make both nodes for ``uid`` alone, replacing what is there. Idempotent. Raises: NodeUnusable."""
        major = self._major()
        paths = self._paths(gpu_minor, gpu_instance, compute_instance)
        try:
            os.makedirs(self.folder, mode=0o755, exist_ok=True)
            for path, minor in paths:
                _make(path, os.makedev(major, minor), uid)
        except OSError as fault:
            self.remove(gpu_minor, gpu_instance, compute_instance)
            raise NodeUnusable(f"{fault.filename or self.folder}: {fault.strerror or fault}") from None
        return [path for path, _ in paths]

    def remove(self, gpu_minor: int, gpu_instance: int, compute_instance: int) -> None:
        """Remove both nodes: the next instance with these ids must not inherit their owner. Idempotent.

        Raises: NodeUnusable: one exists and cannot be removed.
        """
        try:
            paths = self._paths(gpu_minor, gpu_instance, compute_instance)
        except NodeUnusable:
            return  # no such capability, so no node was made for it
        for path, _ in paths:
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as fault:
                raise NodeUnusable(f"{path} cannot be removed: {fault.strerror or fault}") from None

    def _major(self) -> int:
        found = _MAJOR.search(_read(self.devices))
        if found is None:
            raise NodeUnusable(f"{self.devices} lists no nvidia-caps: the driver has no MIG capabilities")
        return int(found[1])

    def _paths(self, gpu_minor: int, gpu_instance: int, compute_instance: int) -> list[tuple[str, int]]:
        listed = dict(line.split() for line in _read(self.minors).splitlines() if len(line.split()) == 2)
        instance = f"gpu{gpu_minor}/gi{gpu_instance}"
        found = []
        for name in (f"{instance}/access", f"{instance}/ci{compute_instance}/access"):
            minor = listed.get(name, "")
            if not minor.isdecimal():
                raise NodeUnusable(f"{self.minors} lists no {name}")
            found.append((os.path.join(self.folder, f"nvidia-cap{minor}"), int(minor)))
        return found


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read(_MOST_BYTES)
    except (OSError, UnicodeDecodeError) as fault:
        raise NodeUnusable(f"{path}: {fault}") from None


def _make(path: str, device: int, uid: int) -> None:
    """The node is made under another name, so that it never has a wrong owner or mode where workers look for it."""
    new = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    os.mknod(new, stat.S_IFCHR | 0o400, device)
    try:
        os.chown(new, uid, -1, follow_symlinks=False)
        os.replace(new, path)
    except OSError:
        os.unlink(new)
        raise
