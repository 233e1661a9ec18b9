"""A service manager as its own process: DIRECTORY SETTINGS.json COMMAND…, the daemon's program among them."""

from __future__ import annotations

import ctypes
import json
import logging
import sys

from offpath.dpu_daemon.durability.service_manager import ServiceManager, ServiceManagerSettings

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: it never outlives the test
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    directory, settings, *command = sys.argv[1:]
    sys.exit(ServiceManager(directory, command, ServiceManagerSettings(**json.loads(settings))).run())
