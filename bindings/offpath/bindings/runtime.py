"""The runtime directory: where daemon, helper and local requesters find each other's sockets."""

from __future__ import annotations

import os
import stat

from offpath.bindings.errors import RegionError


def runtime_directory(explicit: str | None = None) -> str:
    """``explicit``, else ``$RUNTIME_DIRECTORY``, else ``$XDG_RUNTIME_DIR/offpath``, else ``/tmp/offpath-$UID``."""
    if explicit:
        return explicit
    if given := os.environ.get("RUNTIME_DIRECTORY"):
        return given.split(":")[0]
    if xdg := os.environ.get("XDG_RUNTIME_DIR"):
        return os.path.join(xdg, "offpath")
    return f"/tmp/offpath-{os.getuid()}"


def make_runtime_directory(path: str) -> None:
    """Create it 0700, or check that it is a directory of ours that nobody else may enter.

    Raises: RegionError: it belongs to another user, is a link, or is open to others.
    """
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise RegionError(f"{path} is not a directory")
    if found.st_uid != os.getuid():
        raise RegionError(f"{path} belongs to uid {found.st_uid}, not to us")
    if found.st_mode & 0o022:
        raise RegionError(f"{path} may be written by others (mode {stat.S_IMODE(found.st_mode):o}); chmod 700 it")


NEGOTIATE_SOCKET = "negotiate.sock"
FABRIC_SOCKET = "fabric.sock"
HOST_SOCKET = "host.sock"
JOURNAL = "journal"
ADMIN_SOCKET = "admin.sock"
CONTROLLER_SOCKET = "controller.sock"
"""An operator's way to a controller."""
INA_FOLDER = "ina"
"""Where ranks of training jobs leave their pages."""
NOTIFY_SOCKET = "notify.sock"
"""Where a keeper hears its daemon."""
