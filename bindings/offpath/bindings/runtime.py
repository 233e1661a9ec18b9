"""The runtime directory, which holds the sockets of daemon, helper and local requesters."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from typing import Final

from offpath.bindings.errors import RegionError

SYSTEM_DIRECTORY: Final = "/run/offpath"
"""Directory of a system-wide daemon. Only root can create it, so root chose its owner."""


def runtime_directory(explicit: str | None = None) -> str:
    """The directory of this user's own daemon, whether it exists or not. No other user can create it.

    The first of ``explicit``, ``$RUNTIME_DIRECTORY``, ``$XDG_RUNTIME_DIR/offpath``, ``/run/offpath`` (root only),
    ``/run/user/UID/offpath`` (where the system created ``/run/user/UID``), ``~/.local/state/offpath``.

    Raises: RegionError: none of them applies; this user has no home directory.
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


def ina_directory(explicit: str | None = None) -> str:
    """Where ranks of training jobs keep their state files, which the helper reads: ``$OFFPATH_INA_DIRECTORY``, else
    ``ina`` in `runtime_directory` (``explicit``). Raises: RegionError: as `runtime_directory`."""
    return os.environ.get(INA_DIRECTORY) or os.path.join(runtime_directory(explicit), INA_FOLDER)


def local_socket(name: str, explicit: str | None = None) -> str:
    """Path of the local daemon's socket ``name``: in `runtime_directory`; if it is missing there and ``explicit`` is
    unset, in `SYSTEM_DIRECTORY` if that has one. Raises: RegionError: as `runtime_directory`."""
    own = os.path.join(runtime_directory(explicit), name)
    if explicit or os.path.lexists(own):
        return own
    system = os.path.join(SYSTEM_DIRECTORY, name)
    return system if os.path.lexists(system) else own


def make_runtime_directory(path: str) -> None:
    """Create it with mode 0700, or check that it is a directory of this user that no other user may write to.

    Raises: RegionError: it belongs to another user, is a link, or may be written by others. OSError: it cannot be
        created.
    """
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise RegionError(f"{path} is not a directory")
    if found.st_uid != os.getuid():
        raise RegionError(f"{path} belongs to uid {found.st_uid}, not to this user")
    if found.st_mode & 0o022:
        raise RegionError(f"{path} may be written by others (mode {stat.S_IMODE(found.st_mode):o}); chmod 700 it")


NEGOTIATE_SOCKET = "negotiate.sock"
FABRIC_SOCKET = "fabric.sock"
HOST_SOCKET = "host.sock"
JOURNAL = "journal"
LAST_GOOD = "config.last"
"""The configuration in force, for a restart whose sources are refused."""
ADMIN_SOCKET = "admin.sock"
CONTROLLER_SOCKET = "controller.sock"
"""The operator's socket of a controller."""
MANAGER_SOCKET = "manager.sock"
"""The users' socket of a job manager."""
COLLAB_SOCKET = "collab.sock"
"""The socket of a collaboration controller for jobs and operators."""
INA_FOLDER = "ina"
"""In the runtime directory: where ranks of training jobs keep their state files by default."""
INA_DIRECTORY: Final = "OFFPATH_INA_DIRECTORY"
"""The variable that names the directory of `ina_directory`, for a helper and the ranks on its host."""
NOTIFY_SOCKET = "notify.sock"
"""The socket on which a service manager receives its daemon's notifications."""
