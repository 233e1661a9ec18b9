"""The runtime directory: where daemon, helper and local requesters find each other's sockets."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from typing import Final

from offpath.bindings.errors import RegionError

SYSTEM_DIRECTORY: Final = "/run/offpath"
"""Where the daemon of a whole machine lives. Only root can make it, so its owner is whom root chose."""


def runtime_directory(explicit: str | None = None) -> str:
    """The directory of this user's own daemon, made or not. No other user can create it.

    The first of ``explicit``, ``$RUNTIME_DIRECTORY``, ``$XDG_RUNTIME_DIR/offpath``, ``/run/offpath`` (root only),
    ``/run/user/UID/offpath`` (where the system made ``/run/user/UID``), ``~/.local/state/offpath``.
    Raises: RegionError: none of them can be named; this user has no home directory.
    """
    if explicit:
        return explicit
    if given := os.environ.get("RUNTIME_DIRECTORY"):
        return given.split(":")[0]
    if xdg := os.environ.get("XDG_RUNTIME_DIR"):
        return os.path.join(xdg, "offpath")
    uid = os.getuid()
    if not uid:
        return SYSTEM_DIRECTORY
    with contextlib.suppress(OSError):
        if os.lstat(f"/run/user/{uid}").st_uid == uid:
            return f"/run/user/{uid}/offpath"
    home = os.environ.get("HOME", "")
    if not os.path.isabs(home):
        try:
            home = pwd.getpwuid(uid).pw_dir
        except KeyError:
            raise RegionError("no runtime directory: set XDG_RUNTIME_DIR or name one with --runtime-dir") from None
    return os.path.join(home, ".local", "state", "offpath")


def local_socket(name: str, explicit: str | None = None) -> str:
    """Path of the local daemon's socket ``name``: in `runtime_directory`; if there is none and none was asked for
    by ``explicit``, in `SYSTEM_DIRECTORY` where that has one. Raises: RegionError: as `runtime_directory`."""
    own = os.path.join(runtime_directory(explicit), name)
    if explicit or os.path.lexists(own):
        return own
    system = os.path.join(SYSTEM_DIRECTORY, name)
    return system if os.path.lexists(system) else own


def make_runtime_directory(path: str) -> None:
    """Create it with mode 0700, or check that it is a directory of this user that no other user may write to.

    Raises: RegionError: it belongs to another user, is a link, or may be written by others. OSError: it cannot be made.
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
LAST_GOOD = "config.last"
"""The configuration in force, for a restart that finds the sources refused."""
ADMIN_SOCKET = "admin.sock"
CONTROLLER_SOCKET = "controller.sock"
"""An operator's way to a controller."""
INA_FOLDER = "ina"
"""Where ranks of training jobs leave their pages."""
NOTIFY_SOCKET = "notify.sock"
"""Where a service manager hears its daemon."""
