"""A service manager as its own process: DIRECTORY SETTINGS.json COMMAND…, the daemon's program among them.

Where that is `daemon_main.py`, the fork that would execute it becomes it instead: it has imported the same already, and
a restart takes milliseconds, not a second of a core. Armed faults are read at the import: with them it is executed.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import json
import logging
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import daemon_main  # the script's own folder is first on sys.path

from offpath.dpu_daemon.durability.service_manager import ServiceManager, ServiceManagerSettings

BEFORE = [sys.executable, "-W", "always", str(Path(daemon_main.__file__).resolve())]
"""How the service manager's child executes a daemon."""
ARM = "OFFPATH_FAULTS"
_execute = os.execve


def execute(path: str, command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """`os.execve`, but a daemon runs in this process, which has imported what it needs."""
    if list(command[: len(BEFORE)]) != BEFORE or ARM in os.environ:
        _execute(path, command, environment)
    close_as_exec_does()
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = list(command[len(BEFORE) - 1 :])
    logging.getLogger().handlers.clear()
    end(sys.argv[0])


def close_as_exec_does() -> None:
    """Descriptors that are not for the daemon."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # that of the folder itself
            if fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC:
                os.close(fd)


def end(script: str) -> NoReturn:
    """Run the script and leave as a process does; nothing that the manager would do at its end is done here."""
    code: object = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else code is not None)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: it never outlives the test
    os.execve = execute  # type: ignore[assignment]
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    directory, settings, *command = sys.argv[1:]
    sys.exit(ServiceManager(directory, command, ServiceManagerSettings(**json.loads(settings))).run())
